"""Inputs of `audit_pairs`: every kind that it takes, and every fault that it names."""

import ml_dtypes
import numpy as np
import pytest

from l2rm_jax import Pairs, audit_pairs
from l2rm_jax.audit import audit as module
from l2rm_jax.auroc import auroc
from l2rm_jax.errors import ConfigError, DataError
from tests.audit.two_sources import CAPTIONS, IMAGE_OF, IMAGES, PAIRS, TABLE, TEXTS, TRUTH, Letters


@pytest.fixture
def read(monkeypatch):
    """Returns the pairs that `audit_pairs` would judge."""
    monkeypatch.setattr(module, "judge_pairs", lambda pairs, **_: None)
    return lambda *given, **named: audit_pairs(*given, **named).pairs


def check_vectors(pairs: Pairs, rtol: float = 1e-6) -> None:
    np.testing.assert_allclose(np.asarray(pairs.images, np.float32), IMAGES, rtol, 1e-2 * rtol)
    captions = np.asarray(pairs.captions[np.arange(PAIRS)], np.float32)
    np.testing.assert_allclose(captions, CAPTIONS, rtol, 1e-2 * rtol)


def series(values):
    return pytest.importorskip("pandas").Series(list(values), index=[1] * len(values))


def polars_series(values):
    return pytest.importorskip("polars").Series(np.asarray(values).tolist())


FORMS = {
    "float16": lambda x: x.astype(np.float16),
    "bfloat16": lambda x: x.astype(ml_dtypes.bfloat16),
    "float64": lambda x: x.astype(np.float64),
    "Fortran order": np.asfortranarray,
    "lists": lambda x: x.tolist(),
    "a list of arrays": list,
    "a generator": lambda x: (row for row in x),
    "a pandas column": series,
    "a polars column": polars_series,
}


@pytest.mark.parametrize("form", FORMS)
def test_vectors_of_every_form(read, form):
    pairs = read(FORMS[form](IMAGES), FORMS[form](CAPTIONS), IMAGE_OF)
    check_vectors(pairs, 1e-2 if form.endswith("float16") else 1e-6)


def test_a_memory_map_stays_on_disk(read, tmp_path):
    np.save(tmp_path / "images.npy", IMAGES)
    pairs = read(np.load(tmp_path / "images.npy", mmap_mode="r"), CAPTIONS, IMAGE_OF)
    assert isinstance(pairs.images.base, np.memmap)
    check_vectors(pairs)


@pytest.mark.parametrize("column", [list, tuple, iter, np.array, series, polars_series])
def test_columns_of_every_form(read, column):
    named = {name: column(TABLE[name]) for name in ("source", "uid")}
    pairs = read(IMAGES, CAPTIONS, IMAGE_OF, texts=column(TEXTS), table=named)
    assert pairs.texts == TEXTS
    assert pairs.columns["source"].tolist() == TABLE["source"]
    assert pairs.columns["uid"].tolist() == TABLE["uid"].tolist()
    assert read(IMAGES, column(TEXTS), IMAGE_OF).texts == TEXTS


def test_pairs_and_directories(read, tmp_path):
    pairs = Pairs.from_arrays(IMAGES, CAPTIONS, IMAGE_OF, table=TABLE)
    assert read(pairs) is pairs
    np.save(tmp_path / "train_ims.npy", IMAGES)
    np.save(tmp_path / "train_caps.npy", CAPTIONS)
    for path in (tmp_path, str(tmp_path)):
        opened = read(path)
        np.testing.assert_array_equal(opened.images.rows([3, 1])[:, 0], IMAGES[[3, 1]])
        assert len(opened) == PAIRS


