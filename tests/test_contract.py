"""Compare all that the commands write with a recording, to prove that a change alters nothing.

One process runs the commands of `COMMANDS`, on one device. The recording, `contract.json`, has a
line per value, `directory/file: key`, so that a new name of a file, column or key is a difference
too. By the kind of the file:

- text, CSV, `vocabulary.json`: a hash of the bytes.
- `.npy`, `.npz`, the newest checkpoint: type, shape and a hash. Computed floats differ a little
  between machines, so they have two root mean squares (plain, and weighted by position), the number
  of NaN and the first values instead, which are compared with a tolerance.
- Parquet: the same for each column, with its type.
- `.json`, `metrics.jsonl`: keys and values. Of times, versions, paths, sizes of files and sentences
  (`MASKED`), only the key.
- `.png`: a hash of the pixels.
- `.html`: names of the packed blocks and of the values in `about`. `.md`: the number of headings
  and of rows of tables. Their words and layout are free.

After a change on purpose, record again and say in the commit which lines differ and why:

    L2RM_RECORD=1 python -m pytest -n0 -m slow tests/test_contract.py
"""

import csv
import hashlib
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

pytest.importorskip("datasets", reason="the extra `import` is not installed")
pytest.importorskip("tokenizers", reason="the extra `pretrained` is not installed")

from PIL import Image
from pyarrow import parquet

from tests.audit.test_shards import PAIRS, write_shards
from tests.importing.made import (
    captions_of,
    encoded,
    picture,
    rows_of,
    write_csv,
    write_pictures,
    write_tar,
)
from tests.judging.synthetic import make_pairs

HERE = Path(__file__).resolve().parent
RECORDING = HERE / "contract.json"
SPLIT = "--split=0.5,0.25,0.25"
# All phases of a run (warm-up, split, rematching), at sizes that compile in seconds.
SIZES = (
    "--config.model.head=vse --config.model.embed_dim=16 --config.model.word_dim=8 "
    "--config.data.scenes_train=50 --config.data.scenes_dev=10 --config.data.scenes_test=20"
)
# Command lines by the directory that each writes.
COMMANDS = {
    "csv": f"import --source=pairs.csv --encoder=pixels:clip {SPLIT} --max_rejected=0.1 --out=csv",
    "tar": f"import --source=tars/00000.tar --encoder=jax:clip {SPLIT} --out=tar",
    "arrays": "import --image_vectors=images.npy --caption_vectors=captions.npy --out=arrays",
    "named": "import --image_vectors=images.npy --caption_vectors=captions.npy "
    "--source=captions.csv --split=1,0,0 --out=named",
    "per_file": "import --source=tars --encoder=jax:clip --per_file --out=per_file",
    "shards": f"import --source=embeddings {SPLIT} --out=shards",
    "audit_directory": "audit --data=named --out=audit_directory",
    "audit_shards": "audit --data=embeddings --out=audit_shards",
    "run": f"--config=scenes:quick {SIZES} --workdir=run",
    "audit_run": "audit --workdir=run --out=audit_run",
}
COPIED = ("csv", "arrays", "named", "shards")  # their floats are the input's: every bit counts
CHILD = "import sys; from l2rm_jax.main import main; [main(line.split()) for line in sys.argv[1:]]"
MASKED = (
    *("bytes", "fingerprint", "jax", "l2rm_jax", "seconds", "version", "versions"),
    *("cannot_tell", "message", "unreliable_reason", "verdict"),
    "config",  # in results.json; the run's config.json has it too
)
# The features of `scenes` differ in their last bits between CPUs, and folds are hashes of them: if
# this value differs, only the keys of this audit are compared.
CONTENT = "audit_run/judgement.npz: about.made.data"
RELATIVE, ABSOLUTE = 2e-3, 1e-5
FIRST = 3  # values


