"""Choose the config of a command line, by name or to fit its data, and set its fields."""

import ast
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from l2rm_jax import config as defaults
from l2rm_jax.cli.mistakes import unknown_field_flag_error, value_error
from l2rm_jax.cli.parse import KINDS, PREFIX, parse_value
from l2rm_jax.config import FIELDS, epoch_fields, flat
from l2rm_jax.data.drawn_splits import SHARES
from l2rm_jax.data.layouts.precomp import has_pixels
from l2rm_jax.data.record import BY_RUN, read_record
from l2rm_jax.errors import ConfigError, expand_home
from l2rm_jax.pretrained.directory import read_kind
from l2rm_jax.pretrained.feature_encoder import PIXELS
from l2rm_jax.run.config_file import CONFIG_FILE, load_config, read_config, with_changes

_log = logging.getLogger(__name__)

RECIPE = "recipes:linear"  # config of a run that names no method or head
_BATCH = 128  # the default; small data get smaller batches
_STEPS = 8  # steps that an epoch should have at least
# Fields by which a user names models of their own, which the recipe's sizes do not fit.
_MODEL_FIELDS = frozenset(
    ("method", "model.head", "model.text_encoder", "model.image_encoder", "judgement.detector")
)


def choose_config(
    name: str | None, values: dict[str, Any], fields: Mapping[str, list[str | None]]
) -> tuple[ConfigDict, dict[str, Any], bool]:
    """Choose the config; return it, the changed fields, and whether it is the built-in one.

    Args:
      name: the value of `--config`; None without one.
      values: values of the flags; `data`, `pretrained` and `by` are taken out.
      fields: values of the fields as they were written, by name.

    Raises:
      ConfigError: a field does not exist or has a wrong value, or the config cannot be read.
    """
    fields = {key: [*map(_read_path(key), texts)] for key, texts in fields.items()}
    located = _locate_data(values.pop("data", None))
    path = located.get("data.path", fields.get("data.path", [None])[-1])
    encoder = _pretrained_fields(values.pop("pretrained", None), path)
    by = {"audit.by": values.pop("by")} if values.get("by") is not None else {}
    named = {**fields, **{key: [text] for key, text in encoder.items()}}
    base, is_built_in = _base_config(name, values.get("workdir"), named, path)
    changes = _merge(_field_values(fields, flat(base)), located, "data")
    changes = _merge(_merge(changes, encoder, "pretrained"), by, "by")
    return with_changes(base, changes), changes, is_built_in


def _read_path(key: str) -> Callable[[str | None], str | None]:
    """The function that reads the value of a field which is a path."""
    is_path = key in FIELDS and FIELDS[key].is_path
    return lambda text: expand_home(text) if is_path and text else text


def _locate_data(value: str | None) -> dict[str, str]:
    """The fields that `--data=DIR` or `--data=DIR:SPLIT` sets."""
    if value is None:
        return {}
    if ":" not in value or Path(value).is_dir():
        return {"data.path": value}
    directory, _, split = value.rpartition(":")
    if not (directory and split):
        raise value_error("--data", value, "DIR or DIR:SPLIT")
    return {"data.path": directory, "data.test_split": split}


def _pretrained_fields(directory: str | None, data: str | None) -> dict[str, str]:
    """The fields that `--pretrained=DIR` sets: the directory and the encoders.

    A CLIP or SigLIP reads the images where the data have pictures.
    """
    if directory is None:
        return {}
    kind = read_kind(directory)
    fields = {"model.pretrained": directory, "model.text_encoder": kind}
    if kind != "bert" and data and has_pixels(data):
        fields["model.image_encoder"] = kind
    return fields


def _merge(fields: dict[str, Any], located: Mapping[str, str], flag: str) -> dict[str, Any]:
    """The changes of single fields and of a flag, which must not contradict each other."""
    for key, value in located.items():
        if fields.get(key, value) != value:
            raise ConfigError(
                f"--{flag}={value} cannot be combined with --config.{key}={fields[key]}"
            )
    return fields | dict(located)


