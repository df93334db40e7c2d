"""The field's own files, each in the layout in which it is published."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from l2rm_jax.errors import DataError
from tests.importing.made import Imported, encoded, imported, picture, write_tar

COUNT = 12
SPLITS = ("train", "restval", "val", "test")
NAMES = [f"{1000 + number}.jpg" for number in range(COUNT)]
CAPTIONS = {name: [f"cup {name[:4]} from {side}" for side in ("left", "above")] for name in NAMES}
FIRST = {name: own[:1] for name, own in CAPTIONS.items()}


def check(found: Imported, expected: dict[str, list[str]] = CAPTIONS) -> None:
    """Check the captions, and that the image with vector k is the k-th."""
    assert found.pairs == expected
    for split in ("train", "dev", "test"):
        vectors = found.files.get(f"{split}_ims.npy", np.zeros((0, 3)))
        ids = [[*expected].index(name) for name in found.files.get(f"{split}_ids.txt", [])]
        np.testing.assert_array_equal(vectors[:, 0] / 3, ids)


def write(root: Path, name: str, content: object) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(content if isinstance(content, str) else json.dumps(content))


def karpathy(folder: str | None) -> dict:
    images = []
    for number, (name, own) in enumerate(CAPTIONS.items()):
        sentences = [{"tokens": text.split(), "raw": text, "imgid": number} for text in own]
        image = {"sentids": [2 * number], "imgid": number, "sentences": sentences}
        image |= {"split": SPLITS[number % 4], "filename": name}
        images.append({"filepath": folder, **image} if folder else image)
    return {"images": images, "dataset": "made"}


@pytest.mark.parametrize("folder", [None, "val2014"])
@pytest.mark.parametrize("form", ["document", "lines"])
def test_karpathys_splits(tmp_path, folder, form):
    """COCO's file names the folder and the file of an image apart."""
    document = karpathy(folder)
    if form == "lines":
        document = "\n".join(map(json.dumps, document["images"]))
    write(tmp_path, "dataset_made.json", document)
    found = imported(tmp_path, "dataset_made.json", COUNT)
    prefix = f"{folder}/" if folder else ""
    check(found, {prefix + name: own for name, own in CAPTIONS.items()})
    assert found.record["split"] == {"by": "source"}
    assert found.files["test_ids.txt"] == [f"{prefix}{name}" for name in NAMES[3::4]]
    assert len(found.files["train_ids.txt"]) == COUNT // 2


def coco(names: list[str]) -> dict:
    ids = {name: 7 * int(name[:4]) for name in names}
    return {
        "info": {"year": 2014},
        "licenses": [{"id": 1, "name": "made"}],
        "images": [
            {"license": 1, "file_name": name, "coco_url": f"http://a.b/{name}", "id": ids[name]}
            for name in names
        ],
        # In no order, as in the published files.
        "annotations": [
            {"image_id": ids[name], "id": 100 * side + ids[name], "caption": CAPTIONS[name][side]}
            for side in (0, 1)
            for name in reversed(names)
        ],
    }


def test_cocos_captions_of_several_splits(tmp_path):
    for at, split in enumerate(("train2014", "val2014", "test")):
        write(tmp_path, f"captions_{split}.json", coco(NAMES[4 * at : 4 * at + 4]))
    found = imported(tmp_path, "captions_*.json", COUNT)
    assert found.files["dev_ids.txt"] == NAMES[4:8] and found.files["test_ids.txt"] == NAMES[8:]


def test_cocos_images_and_annotations_without_each_other(tmp_path):
    document = coco(NAMES)
    document["images"].append({"id": 5, "file_name": "no_caption.jpg"})
    document["annotations"] += [{"image_id": 6, "caption": "no image"}, "no annotation"]
    write(tmp_path, "captions.json", document)
    found = imported(tmp_path, "captions.json", COUNT + 1, max_rejected=0.2)
    check(found)
    assert found.rejected == [
        f"{COUNT + 1},no_caption.jpg,no caption",
        f"{COUNT + 2},,no image",
        f"{COUNT + 3},,no image",
    ]
    rows = {"read": COUNT + 3, "captions": 2 * COUNT + 3, "written": 2 * COUNT, "rejected": 3}
    assert found.record["rows"] == rows


