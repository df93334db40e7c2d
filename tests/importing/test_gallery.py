"""Images without captions: a folder of photographs, or a table of their names, to be searched."""

import numpy as np
import pytest

from l2rm_jax.config import default
from l2rm_jax.errors import ConfigError
from l2rm_jax.importing.importer import describe_import
from l2rm_jax.retriever.sources import image_source
from tests.importing.made import COUNT, imported, write_csv


def test_a_folder_of_photographs_is_a_gallery(root):
    found = imported(root, "images")
    names = {"test_ims.npy", "test_ids.txt", "test_digests.npy", "rejected.csv", "dataset.json"}
    assert set(found.files) == names and found.files["test_ims.npy"].shape == (COUNT, 48)
    assert found.record["splits"]["test"] == {"images": COUNT, "captions": 0}
    assert f"--gallery={root}/out" in describe_import(found.record, found.out)
    source = image_source(f"{root}/out", None, None, default().data)
    assert source.ids == [f"{n:03}.png" for n in range(COUNT)] and source.texts is None
    assert len(source.items) == COUNT and source.folder == str(root / "images")


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("a.csv", ["filepath", "images/000.png", "images/001.png", "images/000.png", ""]),
        ("a.txt", ["images/000.png", "images/001.png", "images/000.png"]),
        ("a.csv", ["id,file_name", "7,images/000.png", "8,images/001.png", "9,images/000.png"]),
    ],
)
def test_a_table_of_names_is_a_gallery(root, name, lines):
    (root / name).write_text("\n".join(lines) + "\n")
    found = imported(root, name, max_rejected=0.5)
    assert found.files["test_ids.txt"] == ["images/000.png", "images/001.png"]
    [rejected] = found.rejected
    assert rejected.startswith("3,images/000.png,duplicate")
    assert found.record["rows"] == {"read": 3, "captions": 3, "written": 2, "rejected": 1}


def test_what_is_no_gallery_needs_captions(root):
    source = write_csv(root / "a.csv", [("images/000.png", "x")], ("filepath", "words"))
    with pytest.raises(ConfigError, match="--caption_column"):
        imported(root, source)
    source = write_csv(root / "a.csv", [("images/000.png",)], ("filepath",))
    np.save(root / "c.npy", np.ones((1, 4), np.float32))
    with pytest.raises(ConfigError, match="--caption_vectors"):
        imported(root, source, 1, caption_vectors=str(root / "c.npy"))
