"""Vectors in shards become the data directory that an import of their pictures makes."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.importing import Request, sharded_import
from l2rm_jax.importing.importer import import_data
from l2rm_jax.importing.sharded_import import import_sharded
from tests.importing.made import (
    captions_of,
    encoded,
    interrupted,
    load_encoder,
    picture,
    read_directory,
    write_tar,
)

EACH, SPLIT = 8, "0.5,0.25,0.25"


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """Three archives with equal names of members in `tars`, and their vectors in `shards`.

    One picture of the first archive is in the last, too.
    """
    root = tmp_path_factory.mktemp("imported")
    (root / "tars").mkdir()
    for tar in range(3):
        files = {}
        for number in range(EACH):
            own = tar * EACH + number
            files[f"{number:03}.png"] = encoded(picture(2 if own == 20 else own))
            files[f"{number:03}.txt"] = captions_of(own)[0].encode()
            files[f"{number:03}.json"] = json.dumps({"shop": own // 5}).encode()
        write_tar(root / "tars" / f"{tar:05}.tar", files)
    sharded_import._encoder.cache_clear()
    import_sharded(Request(root / "shards", str(root / "tars"), encoder="pixels"), load_encoder)
    return root


def content(directory):
    """All files but the record, which names the source and when it was changed, and the columns."""
    files = (file for file in directory.iterdir() if file.suffix not in (".json", ".parquet"))
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.parametrize("split", [SPLIT, "1,0,0"])
def test_a_directory_of_shards_is_that_of_their_pictures(imported, tmp_path, split):
    source = str(imported / "tars")
    whole = Request(tmp_path / "whole", source, encoder="pixels", split=split)
    expected = import_data(whole, load_encoder)
    record = import_data(Request(tmp_path / "out", str(imported / "shards"), split=split))
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    assert len((tmp_path / "out" / "train_ids.txt").read_text().split("\n")) > EACH
    of_pictures, of_shards = (
        pq.read_table(tmp_path / name / "train_columns.parquet") for name in ("whole", "out")
    )
    assert of_pictures.column_names == ["json.shop"]
    assert of_shards.column_names == ["file", "row", "json.shop"]
    assert of_shards["json.shop"] == of_pictures["json.shop"]
    same = ("encoder", "split", "splits", "images", "rows", "same_content")
    assert {name: record[name] for name in same} == {name: expected[name] for name in same}
    assert record["rows"] == {"read": 24, "captions": 24, "written": 24, "rejected": 0}
    assert sum(split["images"] for split in record["splits"].values()) == 23
    assert not (tmp_path / "out.partial").exists()


def test_vectors_in_parquet_and_without_metadata(imported, tmp_path):
    shards = imported / "shards"
    tables, bare = tmp_path / "tables", tmp_path / "bare"
    for directory in (tables, bare):
        directory.mkdir()
    for number in range(3):
        columns = pq.read_table(shards / f"metadata/metadata_{number:05}.parquet")
        for name, side in (("image_embedding", "img_emb"), ("text_embedding", "text_emb")):
            array = np.load(shards / side / f"{side}_{number:05}.npy")
            np.save(bare / f"{side}_{number}.npy", array)
            lists = pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])
            columns = columns.append_column(name, lists)
        pq.write_table(columns, tables / f"{number}.parquet")
    for source in (shards, tables, bare):
        out = tmp_path / f"of_{source.name}"
        import_data(Request(out, str(source), split="1,0,0"))
    files = content(tmp_path / "of_shards")
    assert content(tmp_path / "of_tables") == files
    found = read_directory(tmp_path / "of_bare")
    assert found["train_ids.txt"] == [str(row) for row in range(24)]
    assert "train_caps.txt" not in found and len(found["train_caps.npy"]) == 24
    np.testing.assert_array_equal(found["train_pairs.npy"], np.arange(24))
    np.testing.assert_array_equal(found["train_ims.npy"][7], np.load(bare / "img_emb_0.npy")[7])


def changed(imported, tmp_path, change):
    """A copy of the shards whose middle one has been changed."""
    for file in (imported / "shards").rglob("*_0000?.*"):
        copy = tmp_path / file.relative_to(imported)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    middle = tmp_path / "shards/metadata/metadata_00001.parquet"
    columns = pq.read_table(middle).to_pydict()
    vectors = np.load(tmp_path / "shards/text_emb/text_emb_00001.npy")
    change(columns, vectors)
    pq.write_table(pa.table(columns), middle)
    np.save(tmp_path / "shards/text_emb/text_emb_00001.npy", vectors)
    return str(tmp_path / "shards")


def test_rows_without_a_caption_or_with_a_damaged_vector_are_rejected(imported, tmp_path):
    def change(columns, vectors):
        columns["caption"][2] = " "
        vectors[5, 3] = np.nan

    source = changed(imported, tmp_path, change)
    out = tmp_path / "out"
    record = import_data(Request(out, source, split="1,0,0", max_rejected=0.1))
    assert record["rows"] == {"read": 24, "captions": 24, "written": 22, "rejected": 2}
    found = read_directory(out)
    assert [line.split(",")[0] for line in found["rejected.csv"][1:]] == ["11", "14"]
    rows = found["train_rows.npy"] - 1
    assert set(rows) == set(range(24)) - {10, 13}
    whole = np.concatenate(
        [np.load(tmp_path / f"shards/text_emb/text_emb_0000{n}.npy") for n in range(3)]
    )
    np.testing.assert_array_equal(found["train_caps.npy"], whole[rows])
    with pytest.raises(DataError, match="1 of 24 rows"):
        import_data(Request(tmp_path / "other", source, split="1,0,0"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c, v: [each.pop() for each in c.values()], r"7 rows.* 8"),
        (lambda c, v: c["picture_digest"].__setitem__(3, "ab"), "row 12: .*ab"),
        (lambda c, v: c.update(caption=[["one", "two"]] * 8), "row 9: "),
        (lambda c, v: c.pop("image_path"), "metadata_00001.parquet.*image_path"),
        (lambda c, v: c.update(picture_digest=["g" * 32] * 8), "row 9: .*picture_digest"),
    ],
)
def test_metadata_that_do_not_fit_are_an_error(imported, tmp_path, change, message):
    source = changed(imported, tmp_path, change)
    with pytest.raises(DataError, match=message):
        import_data(Request(tmp_path / "out", source))
    assert not (tmp_path / "out.partial").exists()


def test_rows_of_vectors_alone_need_names_where_some_have_them(tmp_path):
    images = np.eye(4)[[0, 1, 0, 3]]

    def imported_keys(keys, name):
        vectors = {"image_emb": list(images), "text_emb": list(np.eye(4)[::-1])}
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"key": keys, **vectors}), tmp_path / name / "0.parquet")
        request = Request(tmp_path / f"{name}_out", str(tmp_path / name), split="1,0,0")
        import_data(request)
        return read_directory(request.out)

    found = imported_keys(["a", "b", "a", "c"], "named")
    assert found["train_ids.txt"] == ["a", "b", "c"]
    np.testing.assert_array_equal(found["train_pairs.npy"], [0, 0, 1, 2])
    np.testing.assert_array_equal(found["train_ims.npy"], np.eye(4)[[0, 1, 3]])
    np.testing.assert_array_equal(found["train_caps.npy"], np.eye(4)[::-1][[0, 2, 1, 3]])
    found = imported_keys(["a", "b", "b", "c"], "anew")
    assert found["train_ids.txt"] == ["a", "b", "b (row 3)", "c"]
    np.testing.assert_array_equal(found["train_ims.npy"], images)
    for number, missing in enumerate((None, "")):
        with pytest.raises(DataError, match="row 4"):
            imported_keys(["a", "b", "a", missing], f"unnamed{number}")


@pytest.fixture
def request_of_vectors(tmp_path):
    """An import of four images and captions, with a vector each, in a Parquet file in `data`."""
    vectors = {"image_emb": list(np.eye(4)), "text_emb": list(np.eye(4))}
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"key": list("abcd"), **vectors}), tmp_path / "data/0.parquet")
    return Request(tmp_path / "out", str(tmp_path / "data"), split="1,0,0")


def test_an_import_that_lacked_only_its_name_is_complete(request_of_vectors, tmp_path):
    """Vectors in Parquet are copied again, and belong to the same import all the same."""
    with interrupted("l2rm_jax.jobs.job.remove_unfinished"):
        import_data(request_of_vectors)
    assert not (tmp_path / "out.partial/work").exists()
    kept = (tmp_path / "out.partial/dataset.json").read_bytes()
    import_data(request_of_vectors)
    assert (tmp_path / "out/dataset.json").read_bytes() == kept


def test_what_other_programs_say_of_shards_is_not_read(request_of_vectors, tmp_path):
    record = tmp_path / "data/dataset.json"
    record.write_text("{")
    with pytest.raises(DataError, match=r"dataset\.json"):
        import_data(request_of_vectors)
    record.write_text('{"name": "of another program"}')
    assert import_data(request_of_vectors)["encoder"] is None


def test_what_shards_cannot_give_is_refused(imported, tmp_path):
    with pytest.raises(ConfigError, match="shards"):
        import_sharded(Request(tmp_path / "out", str(imported / "shards")), load_encoder)
    with pytest.raises(ConfigError, match="--caption_column"):
        import_data(Request(tmp_path / "out", str(imported / "shards"), caption_columns=("text",)))
