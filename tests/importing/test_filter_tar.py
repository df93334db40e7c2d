"""Archives of the samples that an audit keeps: their bytes, their order, and no sample lost."""

import io
import json
import re
import shutil
import tarfile

import numpy as np
import pytest

from l2rm_jax import main
from l2rm_jax.data.captions import read_image_ids
from l2rm_jax.data.shards import (
    images_of_rows,
    metadata_files,
    open_shards,
    read_metadata,
    rows_of,
)
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.importing import Request, filter_tar, sharded_import
from l2rm_jax.importing.filter_tar import filter_samples
from l2rm_jax.importing.importer import import_data
from l2rm_jax.importing.sharded_import import import_sharded
from tests.importing.made import captions_of, encoded, interrupted, load_encoder, picture

TARS, EACH = 3, 6
DAMAGED = 8  # a sample that the import rejects
DATA = "shards", "merged", "whole"


def name_of(number):
    """Names that need further headers: too long for one, or not ASCII."""
    folder = ["a", "b" * 120, "é"][number % 3]
    return f"{folder}/{number % EACH:03}"


def write_archive(path, numbers, kind):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as archive:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for number in numbers:
            shown = encoded(picture(number)) if number != DAMAGED else b"no picture"
            files = {"png": shown, "txt": captions_of(number)[0].encode(), "json": b'{"a": 1}'}
            for ending, content in files.items():
                member = tarfile.TarInfo(f"{name_of(number)}.{ending}")
                member.size, member.mtime, member.uname = len(content), 1000 + number, "someone"
                archive.addfile(member, io.BytesIO(content))


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """Archives in `tars`, in three formats; their vectors as shards, and as directories."""
    root = tmp_path_factory.mktemp("imported")
    for tar, kind in enumerate((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        numbers = range(tar * EACH, (tar + 1) * EACH)
        if kind == tarfile.USTAR_FORMAT:
            numbers = [number for number in numbers if number % 3 != 1]  # a name is too long for it
        write_archive(root / "tars" / "of" / f"{tar}.tar", numbers, kind)
    sharded_import._encoder.cache_clear()
    request = Request(root / "shards", str(root / "tars"), encoder="pixels", max_rejected=0.2)
    import_sharded(request, load_encoder)
    shares = {"split": "0.6,0.2,0.2", "max_rejected": 0.2}
    import_data(Request(root / "merged", str(root / "shards"), **shares))
    whole = Request(root / "whole", str(root / "tars"), encoder="pixels", **shares)
    import_data(whole, load_encoder)
    return root


def audited(root, data, directory, suspicious):
    """Write the files of an audit with suspicious pairs, and return the numbers of these."""
    if data == "shards":
        columns = read_metadata(metadata_files(root / data))
        ids, image, _ = images_of_rows(
            columns, rows_of(open_shards(root / data, root / "copies").images)
        )
        captions = columns["caption"]
    else:
        image = np.load(root / data / "train_pairs.npy")
        ids = read_image_ids(root / data, "train", image[-1] + 1)
        captions = (root / data / "train_caps.txt").read_text().splitlines()
    rows = np.setdiff1d(np.arange(len(image)), suspicious)
    directory.mkdir()
    np.save(directory / "kept.npy", rows)
    (directory / "kept_ids.txt").write_text("".join(f"{ids[image[row]]}\n" for row in rows))
    report = {"inputs": {"name": data, "pairs": len(image)}, "truth": None, "cannot_tell": ""}
    (directory / "report.json").write_text(json.dumps(report))
    return {int(captions[row].split()[-1]) for row in suspicious}


def members(path, without=()):
    """Header, and bytes, of each member of an archive, without some samples, known by times."""
    with tarfile.open(path) as archive:
        return [
            (member.get_info(), member.isfile() and archive.extractfile(member).read())
            for member in archive
            if member.mtime - 1000 not in without
        ]


@pytest.mark.parametrize("data", DATA)
def test_kept_samples_are_copied_as_they_are(imported, tmp_path, data, capsys):
    suspicious = audited(imported, data, tmp_path / "audit", [0, 3, 5])
    flags = [f"--data={imported / data}", f"--audit={tmp_path / 'audit'}", f"--out={tmp_path}/out"]
    main.main(["filter", *flags])
    assert {"16", "12", "4"} <= set(re.findall(r"\d+", capsys.readouterr().out))
    for tar in range(TARS):
        expected = members(imported / f"tars/of/{tar}.tar", {*suspicious, DAMAGED})
        assert members(tmp_path / f"out/of/{tar}.tar") == expected
    assert sorted(file.name for file in tmp_path.rglob("*.*") if "out" in file.parts) == [
        f"{tar}.tar" for tar in range(TARS)
    ]


def test_an_archive_without_samples_is_not_written_and_a_whole_one_is_the_same(imported, tmp_path):
    # Rows 4 to 8 lie in the second archive.
    suspicious = audited(imported, "shards", tmp_path / "audit", [1, 4, 5, 6, 7, 8])
    assert suspicious == {2, 6, 7, 9, 10, 11}
    counts = filter_samples(imported / "shards", tmp_path / "audit", tmp_path / "out")
    assert counts == {"read": 16, "written": 9, "left_out": 7, "archives": 2}
    of = imported / "tars" / "of"
    assert members(tmp_path / "out/of/0.tar") == members(of / "0.tar", {2})
    assert not (tmp_path / "out/of/1.tar").exists()
    assert (tmp_path / "out/of/2.tar").read_bytes() == (of / "2.tar").read_bytes()


def test_a_copy_that_was_stopped_copies_no_archive_twice(imported, tmp_path, monkeypatch):
    audited(imported, "shards", tmp_path / "audit", [0, 14])
    inputs = (imported / "shards", tmp_path / "audit")
    filter_samples(*inputs, tmp_path / "expected")
    with interrupted("l2rm_jax.importing.filter_tar._copy_parts", times=3):
        filter_samples(*inputs, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    audited(imported, "shards", tmp_path / "other", [1])
    with pytest.raises(ConfigError, match="samples"):
        filter_samples(imported / "shards", tmp_path / "other", tmp_path / "out")
    killed = tmp_path / "out.partial" / "of" / "2.tar.99.unfinished"
    killed.write_bytes(b"of a process that was killed")
    copied, copy = [], filter_tar._copy_parts
    monkeypatch.setattr(
        filter_tar, "_copy_parts", lambda *call: copied.append(call[0].name) or copy(*call)
    )
    filter_samples(*inputs, tmp_path / "out")
    assert copied == ["2.tar"]
    assert not list((tmp_path / "out").rglob("*.unfinished"))
    for tar in range(TARS):
        name = f"of/{tar}.tar"
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()


def test_an_audit_of_other_data_is_refused(imported, tmp_path):
    audited(imported, "merged", tmp_path / "merged", [0])
    with pytest.raises(DataError, match="merged"):
        filter_samples(imported / "shards", tmp_path / "merged", tmp_path / "out")
    audited(imported, "shards", tmp_path / "audit", [0])
    report = json.loads((tmp_path / "audit/report.json").read_text())
    report["truth"] = {"rate": 0.2}
    (tmp_path / "audit/report.json").write_text(json.dumps(report))
    with pytest.raises(DataError, match="audit"):
        filter_samples(imported / "shards", tmp_path / "audit", tmp_path / "out")
    with pytest.raises(DataError, match=r"dataset\.json"):
        filter_samples(tmp_path, tmp_path / "merged", tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


def add_archive(root):
    write_archive(root / "tars/of/3.tar", [50], tarfile.GNU_FORMAT)


def change_order(root):
    """Write the samples of an archive in another order, in as many bytes."""
    write_archive(root / "tars/of/1.tar", range(2 * EACH - 1, EACH - 1, -1), tarfile.GNU_FORMAT)


def import_again(root):
    record = root / "shards/dataset.json"
    record.write_text(record.read_text().replace('"hashes": [', '"hashes": ["0",'))


@pytest.mark.parametrize(
    ("change", "data", "message"),
    [
        (add_archive, "shards", r"4 archives.* 3 "),
        (add_archive, "whole", r"17 samples.* 16"),
        *((change_order, data, r"1\.tar: found other content") for data in DATA),
        (import_again, "merged", "found other shards"),
    ],
)
def test_changed_archives_are_refused(imported, tmp_path, change, data, message):
    audited(imported, data, tmp_path / "audit", [0])
    shutil.copytree(imported, tmp_path / "before")
    change(imported)
    try:
        with pytest.raises(DataError, match=message):
            filter_samples(imported / data, tmp_path / "audit", tmp_path / "out")
    finally:
        shutil.rmtree(imported)
        shutil.copytree(tmp_path / "before", imported)
    filter_samples(imported / data, tmp_path / "audit", tmp_path / "again")


def test_an_audit_that_cannot_tell_is_warned_of(imported, tmp_path, caplog):
    audited(imported, "shards", tmp_path / "audit", [0])
    report = json.loads((tmp_path / "audit/report.json").read_text())
    report["cannot_tell"] = "the vectors do not show what fits"
    filter_samples(imported / "shards", tmp_path / "audit", tmp_path / "out")
    assert not caplog.messages
    (tmp_path / "audit/report.json").write_text(json.dumps(report))
    filter_samples(imported / "shards", tmp_path / "audit", tmp_path / "other")
    assert caplog.messages
