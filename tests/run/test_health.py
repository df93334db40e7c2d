"""Warnings: numbers that cause each one, numbers that do not, and when it is shown."""

import json
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax import config as defaults
from l2rm_jax.errors import DivergedError
from l2rm_jax.evaluation.recall import recalls
from l2rm_jax.methods import make_method
from l2rm_jax.methods.transport_warnings import transport_warnings
from l2rm_jax.models import make_model
from l2rm_jax.run.health import (
    Health,
    Reference,
    chance_rsum,
    epoch_warnings,
    make_reference,
    plan_warnings,
    require_finite,
)
from tests.grid import STEPPING

# 200 images x 5 captions, batch 64, margin 0.2. Chance rSum is 15.9 with a margin of 13.6. The flat
# losses are those of RCE in the warm-up and of the hardest negatives after it.
REFERENCE = Reference(
    images=200,
    captions_per_image=5,
    batch_size=64,
    warmup_epochs=2,
    warms_up=True,
    flat_losses={"warmup": ("loss", 20.025), "matched": ("loss_matched", 25.6)},
    own_warnings=partial(transport_warnings, cost="learned", epsilon=0.01),
)
HEALTHY = {
    "rsum": 466.0,
    "loss": 23.0,
    "loss_matched": 21.2,
    "cost_spread": 0.037,
    "cost_zero": 0.0,
    "transport_converged": 1.0,
}


@pytest.mark.parametrize(
    ("numbers", "name", "text"),
    [
        ({}, None, ""),
        ({"rsum": 29.0}, "recall_at_chance", "chance with 200 images of 5 captions is 15.9"),
        ({"rsum": 30.0}, None, ""),
        ({"loss_matched": 25.61}, "flat_loss", "25.6 is its value where all similarities are"),
        ({"loss_matched": 25.3}, None, ""),
        ({"loss": 25.6}, None, ""),
        ({"cost_spread": 0.0039}, "cost_spread", "it was 0.04 in the first rematching epoch"),
        ({"cost_spread": 0.0041}, None, ""),
        ({"cost_zero": 0.51}, "cost_zero", "51% of the transport costs"),
        ({"cost_zero": 0.49}, None, ""),
        ({"transport_converged": 0.77}, "transport", "did not converge in 23% of the steps"),
        ({"transport_converged": 0.95}, None, ""),
    ],
)
def test_warnings_of_an_epoch(numbers, name, text):
    warnings = epoch_warnings({**HEALTHY, **numbers}, "matched", REFERENCE, {"cost_spread": 0.04})
    assert list(warnings) == ([name] if name else [])
    assert all(text in message and "Try " in message for message in warnings.values())


def test_a_cost_spread_far_below_epsilon_warns_in_the_first_epoch():
    for spread, is_warned in [(0.0009, True), (0.0011, False)]:
        warnings = epoch_warnings({**HEALTHY, "cost_spread": spread}, "matched", REFERENCE, {})
        assert ("cost_spread" in warnings) == is_warned
        assert not is_warned or "l2rm.epsilon is 0.01" in warnings["cost_spread"]


@pytest.mark.parametrize(("loss", "is_flat"), [(20.0267, True), (19.9372, False)])
def test_each_stream_has_its_own_flat_loss(loss, is_flat):
    """RCE in the first two epochs of a run that learns: the first is flat, the second is not."""
    warnings = epoch_warnings({"rsum": 96.4, "loss": loss}, "warmup", REFERENCE, {})
    assert list(warnings) == (["flat_loss"] if is_flat else [])
    assert not epoch_warnings({"rsum": 96.4, "loss": loss}, "other", REFERENCE, {})


def test_a_perfect_loss_without_a_margin_is_not_flat():
    reference = REFERENCE._replace(flat_losses={"pairs": ("loss", 0.0)})
    assert not epoch_warnings({"rsum": 600.0, "loss": 0.0}, "pairs", reference, {})


RCSL = {
    "warmup": ("loss_mining", 63.0),
    "learning": ("hinge_of_a_pair", 0.4),
    "mining": ("loss_mining", 126.0),
}


