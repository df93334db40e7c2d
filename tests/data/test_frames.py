"""Tables of every accepted type, the cells of both sides, encoding, and the errors."""

import contextlib
import io

import ml_dtypes
import numpy as np
import pytest
from PIL import Image

from l2rm_jax.data.frame_columns import columns_of, further_columns
from l2rm_jax.data.frames import read_sides
from l2rm_jax.errors import DataError

VECTORS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
# Rows 0 and 2 have the same image.
ROWS = {
    "image": [list(map(float, VECTORS[k])) for k in (0, 1, 0, 2)],
    "caption": ["a dog", "a cat", "a hound", "a bird"],
    "source": ["web", "web", "book", None],
    "uid": [2**60 + 1, 2**60 + 2, 2**60 + 3, None],
}


def pandas_frame(columns, index=None):
    return pytest.importorskip("pandas").DataFrame(columns, index=index)


def pandas_nullable(columns):
    frame = pandas_frame({name: values for name, values in columns.items() if name != "uid"})
    frame["uid"] = pytest.importorskip("pandas").array(columns["uid"], "Int64")
    return frame.set_index([[7, 7, 1, None]])


def polars_frame(columns):
    return pytest.importorskip("polars").DataFrame(columns)


def arrow_table(columns):
    return pytest.importorskip("pyarrow").table(columns)


def huggingface(columns):
    return pytest.importorskip("datasets").Dataset.from_dict(columns)


def selected(columns):
    """A data set whose rows are taken from a larger one in another order."""
    backwards = {name: [values[0], *values[::-1]] for name, values in columns.items()}
    return huggingface(backwards).select([4, 3, 2, 1])


def generators(columns):
    return {name: (cell for cell in values) for name, values in columns.items()}


TABLES = (
    *(dict, generators, pandas_nullable, polars_frame, arrow_table, huggingface, selected),
    lambda columns: arrow_table(columns).to_batches()[0],
    lambda columns: {name: polars_frame(columns)[name] for name in columns},
    lambda columns: {name: huggingface(columns)[name] for name in columns},
)


@pytest.mark.parametrize("table", TABLES)
def test_all_tables_give_the_same_sides(table):
    sides = read_sides(table(ROWS), "image", "caption")
    np.testing.assert_allclose(sides.images, VECTORS[:3], rtol=1e-6)
    assert sides.image_of.tolist() == [0, 1, 0, 2] and sides.image_of.dtype == np.int64
    assert (sides.captions, sides.texts) == (None, ROWS["caption"])
    assert sides.ids == ["0", "1", "3"] and sides.pictures is None
    assert list(sides.columns) == ["source", "uid"]
    assert sides.columns["source"][:3].tolist() == ROWS["source"][:3]
    assert sides.columns["uid"][:3].tolist() == ROWS["uid"][:3]  # exact, though one is missing


@pytest.mark.parametrize("index", [[1, 1, 0, 0], [3, 2, 1, 0], [None, None, 1, 2]])
def test_a_pandas_index_is_ignored(index):
    sides = read_sides(pandas_frame(ROWS, index), "image", "caption")
    assert sides.texts == ROWS["caption"]
    assert sides.columns["source"][:3].tolist() == ROWS["source"][:3]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_vectors_keep_their_type(dtype):
    images = np.asfortranarray((10 * VECTORS).astype(dtype))
    sides = read_sides({"x": images, "y": list(images)}, "x", "y")
    assert sides.images.dtype == sides.captions.dtype == dtype and sides.texts is None
    np.testing.assert_array_equal(sides.images, images)
    np.testing.assert_array_equal(sides.captions, images)


def test_vectors_of_integers_are_floats():
    sides = read_sides({"x": list(np.eye(3, dtype=int)), "y": list("abc")}, "x", "y")
    assert sides.images.dtype == np.float32 and sides.images.tolist() == np.eye(3).tolist()


def test_tensors_of_pytorch_are_vectors():
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(VECTORS)
    table = {"x": tensor.clone().requires_grad_(), "y": list(tensor.bfloat16())}
    sides = read_sides(table, "x", "y")
    np.testing.assert_array_equal(sides.images, VECTORS)
    np.testing.assert_allclose(sides.captions, VECTORS, rtol=0.01)


