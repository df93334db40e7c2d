"""Describe the length of a run, and of an epoch on a CPU before minutes of compilation."""

from ml_collections import ConfigDict

from l2rm_jax.devices.work import operations_per_second

VSE = "vse"  # the fastest head
_LEAST = 60.0  # seconds of an epoch from which on its time is said
_SMALL = 5e9  # parameters x pairs of an epoch, up to which it takes seconds whatever the model
_UNITS = ((3600.0, "hours"), (60.0, "minutes"))


def describe_epochs(config: ConfigDict, total: int) -> str:
    """Describe the length of a run: "7 epochs (5 warm-up + 2)".

    Args:
      config: config of the run.
      total: number of epochs, which a method may fix.
    """
    warmup, epochs = config.train.warmup_epochs, config.train.epochs
    parts = f" ({warmup} warm-up + {epochs})" if warmup and total == warmup + epochs else ""
    return f"{total} epoch{'' if total == 1 else 's'}{parts}"


def is_short(parameters: int, pairs: int) -> bool:
    """Return whether an epoch is so short that its operations need not be counted."""
    return parameters * pairs <= _SMALL


def describe_epoch_time(config: ConfigDict, operations: float, steps: int, images: int) -> str:
    """Return a line on the time of an epoch and on the fields that shorten it; "" below a minute.

    The time is a lower bound: of the matrix products alone, at the speed of large ones.

    Args:
      config: config of the run.
      operations: floating-point operations of a step (`devices.work.count_operations`).
      steps: number of steps of the epoch.
      images: number of training images.
    """
    seconds = steps * operations / operations_per_second()
    if seconds < _LEAST:
        return ""
    size, unit = next(each for each in _UNITS if seconds >= each[0])
    model = config.model
    fields = [f"data.train_images (now {images:,})", f"model.embed_dim ({model.embed_dim:,})"]
    if model.head != VSE:
        fields.append(f"model.head ({model.head}; {VSE} is the fastest)")
    return (
        f"an epoch of {steps:,} steps will take at least {seconds / size:.1f} {unit} on this CPU; "
        f"fields that make it smaller: {', '.join(fields)}"
    )
