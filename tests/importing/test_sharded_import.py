"""Import file by file: shards of vectors, which an audit reads; whatever computes them."""

import csv
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from l2rm_jax import main
from l2rm_jax.data.layouts.shards import open_shard_pairs
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.importing import Request, importer, sharded_import
from l2rm_jax.importing.sharded_import import describe_unfinished, import_sharded
from l2rm_jax.jobs import Place, Share, parse_share
from l2rm_jax.jobs.locks import locked_directory, locked_file
from tests.importing.made import (
    PixelEncoder,
    captions_of,
    encoded,
    interrupted,
    load_encoder,
    picture,
    write_tar,
)

TARS, EACH = 3, 5


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
    sharded_import._encoder.cache_clear()
    return Request(tmp_path / "out", str(tmp_path / "tars"), encoder="pixels", max_rejected=0.1)


def content(directory):
    """All files but the record, which names the directory of the source."""
    files = (file for file in directory.rglob("*") if file.is_file())
    return {str(file.relative_to(directory)): file.read_bytes() for file in sorted(files)}


def test_each_file_becomes_a_shard_and_no_row_is_lost(request_of_tars, tmp_path):
    record = import_sharded(request_of_tars, load_encoder)
    assert record["rows"] == {"read": 15, "captions": 15, "written": 14, "rejected": 1}
    assert json.loads((tmp_path / "out" / "dataset.json").read_text()) == record
    inputs = open_shard_pairs(tmp_path / "out", tmp_path / "copies")
    kept = [number for number in range(TARS * EACH) if number != 7]
    assert inputs.ids == [f"{number:03}.png" for number in kept]
    assert inputs.texts == [captions_of(number)[0] for number in kept]
    rows, encoder = np.arange(len(kept)), PixelEncoder()
    images = encoder.encode_images([picture(number) for number in kept])
    np.testing.assert_array_equal(inputs.images[rows], images)
    captions = encoder.encode_captions(inputs.texts)[0]
    np.testing.assert_array_equal(inputs.captions[rows], captions)
    with (tmp_path / "out" / "rejected.csv").open(newline="") as file:
        [rejected] = csv.DictReader(file)
    assert (rejected["file"], rejected["row"]) == ("00001.tar", "3")
    assert rejected["reason"].startswith("damaged picture")
    table = parquet.read_table(tmp_path / "out" / "metadata" / "metadata_00001.parquet")
    assert table["row"].to_pylist() == [1, 2, 4, 5]
    assert set(table["file"].to_pylist()) == {"00001.tar"}
    assert not (tmp_path / "out" / "work").exists()