@pytest.mark.parametrize("table", TABLES)
def test_each_text_of_a_list_is_a_pair(table):
    captions = [["a", "b"], ["c"], ["d", "e", "f"], ["g"]]
    columns = ROWS | {"caption": captions, "size": np.arange(4.0)}
    sides = read_sides(table({n: list(v) for n, v in columns.items()}), "image", "caption")
    assert sides.texts == list("abcdefg")
    assert sides.image_of.tolist() == [0, 0, 1, 0, 0, 0, 2]
    assert sides.columns["size"].tolist() == [0, 0, 1, 2, 2, 2, 3]


def test_texts_and_lists_of_texts_may_be_mixed():
    table = ROWS | {"caption": ["a", ["b", "c"], ("d",), np.array(["e"])]}
    assert read_sides(table, "image", "caption").texts == list("abcde")


GAPS = {
    "None": (["a", None, "b"], ["a", None, "b"]),
    "NaN in texts": (["a", float("nan"), "b"], ["a", None, "b"]),
    "nullable text": (lambda pd: pd.array(["a", None, "b"], dtype="string"), ["a", None, "b"]),
    "nullable integers": (lambda pd: pd.array([1, None, 2**60 + 1], "Int64"), [1, None, 2**60 + 1]),
    "nullable bools": (lambda pd: pd.array([True, None, False], "boolean"), [True, None, False]),
    "days": (lambda pd: [pd.NaT, "x", pd.NA], [None, "x", None]),
    "long integers": ([2**63, -1, 0], [2**63, -1, 0]),
    "long integers beside floats": ([2**53 + 1, 0.5, 1], [2**53 + 1, 0.5, 1]),
    "numbers": ([1, 0.5, 2], [1.0, 0.5, 2.0]),
    "bools": ([True, False], [True, False]),
    "lists": ([[1], [1, 2], []], [[1], [1, 2], []]),
    "mixed": ([1, "one", None, 2.0], [1, "one", None, 2.0]),
}


@pytest.mark.parametrize("case", GAPS)
def test_gaps_in_further_columns_are_none_and_no_digit_is_lost(case):
    pandas = pytest.importorskip("pandas")
    values, expected = GAPS[case]
    table = {"column": values(pandas) if callable(values) else values}
    found = further_columns(columns_of(table))["column"]
    assert found.tolist() == expected
    assert found.dtype.kind == {"bools": "b", "numbers": "f"}.get(case, found.dtype.kind)


class Model:
    """Encodes texts by their length and pictures by their mean colour; records its calls."""

    def __init__(self, finish=np.asarray):
        self.calls, self.finish = [], finish

    def encode(self, cells):
        self.calls.append(cells)
        is_text = isinstance(cells[0], str)
        return self.finish([[len(x), 0.0] if is_text else np.mean(x, (0, 1)) for x in cells])


def picture(red: int) -> Image.Image:
    return Image.new("RGB", (4, 2), (red, 5, 9))


def png(red: int) -> bytes:
    file = io.BytesIO()
    picture(red).save(file, "PNG")
    return file.getvalue()


REDS = (10, 20, 10, 30)
COLOURS = np.array([[red, 5, 9] for red in (10, 20, 30)], float)


def as_files(folder):
    for red in REDS:
        (folder / f"{red}.png").write_bytes(png(red))
    return [folder / f"{red}.png" for red in REDS]


PICTURES = {
    "Pillow": lambda folder: list(map(picture, REDS)),
    "bytes": lambda folder: list(map(png, REDS)),
    "dicts": lambda folder: [{"bytes": png(red), "path": f"{red}.png"} for red in REDS],
    "dicts of paths": lambda folder: [{"bytes": None, "path": f"{p}"} for p in as_files(folder)],
    "paths": as_files,
    "names": lambda folder: list(map(str, as_files(folder))),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_a_model_receives_the_distinct_pictures(kind, tmp_path):
    cells = PICTURES[kind](tmp_path)
    model = Model()
    sides = read_sides(ROWS | {"image": cells}, "image", "caption", model=model)
    np.testing.assert_allclose(sides.images, COLOURS)
    assert sides.image_of.tolist() == [0, 1, 0, 2]
    assert [len(call) for call in model.calls] == [3, 4]  # images, captions
    np.testing.assert_array_equal(sides.captions[:, 0], list(map(len, ROWS["caption"])))
    assert sides.texts == ROWS["caption"]
    names = [f"{red}.png" for red in (10, 20, 30)]
    expected = ["0", "1", "3"] if kind in ("Pillow", "bytes") else names
    assert [name.rpartition("/")[2] for name in sides.ids] == expected
    files = [io.BytesIO(x) if isinstance(x, bytes) else x for x in sides.pictures]
    shown = [x if isinstance(x, Image.Image) else Image.open(x) for x in files]
    np.testing.assert_allclose([np.mean(x, (0, 1)) for x in shown], COLOURS)


def test_pictures_of_a_data_set_are_images():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "caption": datasets.Value("string")})
    table = {"image": list(map(picture, REDS)), "caption": ROWS["caption"]}
    table = datasets.Dataset.from_dict(table, features=features).with_format("numpy")
    sides = read_sides(table, "image", "caption", model=Model())
    np.testing.assert_allclose(sides.images, COLOURS)
    assert sides.image_of.tolist() == [0, 1, 0, 2]


