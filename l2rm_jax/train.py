"""The training loop: one for every method and every head."""

import contextlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from l2rm_jax.console import progress_bar
from l2rm_jax.data.loading import save_vocabulary_and_index
from l2rm_jax.devices.hosts import is_primary, is_single_host
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import CheckpointError, DivergedError, StoppedError
from l2rm_jax.evaluation.recall import recall_table
from l2rm_jax.run.config_file import check_workdir, write_config
from l2rm_jax.run.health import require_finite
from l2rm_jax.run.inputs import read_data
from l2rm_jax.run.lock import lock_workdir
from l2rm_jax.run.log import RunLog, require_tensorboard
from l2rm_jax.run.means import Means
from l2rm_jax.run.results import result_rows, versions, write_results
from l2rm_jax.run.run import Run, open_run
from l2rm_jax.run.stop_signal import StopSignal


def train(
    config: ConfigDict,
    workdir: str | Path,
    replicas: Replicas | None = None,
    on_epoch: Callable[[Run, int], None] | None = None,
) -> dict:
    """Trains, validating each epoch, and tests the best model; continues what `workdir` holds.

    On several hosts, each calls this with the same arguments, and `workdir` is one that all share.

    Args:
      config: as `l2rm_jax.config.default` describes it.
      workdir: directory of the run.
      replicas: devices to train on; all of all hosts when None.
      on_epoch: `(run, epochs done)`, called after an epoch's validation and before its checkpoint:
        what an experiment wants to measure along the way. A run that is stopped in between calls
        it again for the same epoch.

    Returns:
      What `results.json` holds: config, versions, mismatch, test recalls, rsum, warnings, wall
      time.

    Raises:
      L2RMError: the config, the data or the workdir's checkpoints do not fit, or differ between
        hosts, or another process trains in the workdir; nothing of another run is overwritten. Or
        the run diverged, the disk is full, or SIGTERM came.
    """
    tensorboard = config.train.tensorboard
    if tensorboard:
        require_tensorboard()
    check_workdir(workdir, config)
    data = read_data(config, workdir)
    replicas = replicas or Replicas()
    replicas.check_batch(config.train.batch_size)
    with (
        open_run(config, data, workdir, replicas) as run,
        lock_workdir(workdir) if is_primary() else contextlib.nullcontext(),
    ):
        if is_primary():
            check_workdir(workdir, config)  # another run may have begun and ended meanwhile
            write_config(workdir, config)
            save_vocabulary_and_index(data, workdir)
        resume_step = run.step if run.restore() else None
        settings = {
            "epochs": run.position["epoch"],
            "tensorboard": tensorboard,
            "primary": is_primary(),
        }
        with (
            RunLog(workdir, run.header, resume_step=resume_step, **settings) as log,
            StopSignal() as stop,
        ):
            log.say(f"training in {workdir}\n{run.describe()}")
            try:
                _epochs(run, log, stop, on_epoch)
                with stop.interruptible():
                    sims = run.score_test()
            except StoppedError as error:
                if "step_in_epoch" in run.position:
                    run.save()
                raise StoppedError(
                    f"{error}; saved in {workdir}, and continues with the same command"
                ) from None
            except OSError as error:  # a full disk, say
                newest = run.checkpoints.newest() or "none yet"
                raise CheckpointError(f"{error}; the last good checkpoint is {newest}") from error
            rows = result_rows(sims, data.test, config.evaluation)
            log.say(f"\n{run.title}\n{recall_table(rows)}")
    results = {
        **run.header,
        "seed": config.seed,
        "test": rows,
        "rsum": next(iter(rows.values()))["rsum"],
        "best_validation_rsum": run.position["best_rsum"],
        "warnings": run.health.warnings,
        "seconds": run.position["seconds"],
        "versions": versions(),
        "config": config.to_dict(),
    }
    if is_primary():
        write_results(workdir, results)
    return results


