"""Pretrained transformers in front of the encoders: BERT, and both sides of CLIP and SigLIP.

`blocks` has the layers, which all of them share; `text` and `vision` have what is before and after
the layers; `pixels` turns stored pictures into numbers. `README.md` in this folder is the page for
users. May import `bases` and, of `models`, `layers`.
"""

from l2rm_jax.models.pretrained.text import TextTransformer
from l2rm_jax.models.pretrained.vision import VisionTransformer

__all__ = ["TextTransformer", "VisionTransformer"]
