"""`Pairs` in memory, and as views of every layout on disk."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from l2rm_jax import Pairs, open_pairs
from l2rm_jax.data.content_hashes import hash_file, is_unchanged
from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.data.pairs import same_pairs
from l2rm_jax.data.vectors import as_rows
from l2rm_jax.errors import ConfigError, DataError

rng = np.random.default_rng(0)
IMAGES = rng.normal(size=(4, 5)).astype(np.float32)
CAPTIONS = rng.normal(size=(8, 3)).astype(np.float32)
TEXTS = [f"caption {row}" for row in range(8)]
IMAGE_OF = np.array([2, 0, 0, 3, 1, 2, 2, 0])  # in no order
IDS = [f"{row}.jpg" for row in range(4)]
EVERY = np.arange(8)


def make_pairs(**changes) -> Pairs:
    table = {"source": list("abababab"), "price": np.arange(8.0)}
    pairs = Pairs.from_arrays(IMAGES, CAPTIONS, IMAGE_OF, texts=TEXTS, ids=IDS, table=table)
    return replace(pairs, **changes)


def check_taken(pairs: Pairs, rows) -> None:
    """Check that pairs are these rows of `make_pairs()`, with all images."""
    own = np.arange(len(rows))
    np.testing.assert_array_equal(pairs.captions[own], CAPTIONS[rows])
    np.testing.assert_array_equal(pairs.image_of, IMAGE_OF[rows])
    assert pairs.texts == [TEXTS[row] for row in rows]
    assert pairs.columns["source"].tolist() == ["ab"[row % 2] for row in rows]
    np.testing.assert_array_equal(pairs.columns["price"], rows)


def test_arrays_become_pairs_in_their_order():
    pairs = make_pairs()
    check_taken(pairs, EVERY)
    np.testing.assert_array_equal(pairs.images, IMAGES)
    assert len(pairs) == 8 and pairs.image_ids == IDS and pairs.labels == TEXTS
    assert repr(pairs) == "Pairs(arrays: 8 pairs, 4 images)"
    assert pairs.digest and pairs.digest != make_pairs().take(EVERY[1:]).digest


def test_names_and_labels_that_nobody_gave_are_row_numbers():
    pairs = Pairs.from_arrays(IMAGES, CAPTIONS)
    assert pairs.image_ids == list("0123") and pairs.image_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(set(pairs.labels)) == 8 and pairs.labels[7].endswith("row 7")


def test_two_sides_of_texts():
    pairs = Pairs.from_arrays(TEXTS, (f"answer {text}" for text in TEXTS))
    assert pairs.image_ids == TEXTS and pairs.texts[3] == "answer caption 3"
    assert pairs.images.shape[0] == 8 and pairs.captions is None


@pytest.mark.parametrize("rows", [[5, 0, 5], [], [7]])
def test_rows_are_taken_in_their_order(rows):
    rows = np.array(rows, int)
    check_taken(make_pairs().take(rows), rows)


def test_a_mask_takes_rows_and_all_images_stay():
    mask = EVERY % 3 == 0
    pairs = make_pairs().take(mask)
    check_taken(pairs, np.flatnonzero(mask))
    assert pairs.images.shape[0] == 4 and pairs.image_ids == IDS
    check_taken(pairs.take(np.array([2, 0])), [6, 0])  # a selection of a selection


def test_a_mask_of_another_length_is_refused(unchecked_arrays):
    with pytest.raises(DataError, match="mask: found 7, expected 8"):
        make_pairs().take(np.ones(7, bool))


@pytest.mark.parametrize("size", [1, 3, 8, 100])
def test_parts_are_all_pairs_in_order(size):
    parts = list(make_pairs().parts(size))
    assert [len(part) for part in parts] == [len(x) for x in np.split(EVERY, EVERY[size::size])]
    for start, part in zip(EVERY[::size], parts, strict=True):
        check_taken(part, EVERY[start : start + size])


def test_the_first_images_come_with_their_captions():
    head = make_pairs(pictures=IDS).head(2)
    check_taken(head, [1, 2, 4, 7])
    np.testing.assert_array_equal(head.images[np.arange(2)], IMAGES[:2])
    assert head.images.shape == (2, 5) and head.image_ids == head.pictures == IDS[:2]
    features = make_pairs(images=RegionFeatures.from_array(IMAGES, "mine")).head(2)
    np.testing.assert_array_equal(features.images.rows([0, 1])[:, 0], IMAGES[:2])
    for images in (0, 5):
        with pytest.raises(DataError, match=f"images: found {images}, expected 1 to 4"):
            make_pairs().head(images)


def test_rows_that_do_not_exist_cannot_be_taken():
    for row in (-1, 8):
        with pytest.raises(DataError, match=f"take: found row {row}, expected 0 to 7"):
            make_pairs().take([0, row])
    assert len(make_pairs().take([])) == 0


def test_the_digest_covers_images_that_are_texts():
    answers = [f"{name} as text" for name in IDS]
    given = [Pairs.from_arrays(images, TEXTS, ids=IDS) for images in (answers, answers[::-1])]
    assert given[0].digest != given[1].digest


def test_cross_takes_both_sides_apart():
    cross = make_pairs(pictures=IDS).cross(np.array([3, 1]), np.array([6, 0, 1]))
    np.testing.assert_array_equal(cross.images[np.arange(2)], IMAGES[[3, 1]])
    np.testing.assert_array_equal(cross.captions[np.arange(3)], CAPTIONS[[6, 0, 1]])
    assert cross.texts == [TEXTS[6], TEXTS[0], TEXTS[1]] and cross.ids == ["3.jpg", "1.jpg"]


def test_the_fingerprint_is_of_texts_and_rows_only():
    pairs = make_pairs()
    same = Pairs.from_arrays(2 * IMAGES[:, :2], TEXTS, IMAGE_OF, ids=pairs.ids)
    assert same_pairs(replace(pairs, ids=None).fingerprint, pairs.fingerprint)
    other = replace(pairs, ids=[*pairs.ids[:-1], "another.jpg"]).fingerprint
    assert not same_pairs(other, pairs.fingerprint)
    of_vectors = replace(pairs, texts=None).fingerprint
    assert same_pairs(of_vectors, pairs.fingerprint) and not same_pairs(of_vectors, other)
    assert pairs.fingerprint == same.fingerprint == make_pairs(columns={}).fingerprint
    others = [
        make_pairs(texts=[*TEXTS[:7], "another"]),
        make_pairs(image_of=IMAGE_OF[::-1]),
        pairs.take(EVERY[::-1]),
        pairs.take(EVERY[1:]),
        make_pairs(images=IMAGES[[0, 1, 2, 3, 3]]),
        make_pairs(texts=["caption 0\0caption 1", *TEXTS[1:]]),
    ]
    prints = {each.fingerprint for each in others}
    assert len(prints) == len(others) and pairs.fingerprint not in prints


def test_the_fingerprint_of_features_in_a_file(tmp_path):
    """Other features of the same shape are other pairs; those of another encoder are not."""

    def of(images):
        np.save(tmp_path / "train_ims.npy", images)
        features = RegionFeatures.read(tmp_path / "train_ims.npy")
        return replace(make_pairs(), images=features).fingerprint

    first = of(IMAGES)
    assert first == of(IMAGES) and not same_pairs(first, of(IMAGES[::-1]))
    assert same_pairs(first, of(IMAGES[:, :2])) and same_pairs(first, make_pairs().fingerprint)


def test_the_fingerprint_of_vectors():
    pairs = make_pairs(texts=None)
    features = make_pairs(texts=None, captions=RegionFeatures.from_array(CAPTIONS, "mine"))
    assert pairs.take(EVERY).fingerprint == pairs.fingerprint == make_pairs(texts=None).fingerprint
    changed = CAPTIONS.copy()
    changed[5, 1] += 0.01
    assert make_pairs(texts=None, captions=changed).fingerprint != pairs.fingerprint
    assert features.fingerprint == pairs.fingerprint  # the same vectors, in memory or on disk


def test_pairs_of_a_frame():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"vector": list(IMAGES[IMAGE_OF]), "text": TEXTS, "source": list("abababab")},
        index=[7] * 8,
    )
    pairs = Pairs.from_frame(frame, "vector", "text")
    np.testing.assert_array_equal(pairs.images[pairs.image_of], IMAGES[IMAGE_OF])
    assert pairs.images.shape[0] == 4 and pairs.texts == TEXTS and list(pairs.columns) == ["source"]
    assert repr(pairs) == "Pairs(vector and text: 8 pairs, 4 images)"


def write_split(directory, split="train", **arrays):
    for name, values in arrays.items():
        if isinstance(values, list):
            (directory / f"{split}_{name}.txt").write_text("".join(f"{x}\n" for x in values))
        else:
            np.save(directory / f"{split}_{name}.npy", values)
    return directory


def test_vectors_texts_and_names_of_a_directory(tmp_path):
    write_split(tmp_path, ims=IMAGES, caps=CAPTIONS, ids=IDS)
    write_split(tmp_path, "dev", ims=IMAGES[:2], caps=CAPTIONS[:4])
    pairs = open_pairs(str(tmp_path))
    rows = as_rows(pairs)
    np.testing.assert_array_equal(rows.images[np.arange(4)], IMAGES)
    np.testing.assert_array_equal(rows.captions[EVERY], CAPTIONS)
    assert pairs.texts is None and pairs.ids == IDS and pairs.image_of.tolist() == [*EVERY // 2]
    assert pairs.name == str(tmp_path) and (pairs.split, pairs.columns) == ("train", {})
    assert len(open_pairs(tmp_path, "dev")) == 4
    write_split(tmp_path, caps=TEXTS, pairs=np.sort(IMAGE_OF))
    both = open_pairs(tmp_path)
    assert both.texts == TEXTS and both.captions is not None
    assert both.image_of.tolist() == sorted(IMAGE_OF)
    (tmp_path / "train_caps.npy").unlink()
    texts = open_pairs(tmp_path)
    assert texts.texts == TEXTS and texts.captions is None


def test_files_of_an_import_are_compared_with_its_record(tmp_path):
    write_split(tmp_path, ims=IMAGES, caps=TEXTS, ids=IDS)
    files = {name: hash_file(tmp_path / name) for name in ("train_caps.txt", "train_ids.txt")}
    long_name = tmp_path / ("x" * 300)
    record = {
        "images": {"dimensions": IMAGES.shape[1]},
        "splits": {"train": {"captions": 8}},
        "source": {"pictures": None, "path": str(long_name / "table.csv")},
        "files": {**files, "dev_caps.txt": ""},
    }
    (tmp_path / "dataset.json").write_text(json.dumps(record))
    assert open_pairs(tmp_path).pictures is None and not is_unchanged(long_name, [""])
    file = tmp_path / "train_ids.txt"
    whole = file.read_bytes()
    for damaged in (whole[:-2], b"?" + whole[1:]):  # the number of lines stays
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=f"ids.txt: found {len(damaged)} bytes .* it was cut"):
            open_pairs(tmp_path)
    file.unlink()
    with pytest.raises(DataError, match=r"ids\.txt: no such file, expected it, as dataset\.json"):
        open_pairs(tmp_path)


def test_caption_names_of_a_tsv_are_a_column(tmp_path):
    write_split(tmp_path, ims=IMAGES)
    lines = [f"number_{row}\t{text}" for row, text in enumerate(TEXTS[:4])]
    (tmp_path / "train_caps.tsv").write_text("\n".join(lines) + "\n")
    pairs = open_pairs(tmp_path)
    assert pairs.texts == TEXTS[:4]
    assert pairs.caption_ids == [f"number_{row}" for row in range(4)]


def test_pictures_without_features_are_pixels(tmp_path):
    pixels = rng.integers(0, 255, (4, 8, 8, 3)).astype(np.uint8)
    pairs = open_pairs(write_split(tmp_path, pixels=pixels, caps=TEXTS))
    assert isinstance(pairs.images, Pixels) and pairs.texts == TEXTS
    np.testing.assert_array_equal(pairs.images.rows([3, 1]), pixels[[3, 1]])


def test_further_columns_of_an_import(tmp_path):
    pytest.importorskip("datasets", reason="the extra `import` is not installed")
    from l2rm_jax.importing.importer import import_data
    from l2rm_jax.importing.request import Request

    np.save(tmp_path / "vectors.npy", IMAGES)
    rows = [
        {"filepath": f"{IMAGE_OF[row]}.jpg", "title": TEXTS[row], "source": f"shop {row % 3}"}
        for row in range(8)
    ]
    for row in rows:
        row["split"] = {"1.jpg": "dev", "3.jpg": "test"}.get(row["filepath"], "train")
    (tmp_path / "table.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    vectors = str(tmp_path / "vectors.npy")
    import_data(Request(tmp_path / "out", str(tmp_path / "table.jsonl"), image_vectors=vectors))
    for split in ("train", "dev", "test"):
        pairs = open_pairs(tmp_path / "out", split)
        own = [int(text.split()[1]) for text in pairs.texts]
        assert pairs.columns["source"].tolist() == [f"shop {row % 3}" for row in own]
        assert [pairs.ids[row] for row in pairs.image_of] == [f"{IMAGE_OF[x]}.jpg" for x in own]
        assert sorted(own) == [row for row in range(8) if rows[row]["split"] == split]


@pytest.mark.parametrize("captions", [True, False])
def test_shards_are_a_single_split(tmp_path, captions):
    parquet, pyarrow = map(pytest.importorskip, ("pyarrow.parquet", "pyarrow"))
    for name, vectors in {"img_emb": CAPTIONS[:, :2], "text_emb": CAPTIONS}.items():
        (tmp_path / name).mkdir()
        for number, part in enumerate(np.split(vectors.astype(np.float16), [3])):
            np.save(tmp_path / name / f"{name}_{number}.npy", part)
    (tmp_path / "metadata").mkdir()
    for number, rows in enumerate(np.split(EVERY, [3])):
        columns = {"image_path": [f"{row:09d}" for row in rows]}
        columns |= {"caption": [TEXTS[row] for row in rows]} if captions else {}
        parquet.write_table(
            pyarrow.table(columns), tmp_path / f"metadata/metadata_{number}.parquet"
        )
    pairs = open_pairs(tmp_path)
    np.testing.assert_array_equal(pairs.captions[EVERY], CAPTIONS.astype(np.float16))
    assert pairs.ids[5] == "000000005" and pairs.texts == (TEXTS if captions else None)
    with pytest.raises(DataError, match="single split, expected train"):
        open_pairs(tmp_path, "dev")
    file = tmp_path / "text_emb/text_emb_1.npy"
    size = file.stat().st_size
    os.truncate(file, size - 2)
    with pytest.raises(DataError, match=f"_1.npy: truncated: found {size - 2} .* expected {size}"):
        open_pairs(tmp_path)


def test_what_is_not_there_is_named(tmp_path):
    write_split(tmp_path, ims=IMAGES, caps=CAPTIONS)
    with pytest.raises(DataError, match="dev_ims") as caught:
        open_pairs(tmp_path, "dev")
    assert any("dev" in message and "caps" in message for message in caught.value.args)
    with pytest.raises(DataError, match="nowhere: no such directory"):
        open_pairs(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="empty"):
        open_pairs("")