def test_equal_pictures_have_equal_pixels():
    grey = Image.new("L", (4, 2), 10)
    turned = picture(10).transpose(Image.Transpose.ROTATE_90)
    red = picture(10).convert("P", palette=Image.Palette.ADAPTIVE)
    blue = red.copy()
    blue.putpalette([0, 0, 255] * 256)
    cells = [picture(10), grey, turned, red, blue, picture(10)]
    table = {"x": cells, "y": ["text"] * len(cells)}
    assert read_sides(table, "x", "y", model=Model()).image_of.tolist() == [0, 1, 2, 3, 4, 0]


def test_two_sides_of_texts_and_a_model_for_one():
    table = {"question": ["why", "who", "why"], "answer": ["so", "me", "then"]}
    sides = read_sides(table, "question", "answer", model=(Model(), None))
    assert (sides.captions, sides.texts, sides.pictures) == (None, table["answer"], None)
    assert sides.ids == ["why", "who"] and sides.image_of.tolist() == [0, 1, 0]
    np.testing.assert_array_equal(sides.images[:, 0], [3, 3])


def test_a_model_leaves_vectors_as_they_are():
    model = Model()
    sides = read_sides(ROWS, "image", "caption", model=(model, None))
    assert model.calls == [] and sides.captions is None
    table = {"x": ROWS["caption"], "y": VECTORS}
    sides = read_sides(table, "x", "y", model=(model, None))
    np.testing.assert_array_equal(sides.captions, VECTORS)


def test_a_model_encodes_batches_and_may_return_tensors():
    torch = pytest.importorskip("torch")
    texts = [f"text {'x' * (row % 7)}" for row in range(600)]
    model = Model(lambda values: torch.tensor(values, requires_grad=True))
    sides = read_sides({"x": [[1.0]] * 600, "y": texts}, "x", "y", model=model)
    assert [len(call) for call in model.calls] == [256, 256, 88]
    np.testing.assert_array_equal(sides.captions[:, 0], list(map(len, texts)))


@contextlib.contextmanager
def fails(*parts: str):
    """Expect a DataError whose messages contain these parts, one each."""
    with pytest.raises(DataError) as raised:
        yield raised
    assert len(raised.value.args) == len(parts), raised.value.args
    for message, part in zip(raised.value.args, parts, strict=True):
        assert part in message


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([1, 2], "table: found list, expected a pandas or polars DataFrame, a pyarrow Table"),
        ({}, "table: found no rows"),
        ({"a": [], "b": []}, "table: found no rows"),
        ({"a": [1], "b": [1, 2]}, "found columns of lengths {'a': 1, 'b': 2}"),
        ({"a": 3}, "table['a']: found int, expected a column"),
        ({1: [1], "1": [1]}, "found two columns '1'"),
    ],
)
def test_tables_that_are_refused(table, message):
    with fails(message):
        columns_of(table)


def test_data_sets_and_frames_that_are_refused():
    splits = pytest.importorskip("datasets").DatasetDict({"train": huggingface(ROWS)})
    with fails("table['train']: found Dataset, expected a column"):
        columns_of(splits)
    with fails("table['train']: found DataFrame, expected a column"):
        columns_of({"train": polars_frame(ROWS)})
    with fails("table: found IterableDataset, expected"):
        columns_of(huggingface(ROWS).to_iterable_dataset())
    with fails("table: found LazyFrame, expected"):
        columns_of(polars_frame(ROWS).lazy())
    frame = pandas_frame(ROWS)
    with fails("table: found two columns 'uid'"):
        columns_of(frame[["uid", "uid"]])