def test_blips_arrays(tmp_path):
    """Training has a row a caption, validation a list of captions."""
    rows = [
        {"caption": text, "image": f"val2014/{name}", "image_id": f"coco_{name[:4]}"}
        for name, own in CAPTIONS.items()
        for text in own
    ]
    write(tmp_path, "coco_karpathy_train.json", rows)
    expected = {f"val2014/{name}": own for name, own in CAPTIONS.items()}
    check(imported(tmp_path, "coco_karpathy_train.json", COUNT), expected)
    lists = [{"image": name, "caption": own} for name, own in CAPTIONS.items()]
    write(tmp_path, "val.json", lists)
    check(imported(tmp_path, "val.json", COUNT))


def test_flickrs_token_files(tmp_path):
    lines = [
        f"{name}#{at}\t{text}" for name, own in CAPTIONS.items() for at, text in enumerate(own)
    ]
    write(tmp_path, "Flickr8k.token.txt", "\n".join(lines))
    check(imported(tmp_path, "Flickr8k.token.txt", COUNT))


def test_flickr30ks_table_with_bars(tmp_path):
    lines = [
        f"{name}| {at}| {text}, with a comma ."
        for name, own in CAPTIONS.items()
        for at, text in enumerate(own)
    ]
    write(tmp_path, "results.csv", "\n".join(["image_name| comment_number| comment", *lines]))
    expected = {name: [f"{text}, with a comma ." for text in own] for name, own in CAPTIONS.items()}
    check(imported(tmp_path, "results.csv", COUNT), expected)


@pytest.mark.parametrize("order", [("caption", "url"), ("url", "caption")])
def test_conceptual_captions(tmp_path, order):
    """CC3M has the caption first, CC12M the address; neither has a header."""
    cells = {
        "caption": [own[0] for own in CAPTIONS.values()],
        "url": [f"http://a.b/{n}" for n in NAMES],
    }
    rows = zip(*(cells[name] for name in order), strict=True)
    write(tmp_path, "Train_GCC-training.tsv", "\n".join(map("\t".join, rows)))
    expected = {f"http://a.b/{name}": own for name, own in FIRST.items()}
    check(imported(tmp_path, "Train_GCC-training.tsv", COUNT), expected)
    with pytest.raises(DataError, match="web address"):
        imported(tmp_path, "Train_GCC-training.tsv")


def test_laions_parquet(tmp_path):
    columns = {"SAMPLE_ID": range(COUNT), "URL": NAMES, "TEXT": [own[0] for own in FIRST.values()]}
    table = pd.DataFrame({**columns, "HEIGHT": 9, "NSFW": "UNLIKELY", "similarity": 0.3})
    table.to_parquet(tmp_path / "part-00000.parquet")
    check(imported(tmp_path, "part-00000.parquet", COUNT), FIRST)


@pytest.mark.parametrize("layout", ["tar", "files"])
def test_img2datasets_directories(tmp_path, layout):
    """Two shards with img2dataset's table and statistics, which list a failed download as well."""
    root, expected = tmp_path / "shards", {}
    for shard in range(2):
        content, own = {}, NAMES[6 * shard : 6 * shard + 6]
        for number, name in enumerate(own):
            [text], key = FIRST[name], name[:4]
            row = {"caption": text, "url": f"http://a.b/{name}", "key": key, "status": "success"}
            content |= {name: encoded(picture(6 * shard + number), "JPEG")}
            content |= {f"{key}.txt": text.encode(), f"{key}.json": json.dumps(row).encode()}
            expected[f"0000{shard}/{name}" if layout == "files" else name] = [text]
        (root / f"0000{shard}").mkdir(parents=True)
        if layout == "tar":
            write_tar(root / f"0000{shard}.tar", content)
            content = {}
        for name, each in content.items():
            (root / f"0000{shard}" / name).write_bytes(each)
        status = ["success"] * 6 + ["failed_to_download"]
        table = {"url": [*own, "http://gone"], "caption": "x", "status": status}
        pd.DataFrame(table).to_parquet(root / f"0000{shard}.parquet")
        write(root, f"0000{shard}_stats.json", {"count": 7, "successes": 6})
    found = imported(tmp_path, "shards")
    assert found.pairs == expected
    assert found.record["source"]["pictures"] == (str(root) if layout == "files" else None)
    # With vectors, the key that the files of a sample share is the image.
    by_key = {name.removesuffix(".jpg"): own for name, own in expected.items()}
    check(imported(tmp_path, "shards", COUNT), by_key)


