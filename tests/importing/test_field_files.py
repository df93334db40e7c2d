"""The field's own files, each in the layout in which it is published."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("datasets", reason="the extra `import` is not installed")

import pandas as pd

from l2rm_jax.errors import DataError
from l2rm_jax.importing import importer
from l2rm_jax.importing.importer import import_data
from l2rm_jax.importing.request import Request
from tests.importing.made import (
    PixelEncoder,
    encoded,
    pairs_by_image,
    picture,
    read_directory,
    write_tar,
)

COUNT = 12
SPLITS = ("train", "restval", "val", "test")
NAMES = [f"{1000 + number}.jpg" for number in range(COUNT)]
CAPTIONS = {name: [f"cup {name[:4]} from {side}" for side in ("left", "above")] for name in NAMES}
FIRST = {name: own[:1] for name, own in CAPTIONS.items()}


@pytest.fixture(autouse=True)
def encoder(monkeypatch):
    monkeypatch.setattr(
        importer,
        "_load_encoder",
        lambda request: PixelEncoder(words=True) if request.encoder else None,
    )


def imported(root: Path, source: str, **fields) -> Path:
    """Import with vectors, one for each image in the order of the file, unless fields say else."""
    if "encoder" not in fields:
        np.save(root / "vectors.npy", np.arange(COUNT * 3.0).reshape(COUNT, 3))
        fields["image_vectors"] = str(root / "vectors.npy")
    import_data(Request(root / "out", str(root / source), **fields))
    return root / "out"


def check_vectors(out: Path) -> None:
    """The image with vector k is the k-th."""
    content = read_directory(out)
    for split in ("train", "dev", "test"):
        if f"{split}_ims.npy" not in content:
            continue
        rows = content[f"{split}_ims.npy"][:, 0] / 3
        ids = [NAMES.index(name) for name in content[f"{split}_ids.txt"]]
        np.testing.assert_array_equal(rows, ids)


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
    out = imported(tmp_path, "dataset_made.json")
    prefix = f"{folder}/" if folder else ""
    assert pairs_by_image(out) == {prefix + name: own for name, own in CAPTIONS.items()}
    content = read_directory(out)
    assert content["dataset.json"]["split"] == {"by": "source"}
    assert content["test_ids.txt"] == [f"{prefix}{name}" for name in NAMES[3::4]]
    assert len(content["train_ids.txt"]) == COUNT // 2


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


def test_cocos_captions(tmp_path):
    write(tmp_path, "captions_train2014.json", coco(NAMES))
    out = imported(tmp_path, "captions_train2014.json")
    assert pairs_by_image(out) == CAPTIONS
    check_vectors(out)


def test_cocos_captions_of_several_splits(tmp_path):
    for at, split in enumerate(("train2014", "val2014", "test")):
        write(tmp_path, f"captions_{split}.json", coco(NAMES[4 * at : 4 * at + 4]))
    out = imported(tmp_path, "captions_*.json")
    content = read_directory(out)
    assert content["dev_ids.txt"] == NAMES[4:8] and content["test_ids.txt"] == NAMES[8:]


def test_cocos_images_and_annotations_without_each_other(tmp_path):
    document = coco(NAMES)
    document["images"].append({"id": 5, "file_name": "no_caption.jpg"})
    document["annotations"] += [{"image_id": 6, "caption": "no image"}, "no annotation"]
    write(tmp_path, "captions.json", document)
    np.save(tmp_path / "vectors.npy", np.zeros((COUNT + 1, 3)))
    vectors = str(tmp_path / "vectors.npy")
    fields = {"image_vectors": vectors, "split": "1,0,0", "max_rejected": 0.2}
    record = import_data(Request(tmp_path / "out", str(tmp_path / "captions.json"), **fields))
    assert read_directory(tmp_path / "out")["rejected.csv"][1:] == [
        f"{COUNT + 1},no_caption.jpg,no caption",
        f"{COUNT + 2},,no image",
        f"{COUNT + 3},,no image",
    ]
    rows = {"read": COUNT + 3, "captions": 2 * COUNT + 3, "written": 2 * COUNT, "rejected": 3}
    assert record["rows"] == rows


def test_blips_arrays(tmp_path):
    """Training has a row a caption, validation a list of captions."""
    rows = [
        {"caption": text, "image": f"val2014/{name}", "image_id": f"coco_{name[:4]}"}
        for name, own in CAPTIONS.items()
        for text in own
    ]
    write(tmp_path, "coco_karpathy_train.json", rows)
    out = imported(tmp_path, "coco_karpathy_train.json")
    assert pairs_by_image(out) == {f"val2014/{name}": own for name, own in CAPTIONS.items()}
    write(
        tmp_path, "b/val.json", [{"image": name, "caption": own} for name, own in CAPTIONS.items()]
    )
    (tmp_path / "out").rename(tmp_path / "first")
    assert pairs_by_image(imported(tmp_path, "b/val.json")) == CAPTIONS


def test_flickrs_token_files(tmp_path):
    lines = [
        f"{name}#{at}\t{text}" for name, own in CAPTIONS.items() for at, text in enumerate(own)
    ]
    write(tmp_path, "results_20130124.token", "\n".join(lines))
    (tmp_path / "results_20130124.token").rename(tmp_path / "Flickr8k.token.txt")
    out = imported(tmp_path, "Flickr8k.token.txt")
    assert pairs_by_image(out) == CAPTIONS
    check_vectors(out)


def test_flickr30ks_table_with_bars(tmp_path):
    lines = [
        f"{name}| {at}| {text}, with a comma ."
        for name, own in CAPTIONS.items()
        for at, text in enumerate(own)
    ]
    write(tmp_path, "results.csv", "\n".join(["image_name| comment_number| comment", *lines]))
    expected = {name: [f"{text}, with a comma ." for text in own] for name, own in CAPTIONS.items()}
    assert pairs_by_image(imported(tmp_path, "results.csv")) == expected


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
    assert pairs_by_image(imported(tmp_path, "Train_GCC-training.tsv")) == expected
    with pytest.raises(DataError, match="web address"):
        (tmp_path / "out").rename(tmp_path / "first")
        imported(tmp_path, "Train_GCC-training.tsv", encoder="pixels")


def test_laions_parquet(tmp_path):
    columns = {"SAMPLE_ID": range(COUNT), "URL": NAMES, "TEXT": [own[0] for own in FIRST.values()]}
    table = pd.DataFrame({**columns, "HEIGHT": 9, "NSFW": "UNLIKELY", "similarity": 0.3})
    table.to_parquet(tmp_path / "part-00000.parquet")
    assert pairs_by_image(imported(tmp_path, "part-00000.parquet")) == FIRST


def samples() -> dict[str, bytes]:
    files = {}
    for number, (name, own) in enumerate(FIRST.items()):
        row = {"caption": own[0], "url": f"http://a.b/{name}", "key": name[:4], "status": "success"}
        files |= {name: encoded(picture(number), "JPEG"), f"{name[:4]}.txt": own[0].encode()}
        files[f"{name[:4]}.json"] = json.dumps(row).encode()
    return files


def write_img2dataset(root: Path, layout: str) -> dict[str, list[str]]:
    """Two shards with img2dataset's table and statistics, which list a failed download as well."""
    files, names = samples(), list(NAMES)
    for shard in range(2):
        own = set(names[6 * shard : 6 * shard + 6])
        content = {name: each for name, each in files.items() if f"{name[:4]}.jpg" in own}
        if layout == "tar":
            root.mkdir(exist_ok=True)
            write_tar(root / f"0000{shard}.tar", content)
        else:
            for name, each in content.items():
                (root / f"0000{shard}").mkdir(exist_ok=True, parents=True)
                (root / f"0000{shard}" / name).write_bytes(each)
        status = ["success"] * 6 + ["failed_to_download"]
        table = {"url": [*sorted(own), "http://gone"], "caption": "x", "status": status}
        pd.DataFrame(table).to_parquet(root / f"0000{shard}.parquet")
        write(root, f"0000{shard}_stats.json", {"count": 7, "successes": 6})
    folders = {name: f"0000{number // 6}/" for number, name in enumerate(NAMES)}
    return {(folders[name] if layout == "files" else "") + name: own for name, own in FIRST.items()}