def write_inputs(root: Path) -> None:
    """Write photographs, tables, archives, arrays and shards; a fifth of the pairs is wrong."""
    (root / "clip").symlink_to(HERE / "golden/pretrained/clip")
    rows = rows_of(write_pictures(root))
    write_csv(root / "pairs.csv", [*rows[:5], ("images/absent.png", "no picture"), *rows[5:]])
    (root / "tars").mkdir()
    for tar in range(2):
        files = {}
        for number in range(6 * tar, 6 * tar + 6):
            files[f"{number:03}.png"] = encoded(picture(number))
            files[f"{number:03}.txt"] = captions_of(number)[0].encode()
        write_tar(root / f"tars/{tar:05}.tar", files)
    images, captions, stored, _ = make_pairs(PAIRS // 3, 3, 0.2)
    np.save(root / "images.npy", images)
    # Row by row, as the images first appear in the order of the array.
    order = np.argsort(stored, kind="stable")
    np.save(root / "captions.npy", captions[order])
    table = [(f"p{image}", f"caption {row}") for row, image in enumerate(stored[order])]
    write_csv(root / "captions.csv", table, ("id", "caption"))
    vectors = images[stored].astype(np.float16), captions.astype(np.float16)
    write_shards(root / "embeddings", vectors, [100])


def of_array(array: np.ndarray, exact: bool = False) -> Any:
    """Return type, shape and hash of an array; for computed floats, numbers instead of a hash."""
    array = np.asarray(array)
    if array.dtype.kind == "O":  # an empty part of a checkpoint
        return str(array[()])
    name = f"{array.dtype} {list(array.shape)}"
    if exact or array.dtype.kind != "f":
        return f"{name} {of_bytes(np.ascontiguousarray(array).tobytes())}"
    flat = array.astype(float).ravel()
    missing, flat = int(np.isnan(flat).sum()), np.nan_to_num(flat)
    squares = [np.sum(weight * flat**2) for weight in (1.0, np.linspace(0, 1, flat.size))]
    means = [math.sqrt(each / max(flat.size, 1)) for each in squares]
    return [name, missing, *(float(f"{x:.5g}") for x in [*means, *flat[:FIRST]])]


def of_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def of_column(values: list) -> Any:
    """As `of_array`, for the values of a column, of which some may be missing."""
    if any(isinstance(value, float) for value in values):
        return of_array(np.array([math.nan if value is None else value for value in values]))
    return of_bytes(json.dumps(values).encode())


def of_cells(cells: list[str]) -> Any:
    """As `of_column`, for cells of CSV: computed floats have a point, and may be empty."""
    if not any(re.fullmatch(r"\d\.\d+", cell) for cell in cells):
        return of_bytes(json.dumps(cells).encode())
    return of_array(np.array([float(cell or "nan") for cell in cells]))


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested dictionaries and lists of them, by dotted key."""
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        value = dict(enumerate(value))
    if key.rpartition(".")[2] in MASKED:
        yield key, "masked"
    elif isinstance(value, dict) and value:
        for name, each in value.items():
            yield from leaves(each, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def of_file(file: Path, exact: bool) -> dict[str, Any]:
    """Return the recorded values of a file, by key."""
    content = file.read_bytes()
    if file.suffix == ".npy":
        return {"": of_array(np.load(file), exact)}
    if file.suffix == ".npz":
        with np.load(file) as arrays:
            texts = {n: json.loads(a[()]) for n, a in arrays.items() if a.dtype.kind == "U"}
            return dict(leaves(texts)) | {
                name: of_array(array) for name, array in arrays.items() if name not in texts
            }
    if file.suffix == ".parquet":
        table = parquet.read_table(file)
        columns = zip(table.schema, table.columns, strict=True)
        return {f"{c.name} ({c.type})": of_column(v.to_pylist()) for c, v in columns}
    if file.name == "suspects.csv":
        with file.open(newline="") as lines:
            header, *rows = csv.reader(lines)
        return {name: of_cells([row[n] for row in rows]) for n, name in enumerate(header)}
    if file.suffix == ".json" and file.name != "vocabulary.json":
        values = json.loads(content)
        if not exact and "files" in values:  # hashes of computed floats
            values["files"] = sorted(values["files"])
        return dict(leaves(values))
    if file.suffix == ".jsonl":
        lines = [dict(leaves(json.loads(line))) for line in content.splitlines()]
        return {key: [line.get(key) for line in lines] for key in set().union(*lines)}
    if file.suffix == ".png":
        return {"": of_array(np.asarray(Image.open(file)))}
    if file.suffix == ".html":
        text = content.decode()
        about = json.loads(re.search(r'id="about">(.*?)</script>', text)[1])
        return {"blocks": re.findall(r'data-block="(\w+)"', text), "about": sorted(about)}
    if file.suffix == ".md":
        starts = [line[:1] for line in content.decode().splitlines()]
        return {"headings": starts.count("#"), "rows": starts.count("|")}
    return {"": of_bytes(content)}


def of_checkpoints(directory: Path) -> dict[str, Any]:
    """Return the steps of a run's checkpoints, and the arrays of the newest one."""
    steps = {kept.name: sorted(int(s.name) for s in kept.iterdir()) for kept in directory.iterdir()}
    state = directory / "latest" / str(steps["latest"][-1]) / "state"
    reader = ocp.PyTreeCheckpointHandler()
    kind = ocp.RestoreArgs(restore_type=np.ndarray)  # on whatever devices it was written
    arguments = jax.tree.map(lambda _: kind, dict(reader.metadata(state).tree))
    tree = reader.restore(state, args=ocp.args.PyTreeRestore(restore_args=arguments))
    return steps | {key: of_array(array) for key, array in leaves(tree)}


def of_directory(directory: Path) -> dict[str, Any]:
    """Return the recorded values of all files of a directory, by file and key."""
    found = {}
    for file in sorted(path for path in directory.rglob("*") if path.is_file()):
        name = file.relative_to(directory.parent)
        if "checkpoints" not in name.parts:
            values = of_file(file, directory.name in COPIED)
            found |= {f"{name}: {key}": value for key, value in values.items()}
    if (directory / "checkpoints").exists():
        values = of_checkpoints(directory / "checkpoints")
        found |= {f"{directory.name}/checkpoints: {key}": value for key, value in values.items()}
    return json.loads(json.dumps(found).replace(str(directory.parent), "ROOT"))


def agree(recorded: Any, found: Any) -> bool:
    """Whether two values are the same; floats, but for a tolerance."""
    if isinstance(recorded, list) and isinstance(found, list) and len(recorded) == len(found):
        return all(map(agree, recorded, found))
    if isinstance(recorded, float) and isinstance(found, float | int):
        return math.isclose(recorded, found, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return recorded == found


def differences(recorded: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """A line per value that differs, with the file that it is in."""
    absent = "(absent)"
    pairs = {k: (recorded.get(k, absent), found.get(k, absent)) for k in {**recorded, **found}}
    return [f"{k}: recorded {a}, found {b}" for k, (a, b) in pairs.items() if not agree(a, b)]


@pytest.mark.slow
def test_the_commands_write_what_was_recorded(tmp_path):
    write_inputs(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "JAX_NUM_CPU_DEVICES": "1"}
    command = [sys.executable, "-c", CHILD, *COMMANDS.values()]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = {}
    for name in COMMANDS:
        found |= of_directory(tmp_path / name)
    if os.environ.get("L2RM_RECORD"):
        lines = (f"{json.dumps(key)}: {json.dumps(found[key])}" for key in sorted(found))
        RECORDING.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    recorded = json.loads(RECORDING.read_text())
    if recorded[CONTENT] != found[CONTENT]:
        recorded |= {key: found[key] for key in found.keys() & recorded if "audit_run/" in key}
    differ = differences(recorded, found)
    assert not differ, f"{len(differ)} values differ:\n" + "\n".join(differ)
