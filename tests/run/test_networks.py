"""A run of several networks: trained, continued, evaluated, loaded and searched as their mean."""

import numpy as np
import pytest

import l2rm_jax
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.evaluate import evaluate_runs
from l2rm_jax.evaluation.scoring import Scorer
from l2rm_jax.run.config_file import read_config
from l2rm_jax.run.initialise import open_run
from l2rm_jax.run.inputs import read_data
from tests.run.tiny_runs import run

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("networks") / "two"
    return workdir, run(workdir, method="l2rm", networks=2, warmup_epochs=1, epochs=1)


@pytest.mark.slow
def test_evaluation_and_search_take_the_mean(trained):
    workdir, results = trained
    rows = evaluate_runs([workdir])
    assert rows[f"{workdir} (vse, 2 networks), custom"] == pytest.approx(results["test"]["custom"])
    config = read_config(workdir)
    with open_run(config, read_data(config, workdir), workdir, Replicas()) as again:
        again.restore_best()
        test = again.data.test
        sims = again.score(test)
        vectors = again.score(test, Scorer.embeddings)
    np.testing.assert_allclose(vectors[0] @ vectors[1].T, sims, atol=1e-5)
    retriever = l2rm_jax.load(workdir)
    assert "network 1 of 2" in repr(retriever) and "network 2 of 2" in repr(retriever)
    encoded = (
        retriever.encode_images(test.images.rows(np.arange(len(test.images)))),
        retriever.encode_captions(test.captions),
    )
    np.testing.assert_allclose(retriever.similarity(*encoded), sims, atol=1e-5)
