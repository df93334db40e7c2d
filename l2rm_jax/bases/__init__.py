"""Descriptions of pretrained transformers: their sizes, and the names of their arrays in files.

A **base** is a pretrained transformer in front of an encoder of the retrieval model.
`architecture` reads its sizes from a `config.json`, `preparation` reads how it wants its pictures,
and `arrays` says where each array of a weight file belongs in our parameters. `data.pretrained`
reads the files and `models.pretrained` computes; both use these descriptions, and neither needs the
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
