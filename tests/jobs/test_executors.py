"""Parts of a judgement: the result does not depend on their size or on the executor."""

import os

import numpy as np
import pytest

from l2rm_jax.audit import command
from l2rm_jax.config import get_config
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.jobs import LOCAL, Place, Share, Stored
from l2rm_jax.jobs.workers import _described, _opened
from l2rm_jax.judging import groups, judge, judge_pairs, scores, write_judgement
from l2rm_jax.run.config_file import with_changes
from tests.judging.synthetic import make_pairs

FOLDS, PAIRS = 3, 360


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Pairs with vectors in files, like large data sets."""
    folder = tmp_path_factory.mktemp("vectors")
    images, captions, stored, _ = make_pairs(PAIRS, 1, 0.3)
    for name, vectors in (("images", images), ("captions", captions)):
        np.save(folder / f"{name}.npy", vectors.astype(np.float16))
    return Pairs(*(np.load(folder / f"{n}.npy", "r") for n in ("images", "captions")), stored)


@pytest.fixture
def small_parts(monkeypatch):
    """Reduce the size of parts to the size of the data."""
    monkeypatch.setattr(scores, "_PAIRS", 50)
    monkeypatch.setattr(groups, "_EXACT", 100)


def judged(pairs, file, executor=LOCAL, keep=None):
    executor = Stored(keep, executor) if keep else executor
    write_judgement(file, judge_pairs(pairs, folds=FOLDS, top=2, executor=executor))
    return file.read_bytes()


def counted(monkeypatch, most=None):
    """Count the parts that are scored; after `most` of them, stop as Ctrl-C does."""
    done, score = [], judge.score_part

    def counting(*arguments):
        if len(done) == most:
            raise KeyboardInterrupt
        done.append(arguments)
        return score(*arguments)

    monkeypatch.setattr(judge, "score_part", counting)
    return done


def test_parts_change_nothing(pairs, monkeypatch, tmp_path):
    whole = judge_pairs(pairs, folds=FOLDS)
    monkeypatch.setattr(scores, "_PAIRS", 50)
    parts = counted(monkeypatch)
    cut = judge_pairs(pairs, folds=FOLDS)
    assert len(parts) == 9
    rows = np.concatenate([part.pairs for part, *_ in parts])
    np.testing.assert_array_equal(np.sort(rows), np.arange(PAIRS))
    for part, *_ in parts:  # files are read from front to back
        assert (np.diff(part.images) > 0).all()
    np.testing.assert_allclose(cut.information, whole.information, atol=1e-4)
    np.testing.assert_allclose(cut.posterior, whole.posterior, atol=1e-3)
    assert cut.rate.estimate == pytest.approx(whole.rate.estimate, abs=1e-3)


def test_a_judgement_that_was_stopped_goes_on_part_by_part(
    pairs, small_parts, monkeypatch, tmp_path
):
    expected = judged(pairs, tmp_path / "whole.npz")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        counted(patch, most=5)
        judged(pairs, tmp_path / "none.npz", keep=tmp_path / "work")
    done = counted(monkeypatch)
    assert judged(pairs, tmp_path / "again.npz", keep=tmp_path / "work") == expected
    assert len(done) == 9 - 5


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (Place("dask"), "--executor=dask"),
        (Place(workers=2), "--executor=ray"),
        (Place(address="auto"), "--executor=ray"),
        (Place("ray", "auto", 2), r"--workers.*--ray_address=auto"),
        (Place("ray", workers=-1), "--workers=-1"),
        (Place("ray", share=Share(2, 3)), r"--executor=ray.*--share"),
    ],
)
def test_a_wrong_place_is_refused(place, message):
    with pytest.raises(ConfigError, match=message):
        place.check()


def test_a_missing_ray_and_a_trained_detector_are_refused_before_any_work(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="Ray"):
        Place("ray").check()
    monkeypatch.undo()
    monkeypatch.setattr(Place, "check", lambda place: None)
    few = {"data.scenes_train": 20, "data.scenes_dev": 4, "data.scenes_test": 4}
    config = with_changes(get_config(), {"judgement.detector": "infonce-vse", **few})
    with pytest.raises(ConfigError, match=r"--executor=ray.*infonce-vse"):
        command.audit_directory(config, tmp_path / "out", Place("ray"))
    assert not list(tmp_path.iterdir())


def test_vectors_in_files_travel_as_their_place(tmp_path):
    for number, array in enumerate((np.arange(12.0).reshape(4, 3), np.asfortranarray(np.eye(3)))):
        np.save(tmp_path / f"{number}.npy", array)
        mapped = np.load(tmp_path / f"{number}.npy", mmap_mode="r")
        described = _described(mapped)
        assert described[0] == str(tmp_path / f"{number}.npy")
        np.testing.assert_array_equal(_opened(described), array)
        np.testing.assert_array_equal(_opened(_described(mapped[1:])), array[1:])


@pytest.mark.slow
def test_workers_of_ray_give_the_same_bytes_and_so_do_those_that_take_over(
    pairs, small_parts, monkeypatch, tmp_path
):
    ray = pytest.importorskip("ray")
    expected = judged(pairs, tmp_path / "local.npz")
    score, died = judge.score_part, tmp_path / "died"

    def dies_once(part, *others):
        if part.pairs.max() > PAIRS / 2 and not died.exists():
            died.touch()
            os._exit(1)
        return score(part, *others)

    with Place("ray", workers=2).open() as executor:
        assert judged(pairs, tmp_path / "ray.npz", executor) == expected
        with monkeypatch.context() as patch:
            patch.setattr(judge, "score_part", dies_once)
            assert judged(pairs, tmp_path / "died.npz", executor) == expected
        assert died.exists()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            counted(patch, most=4)
            judged(pairs, tmp_path / "none.npz", keep=tmp_path / "work")
        assert judged(pairs, tmp_path / "again.npz", executor, tmp_path / "work") == expected

        def refuses(row):
            raise DataError(f"row {row} is damaged")

        with pytest.raises(DataError, match="row 3 is damaged"):
            list(executor.map(refuses, [(3,)]))
    assert not ray.is_initialized()
    assert [*LOCAL.map(max, [(1, 2), (4, 3)])] == [2, 4]
