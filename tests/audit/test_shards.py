"""Vectors in shards of clip-retrieval: the result does not depend on the split into shards."""

import threading

import numpy as np
import pytest

from l2rm_jax import main
from l2rm_jax.audit.command import audit_directory
from l2rm_jax.config import get_config
from l2rm_jax.data import parquet_vectors, same_names
from l2rm_jax.data.layouts.shards import open_shard_pairs
from l2rm_jax.data.same_names import number_variants
from l2rm_jax.data.shards import ShardRows, are_shards
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.jobs.locks import locked_file
from l2rm_jax.run.config_file import with_changes
from tests.judging.synthetic import make_pairs

PAIRS = 240


@pytest.fixture(scope="module")
def vectors():
    images, captions, _, _ = make_pairs(PAIRS, 1, 0.2)
    return images.astype(np.float16), captions.astype(np.float16)


def write_shards(directory, vectors, ends, flat=False, captions=True):
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    for number, rows in enumerate(np.split(np.arange(PAIRS), ends)):
        parts = {"img_emb": vectors[0][rows], "text_emb": vectors[1][rows]}
        for name, array in parts.items():
            folder = directory if flat else directory / name
            folder.mkdir(parents=True, exist_ok=True)
            np.save(folder / f"{name}_{number}.npy", array)
        folder = directory if flat else directory / "metadata"
        folder.mkdir(parents=True, exist_ok=True)
        columns = {"image_path": [f"{row:09d}" for row in rows]}
        if captions:
            columns["caption"] = [f"picture {row} of many" for row in rows]
        parquet.write_table(pyarrow.table(columns), folder / f"metadata_{number}.parquet")
    return directory


def write_tables(directory, vectors, ends, kind="list"):
    """The same pairs as Parquet files with columns of vectors."""
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    directory.mkdir(parents=True)
    for number, rows in enumerate(np.split(np.arange(PAIRS), ends)):
        columns = {"key": [f"{row:09d}" for row in rows]}
        for name, array in zip(("image_embedding", "text_embedding"), vectors, strict=True):
            own = pyarrow.array(array[rows].ravel())
            sizes = np.arange(0, own.__len__() + 1, array.shape[1])
            columns[name] = {
                "list": lambda o, s, d: pyarrow.ListArray.from_arrays(s.astype(np.int32), o),
                "large": lambda o, s, d: pyarrow.LargeListArray.from_arrays(s, o),
                "fixed": lambda o, s, d: pyarrow.FixedSizeListArray.from_arrays(o, d),
            }[kind](own, sizes, array.shape[1])
        columns["caption"] = [f"picture {row} of many" for row in rows]
        table = pyarrow.table(columns)
        parquet.write_table(table, directory / f"part-{number}.parquet", row_group_size=50)
    return directory


def opened(directory):
    return open_shard_pairs(directory, directory.parent / "copies")


def test_the_split_into_shards_does_not_matter(vectors, tmp_path):
    one = opened(write_shards(tmp_path / "one", vectors, []))
    # Eleven shards: number 10 comes after 9, not after 1.
    ends = np.arange(20, PAIRS, 21)
    many = opened(write_shards(tmp_path / "many", vectors, ends, flat=True))
    assert one.digest == many.digest and one.ids == many.ids
    assert many.texts[7] == "picture 7 of many" and many.ids[230] == "000000230"
    rows = np.array([239, 0, 19, 20, 21, 5, 5])
    np.testing.assert_array_equal(many.images[rows], vectors[0][rows])
    np.testing.assert_array_equal(many.captions[rows], vectors[1][rows])


@pytest.mark.parametrize("kind", ["list", "large", "fixed"])
def test_vectors_in_parquet_read_as_arrays_do(vectors, tmp_path, kind, monkeypatch):
    one = opened(write_shards(tmp_path / "one", vectors, []))
    monkeypatch.setattr(parquet_vectors, "_ROWS", 32)
    ends = np.arange(20, PAIRS, 21)  # eleven files: part-10 comes after part-9
    many = opened(write_tables(tmp_path / "many", vectors, ends, kind))
    assert many.digest == one.digest and many.ids == one.ids
    rows = np.array([239, 0, 19, 20, 21, 5, 5])
    np.testing.assert_array_equal(many.images[rows], vectors[0][rows])
    np.testing.assert_array_equal(many.captions[rows], vectors[1][rows])


def test_a_copy_is_made_once_and_again_of_a_file_that_has_changed(vectors, tmp_path):
    directory = write_tables(tmp_path / "data", vectors, [100])
    first = opened(directory)
    copies = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "copies").glob("*.npy")}
    assert len(copies) == 4
    assert opened(directory).digest == first.digest
    assert {f.name: f.stat().st_mtime_ns for f in (tmp_path / "copies").glob("*.npy")} == copies
    other = write_tables(tmp_path / "other", [vectors[0][::-1], vectors[1]], [100])
    (other / "part-1.parquet").rename(directory / "part-1.parquet")
    changed = opened(directory).images[np.array([99, 100])]
    np.testing.assert_array_equal(changed, [vectors[0][99], vectors[0][::-1][100]])


