"""What a run or an epoch starts from, other than the state it is in: a fit, an older model, ..."""

import jax
import numpy as np

from l2rm_jax.methods.base import BEST, LAST, EpochPlan
from l2rm_jax.methods.closed_form import START
from l2rm_jax.run.run import Run


def begin_epoch(run: Run, epoch: int) -> None:
    """Start an epoch (counted from 0), or continue one that was stopped.

    Raises:
      CheckpointError: it begins with the best model, which is not there or cannot be restored.
    """
    if run.plan is None:  # the epoch has not begun
        _take_networks(run, run.method.begin(epoch), epoch)
    run.start_epoch(epoch)


def _take_networks(run: Run, start: str, epoch: int) -> None:
    """Take networks and optimiser from elsewhere; `start` is what `Method.begin` returns."""
    if start == LAST:
        return
    if start == BEST:
        other = run.best_state()
    else:
        other = run.initial_state(jax.random.fold_in(jax.random.key(run.config.seed), epoch))
        if run.method.fit:  # an optimiser as at first, whatever the state that was fitted from
            other = run.fits[START][0].replace(opt_state=other.opt_state)
    names = ("params", "batch_stats", "opt_state")
    parts = {name: run.replicas.replicate(getattr(other, name)) for name in names}
    run.state = run.state.replace(**parts)


def start_from_fit(run: Run) -> tuple[float, float]:
    """Start from the fit `START`; the best one on the validation split is the best so far.

    Returns:
      The validation rSum of the start, and of the best fit.

    Raises:
      ConfigError: the hosts fitted different models.
    """
    rsums = []
    for state, _ in run.fits:
        run.state = run.replicas.replicate(state)
        rsums.append(run.validate()["rsum"])
    best, start = (run.replicas.replicate(run.fits[i][0]) for i in (int(np.argmax(rsums)), START))
    run.checkpoints.save_best(run.step, run.replicas.unreplicate_for_checkpoint(best))
    run.position["best_rsum"] = max(rsums)
    run.state = start
    run.save()
    return rsums[START], max(rsums)


def take_fit(run: Run, epoch: int) -> None:
    """Take the fit that is an epoch (counted from 0) of a method in closed form.

    Raises:
      ConfigError: the hosts fitted different models.
    """
    state, report = run.fits[epoch]
    state = state.replace(step=np.int32(epoch + 1), epoch=np.int32(epoch))
    run.state = run.replicas.replicate(state)
    run.plan = EpochPlan({"pairs": np.flatnonzero(run.data.train.paired)}, report)
