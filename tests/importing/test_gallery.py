"""Images without captions: a folder of photographs, or a table of their names, to be searched."""

import numpy as np
import pytest

pytest.importorskip("datasets", reason="the extra `import` is not installed")

from l2rm_jax.config import default
from l2rm_jax.errors import ConfigError
from l2rm_jax.importing.importer import describe_import, import_data
from l2rm_jax.importing.request import Request
from l2rm_jax.retriever.sources import image_source
from tests.importing.made import (
    COUNT,
    PixelEncoder,
    read_directory,
    write_csv,
    write_pictures,
)


@pytest.fixture
def root(tmp_path):
    write_pictures(tmp_path)
    return tmp_path


def imported(root, source, **fields):
    request = Request(root / "out", str(source), **{"encoder": "pixels", **fields})
    record = import_data(request, lambda _: PixelEncoder())
    return record, read_directory(root / "out"), describe_import(record, request.out)


def test_a_folder_of_photographs_is_a_gallery(root, caplog):
    with caplog.at_level("INFO", "l2rm_jax"):
        record, files, lines = imported(root, root / "images")
    assert caplog.messages[0].endswith("(files): images from png, no captions")
    names = {"test_ims.npy", "test_ids.txt", "test_digests.npy", "rejected.csv", "dataset.json"}
    assert set(files) == names and files["test_ims.npy"].shape == (COUNT, 48)
    assert record["splits"]["test"] == {"images": COUNT, "captions": 0}
    assert lines.splitlines()[1:] == [
        f'search them: l2rm search --workdir=RUN --gallery={root}/out --query="..."',
        f"rows: {COUNT} read = {COUNT} images written + 0 rejected",
    ]
    source = image_source(f"{root}/out", None, None, default().data)
    assert source.ids == [f"{n:03}.png" for n in range(COUNT)] and source.texts is None
    assert len(source.items) == COUNT and source.folder == str(root / "images")


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("a.csv", ["filepath", "images/000.png", "images/001.png", "images/000.png", ""]),
        ("a.txt", ["images/000.png", "images/001.png", "images/000.png"]),
        (
            "a.csv",
            ["image_id,file_name", "7,images/000.png", "8,images/001.png", "9,images/000.png"],
        ),
    ],
)
def test_a_table_of_names_is_a_gallery(root, name, lines):
    (root / name).write_text("\n".join(lines) + "\n")
    record, files, _ = imported(root, root / name, max_rejected=0.5)
    assert files["test_ids.txt"] == ["images/000.png", "images/001.png"]
    assert files["rejected.csv"][1:] == ["3,images/000.png,duplicate: of row 1"]
    assert record["rows"] == {"read": 3, "captions": 3, "written": 2, "rejected": 1}


def test_other_columns_are_no_gallery(root):
    source = write_csv(root / "a.csv", [("images/000.png", "x")], ("filepath", "words"))
    with pytest.raises(ConfigError, match="--caption_column: none looks like the captions'"):
        imported(root, source)


def test_vectors_of_captions_need_captions(root):
    source = write_csv(root / "a.csv", [("images/000.png",)], ("filepath",))
    vectors = {}
    for name in ("image_vectors", "caption_vectors"):
        np.save(root / f"{name}.npy", np.ones((1, 4), np.float32))
        vectors[name] = str(root / f"{name}.npy")
    with pytest.raises(ConfigError, match="--caption_vectors requires captions"):
        imported(root, source, encoder="", **vectors)
