"""`l2rm audit --judge`: new pairs by the judge of an audit of trusted ones."""

import re

import numpy as np
import pytest

from l2rm_jax import audit_pairs, main, open_audit, open_judge
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.joins import evidence
from l2rm_jax.judging.verdict import verdict
from tests.audit.made import make_judgement
from tests.judging.synthetic import make_pairs

IMAGES = 320
MOST = "--config.audit.max_share=0.05"


def write_data(tmp_path) -> np.ndarray:
    """Write trusted and new pairs, two captions per image; return which new pairs are wrong."""
    images, captions, *_ = make_pairs(2 * IMAGES, 2, 0)
    truth = np.random.default_rng(0).permutation(2 * IMAGES) < IMAGES // 4
    new = captions[2 * IMAGES :]
    wrong = np.flatnonzero(truth)
    new[wrong] = new[np.roll(wrong, 3)]
    for name, half in {"trusted": slice(0, IMAGES), "new": slice(IMAGES, None)}.items():
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "train_ims.npy", images[half])
        rows = slice(0, 2 * IMAGES) if name == "trusted" else slice(2 * IMAGES, None)
        np.save(tmp_path / name / "train_caps.npy", captions[rows])
        lines = [f"caption {row} of {name}\n" for row in range(2 * IMAGES)]
        (tmp_path / name / "train_caps.txt").write_text("".join(lines))
    return truth


@pytest.mark.slow
def test_new_pairs_are_audited_by_a_kept_judge(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    truth = write_data(tmp_path)
    main.main(["audit", "--data=trusted", "--out=reference"])
    assert "judge.npz: the judge" in (tmp_path / "reference" / "report.md").read_text().replace(
        "\\", ""
    )
    assert (tmp_path / "reference" / "judge.npz").stat().st_size < 2e6
    capsys.readouterr()
    with pytest.raises(SystemExit) as error:
        main.main([*["audit", "--data=new", "--judge=reference", "--out=out"], MOST])
    assert error.value.code == 3
    assert capsys.readouterr().out.startswith("At least ")
    audit = open_audit("out")
    frame, found = audit.to_frame(), audit.judgement
    assert frame["p"][truth].mean() < 0.1 < frame["p"][~truth].mean()
    assert frame["likeness"][truth].mean() < frame["likeness"][~truth].mean()
    assert not (tmp_path / "out" / "judge.npz").exists() and found.made.judge
    assert found.witness.shape == (len(found), 3)
    assert all(re.fullmatch(r"caption \d+ of trusted", text) for text in found.said)
    images, captions = (np.load(f"new/train_{side}.npy") for side in ("ims", "caps"))
    judge = open_judge("reference")
    again = audit_pairs(images, captions, judge=judge, top=0).judgement
    np.testing.assert_array_equal(again.p, found.p)
    assert again.rate == found.rate and list(verdict(again)) == list(verdict(found))
    monkeypatch.setattr(evidence, "fit_evidence", None)  # the judge's models find misaligned rows
    late = audit_pairs(images, np.roll(captions, 2, axis=0), judge=judge, top=0)
    assert late.misaligned.changed.mean() > 0.9
    assert [finding.kind for finding in late.misaligned.findings] == ["shifted"]
    monkeypatch.undo()
    random = np.random.default_rng(1).normal(size=[captions.shape[1]] * 2)
    unlike = audit_pairs(images, np.float32(captions @ np.linalg.qr(random)[0]), judge=judge, top=0)
    assert not unlike.misaligned  # that the judge knows no such captions accuses no row
    assert late.repaired.rate.estimate == pytest.approx(found.rate.estimate, abs=0.05)


def test_a_judge_and_a_finished_judgement_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"^absent: not a kept judge"):
        open_judge("absent")
    from l2rm_jax.audit import command
    from l2rm_jax.config import get_config

    config = get_config()
    config.judgement.path = "somewhere"
    with pytest.raises(ConfigError, match="--judge cannot be combined"):
        command.audit_directory(config, "out", judge=object())


def test_sentences_of_a_kept_judge():
    made = make_judgement().made._replace(judge="0" * 16)
    found = make_judgement(made=made, list_length=412, mechanisms=())
    assert verdict(found) == [
        "At least 5.0% of the pairs are mismatched, about 11%, and at most 20% (90% CI), captions "
        "of similar images included.",
        "If captions were swapped among the most similar pictures, up to 35%.",
        "412 pairs fit worse than matched pairs do: 1 in 10 of these is a false alarm.",
    ]
    reason = "these captions fit the best of their images worse than the reference's do"
    [line] = verdict(make_judgement(made=made, unreliable_reason=reason, mechanisms=()))
    assert line == f"Cannot tell how many pairs are mismatched: {reason}."