FORMS = {
    "columns of lists": lambda rows: {"image_urls": NAMES, "captions": list(CAPTIONS.values())},
    "pandas, records": lambda rows: rows.to_json(orient="records"),
    "pandas, lines": lambda rows: rows.to_json(orient="records", lines=True),
    "pandas, columns": lambda rows: rows.to_json(),
    "pandas, index": lambda rows: rows.to_json(orient="index"),
    "pandas, split": lambda rows: rows.to_json(orient="split"),
    "pandas, table": lambda rows: rows.to_json(orient="table"),
    "captions by name": lambda rows: CAPTIONS,
    "a list in an object": lambda rows: {"version": 1, "data": rows.to_dict(orient="records")},
}


@pytest.mark.parametrize("form", FORMS)
def test_documents_of_json(tmp_path, form):
    rows = pd.DataFrame({"image": NAMES, "caption": list(CAPTIONS.values())})
    write(tmp_path, "pairs.json", FORMS[form](rows))
    check(imported(tmp_path, "pairs.json", COUNT))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"image": "a.jpg", "caption": "x"},\n{"image": "b', "line 2"),
        ("7", "int"),
        ('{"a": [{"x": 1}], "b": [{"x": 1}]}', "a, b"),
        ('{"version": 1, "year": 2}', "version, year"),
        ("\n\n", "no rows"),
        ("[3, 4]", "row 1: "),
    ],
)
def test_other_documents_are_refused(tmp_path, text, message):
    write(tmp_path, "pairs.json", text)
    with pytest.raises(DataError, match=message):
        imported(tmp_path, "pairs.json", COUNT)


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_answers_of_conversations_are_captions(tmp_path, kind):
    """As LLaVA and Qwen write them."""
    ask = {"from": "human", "value": "<image>\nDescribe it."}
    rows = [
        {"id": name[:4], "image": name, "conversations": [ask, {"from": "gpt", "value": own[0]}]}
        for name, own in CAPTIONS.items()
    ]
    if kind == "parquet":
        pd.DataFrame(rows).to_parquet(tmp_path / "chat.parquet")
    else:
        write(tmp_path, "chat.json", rows)
    check(imported(tmp_path, f"chat.{kind}", COUNT), FIRST)


def task(number, name, captions, field, kind, **more):
    """A task of Label Studio with an annotation for each caption, and a cancelled one."""
    values = [{"text": [text]} if number % 2 else {"text": text} for text in captions]
    done = [
        {
            "was_cancelled": False,
            "result": [
                {"value": {"choices": ["good"]}, "type": "choices"},
                {"value": value, "type": "textarea", "from_name": "caption"},
            ],
        }
        for value in values
    ]
    skipped = {"was_cancelled": True, "result": [{"value": {"text": ["no"]}, "type": "textarea"}]}
    return {"id": number, kind: [*done, skipped], "data": {field: name, "note": "x", **more}}


@pytest.mark.parametrize("field", ["image", "captioning"])
@pytest.mark.parametrize("kind", ["annotations", "completions"])
@pytest.mark.parametrize(
    "place", ["/data/upload/7/", "/data/local-files/?d=", "http://a:8080/data/local-files/?d=b/"]
)
def test_tasks_of_label_studio(tmp_path, place, kind, field):
    folder = tmp_path / "pictures" / ("b" if place.endswith("b/") else "")
    folder.mkdir(parents=True)
    tasks = []
    for number, (name, own) in enumerate(CAPTIONS.items()):
        (folder / name).write_bytes(encoded(picture(number)))
        tasks.append(task(number, f"{place}{name}", own, field, kind))
    write(tmp_path, "export.json", tasks)
    found = imported(tmp_path, "export.json", pictures=str(tmp_path / "pictures")).pairs
    assert {name.rpartition("/")[2]: own for name, own in found.items()} == CAPTIONS


def test_a_picture_of_tasks_with_several_is_named_by_the_user(tmp_path):
    tasks = [
        task(number, name, own, "left", "annotations", right=f"r{name}")
        for number, (name, own) in enumerate(CAPTIONS.items())
    ]
    tasks.append({"id": 99, "annotations": [], "data": {"left": "new.jpg"}})
    write(tmp_path, "export.json", tasks)
    fields = {"image_column": "data.left", "max_rejected": 0.1}
    found = imported(tmp_path, "export.json", COUNT + 1, **fields)
    check(found)
    assert found.rejected == [f"{COUNT + 1},new.jpg,no caption"]
