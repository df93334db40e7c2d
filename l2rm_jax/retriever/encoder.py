"""The encoder of imported data: a run keeps it, to encode captions and pictures as in training."""

from collections.abc import Mapping, Sequence
from typing import Any

from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.pictures import upright_pictures
from l2rm_jax.errors import DataError
from l2rm_jax.pretrained.feature_encoder import PIXELS, Encoder

# Hint for captions that are text, when no encoder is known.
WITH_ENCODER = "l2rm import --source=pairs.csv --encoder=transformers:DIR --out=D"


def check_encoder(gallery: str, record: Mapping[str, Any] | None, own: Any, run: str) -> None:
    """Check that a directory was encoded like the training data of a run, if both record it.

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
            f"{gallery}: found pictures encoded by {found['model']}, expected the encoder of "
            f"{run}, {expected['model']}"
        )


def _identity(described: Mapping[str, Any]) -> Any:
    """Return the part of an encoder's description that determines the features."""
    if described.get("kind") == PIXELS:
        return {name: value for name, value in described.items() if name != "model"}
    return described["weights"]


def encode_texts(encoder: Mapping[str, Any], texts: Sequence[str], run: str) -> RegionFeatures:
    """Encode captions by the encoder that made the training captions of a run.

    Raises:
      DataError: there is no such encoder for captions, or its weights have changed.
      L2RMError: the encoder cannot be loaded.
    """
    if encoder.get("captions") is None:
        raise DataError(f"captions: found text, expected vectors, for {run}", hint=WITH_ENCODER)
    made = _load(encoder, "captions", "tokens", run)
    vectors, lengths = made.encode_captions(list(texts))
    return RegionFeatures.from_array(vectors, "captions", lengths, vector="word")


def encode_pictures(
    encoder: Mapping[str, Any] | None, pictures: Sequence[Any], run: str
) -> RegionFeatures:
    """Encode pictures by the encoder that made the training features of a run.

    Args:
      encoder: the encoder in the `dataset.json` of the run; None if it was trained on features
        from elsewhere.
      pictures: Pillow pictures, or names of files.
      run: name of the run.

    Raises:
      DataError: there is no such encoder, its weights have changed, or pictures are unreadable.
      L2RMError: the encoder cannot be loaded.
    """
    if not (encoder and encoder.get("images")):
        raise DataError(
            f"images: found pictures, expected features, as {run} has no record of its encoder"
        )
    upright = upright_pictures(pictures)  # before an encoder is loaded
    made = _load(encoder, "images", "patches", run)
    return RegionFeatures.from_array(made.encode_images(upright), "images")


def _load(encoder: Mapping[str, Any], side: str, in_tokens: str, run: str) -> Encoder:
    """Load the encoder of a run, and check that the weights of a side are still the same.

    `in_tokens` is the kind of features of this side if the import was made with tokens.
    """
    from l2rm_jax.run.choose_encoder import make_encoder

    known = encoder[side]
    made = make_encoder(encoder["name"], "patches" if known["kind"] == in_tokens else None)
    now = made.describe()[side]
    if now["weights"] != known["weights"]:
        raise DataError(
            f"{run}: found changed weights of {now['model']}, expected the weights that encoded "
            f"its {side}"
        )
    return made