def reference_of_method(method: str) -> Reference:
    config = defaults.get_config("long")
    config.method = method
    if method == "rcsl":
        config.mismatch.protocol, config.mismatch.paired_images = "semi_paired", 60

    class Dev:
        images, captions_per_image = range(200), 5

    return make_reference(config, Dev, make_method(make_model(config, 20), config))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("l2rm", {"warmup": ("loss", 20.025133), "matched": ("loss_matched", 25.6)}),
        ("triplet", {"warmup": ("loss", 25.2), "pairs": ("loss", 25.6)}),
        ("infonce", {"warmup": ("loss", 8.317766), "pairs": ("loss", 8.317766)}),
        ("rcl", {"pairs": ("loss", 1.984292)}),
        ("rcsl", RCSL),
        ("rcsl_nc", RCSL),
    ],
)
def test_flat_losses_by_hand(method, expected):
    """For batches of B = 64: triplet loss 2 margin B with the hardest negatives, 2 margin (B - 1)
    in its warm-up; InfoNCE 2 log B; RCE log B - log(1e-7) (B - 1) / B; RCL
    2 (B - 1) log(B / (B - 1)); RCSL B - 1 for each mining batch, 2 margin for a learning pair."""
    flat_losses = reference_of_method(method).flat_losses
    assert {stream: metric for stream, (metric, _) in flat_losses.items()} == {
        stream: metric for stream, (metric, _) in expected.items()
    }
    for stream, (_, value) in expected.items():
        assert flat_losses[stream][1] == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize(
    ("images", "captions_per_image"),
    [(100, 1), (20, 5), (12, 2), (4, 3), (30, np.repeat([1, 9], [24, 6]))],
)
def test_chance_rsum_is_the_mean_over_random_rankings(images, captions_per_image):
    rng = np.random.default_rng(images)
    captions = np.broadcast_to(captions_per_image, images).sum()
    drawn = [
        recalls(rng.random((images, captions)), captions_per_image)["rsum"] for _ in range(100)
    ]
    chance, margin = chance_rsum(images, captions_per_image)
    assert chance == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / 10)
    assert 0 < margin <= (600 - chance) / 4
    if images >= 20:  # with fewer images, the margin is capped below the chance deviations
        assert np.mean(np.array(drawn) < chance + margin) > 0.98


def test_the_warning_names_different_numbers_of_captions():
    reference = REFERENCE._replace(captions_per_image=np.repeat([2, 8], 100))
    [text] = epoch_warnings({**HEALTHY, "rsum": 20.0}, "pairs", reference, {}).values()
    assert "chance with 200 images of 2 to 8 captions is" in text


@pytest.mark.parametrize("captions_per_image", [1, 5])
def test_a_single_image_never_warns(captions_per_image):
    reference = REFERENCE._replace(images=1, captions_per_image=captions_per_image)
    assert chance_rsum(1, captions_per_image) == (600.0, 0.0)
    assert not epoch_warnings({"rsum": 600.0}, "pairs", reference, {})


def test_streams_that_do_not_fill_a_batch():
    streams = {"matched": np.arange(64), "mismatched": np.arange(63)}
    warnings = plan_warnings(streams, 64)
    assert list(warnings) == ["few_mismatched"]
    assert "has 63, fewer than a batch of 64" in warnings["few_mismatched"]
    assert "rematched with the captions of these few" in warnings["few_mismatched"]
    [text] = plan_warnings({"matched": np.arange(63)}, 64).values()
    assert "a pair has its copies as negatives" in text and "rematched" not in text
    assert text.endswith("Try a smaller train.batch_size")
    [text] = plan_warnings({"matched": [0]}, 2).values()
    assert text.endswith("Try more training pairs")


@pytest.mark.parametrize("epochs", [1, 2, 8])
def test_a_run_at_chance_warns_at_its_end_whatever_its_length(epochs):
    health = Health(REFERENCE)
    [warning] = health.check_end(epochs, 25.0)
    assert shown([warning]) == [(epochs, "end", "ends_at_chance")]
    assert "its best validation rSum is 25.0, and chance with 200 images" in warning["message"]
    assert health.warnings == [warning]
    assert not health.history["warnings"]  # the run may be given more epochs
    assert not health.check_end(epochs, 90.0) and not health.warnings


def test_the_end_does_not_repeat_what_the_last_epoch_said():
    health = Health(REFERENCE)
    for epoch in range(4):
        health.check_epoch(epoch, "warmup", FLAT)
    assert not health.check_end(4, 20.0) and health.check_end(5, 20.0)


def shown(warnings: list[dict]) -> list[tuple]:
    return [(warning["epoch"], warning["phase"], warning["sign"]) for warning in warnings]


FLAT = {"rsum": 20.0, "loss": 20.025}
LEARNS = {"rsum": 90.0, "loss": 10.0}


