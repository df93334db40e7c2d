"""The encoder of imported data: a run remembers it, so that texts can be encoded as in training."""

from collections.abc import Mapping, Sequence
from typing import Any

from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.importing.encoders.pixels import PIXELS
from l2rm_jax.errors import DataError


def check_encoder(gallery: str, record: Mapping[str, Any] | None, own: Any, run: str) -> None:
    """Check that a directory was encoded as the training data of a run, as far as both say how.

    Args:
      gallery: name of its features.
      record: its `dataset.json`; None without.
      own: the encoder in the `dataset.json` of the run; None without.
      run: name of the run.

    Raises:
      DataError: the model of the pictures differs.
    """
    found = record and record["encoder"] and record["encoder"].get("images")
    expected = own and own.get("images")
    if found and expected and _identity(found) != _identity(expected):
        raise DataError(
            f"{gallery}: its pictures were encoded by {found['model']}, expected the encoder of "
            f"{run}, {expected['model']}"
        )


def _identity(described: Mapping[str, Any]) -> Any:
    """The part of an encoder's description that the features depend on."""
    if described.get("kind") == PIXELS:
        return {name: value for name, value in described.items() if name != "model"}
    return described["weights"]


def encode_texts(encoder: Mapping[str, Any], texts: Sequence[str], run: str) -> RegionFeatures:
    """Encode captions by the encoder that made the training captions of a run.

    Args:
      encoder: the encoder in the `dataset.json` of the run.
      texts: the captions.
      run: name of the run.

    Raises:
      DataError: there is no such encoder for captions, or its weights are others now.
      L2RMError: the encoder cannot be loaded.
    """
    from l2rm_jax.run.encoders import make_encoder

    known = encoder.get("captions")
    if known is None:
        raise DataError(f"captions: found text, expected vectors, for {run}")
    with_tokens = known["kind"] == "tokens"
    made = make_encoder(encoder["name"], "patches" if with_tokens else None)
    now = made.describe()["captions"]
    if now["weights"] != known["weights"]:
        raise DataError(
            f"{run}: {now['model']} has other weights now than when its captions were encoded"
        )
    vectors, lengths = made.encode_captions(list(texts))
    return RegionFeatures.from_array(vectors, "captions", lengths, vector="word")
