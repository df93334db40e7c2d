"""Reading of image-caption pairs: features, captions, mismatch and batches (NumPy, host side)."""
