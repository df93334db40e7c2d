"""Errors raised on purpose: each message says where, what was found and what was expected."""


class L2RMError(Exception):
    """Base of every error raised on purpose by this library."""


class DataError(L2RMError, ValueError):
    """A data file, or an array given in its place, is not what it should be."""


class ConfigError(L2RMError, ValueError):
    """A configuration field is unknown, out of range, or contradicts another."""


class DivergedError(L2RMError, ArithmeticError):
    """The numbers of a run are no longer finite, so there is nothing to go on from."""


class CheckpointError(L2RMError, RuntimeError):
    """A checkpoint or a run directory cannot be used as asked."""
