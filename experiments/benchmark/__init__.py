"""The benchmark: methods on the same data, protocol, head, seeds and number of networks."""

__all__: list[str] = []