@pytest.mark.parametrize("layout", ["tar", "files"])
def test_img2datasets_directories(tmp_path, layout):
    expected = write_img2dataset(tmp_path / "shards", layout)
    out = imported(tmp_path, "shards", encoder="pixels")
    assert pairs_by_image(out) == expected
    base = str(tmp_path / "shards") if layout == "files" else None
    assert read_directory(out)["dataset.json"]["source"]["pictures"] == base
    (tmp_path / "out").rename(tmp_path / "first")
    # With vectors, the key that the files of a sample share is the image.
    by_key = {name.removesuffix(".jpg"): own for name, own in expected.items()}
    assert pairs_by_image(imported(tmp_path, "shards")) == by_key


FORMS = {
    "columns of lists": lambda rows: {"image_urls": NAMES, "captions": list(CAPTIONS.values())},
    "pandas, records": lambda rows: rows.to_json(orient="records"),
    "pandas, lines": lambda rows: rows.to_json(orient="records", lines=True),
    "pandas, columns": lambda rows: rows.to_json(),
    "pandas, index": lambda rows: rows.to_json(orient="index"),
    "pandas, split": lambda rows: rows.to_json(orient="split"),
    "pandas, table": lambda rows: rows.to_json(orient="table"),
    "captions by name": lambda rows: CAPTIONS,
    "a list in an object": lambda rows: {
        "version": 1,
        "data": json.loads(rows.to_json(orient="records")),
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_documents_of_json(tmp_path, form):
    rows = pd.DataFrame({"image": NAMES, "caption": list(CAPTIONS.values())})
    write(tmp_path, "pairs.json", FORMS[form](rows))
    assert pairs_by_image(imported(tmp_path, "pairs.json")) == CAPTIONS


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
        imported(tmp_path, "pairs.json")


def conversations(speakers, answers):
    """A conversation of each image, as LLaVA and Qwen write it."""
    ask, answer = speakers
    return [
        {
            "id": name[:4],
            "image": name,
            "conversations": [
                turn
                for text in own
                for turn in (
                    {"from": ask, "value": "<image>\nDescribe it."},
                    {"from": answer, "value": text},
                )
            ],
        }
        for name, own in answers.items()
    ]


@pytest.mark.parametrize("speakers", [("human", "gpt"), ("user", "assistant")])
@pytest.mark.parametrize("kind", ["json", "jsonl", "parquet"])
def test_answers_of_conversations_are_captions(tmp_path, kind, speakers):
    rows = conversations(speakers, CAPTIONS)
    if kind == "parquet":
        pd.DataFrame(rows).to_parquet(tmp_path / "chat.parquet")
    else:
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        write(tmp_path, f"chat.{kind}", text if kind == "jsonl" else rows)
    assert pairs_by_image(imported(tmp_path, f"chat.{kind}")) == CAPTIONS


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
    pictures = str(tmp_path / "pictures")
    out = imported(tmp_path, "export.json", encoder="made", pictures=pictures)
    found = pairs_by_image(out)
    assert {name.rpartition("/")[2]: own for name, own in found.items()} == CAPTIONS


def test_a_picture_of_tasks_with_several_is_named_by_the_user(tmp_path):
    tasks = [
        task(number, name, own, "left", "annotations", right=f"r{name}")
        for number, (name, own) in enumerate(CAPTIONS.items())
    ]
    tasks.append({"id": 99, "annotations": [], "data": {"left": "new.jpg"}})
    write(tmp_path, "export.json", tasks)
    np.save(tmp_path / "v.npy", np.eye(COUNT + 1))
    more = {"image_vectors": str(tmp_path / "v.npy"), "max_rejected": 0.1}
    out = imported(tmp_path, "export.json", encoder="", image_column="data.left", **more)
    assert pairs_by_image(out) == CAPTIONS
    assert read_directory(out)["rejected.csv"][1:] == [f"{COUNT + 1},new.jpg,no caption"]