def table_of(kind: str):
    columns = {"vector": [*IMAGES[IMAGE_OF].tolist()], "text": TEXTS, "source": TABLE["source"]}
    if kind == "pandas":
        pandas = pytest.importorskip("pandas")
        return pandas.DataFrame(columns, index=np.arange(PAIRS) // 3)
    library = pytest.importorskip({"datasets": "datasets", "polars": "polars"}[kind])
    return library.DataFrame(columns) if kind == "polars" else library.Dataset.from_dict(columns)


@pytest.mark.parametrize("kind", ["pandas", "polars", "datasets"])
def test_tables_keep_their_rows(read, kind):
    pairs = read(table_of(kind), image="vector", caption="text")
    np.testing.assert_allclose(pairs.images[pairs.image_of], IMAGES[IMAGE_OF], 1e-6)
    assert pairs.images.shape[0] == len(np.unique(IMAGE_OF)) and pairs.texts == TEXTS
    assert pairs.columns["source"].tolist() == TABLE["source"]
    encoded = read(table_of(kind), image="vector", caption="text", model=Letters())
    np.testing.assert_array_equal(encoded.captions, Letters().encode(TEXTS))


def test_two_lists_of_texts_and_a_model(read):
    questions = [text.upper() for text in TEXTS]
    pairs = read(questions, TEXTS, model=Letters(), table={"caption": TABLE["source"]})
    np.testing.assert_array_equal(pairs.images, Letters().encode(questions))
    np.testing.assert_array_equal(pairs.captions, Letters().encode(TEXTS))
    assert pairs.image_of.tolist() == list(range(PAIRS)) and pairs.ids == questions
    assert pairs.texts == TEXTS and pairs.columns["caption"].tolist() == TABLE["source"]


def with_row(vectors, value):
    changed = vectors.copy()
    changed[7, 1] = value
    return changed


def changed_rows(value):
    rows = IMAGE_OF.copy()
    rows[5] = value
    return rows


MODEL = Letters()
FRAME = {"a": TEXTS, "b": TEXTS}
# Arguments of `audit_pairs`, and the start of the only message.
WRONG = {
    "no captions": ((IMAGES,), {}, "captions: found none, expected vectors or texts"),
    "a table alone": ((FRAME,), {}, "captions: found none"),
    "captions twice": ((IMAGES, TEXTS), {"texts": TEXTS}, "texts cannot be combined with"),
    "a path and captions": (("data", CAPTIONS), {}, "captions cannot be combined with pairs or a"),
    "a path and a model": (("data",), {"model": MODEL}, "model cannot be combined with pairs or a"),
    "a table and texts": ((FRAME,), {"image": "a", "caption": "b", "texts": TEXTS}, "texts cannot"),
    "one column": ((FRAME,), {"image": "a"}, "caption column '': no such column, expected one of"),
    "a wrong column": ((FRAME,), {"image": "c", "caption": "b"}, "image column 'c': no such"),
    "model and rows": ((TEXTS, TEXTS, IMAGE_OF), {"model": MODEL}, "image_of cannot be combined"),
    "a name as model": ((TEXTS, TEXTS), {"model": "clip"}, "model: found str, expected an object"),
    "unequal lists": ((TEXTS, TEXTS[1:]), {"model": MODEL}, "table: found columns of lengths"),
    "no such path": (("nowhere",), {}, "nowhere: no such directory"),
    "None": ((None, CAPTIONS), {}, "images: found NoneType, expected a list or an array"),
    "a text": ((IMAGES, "a dog"), {}, "captions: found str, expected a list or an array"),
    "a text as texts": ((IMAGES, CAPTIONS), {"texts": "x" * PAIRS}, "texts: found str, expected"),
    "rank 1": ((IMAGES[:, 0], CAPTIONS), {}, "images: found float32 [100], expected floats ["),
    "rank 3": ((IMAGES, CAPTIONS[None]), {}, "captions: found float32 [1, 200, 18], expected"),
    "integers": ((IMAGES.astype(int), CAPTIONS), {}, "images: found int64 [100, 16], expected"),
    "objects": ((IMAGES.astype(object), CAPTIONS), {}, "images: found object [100, 16], expected"),
    "uneven": (([[1.0], [1.0, 2.0]], CAPTIONS), {}, "images: found vectors of different lengths"),
    "no rows": ((IMAGES, CAPTIONS[:0]), {}, "captions: found float32 [0, 18], expected floats"),
    "an empty list": (([], TEXTS), {}, "images: found float64 [0], expected floats"),
    "NaN": ((with_row(IMAGES, np.nan), CAPTIONS), {}, "images: row 7: found NaN or infinity, exp"),
    "infinity": ((IMAGES, with_row(CAPTIONS, -np.inf)), {}, "captions: row 7: found NaN or"),
    "uneven captions": ((IMAGES, CAPTIONS[1:]), {}, "captions: found 199 for 100 images, expected"),
    "short rows": ((IMAGES, CAPTIONS, IMAGE_OF[1:]), {}, "image_of: found int64 [199], expected"),
    "float rows": ((IMAGES, CAPTIONS, IMAGE_OF * 1.0), {}, "image_of: found float64 [200], expec"),
    "a row too high": ((IMAGES, CAPTIONS, changed_rows(100)), {}, "image_of: entry 5 is 100, exp"),
    "a negative row": ((IMAGES, CAPTIONS, changed_rows(-1)), {}, "image_of: entry 5 is -1, expec"),
    "few texts": ((IMAGES, CAPTIONS), {"texts": TEXTS[1:]}, "texts: found 199, expected 200, one"),
    "a missing text": ((IMAGES, [None, *TEXTS[1:]]), {}, "captions: entry 0 is None, expected tex"),
    "a short column": ((IMAGES, CAPTIONS), {"table": {"x": [1]}}, "table: column 'x': found 1, ex"),
    "a wide column": (
        (IMAGES, CAPTIONS),
        {"table": {"x": CAPTIONS}},
        "table: column 'x': found fl",
    ),
    "no names": ((IMAGES, CAPTIONS), {"texts": []}, "texts: found 0, expected 200"),
    "no table": ((IMAGES, CAPTIONS), {"table": TEXTS}, "table: found list, expected a pandas or"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_is_one_clear_error(read, unchecked_arrays, case):
    given, named, message = WRONG[case]
    with pytest.raises(DataError) as caught:
        read(*given, **named)
    assert len(caught.value.args) == 1 and caught.value.args[0].startswith(message)


def test_stages_of_another_call_are_refused(few_draws, tmp_path):
    first = audit_pairs(IMAGES, CAPTIONS, top=0, keep=tmp_path / "stages")
    again = audit_pairs(IMAGES, CAPTIONS, top=0, keep=tmp_path / "stages")
    np.testing.assert_array_equal(again.judgement.posterior, first.judgement.posterior)
    for captions, seed in ((CAPTIONS[::-1], 0), (CAPTIONS, 1)):
        with pytest.raises(ConfigError, match=f"of other {'seed' if seed else 'pairs'}, expected"):
            audit_pairs(IMAGES, captions, top=0, seed=seed, keep=tmp_path / "stages")


@pytest.mark.parametrize("name", ["top", "seed"])
def test_numbers_are_not_negative(name):
    with pytest.raises(ConfigError, match=f"^{name}: found -1, expected 0 or more"):
        audit_pairs(IMAGES, CAPTIONS, **{name: -1})


def test_no_pairs_cannot_be_judged():
    pairs = Pairs.from_arrays(IMAGES, CAPTIONS).take(np.zeros(0, int))
    with pytest.raises(DataError, match="found no pairs"):
        audit_pairs(pairs)


def test_names_are_one_per_image():
    for ids in (["a"], "x" * 99, []):
        with pytest.raises(DataError, match=r"^ids: found"):
            Pairs.from_arrays(IMAGES, CAPTIONS, ids=ids)


@pytest.mark.slow
def test_a_table_is_judged_in_its_order(few_draws):
    frame = table_of("pandas").assign(text=list(CAPTIONS))
    audit = audit_pairs(frame, image="vector", caption="text")
    images, own = np.unique(IMAGE_OF, return_inverse=True)
    expected = audit_pairs(IMAGES[images], CAPTIONS, own, table=frame[["source"]])
    found = audit.to_frame()
    np.testing.assert_allclose(found["posterior"], expected.judgement.posterior, atol=1e-3)
    assert found["source"].tolist() == TABLE["source"]
    assert auroc(found["posterior"].to_numpy(), TRUTH) > 0.8
    assert [rate.value for rate in audit.by("source")] == ["bad", "good"]
    assert len(audit_pairs(audit.pairs.take(audit.kept()))) == len(audit.kept()) < PAIRS


@pytest.mark.slow
def test_two_sides_of_texts_are_judged(few_draws):
    """Questions and answers that share a number; a fifth of the answers are swapped."""
    numbers = np.random.default_rng(0).integers(0, 12, (PAIRS, 3))
    questions = [f"is it a{a} or b{b} or c{c}, case {k}" for k, (a, b, c) in enumerate(numbers)]
    answers = [f"the a{a} and b{b} and c{c} of {k}" for k, (a, b, c) in enumerate(numbers)]
    moved = np.arange(0, PAIRS, 5)
    answers = np.array(answers, object)
    answers[moved] = answers[np.roll(moved, 1)]
    audit = audit_pairs(questions, answers)
    assert auroc(audit.judgement.posterior, np.isin(np.arange(PAIRS), moved)) > 0.9
    assert audit.pairs.image_ids == questions