def test_copies_that_another_process_makes_are_waited_for(vectors, tmp_path, caplog):
    caplog.set_level("INFO", "l2rm_jax")
    directory, lock = write_tables(tmp_path / "data", vectors, [100]), tmp_path / "copies" / "lock"
    lock.parent.mkdir()
    found = []
    with locked_file(lock, "copies vectors beside"):
        waiting = threading.Thread(target=lambda: found.append(opened(directory)))
        waiting.start()
        waiting.join(0.2)
        assert [*lock.parent.iterdir()] == [lock] and not found
    waiting.join(5)
    assert found[0].digest == opened(directory).digest
    [message] = caplog.messages
    assert str(lock) in message


def columns_of(directory, change):
    """Change the columns of the second of two Parquet files."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = directory / "part-1.parquet"
    columns = parquet.read_table(file).to_pydict()
    change(columns)
    parquet.write_table(pyarrow.table(columns), file)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("text_embedding"), ["", "image_embedding (list"]),
        (lambda c: c.update(img_emb=c["image_embedding"]), ["", "image_embedding, img_emb"]),
        (lambda c: c["image_embedding"][7].pop(), [": image_embedding: row 7"]),
        (lambda c: c["text_embedding"].__setitem__(3, None), [": text_embedding: row 3"]),
        (lambda c: c["text_embedding"][9].__setitem__(1, np.inf), [": text_embedding: row 9"]),
        (lambda c: [each.pop() for each in c["text_embedding"]], [": text_embedding"]),
        (lambda c: [each.clear() for each in c.values()], [""]),
        (lambda c: c.pop("caption"), ["", "caption"]),
        (lambda c: c.update(url=c.pop("key")), ["", "key"]),
        (lambda c: c.update(picture_digest=c["caption"]), ["", "picture_digest", "part-0.parquet"]),
        (lambda c: c.update(caption=[[text] for text in c["caption"]]), [": caption: row 0"]),
        (lambda c: c["key"].__setitem__(5, None), [": key: row 5"]),
    ],
)
def test_wrong_columns_are_named(vectors, tmp_path, change, words):
    # As Python's numbers, into which the change turns them.
    directory = write_tables(tmp_path / "data", [array.astype(float) for array in vectors], [100])
    columns_of(directory, change)
    with pytest.raises(DataError) as error:
        opened(directory)
    for word in (f"part-1.parquet{words[0]}", *words[1:]):
        assert any(word in message for message in error.value.args), error.value.args


def test_what_is_no_parquet_is_named(vectors, tmp_path):
    directory = write_tables(tmp_path / "data", vectors, [100])
    (directory / "._part-0.parquet").write_bytes(b"of macOS, which is not read")
    assert len(opened(directory).texts) == PAIRS
    (directory / "part-1.parquet").write_bytes(b"PAR1 no table")
    with pytest.raises(DataError, match=r"part-1\.parquet"):
        opened(directory)
    config = with_changes(get_config(), {"data.path": str(directory), "mismatch.rate": 0.0})
    with pytest.raises(DataError, match="Parquet"):
        audit_directory(config, tmp_path / "audit")
    assert not (tmp_path / "audit.partial").exists()


def test_rows_of_shards():
    rows = ShardRows([np.zeros((2, 3)), np.ones((1, 3)), np.full((4, 3), 2.0)])
    assert rows.shape == (7, 3)
    assert rows[np.array([6, 2, 1])][:, 0].tolist() == [2, 1, 0]
    assert rows[np.zeros(0, int)].shape == (0, 3)


@pytest.mark.slow
def test_audits_of_shards_have_equal_bytes(vectors, tmp_path):
    audits = []
    forms = {
        "a": lambda path: write_shards(path, vectors, []),
        "b": lambda path: write_tables(path, vectors, [30, 200]),
    }
    for name, write in forms.items():
        data = write(tmp_path / name / "data")
        (data / "dataset.json").write_text('{"shards": 2}')  # as an import by shards writes it
        main.main(["audit", f"--data={data}", f"--out={tmp_path / name / 'audit'}"])
        audits.append(tmp_path / name / "audit")
    for file in ("pairs.parquet", "scores.npy", "kept.npy", "judgement.npz"):
        assert (audits[0] / file).read_bytes() == (audits[1] / file).read_bytes(), file


@pytest.mark.parametrize(
    ("file", "content", "word"),
    [
        ("text_emb/text_emb_1.npy", None, ""),
        ("metadata/metadata_0.parquet", None, ""),
        ("text_emb/text_emb_2.npy", np.zeros((3, 4), "f4"), "img_emb_2.npy"),
        ("img_emb/img_emb_1.npy", np.zeros((140, 5), "f2"), "float16"),
        ("text_emb/text_emb_1.npy", np.zeros(140, "f2"), "140"),
        ("img_emb/img_emb_0.npy", b"no array", ""),
    ],
)
def test_wrong_shards_are_named(vectors, tmp_path, file, content, word):
    path = write_shards(tmp_path / "data", vectors, [100]) / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content) if isinstance(content, bytes) else np.save(path, content)
    with pytest.raises(DataError) as error:
        opened(tmp_path / "data")
    assert path.stem in str(error.value) and word in str(error.value)


def test_rows_that_do_not_match_or_are_not_finite_are_named(vectors, tmp_path):
    short = write_shards(tmp_path / "short", vectors, [100])
    np.save(short / "text_emb/text_emb_1.npy", vectors[1][101:])
    with pytest.raises(DataError, match=r"139.*140"):
        opened(short)
    infinite = [array.copy() for array in vectors]
    infinite[1][[103, 105]] = np.inf
    with pytest.raises(DataError, match=r"text_emb_1\.npy: row 3") as error:
        opened(write_shards(tmp_path / "infinite", infinite, [100]))
    assert "row 5" in error.value.args[1]


@pytest.mark.parametrize("column", ["image_path", "key", "url"])
@pytest.mark.parametrize("layout", [write_shards, write_tables])
def test_rows_with_the_same_name_and_vector_are_one_image(vectors, tmp_path, layout, column):
    """Names restart after 80 rows, and after 160 rows with the vectors of the first 80."""
    parquet = pytest.importorskip("pyarrow.parquet")
    images = np.array(vectors[0])
    images[160:] = images[: PAIRS - 160] * np.float16(1.001)
    directory = layout(tmp_path / "data", (images, vectors[1]), [100])
    start = 0
    for file in sorted(directory.rglob("*.parquet")):
        table = parquet.read_table(file)
        names = [f"{row % 80}.jpg" for row in range(start, start + len(table))]
        table = table.drop_columns([n for n in ("image_path", "key") if n in table.column_names])
        parquet.write_table(table.append_column(column, [names]), file)
        start += len(table)
    pairs = opened(directory)
    rows = np.arange(PAIRS)
    np.testing.assert_array_equal(pairs.image_of, np.where(rows < 160, rows, rows - 160))
    assert pairs.ids == [f"{row % 80}.jpg" for row in range(160)]
    np.testing.assert_array_equal(pairs.images[rows[:160]], images[:160])
    assert pairs.captions.shape[0] == len(pairs.texts) == PAIRS


def test_variants_of_names_are_those_of_a_direct_comparison(monkeypatch):
    monkeypatch.setattr(same_names, "_BLOCK", 7)
    random = np.random.default_rng(0)
    name = random.integers(-1, 6, 100)
    kinds = random.normal(size=(4, 20)).astype("f4")
    kind = random.integers(0, 4, 100)
    vectors = kinds[kind] * (1 + 1e-3 * random.normal(size=(100, 20)))
    expected = []
    for row in range(100):
        earlier = [k for n, k in zip(name[:row], kind, strict=False) if n == name[row]]
        order = list(dict.fromkeys([*earlier, kind[row]]))
        expected.append(order.index(kind[row]) if name[row] >= 0 else 0)
    np.testing.assert_array_equal(number_variants(name, vectors.astype("f2")), expected)
    assert not number_variants(np.arange(0), vectors).size
    monkeypatch.setattr(same_names, "_MOST", 3)
    with pytest.raises(DataError, match="picture_digest"):
        number_variants(name, vectors)


def test_what_only_training_data_have_is_refused(vectors, tmp_path):
    data = write_shards(tmp_path / "data", vectors, [])
    assert are_shards(data) and not are_shards(tmp_path)
    for name, value in (("judgement.detector", "infonce-vse"), ("mismatch.rate", 0.2)):
        changes = {"data.path": str(data), "mismatch.rate": 0.0, name: value}
        with pytest.raises((ConfigError, DataError), match=name):
            audit_directory(with_changes(get_config(), changes), tmp_path / "audit")


def test_further_columns_of_the_metadata_are_kept(vectors, tmp_path):
    """The second shard lacks one, another has numbers in the first and text in the second."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    directory = write_shards(tmp_path / "shards", vectors, [PAIRS - 3])
    own = (
        {"url": [f"{row % 2}.org" for row in range(PAIRS - 3)], "width": range(PAIRS - 3)},
        {"width": ["8", "9", None], "tags": [["a"], [], ["b"]]},
    )
    for number, columns in enumerate(own):
        file = directory / "metadata" / f"metadata_{number}.parquet"
        parquet.write_table(pyarrow.table(parquet.read_table(file).to_pydict() | columns), file)
    columns = opened(directory).columns
    assert list(columns) == ["url", "width"]
    assert columns["url"].tolist() == [*own[0]["url"], None, None, None]
    assert columns["width"].tolist() == [*map(str, range(PAIRS - 3)), "8", "9", None]
