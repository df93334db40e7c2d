"""A data set of vectors from one of regions and captions: frozen encoders on both sides.

python -m experiments.papers.vectors --path=DIR --encoder=BERT_DIR --out=VECTORS
l2rm --config=flickr8k:vectors --data=VECTORS

Images are pooled as cross-fitting pools them (`l2rm_jax/linear/set_features.py`), fitted to the
training images without any caption. Captions are encoded by a pretrained encoder in a directory,
such as all-MiniLM-L6-v2, by our own code. Both are float16. A run on vectors takes a minute or two.
"""

import shutil
from pathlib import Path

import numpy as np
from jaxtyping import Float16

from experiments.script import new_parser, start
from l2rm_jax.console import progress_bar
from l2rm_jax.data.captions import read_captions
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.jobs.files import new_directory
from l2rm_jax.linear.rows import padded_blocks
from l2rm_jax.linear.set_features import Pooling, fit_pooling, pooled_vectors
from l2rm_jax.pretrained.directory import open_pretrained, read_kind
from l2rm_jax.pretrained.tokenizer import Pieces
from l2rm_jax.run.frozen_encoder import FrozenCaptions

SPLITS = ("train", "dev", "test")
BLOCK = 256  # images or captions at once
MOST_TOKENS = 64  # of a caption


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--path", required=True, type=Path, help="SPLIT_ims.npy and SPLIT_caps.txt")
    parser.add_argument("--encoder", required=True, help="directory of a pretrained encoder")
    parser.add_argument("--out", required=True, type=Path, help="the new directory")
    arguments = parser.parse_args()
    opened = open_pretrained(arguments.encoder, read_kind(arguments.encoder), max_words=MOST_TOKENS)
    encoder = FrozenCaptions(opened.bases.text, opened.parameters()["text_base"], vector=True)
    with new_directory(arguments.out) as out:
        write_pooled(arguments.path, out)
        for name in SPLITS:
            captions = read_captions(arguments.path, name)
            np.save(out / f"{name}_caps.npy", encoded(captions, opened.pieces, encoder))
            shutil.copyfile(arguments.path / f"{name}_caps.txt", out / f"{name}_caps.txt")


def write_pooled(path: Path, out: Path) -> None:
    """Write one vector of each image of the splits in `path`."""
    images = {name: RegionFeatures.read(path / f"{name}_ims.npy") for name in SPLITS}
    train = images["train"]
    pooling = fit_pooling(lambda k: (train.rows(k), train.region_counts(k)), len(train))
    for name in SPLITS:
        np.save(out / f"{name}_ims.npy", pooled(images[name], pooling))


def pooled(images: RegionFeatures, pooling: Pooling) -> Float16[np.ndarray, "images d"]:
    """Return one vector of each image."""
    vectors = np.empty((len(images), pooling.rotation.shape[1]), np.float16)
    for rows, filled in padded_blocks(np.arange(len(images)), BLOCK):
        sets = images.rows(rows), images.region_counts(rows)
        vectors[rows[:filled]] = np.asarray(pooled_vectors(*sets, pooling))[:filled]
    return vectors


def encoded(
    captions: list[str], pieces: Pieces, encoder: FrozenCaptions
) -> Float16[np.ndarray, "J d"]:
    """Return one vector of each caption."""
    blocks = encoder.blocks(pieces.encode_all(captions), BLOCK)
    vectors = None
    with progress_bar(len(captions), "captions") as bar:
        for rows, states, _ in blocks:
            if vectors is None:
                vectors = np.empty((len(captions), states.shape[2]), np.float16)
            vectors[rows] = states[:, 0]
            bar.update(len(rows))
    return vectors


if __name__ == "__main__":
    start(main)
