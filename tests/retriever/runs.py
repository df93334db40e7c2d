"""Run directories whose models are initialised and saved, but not trained: enough to be used."""

from pathlib import Path

from l2rm_jax.data.loading import load_data, save_vocabulary_and_index
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.run.config_file import write_config
from l2rm_jax.run.initialise import open_run
from tests.tiny import tiny_config

IMAGES, BATCH = 37, 64  # more than fit a tile, and with five captions each more than a batch


def make_run(workdir: Path, head: str, seed: int = 0, score: bool = True):
    """Make the directory of a run; returns the scores of its test split."""
    config = tiny_config("triplet", head)
    config.seed, config.mismatch.rate, config.judgement.folds = seed, 0.0, 3
    config.data.scenes_test, config.evaluation.batch_size = IMAGES, BATCH
    data = load_data(config.data, config.mismatch, workdir=None)
    with open_run(config, data, workdir, Replicas()) as run:
        run.finish_epoch(3, rsum=123.4)
        run.checkpoints.wait()
        run.restore_best()
        sims = run.score(data.test) if score else None
    save_vocabulary_and_index(data, workdir)
    write_config(workdir, config)
    return sims, data.test