def _epochs(
    run: Run, log: RunLog, stop: StopSignal, on_epoch: Callable[[Run, int], None] | None
) -> None:
    """Plan, train, validate, save; an epoch that was stopped in its middle goes on there."""
    total = run.config.train.warmup_epochs + run.config.train.epochs
    for epoch in range(run.position["epoch"], total):
        run.start_epoch(epoch)
        if run.plan is None:
            with stop.interruptible():
                plan = run.make_plan(epoch)
            run.plan = plan
            for warning in run.health.check_plan(epoch, plan.streams, plan.warnings):
                log.warn(run.step, **warning)
        means = _train_epoch(run, log, stop, epoch, f"epoch {epoch + 1}/{total}")
        with stop.interruptible():
            row = run.validate()
        if on_epoch is not None:
            on_epoch(run, epoch + 1)
        _finish_epoch(run, log, epoch, means, row)


def _finish_epoch(
    run: Run, log: RunLog, epoch: int, means: dict[str, float], row: dict[str, float]
) -> None:
    """Tells what an epoch came to, from its step metrics and its validation, and saves."""
    report = {**means, **run.plan.report, **row}
    best = max(row["rsum"], run.position["best_rsum"])
    log.write_epoch(run.step, epoch=epoch + 1, **report, best_rsum=best, seconds=run.seconds)
    for warning in run.health.check_epoch(epoch, next(iter(run.plan.streams)), report):
        log.warn(run.step, **warning)
    run.finish_epoch(epoch + 1, row["rsum"])


def _train_epoch(
    run: Run, log: RunLog, stop: StopSignal, epoch: int, title: str
) -> dict[str, float]:
    """One pass over the plan's first stream; returns the means of the step metrics."""
    settings = run.config.train
    stream = run.stream(run.plan, epoch)
    done = run.position.get("step_in_epoch", 0)
    means = Means(run.position)
    step, size = run.step, settings.batch_size

    def judge() -> None:
        for ago, bad in means.fetch():
            _judge(run, log, epoch, step - ago, bad, stream.pairs(done - 1 - ago))

    with progress_bar(len(stream) * size, title, initial=done * size) as bar:
        for batch in stream.iterate(done):
            if not run.is_compiled(batch):
                if done:  # a signal that ends the wait has the state saved, with where it stands
                    judge()
                    run.position |= {"step_in_epoch": done, **means.state}
                run.compile_step(batch, stop.wait)
            means.add(run.train_step(batch))
            step, done = step + 1, done + 1
            bar.update(size)
            tell = done % settings.log_steps == 0 or done == len(stream)
            save = done % settings.checkpoint_steps == 0 and done < len(stream)
            # Asked once: what follows must agree. Hosts meet where they wait for the device anyway.
            end = (tell or save or is_single_host()) and stop.is_requested()
            if tell or save or end:
                judge()
                if tell:
                    values = means.flush()
                    log.write("step", step, epoch=epoch + 1, **values)
                    bar.set_postfix(loss=f"{values.get('loss', math.nan):.3f}")
                run.position |= {"step_in_epoch": done, **means.state}
            if end:  # which saves too
                stop.check()
            if save:
                run.save()
    if not means.means():
        raise DivergedError(
            f"epoch {epoch + 1}: no step had a finite loss and gradient, expected some. Try, in "
            "another workdir, a lower optim.learning_rate"
        )
    skipped = {"skipped": means.skipped} if settings.non_finite == "skip" else {}
    return {**means.means(), **skipped}


def _judge(
    run: Run,
    log: RunLog,
    epoch: int,
    step: int,
    bad: Mapping[str, float],
    pairs: Mapping[str, np.ndarray],
) -> None:
    """Stops the run at a step with numbers that are not finite, or records that it was skipped."""
    rows = {name: of_stream.tolist() for name, of_stream in pairs.items()}
    if run.config.train.non_finite == "stop":
        newest = run.checkpoints.newest() or "none yet"
        known = f"the pairs of the step are {rows}, the last good checkpoint is {newest}"
        require_finite(bad, step, epoch + 1, known)
    log.write("skipped", step, epoch=epoch + 1, non_finite=list(bad), pairs=rows)
