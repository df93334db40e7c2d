"""Grade captions by those of similar trusted images, their witnesses.

If similar images have similar captions, the caption probably describes its image. The image itself
needs no caption, so captions of a model can be graded. The information finds mismatched pairs
better; people agree more with this score.
"""

import json
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float16, Float32, Int, UInt64

from l2rm_jax.data.files import open_arrays, replace_arrays
from l2rm_jax.data.pairs import SUSPICIOUS, Pairs
from l2rm_jax.judging.content_keys import Keys
from l2rm_jax.linear.cca import Cca
from l2rm_jax.linear.rows import unit_rows

WITNESSES_FILE = "witnesses.npz"
_IMAGES, _EACH = 5000, 5  # most images, and captions of each
_NEAREST = 50  # images that are asked; there must be more
_SHOWN = 3  # of these a caption each is shown to a person
_CHARACTERS = 300  # of a caption that is shown
_TEMPERATURE = 0.05  # of their weights
_BLOCK = 128  # images, and pairs; a block is filled up, so that scores depend on one pair alone


class Witnesses(NamedTuple):
    """W trusted images, each with five captions; fewer captions are repeated.

    Attributes:
      keys: [W] hashes of the images.
      codes: [W, components] of the images, by the model of the first fold.
      mean: [dc] mean of the captions' vectors.
      captions: [W, 5, dc] vectors without the mean, of unit length.
      texts: of the captions, five per image, cut after 300 characters; () if they are not known.
    """

    keys: UInt64[np.ndarray, " W"]
    codes: Float16[np.ndarray, "W components"]
    mean: Float32[np.ndarray, " dc"]
    captions: Float16[np.ndarray, "W 5 dc"]
    texts: tuple[str, ...]


def find_witnesses(
    model: Cca, pairs: Pairs, keys: Keys, posterior: Float[np.ndarray, " pairs"]
) -> Witnesses | None:
    """Return the witnesses among judged pairs: images with the smallest hashes and their captions.

    None if hardly any image is trusted.

    Args:
      model: of the first fold.
      pairs: the pairs, as vectors.
      keys: content hashes.
      posterior: probability that each pair is mismatched; suspicious captions are no witnesses.
    """
    trusted = np.flatnonzero(posterior <= SUSPICIOUS)
    key = keys.image[pairs.image_of[trusted]]
    trusted = trusted[np.lexsort((keys.caption[trusted], key))]
    key, first, count = np.unique(np.sort(key), return_index=True, return_counts=True)
    if len(key) <= _NEAREST:
        return None
    rows = first[:_IMAGES, None] + np.arange(_EACH) % count[:_IMAGES, None]
    rows = trusted[rows]
    vectors = np.asarray(pairs.captions[rows.ravel()], np.float32)
    mean = vectors.mean(axis=0)
    said = unit_rows(vectors - mean).reshape(*rows.shape, -1).astype(np.float16)
    codes = model.encode_images(pairs.images[pairs.image_of[rows[:, 0]]])
    known = pairs.texts
    texts = () if known is None else tuple(known[row][:_CHARACTERS] for row in rows.ravel())
    return Witnesses(key[:_IMAGES], np.asarray(codes, np.float16), mean, said, texts)


def likeness(
    witnesses: Witnesses, model: Cca, pairs: Pairs, key: UInt64[np.ndarray, " images"]
) -> tuple[Float32[np.ndarray, " pairs"], Int[np.ndarray, "pairs 3"]]:
    """Return how well each caption agrees with the captions of images similar to its image.

    The most similar images, without the image itself, are weighted by a softmax of their cosines;
    of each, the caption counts that is most similar to the pair's. These captions of the three most
    similar images are returned too, as places of `Witnesses.texts`.

    Args:
      witnesses: trusted images with captions.
      model: of the first fold.
      pairs: the pairs, as vectors.
      key: hash of each image.
    """
    found, shown = np.empty(len(pairs), np.float32), np.empty((len(pairs), _SHOWN), np.int32)
    codes, said = jnp.asarray(witnesses.codes, jnp.float32), jnp.asarray(witnesses.captions)
    order = np.argsort(pairs.image_of, kind="stable")
    images, first = np.unique(pairs.image_of[order], return_index=True)
    ends = np.append(first[1:], len(order))
    for start in range(0, len(images), _BLOCK):
        some = images[start : start + _BLOCK]
        of_images = np.asarray(pairs.images[_filled(some)], np.float32)
        similar = np.array(_cosines(of_images, model, codes))[: len(some)]
        similar[key[some, None] == witnesses.keys] = -np.inf
        near = np.sort(np.argpartition(-similar, _NEAREST, axis=1)[:, :_NEAREST], axis=1)
        similar = np.take_along_axis(similar, near, axis=1)
        highest = np.argsort(-similar, axis=1, kind="stable")[:, :_SHOWN]
        rows = order[first[start] : ends[start + len(some) - 1]]
        for place in range(0, len(rows), _BLOCK):
            at = rows[place : place + _BLOCK]
            block = _filled(at)
            image = np.searchsorted(some, pairs.image_of[block])
            captions = unit_rows(np.asarray(pairs.captions[block], np.float32) - witnesses.mean)
            asked = near[image]
            values, best = map(np.asarray, _weighted(said, similar[image], captions, asked))
            places = np.take_along_axis(asked * _EACH + best, highest[image], axis=1)
            found[at], shown[at] = values[: len(at)], places[: len(at)]
    return found, shown


def _filled(rows: Int[np.ndarray, " n"]) -> Int[np.ndarray, " block"]:
    """Return a whole block of rows, of which the last one is repeated."""
    return np.pad(rows, (0, _BLOCK - len(rows)), mode="edge")


@jax.jit
def _cosines(images: jax.Array, model: Cca, codes: jax.Array) -> jax.Array:
    own = model.encode_images(images)
    return jnp.matmul(own, codes.T, precision="highest")


@jax.jit
def _weighted(
    said: jax.Array, similar: jax.Array, captions: jax.Array, near: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the mean over near images of the highest cosine with their captions, and its place."""

    def of_pair(
        pair: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array]:
        similar, caption, near = pair
        cosines = jnp.matmul(said[near].astype(jnp.float32), caption, precision="highest")
        weights = jax.nn.softmax(similar / _TEMPERATURE)
        return jnp.sum(weights * cosines.max(axis=1)), cosines.argmax(axis=1)

    # On a CPU, all pairs at once would not fit its cache.
    at_once = None if jax.default_backend() == "cpu" else len(near)
    return jax.lax.map(of_pair, (similar, captions, near), batch_size=at_once)


def write_witnesses(path: Path, witnesses: Witnesses) -> None:
    """Write witnesses to one file, which appears when it is complete."""
    replace_arrays(path, witnesses._asdict() | {"texts": np.array(json.dumps(witnesses.texts))})


def open_witnesses(path: Path) -> Witnesses:
    """Open the witnesses that an audit has kept.

    Raises:
      DataError: the file is damaged.
    """
    with open_arrays(path, "witnesses of a kept judge", "remove it to judge without") as file:
        witnesses = Witnesses(*(file[name] for name in Witnesses._fields))
        return witnesses._replace(texts=tuple(json.loads(str(witnesses.texts))))