def test_an_import_that_was_stopped_computes_no_shard_twice(request_of_tars, tmp_path, monkeypatch):
    import_sharded(replace(request_of_tars, out=tmp_path / "expected"), load_encoder)
    with interrupted("l2rm_jax.importing.sharded_import._write_shard", times=3):
        import_sharded(request_of_tars, load_encoder)
    other = replace(request_of_tars, image_column="jpg")
    with pytest.raises(ConfigError, match="columns"):
        import_sharded(other, load_encoder)
    first = tmp_path / "tars" / "00000.tar"
    state = first.stat()
    os.utime(first)  # archives of other content often have the same size
    with pytest.raises(ConfigError, match="files"):
        import_sharded(request_of_tars, load_encoder)
    os.utime(first, ns=(state.st_atime_ns, state.st_mtime_ns))
    killed = tmp_path / "out.partial" / "img_emb" / "img_emb_00000.npy.99.unfinished"
    killed.write_bytes(b"of a process that was killed")
    first.chmod(0o000)  # its shard is done: nobody reads it again
    encode, asked = PixelEncoder.encode_images, []
    monkeypatch.setattr(
        PixelEncoder, "encode_images", lambda self, x: asked.append(len(x)) or encode(self, x)
    )
    import_sharded(request_of_tars, load_encoder)
    assert not asked  # of the last file, too, only the shard was not written yet
    assert content(tmp_path / "out") == content(tmp_path / "expected")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "tars/00000.tar"}, r"00000\.tar"),
        ({"split": "1,0,0", "tokens": "patches"}, "--split, --tokens"),
        ({"encoder": "pixels:DIR"}, "pixels"),
    ],
)
def test_what_no_shard_can_be_made_of_is_refused(request_of_tars, changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        import_sharded(replace(request_of_tars, **changes), load_encoder)
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_shares_in_either_order_make_the_bytes_of_one_process(request_of_tars, tmp_path, order):
    import_sharded(replace(request_of_tars, out=tmp_path / "whole"), load_encoder)
    first, second = (Share(number, 2) for number in order)
    (tmp_path / "out").mkdir()  # an empty one is not complete
    assert import_sharded(request_of_tars, load_encoder, share=first) is None
    missing = ["00001.tar"] if first.number == 1 else ["00000.tar", "00002.tar"]
    said = describe_unfinished(request_of_tars)
    assert said.startswith(f"{request_of_tars.job.partial}: {3 - len(missing)} of 3 shards")
    assert ", ".join(missing) in said
    record = import_sharded(request_of_tars, load_encoder, share=second)
    assert record["rows"] == {"read": 15, "captions": 15, "written": 14, "rejected": 1}
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    assert describe_unfinished(request_of_tars).startswith(f"{tmp_path / 'out'}: ")


def test_nobody_closes_a_directory_that_another_process_works_in(request_of_tars, tmp_path):
    assert import_sharded(request_of_tars, load_encoder, share=Share(1, 2)) is None
    with locked_directory(request_of_tars.job.partial, "imports into", share=1):
        with pytest.raises(ConfigError, match="process"):
            import_sharded(request_of_tars, load_encoder)
        lock, message = request_of_tars.job.work / "00001.lock", "work/00001: another process"
        with locked_file(lock, "imports into"), pytest.raises(ConfigError, match=message):
            import_sharded(request_of_tars, load_encoder, share=Share(2, 2))
        assert import_sharded(request_of_tars, load_encoder, share=Share(2, 2)) is None
        assert "3 of 3 shards" in describe_unfinished(request_of_tars)
    with pytest.raises(DataError, match="1 of 15 rows"):  # of all shards together
        import_sharded(replace(request_of_tars, max_rejected=0.0), load_encoder, share=Share(2, 2))
    assert import_sharded(request_of_tars, load_encoder)["shards"] == 3
    assert (tmp_path / "out" / "dataset.json").exists()


def test_a_share_starts_while_others_ask_for_the_whole_directory(tmp_path):
    """A process that is refused the directory holds no lock long enough to refuse a share."""
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(0.005):
            with pytest.raises(ConfigError), locked_directory(tmp_path / "out", "closes"):
                pass

    with locked_directory(tmp_path / "out", "imports into", share=1), ThreadPoolExecutor() as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            for _ in range(10):
                with locked_directory(tmp_path / "out", "imports into", share=2):
                    pass
        finally:
            ended.set()
        assert [each.result() for each in asking] == [None, None]


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/2/3", "-1/2", "1/0"])
def test_what_is_no_share_is_refused(text):
    with pytest.raises(ConfigError, match="--share="):
        parse_share(text)


def test_the_flag_is_a_share_or_stands_alone(request_of_tars, monkeypatch, capsys):
    monkeypatch.setattr(importer, "load_encoder", load_encoder)
    flags = ["--source=tars", "--encoder=pixels", "--max_rejected=0.1"]
    for share in ("--share=2/3", "--share=1/3"):
        main.main(["import", *flags, "--per_file", share, "--out=out"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert "2 of 3 shards" in last and "00002.tar" in last
    main.main(["import", *flags, "--per_file", "--out=out"])
    assert (request_of_tars.out / "dataset.json").exists()
    with pytest.raises(SystemExit, match="--share=4/3"):
        main.main(["import", *flags, "--per_file", "--share=4/3", "--out=more"])


@pytest.mark.slow
def test_processes_at_once_make_the_bytes_of_one(request_of_tars, tmp_path):
    import_sharded(replace(request_of_tars, out=tmp_path / "whole"), load_encoder)
    program = (
        "import sys; from pathlib import Path; from tests.importing.test_sharded_import import *\n"
        "request = Request(Path('out'), 'tars', encoder='pixels', max_rejected=0.1)\n"
        "import_sharded(request, load_encoder, share=parse_share(sys.argv[1]))"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    processes = [
        subprocess.Popen([sys.executable, "-c", program, f"{number}/3"], env=environment)
        for number in (1, 2, 3)
    ]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.slow
def test_workers_of_ray_write_the_same_bytes_and_so_do_those_that_take_over(
    request_of_tars, tmp_path
):
    pytest.importorskip("ray")
    import_sharded(replace(request_of_tars, out=tmp_path / "here"), load_encoder)
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
        import_sharded(request_of_tars, load_there, executor)
    assert died.exists()
    assert content(tmp_path / "out") == content(tmp_path / "here")