def test_each_warning_is_shown_once_a_phase_and_not_again_after_a_resume():
    health = Health(REFERENCE._replace(warmup_epochs=5))
    for epoch in range(3):  # every run starts flat, and a slow one stays so for a while
        assert not health.check_epoch(epoch, "warmup", FLAT)
    assert shown(health.check_epoch(3, "warmup", FLAT)) == [
        (4, "warm-up", "recall_at_chance"),
        (4, "warm-up", "flat_loss"),
    ]
    assert not health.check_epoch(4, "warmup", FLAT)
    streams = {"matched": np.arange(64), "mismatched": np.arange(10)}
    method_warnings = {"one_sided_split": "..."}
    assert shown(health.check_plan(5, streams, method_warnings)) == [
        (6, "main", "one_sided_split"),
        (6, "main", "few_mismatched"),
    ]
    sunk = {**HEALTHY, "rsum": 20.0, "cost_zero": 0.9, "cost_spread": 0.04}
    assert shown(health.check_epoch(5, "matched", sunk)) == [
        (6, "main", "recall_at_chance"),
        (6, "main", "cost_zero"),
    ]
    resumed = Health(REFERENCE._replace(warmup_epochs=5), json.loads(json.dumps(health.history)))
    assert not resumed.check_plan(6, streams, method_warnings)
    assert shown(resumed.check_epoch(6, "matched", {**sunk, "cost_spread": 0.003})) == [
        (7, "main", "cost_spread")
    ]
    assert len(resumed.warnings) == 7
    assert shown(health.warnings) == shown(resumed.warnings)[:6]


def warnings_of(curve: list[dict]) -> list[tuple[int, str]]:
    """Epochs and names of the warnings of a warm-up that is killed and resumed after each epoch."""
    history = None
    for epoch, report in enumerate(curve):
        health = Health(REFERENCE._replace(warmup_epochs=9), history)
        health.check_epoch(epoch, "warmup", report)
        history = json.loads(json.dumps(health.history))
    return [(warning["epoch"], warning["sign"]) for warning in history["warnings"]]


@pytest.mark.parametrize(
    ("rsums", "losses"),
    [
        ([20.0, 90.0] * 4, [10.0] * 8),  # never two epochs in a row
        # L2RM, and InfoNCE scaled to the flat value of RCE, at mismatch rate 0.6. Their final test
        # rSum is 320 and 239.
        ([21.8, 25.9, 57.6, 122.8, 175.0], [20.038, 20.020, 19.980, 19.766, 19.406]),
        ([15.9, 15.6, 19.2, 33.1, 59.5], [20.095, 20.021, 20.006, 19.969, 19.785]),
    ],
)
def test_short_plateaus_do_not_warn(rsums, losses):
    curve = zip(rsums, losses, strict=True)
    assert not warnings_of([{"rsum": rsum, "loss": loss} for rsum, loss in curve])


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        ([FLAT] * 8, [4]),  # never learns
        ([FLAT] * 3 + [LEARNS] * 2 + [FLAT] * 3, [7]),  # a collapse after a slow start
        ([FLAT] * 4 + [LEARNS] + [FLAT] * 3, [4, 7]),  # a collapse after an earlier warning
        ([LEARNS, FLAT, LEARNS, FLAT, LEARNS, FLAT, FLAT], [7]),
    ],
)
def test_a_collapse_warns_and_warns_again_if_it_returns(epochs, expected):
    names = ("recall_at_chance", "flat_loss")
    assert warnings_of(epochs) == [(epoch, name) for epoch in expected for name in names]


@pytest.mark.parametrize("method", STEPPING)
def test_the_advice_mentions_the_warmup_only_if_the_method_has_one(method):
    """InfoNCE, SigLIP's loss and RCL stay the same in every epoch and split no pairs."""
    reference = reference_of_method(method)
    assert reference.warms_up == (method not in ("infonce", "sigmoid", "rcl"))
    for stream, (metric, flat) in reference.flat_losses.items():
        warnings = epoch_warnings({"rsum": 1.0, metric: flat}, stream, reference, {})
        assert list(warnings) == ["recall_at_chance", "flat_loss"]
        for text in warnings.values():
            assert "Try a lower optim.learning_rate" in text
            assert ("train.warmup_epochs" in text) == reference.warms_up


@pytest.mark.parametrize("cost", ["learned", "cosine"])
def test_the_advice_fits_the_cost_of_the_run(cost):
    dead = {**HEALTHY, "cost_spread": 0.0, "cost_zero": 1.0}
    warnings = transport_warnings(dead, {}, cost=cost, epsilon=0.01)
    assert list(warnings) == ["cost_spread", "cost_zero"]
    for text in warnings.values():
        assert "Try " in text
        for learned_only in ("l2rm.cost_learning_rate", "l2rm.cost=cosine", "learned cost"):
            assert cost == "learned" or learned_only not in text
        assert cost == "cosine" or "l2rm.cost=cosine" in text


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "loss: nan at step 7 of epoch 2"),
        (jnp.float32(jnp.inf), "loss: inf at step 7"),
        (np.array([[1.0, -np.inf], [np.nan, 0.0]]), "loss: -inf in 2 places at step 7"),
    ],
)
def test_numbers_that_are_not_finite_stop_the_run(value, message):
    with pytest.raises(DivergedError, match=message) as error:
        require_finite({"grad_norm": 1.0, "loss": value}, step=7, epoch=2)
    assert "optim.learning_rate" in str(error.value)
    require_finite({"loss": np.float32(3e38), "sims": np.zeros((2, 3))}, step=7, epoch=2)
