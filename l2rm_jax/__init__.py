"""Image-text retrieval learned from noisy pairs, in JAX."""

__version__ = "0.1.0"
