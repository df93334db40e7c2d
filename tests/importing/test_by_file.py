"""Import file by file: shards of vectors, which an audit reads; whatever computes them."""

import csv
import json
import os
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("datasets", reason="the extra `import` is not installed")

from l2rm_jax import main
from l2rm_jax.audit.shards import inputs_of_shards
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.executors import Place
from l2rm_jax.importing import Request, by_file
from l2rm_jax.importing.by_file import import_by_file
from l2rm_jax.importing.importer import import_data
from tests.importing.made import PixelEncoder, captions_of, encoded, picture, write_tar

TARS, EACH = 3, 5


def load(name, tokens):
    assert (name, tokens) == ("pixels", None)
    return PixelEncoder()


@pytest.fixture
def request_of_tars(tmp_path, monkeypatch):
    """Archives of pictures with a caption each, one of them damaged."""
    (tmp_path / "tars").mkdir()
    for tar in range(TARS):
        files = {}
        for number in range(tar * EACH, (tar + 1) * EACH):
            content = encoded(picture(number)) if number != 7 else b"no picture"
            files |= {
                f"{number:03}.png": content,
                f"{number:03}.txt": captions_of(number)[0].encode(),
            }
        write_tar(tmp_path / "tars" / f"{tar:05}.tar", files)
    monkeypatch.chdir(tmp_path)
    by_file._encoder.cache_clear()
    return Request(tmp_path / "out", str(tmp_path / "tars"), encoder="pixels", max_rejected=0.1)


def content(directory):
    """All files but the record, which names the directory of the source."""
    files = (file for file in directory.rglob("*") if file.is_file())
    return {str(file.relative_to(directory)): file.read_bytes() for file in sorted(files)}


def test_each_file_becomes_a_shard_and_no_row_is_lost(request_of_tars, tmp_path):
    record = import_by_file(request_of_tars, load)
    assert record["rows"] == {"read": 15, "captions": 15, "written": 14, "rejected": 1}
    assert json.loads((tmp_path / "out" / "dataset.json").read_text()) == record
    inputs = inputs_of_shards(tmp_path / "out", tmp_path / "copies")
    kept = [number for number in range(TARS * EACH) if number != 7]
    assert inputs.ids == [f"{number:03}.png" for number in kept]
    assert inputs.pairs.texts == [captions_of(number)[0] for number in kept]
    rows, encoder = np.arange(len(kept)), PixelEncoder()
    images = encoder.encode_images([picture(number) for number in kept])
    np.testing.assert_array_equal(inputs.pairs.images[rows], images)
    captions = encoder.encode_captions(inputs.pairs.texts)[0]
    np.testing.assert_array_equal(inputs.pairs.captions[rows], captions)
    with (tmp_path / "out" / "rejected.csv").open(newline="") as file:
        [rejected] = csv.DictReader(file)
    assert (rejected["file"], rejected["row"]) == ("00001.tar", "3")
    assert rejected["reason"].startswith("damaged picture")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(tmp_path / "out" / "metadata" / "metadata_00001.parquet")
    assert table["row"].to_pylist() == [1, 2, 4, 5]
    assert set(table["file"].to_pylist()) == {"00001.tar"}
    assert not (tmp_path / "out" / "work").exists()


def test_shards_hold_what_an_import_of_all_files_at_once_holds(request_of_tars, tmp_path):
    import_by_file(request_of_tars, load)
    whole = replace(request_of_tars, out=tmp_path / "whole", split="1,0,0")
    import_data(whole, lambda request: PixelEncoder())
    inputs, rows = inputs_of_shards(tmp_path / "out", tmp_path / "copies"), np.arange(14)
    np.testing.assert_array_equal(
        inputs.pairs.images[rows], np.load(tmp_path / "whole" / "train_ims.npy")
    )
    np.testing.assert_array_equal(
        inputs.pairs.captions[rows], np.load(tmp_path / "whole" / "train_caps.npy")
    )


def test_an_import_that_was_stopped_computes_no_shard_twice(request_of_tars, tmp_path, monkeypatch):
    import_by_file(replace(request_of_tars, out=tmp_path / "expected"), load)
    done, write = [], by_file._write_shard

    def stops(*arguments):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(arguments)
        write(*arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(by_file, "_write_shard", stops)
        import_by_file(request_of_tars, load)
    other = replace(request_of_tars, image_column="jpg")
    with pytest.raises(ConfigError, match=r"another import in progress \(it differs in columns\)"):
        import_by_file(other, load)
    (tmp_path / "tars" / "00000.tar").chmod(0o000)  # its shard is done: nobody reads it again
    encode, asked = PixelEncoder.encode_images, []
    monkeypatch.setattr(
        PixelEncoder, "encode_images", lambda self, x: asked.append(len(x)) or encode(self, x)
    )
    import_by_file(request_of_tars, load)
    assert not asked  # of the last file, too, only the shard was not written yet
    assert content(tmp_path / "out") == content(tmp_path / "expected")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "tars/00000.tar"}, "is one file, expected several"),
        ({"split": "1,0,0", "tokens": "patches"}, "found with --split, --tokens"),
        ({"encoder": "pixels:DIR"}, "expected no encoder of pixels"),
    ],
)
def test_what_no_shard_can_be_made_of_is_refused(request_of_tars, changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        import_by_file(replace(request_of_tars, **changes), load)
    assert not (tmp_path / "out.partial").exists()


def test_too_many_rejected_rows_of_all_shards_are_an_error(request_of_tars):
    with pytest.raises(DataError, match=r"1 of 15 rows are rejected, expected at most 0\.05"):
        import_by_file(replace(request_of_tars, max_rejected=0.05), load)


def test_the_command_line_says_what_it_expects(request_of_tars):
    flags = ["import", "--source=tars", "--encoder=transformers:x", "--out=out"]
    with pytest.raises(SystemExit, match="found without --executor=ray"):
        main.main([*flags, "--workers=2"])


@pytest.mark.slow
def test_workers_of_ray_write_the_same_bytes_and_so_do_those_that_take_over(
    request_of_tars, tmp_path
):
    pytest.importorskip("ray")
    import_by_file(replace(request_of_tars, out=tmp_path / "here"), load)
    died = tmp_path / "died"

    class DiesOnce(PixelEncoder):
        def encode_images(self, pictures):
            if not died.exists():
                died.touch()
                os._exit(1)
            return super().encode_images(pictures)

    def load_there(name, tokens):
        return DiesOnce()

    with Place("ray", workers=2).open() as executor:
        import_by_file(request_of_tars, load_there, executor)
    assert died.exists()
    assert content(tmp_path / "out") == content(tmp_path / "here")
