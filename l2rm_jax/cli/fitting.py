"""Choose a config for an imported directory without `--config`: the recipe, or head and sizes."""

from typing import Any

from l2rm_jax.config import epoch_fields
from l2rm_jax.data.encoders.pixels import PIXELS

RECIPE = "recipes:linear"  # config of a run that names no method or head
_BATCH = 128  # the default; small data get smaller batches
_STEPS = 8  # steps that an epoch should have at least


def fitting_fields(record: dict[str, Any], in_one_space: bool = False) -> dict[str, Any]:
    """Config fields for a method or a head of the user's own, by the kind and size of the data.

    A caption of one vector has no words to compare with regions, so the head is `vse`, as for
    pictures, whose encoder has a vector of its own; words get `saf`. Sizes suit a CPU.

    Args:
      record: the `dataset.json`.
      in_one_space: whether a pretrained model encodes both sides, and no head is named. The run
        then begins at that model's own similarity.
    """
    is_single = record["captions"].get("vectors") == 1 or record["images"].get("kind") == PIXELS
    vectors = {"model.text_states": "vector", "model.image_states": "vector"}
    return {
        "model.head": "vse" if is_single else "saf",
        "model.embed_dim": 0 if in_one_space else 256,
        **(vectors if in_one_space else {}),
        "model.sim_dim": 64,
        "optim.learning_rate": 5e-4,
        "optim.decay_epochs": 6,
        "train.batch_size": fitting_batch(record, _BATCH),
        **epoch_fields(warmup=4, epochs=8),
    }


def fitting_batch(record: dict[str, Any], largest: int) -> int:
    """Half of `largest`, or half of that, and so on, until an epoch has several steps."""
    batch = largest
    while batch > 8 and batch * _STEPS > record["splits"]["train"]["captions"]:
        batch //= 2
    return batch


def describe_fit(record: dict[str, Any], choice: str, batch: int) -> str:
    """Describe the data and the choice in one line."""
    images, captions = record["images"], record["captions"]
    words = f"{_sets(captions)} per caption" if "vectors" in captions else "captions of words"
    return (
        f"{_images(images)}, {words}: {choice}, batches of {batch}; --config=NAME chooses otherwise"
    )


def _images(form: dict[str, Any]) -> str:
    if form.get("kind") == PIXELS:
        return f"pictures of {form['size']} x {form['size']} pixels"
    return f"{_sets(form)} of {form['dimensions']} per image"


def _sets(form: dict[str, Any]) -> str:
    return "1 vector" if form["vectors"] == 1 else f"{form['vectors']} vectors"