def test_all_unknown_columns_and_the_model_are_reported():
    with fails(
        "model: found str, expected an object with encode(list)",
        "image column 'imge': no such column, expected one of image, caption, source, uid; "
        "the nearest name is 'image'",
        "caption column 'xyz': no such column",
    ):
        read_sides(ROWS, "imge", "xyz", model="clip-ViT-B-32")
    with fails("model: found Model and Model and Model"):
        read_sides(ROWS, "image", "caption", model=[Model()] * 3)


def test_the_rows_of_wrong_cells_are_named():
    images = [*ROWS["image"] * 3, [1.0], None, np.ones((2, 3)), [[1.0], [1.0, 2.0]], ["a"], 5, []]
    captions = ["a text"] * 3 + [None, float("nan"), " ", ["a", None], ["b", ""], {"raw": "c"}]
    captions += [picture(1)] + ["a text"] * 9
    with fails(
        "image column 'x': row 12: found a vector of 1 numbers, expected a vector of 3 numbers",
        "row 13: found None",
        "row 14: found an array of float64 [2, 3]",
        "row 15: found a list of uneven lists",
        "row 16: found a list of texts",
        "row 17: found a value of type int",
        "row 18: found an array of float64 [0]",
        "caption column 'y': row 3: found None, expected a text",
        "row 4: found nan",
        "row 5: found an empty text",
        "rows 6, 7: found a list with a gap",
        "row 8: found a value of type dict",
        "row 9: found a picture",
    ):
        read_sides({"x": images, "y": captions}, "x", "y")


def test_ten_rows_are_named():
    table = {"x": VECTORS[[0] * 30], "y": ["a"] + [None] * 12 + ["b"] * 17}
    with fails("rows 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more: found None, expected a text"):
        read_sides(table, "x", "y")


@pytest.mark.parametrize("table", TABLES)
def test_missing_texts_of_a_table_are_named(table):
    with fails("caption column 'source': row 3: found "):
        read_sides(table(ROWS), "image", "source")


@pytest.mark.parametrize(
    ("cells", "found"),
    [(["a.jpg", "b.png"], "paths"), (["why?", "who?"], "texts"), ([png(1), png(2)], "pictures")],
)
def test_images_without_vectors_require_a_model(cells, found):
    model = Model()
    with fails(f"image column 'x': found {found}, expected vectors or a model (model=...)"):
        read_sides({"x": cells, "y": ["a", "b"]}, "x", "y", model=(None, model))
    assert model.calls == []


def test_pictures_that_cannot_be_read_are_named(tmp_path):
    names = list(map(str, as_files(tmp_path)))
    (tmp_path / "20.png").write_bytes(b"no picture")
    table = {"x": [*names, "lost.jpg"], "y": ["a"] * 5}
    model = Model()
    with fails("image column 'x': row 1: damaged picture", "row 4: lost.jpg: no such file"):
        read_sides(table, "x", "y", model=model)
    assert model.calls == []
    file = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(file, "JPEG")
    half = Image.open(io.BytesIO(file.getvalue()[: file.tell() // 2]))
    with fails("image column 'x': row 1: found damaged picture"):
        read_sides({"x": [picture(1), half], "y": ["a", "b"]}, "x", "y", model=model)


@pytest.mark.parametrize(
    ("finish", "message"),
    [
        (
            lambda values: np.ones(2),
            "found ndarray of float64 [2], expected floats [4, dimensions]",
        ),
        (lambda values: np.ones((3, 2)), "of float64 [3, 2], expected floats [4, dimensions]"),
        (lambda values: np.ones((4, 2), int), "of int64 [4, 2], expected floats"),
        (lambda values: [[1.0]] * 3 + [[1.0, 2.0]], "found list of object []"),
        (lambda values: None, "found NoneType of object []"),
        (
            lambda values: np.array([[1.0], [np.nan], [2.0], [np.inf]]),
            "rows 1, 3: found vectors with NaN or infinity",
        ),
    ],
)
def test_the_vectors_of_a_model_are_checked(finish, message):
    with fails(message) as raised:
        read_sides(ROWS, "image", "caption", model=Model(finish))
    assert str(raised.value).startswith("caption column 'caption': model Model: ")


def test_all_batches_have_vectors_of_one_width():
    model = Model(lambda values: np.ones((len(values), 2 if len(values) == 256 else 3)))
    with fails("of float64 [44, 3], expected floats [44, 2]"):
        read_sides({"x": [[1.0]] * 300, "y": ["a"] * 300}, "x", "y", model=model)
