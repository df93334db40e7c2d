"""`l2rm audit SOURCE`: a table, an archive or a folder is imported into the audit's directory."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("datasets", reason="the extra `import` is not installed")

from l2rm_jax import main as program
from l2rm_jax import train
from l2rm_jax.audit import command
from l2rm_jax.cli.parse import parse
from l2rm_jax.data.record import BY_RUN, read_record
from l2rm_jax.errors import DataError
from l2rm_jax.importing import from_source, importer
from tests.audit.made import IMAGES, PAIRS, make_judgement
from tests.audit.test_command import status
from tests.importing.made import PixelEncoder, encoded, picture, write_csv, write_jsonl, write_tar
from tests.models.pretrained.golden import GOLDEN

ROWS = [(f"images/{row // 2:03}.png", f"block {row} in place {row // 2}") for row in range(PAIRS)]
ROWS[1] = (ROWS[1][0], "=1+1 \x1b[31m")


@pytest.fixture
def encoded_blocks(tmp_path, monkeypatch) -> list[int]:
    """Pictures, an audit made by hand, and an encoder; returns the pictures that it encodes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "user/images").mkdir(parents=True)
    for number in range(IMAGES):
        file = tmp_path / f"user/images/{number:03}.png"
        file.write_bytes(encoded(picture(number + 20 * (number // 9))))
    monkeypatch.setattr(command, "judge_pairs", lambda pairs, detector, **_: make_judgement())
    counts: list[int] = []

    class Counting(PixelEncoder):
        def encode_images(self, pictures):
            counts.append(len(pictures))
            return super().encode_images(pictures)

    monkeypatch.setattr(importer, "load_encoder", lambda name, tokens: Counting())
    return counts


def suspects(out: str) -> list[dict[str, str]]:
    with Path(out, "suspects.csv").open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


@pytest.mark.parametrize(("name", "separator"), [("my pairs.csv", ";"), ("p.v2.tsv", "\t")])
def test_a_table_is_imported_and_audited(encoded_blocks, capsys, monkeypatch, name, separator):
    write_csv(Path("user", name), ROWS, separator=separator)
    words = ["audit", f"user/{name}", "--encoder=jax:any", "--config.seed=3"]
    assert main(words) == 0
    out = f"{Path(name).stem}-audit"
    assert read_record(f"{out}/data")["splits"]["train"] == {"images": IMAGES, "captions": PAIRS}
    assert [int(row["line"]) for row in suspects(out)] == [2, 3, 4, 5, 6]
    ending = Path(name).suffix
    kept, dropped = (Path(out, f"{each}{ending}").read_bytes() for each in ("kept", "dropped"))
    [header, *lines] = Path("user", name).read_bytes().splitlines(keepends=True)
    assert dropped == b"".join([header, *lines[:5]]) and kept == b"".join([header, *lines[5:]])
    report = Path(out, "report.md").read_text()
    assert report.startswith(f"# Audit of user/{name}\n")
    printed = capsys.readouterr().out
    assert "| line 2: block 0 in" in report
    assert "\n| 1 | 2 | images/000.png | block 0 in place 0 | 98% | swapped caption |" in report
    assert "\x1b" not in printed and "line 3" in printed and out in printed
    assert f"{out}/data" in printed and ".partial" not in printed
    assert not Path(f"{out}.partial").exists()
    # A complete directory is refused; the remedy encodes nothing.
    encoded_blocks.clear()
    assert main(words) == 1
    with pytest.raises(SystemExit, match=f"--config.judgement.path={out}"):  # judges nothing again
        program.main([*words, "--config.audit.review=decisions.csv"])
    assert main(["audit", f"--data={out}/data", "--out=again"]) == 0
    assert encoded_blocks == []
    assert [row["line"] for row in suspects("again")] == [row["line"] for row in suspects(out)]


def main(words: list[str]) -> int:
    """Return the exit status of a command whose words may have spaces."""
    try:
        program.main(words)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    return 0


def test_an_audit_that_was_stopped_does_not_encode_again(encoded_blocks, monkeypatch):
    write_csv(Path("user/pairs.csv"), ROWS)
    line = "audit user/pairs.csv --encoder=jax:any"

    def stop(*_, **__):
        raise DataError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(command, "judge_pairs", stop)
        assert status(line) == 1
    assert sum(encoded_blocks) == IMAGES and Path("pairs-audit.partial/data").is_dir()
    encoded_blocks.clear()
    write_csv(Path("user/pairs.csv"), ROWS[:-1])  # another table is another audit
    assert status(line) == 1 and not Path("pairs-audit").exists()
    write_csv(Path("user/pairs.csv"), ROWS)
    assert status(line) == 0
    assert encoded_blocks == [] and Path("pairs-audit/data").is_dir()


@pytest.mark.parametrize("kind", ["folder", "archive", "jsonl", "pattern"])
def test_other_sources_are_imported_too(encoded_blocks, kind):
    source = {"jsonl": "user/a.jsonl", "pattern": "user/*.csv", "archive": "user/a.tar"}.get(kind)
    if kind == "jsonl":
        file = write_jsonl(Path(source), [{"image": a, "caption": b} for a, b in ROWS])
        file.write_text(file.read_text().replace("\n", "\n\n", 1))  # a blank line
    elif kind == "pattern":
        write_csv(Path("user/1.csv"), ROWS[:20])
        write_csv(Path("user/2.csv"), ROWS[20:])
    elif kind == "archive":
        files = {f"{n:03}.png": encoded(picture(n + 20 * (n // 9))) for n in range(IMAGES)}
        texts = {f"{n:03}.txt": f"block {n}\nplace {n}".encode() for n in range(IMAGES)}
        write_tar(Path(source), files | texts)
    else:
        rows = [{"file_name": a, "text": b} for a, b in ROWS]
        write_jsonl(Path("user/metadata.jsonl"), rows)
    assert status(f"audit {source or 'user/'} --encoder=jax:any --out=out") == 0
    lines = [int(row["line"]) for row in suspects("out")]
    assert lines == {
        "jsonl": [1, 3, 4, 5, 6], "archive": [1, 1, 2, 2, 3],
    }.get(kind, [1, 2, 3, 4, 5])  # fmt: skip


def test_vectors_need_no_encoder(encoded_blocks):
    rng = np.random.default_rng(0)
    np.save("images.npy", rng.normal(size=(IMAGES, 8)).astype(np.float32))
    np.save("captions.npy", rng.normal(size=(PAIRS, 8)).astype(np.float32))
    write_csv(Path("user/pairs.csv"), ROWS)
    vectors = "--image_vectors=images.npy --caption_vectors=captions.npy"
    assert status(f"audit user/pairs.csv {vectors}") == 0
    assert encoded_blocks == [] and len(suspects("pairs-audit")) == 5


def test_without_an_encoder_the_bundled_ones_are_taken(encoded_blocks, monkeypatch, tmp_path):
    write_csv(Path("user/pairs.csv"), ROWS)
    asked = []

    def bundled(parent):
        asked.append(Path(parent).resolve())
        return "timm:here" if len(asked) > 1 else None

    monkeypatch.setattr(from_source, "bundled_encoder", bundled)
    assert status("audit user/pairs.csv") == 1 and not Path("pairs-audit.partial").exists()
    assert status("audit user/pairs.csv") == 0 and asked == [tmp_path, tmp_path]


def test_data_and_runs_are_audited_where_they_lie(encoded_blocks):
    write_csv(Path("user/pairs.csv"), ROWS)
    assert status("import user/pairs.csv --encoder=jax:any --split=1,0,0 --out=data/mine") == 0
    assert status("audit data/mine/") == 0
    assert {path.name for path in Path().iterdir()} == {"user", "data", "mine-audit"}
    assert not Path("mine-audit/data").exists() and len(suspects("mine-audit")) == 5


def test_checking_and_training_take_a_source_too(encoded_blocks):
    write_csv(Path("user/pairs.csv"), ROWS)
    split = "--split=0.6,0.2,0.2"
    assert status(f"import user/pairs.csv --encoder=jax:any {split} --out=data/mine") == 0
    for line in ("check data/mine", "train data/mine", "data/mine", "check"):
        command = parse(line.split(), program.MODES)
        assert command.config.data.path == ("data/mine" if "/" in line else "")
        assert command.is_built_in == (line == "check")


def test_a_table_is_imported_once_for_checking_and_training(encoded_blocks, monkeypatch, capsys):
    write_csv(Path("user/pairs.csv"), ROWS)
    given = []
    monkeypatch.setattr(train, "train", lambda config, workdir: given.append((config, workdir)))
    assert status("check user/pairs.csv --encoder=jax:any") == 0
    assert sum(encoded_blocks) == IMAGES and "32 captions" in capsys.readouterr().out
    assert read_record("pairs-data")["split"] == BY_RUN
    encoded_blocks.clear()
    assert status("train user/pairs.csv --config.train.epochs=1 --workdir=runs/mine") == 0
    [(config, workdir)] = given
    assert (config.data.path, workdir) == ("pairs-data", "runs/mine") and not encoded_blocks
    assert config.train.epochs == 1
    for flag in ("encoder=jax:other", "caption_column=filepath", "pictures=user/images"):
        assert status(f"check user/pairs.csv --{flag}") == 1
    assert status("check user/pairs.csv --caption_column=title --image_column=filepath") == 0
    write_csv(Path("user/pairs.csv"), ROWS[:-1])
    with pytest.raises(SystemExit, match=r"(?s)pairs-data: found other data.*--data=pairs-data"):
        program.main(["check", "user/pairs.csv"])
    assert not encoded_blocks
    assert status("check nowhere.csv") == 1
    assert status("train user/pairs.csv --coordinator=auto") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("nowhere.csv", "nowhere.csv"),
        ("user/images --encoder=jax:any", "without captions"),
        ("user/pairs.csv --data=user", "--data"),
        ("user/pairs.csv --encoder=jax:any --share=1/2", "--share"),
        ("--data=user --encoder=jax:any", "--encoder requires"),
        ("user/pairs.csv user/images", "found 2"),
    ],
)
def test_wrong_sources_write_nothing(encoded_blocks, capsys, words, said):
    write_csv(Path("user/pairs.csv"), ROWS)
    with pytest.raises(SystemExit) as caught:
        program.main(["audit", *words.split()])
    assert said in str(caught.value.code) and encoded_blocks == []
    assert [path.name for path in Path().iterdir()] == ["user"]


@pytest.mark.slow
def test_the_whole_way_with_an_encoder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("images").mkdir()
    rows = []
    for number in range(60):
        Path(f"images/{number}.png").write_bytes(encoded(picture(number)))
        rows.append((f"images/{number}.png", f"a block in place {number}"))
    write_csv(Path("table.csv"), rows)
    assert status(f"audit table.csv --encoder=jax:{GOLDEN / 'clip'}") == 0
    report = json.loads(Path("table-audit/report.json").read_text())
    assert report["inputs"]["pairs"] == 60 and len(suspects("table-audit")) >= 10
