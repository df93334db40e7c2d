"""Descriptions of pretrained transformers: their sizes, and the names of their arrays in files.

A **base** is a pretrained transformer in front of an encoder of the retrieval model.
`architecture` reads its sizes from a `config.json`, `preparation` the preprocessing of its
pictures, and `arrays` maps the arrays of a weight file to our parameters. `data.pretrained` reads
the files and `models.pretrained` computes; both use these descriptions and are independent of each
other. May import `errors`.
"""

from l2rm_jax.bases.architecture import (
    KINDS,
    Bases,
    ImageBase,
    PieceIds,
    Stack,
    TextBase,
    read_image_base,
    read_text_base,
    with_dropout,
)
from l2rm_jax.bases.preparation import Preparation, read_preparation

__all__ = [
    "KINDS",
    "Bases",
    "ImageBase",
    "PieceIds",
    "Preparation",
    "Stack",
    "TextBase",
    "read_image_base",
    "read_preparation",
    "read_text_base",
    "with_dropout",
]