def _base_config(
    name: str | None,
    workdirs: str | Sequence[str] | None,
    fields: Mapping[str, list[str | None]],
    path: str | None,
) -> tuple[ConfigDict, bool]:
    """Return the config that the fields change, and whether it is the built-in data set.

    It is the config of `--config`, else the config of the (first) run in `--workdir`, else the
    defaults with the user's data, else the built-in data set.
    """
    workdirs = [workdirs] if isinstance(workdirs, str) else workdirs or []
    runs = [workdir for workdir in workdirs if Path(workdir, CONFIG_FILE).is_file()]
    plugins = [*_read_tuples(fields.get("plugins", []))]
    for run in runs:
        plugins += read_config(run).plugins
    plugins = tuple(dict.fromkeys(plugins))
    if name is not None:
        return load_config(name, plugins), False
    if runs:
        return read_config(runs[0]), False
    base = defaults.default(plugins)
    if path:
        base.data.name = os.path.basename(os.path.abspath(path)) or "data"
        return _with_fit(base, path, fields), False
    built_in = flat(defaults.get_config())
    return with_changes(base, {**built_in, "plugins": plugins}), True


def _with_fit(base: ConfigDict, path: str, fields: Mapping[str, list[str | None]]) -> ConfigDict:
    """Fit the config to imported data, and log the choice.

    It is the recipe; or a head and sizes, where the fields name a method or a head.
    """
    record = read_record(path)
    if record is None:
        return base
    if _MODEL_FIELDS.isdisjoint(fields):
        base = with_changes(load_config(RECIPE, base.plugins), {"data.name": base.data.name})
        chosen = {"train.batch_size": fitting_batch(_trained(record), base.train.batch_size)}
        choice = RECIPE
    else:
        chosen = fitting_fields(record, _are_in_one_space(fields))
        choice = f"head {chosen['model.head']}, embed_dim {chosen['model.embed_dim']}"
    _log.info("%s: %s", path, describe_fit(record, choice, chosen["train.batch_size"]))
    return with_changes(base, chosen)


def _are_in_one_space(fields: Mapping[str, list[str | None]]) -> bool:
    """Whether one pretrained model encodes captions and images, and no head is named."""
    text, image = (fields.get(f"model.{side}_encoder", [""])[-1] for side in ("text", "image"))
    others = {"model.head", "model.embed_dim", "model.pretrained_images"}
    return bool(text) and text == image and others.isdisjoint(fields)


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
        "train.batch_size": fitting_batch(_trained(record), _BATCH),
        **epoch_fields(warmup=4, epochs=8),
    }


def _trained(record: Mapping[str, Any]) -> int:
    """Number of pairs that a run trains on; about that many if it draws dev and test."""
    count = record["splits"]["train"]["captions"]
    return round(count * (1 - sum(SHARES))) if record.get("split") == BY_RUN else count


def fitting_batch(pairs: int, largest: int) -> int:
    """Halve `largest` until an epoch of this many pairs has several steps, and return it."""
    batch = largest
    while batch > 8 and batch * _STEPS > pairs:
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


def _field_values(
    fields: Mapping[str, list[str | None]], known: Mapping[str, Any]
) -> dict[str, Any]:
    """The values of the fields, each of the type of its default.

    The last value of a field counts; the values of a tuple are put together.
    """
    values = {}
    for key, texts in fields.items():
        if key not in known:
            raise unknown_field_flag_error(key, texts[-1], known)
        if isinstance(known[key], tuple):
            values[key] = _read_tuples(texts)
        else:
            kind = type(known[key])
            parser, expected = KINDS.get(kind, (None, "a value"))
            read = parser.parse if parser else _literal
            values[key] = parse_value(f"{PREFIX}{key}", texts[-1], kind, read, expected)
    return values


def _read_tuples(texts: Iterable[str | None]) -> tuple:
    return tuple(item for text in texts for item in _read_tuple(text or ""))


def _read_tuple(text: str) -> tuple:
    """Items with commas between them (`mine.focal,mine.bilinear`), or a tuple as Python has it."""
    value = _literal(text)
    if isinstance(value, str):
        return tuple(filter(None, (item.strip() for item in value.split(","))))
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _literal(text: str) -> Any:
    """A value as Python writes it; other text stays text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
