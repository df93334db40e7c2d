"""Pretrained transformers in front of the encoders: BERT, and both sides of CLIP and SigLIP.

`blocks` has the layers that all of them share; `text` and `vision` add their inputs and outputs.
`README.md` in this folder is the page for users. May import the descriptions in `pretrained` and,
from `models`, `layers`.
"""

from l2rm_jax.models.pretrained.text import TextTransformer
from l2rm_jax.models.pretrained.vision import VisionTransformer

__all__ = ["TextTransformer", "VisionTransformer"]
