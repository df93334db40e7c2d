"""Version of the package; the build reads it from here."""

__version__ = "0.2.0"
