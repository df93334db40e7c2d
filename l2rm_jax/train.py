"""The training loop: one for every method and every head."""

from collections.abc import Callable
from pathlib import Path

from ml_collections import ConfigDict

from l2rm_jax.data.dataset import keep_data
from l2rm_jax.health import require_finite
from l2rm_jax.parallel import Replicas, is_primary
from l2rm_jax.recall import table
from l2rm_jax.run import Run, open_run, read_data, test_rows
from l2rm_jax.run_config import check_config, write_config
from l2rm_jax.run_log import (
    Means,
    RunLog,
    average,
    progress_bar,
    require_tensorboard,
    versions,
    write_results,
)


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
        hosts; nothing of another run is overwritten. Or the run diverged.
    """
    tensorboard = config.train.tensorboard
    if tensorboard:
        require_tensorboard()
    check_config(workdir, config)
    data = read_data(config, workdir)
    replicas = replicas or Replicas()
    replicas.check_batch(config.train.batch_size)
    with open_run(config, data, workdir, replicas) as run:
        if is_primary():
            write_config(workdir, config)
            keep_data(data, workdir)
        resume_step = run.step if run.restore() else None
        settings = {"tensorboard": tensorboard, "primary": is_primary()}
        with RunLog(workdir, run.header, resume_step=resume_step, **settings) as log:
            log.say(f"training in {workdir}\n{run.describe()}")
            total = config.train.warmup_epochs + config.train.epochs
            for epoch in range(run.position["epoch"], total):
                _epoch(run, log, epoch, total, on_epoch)
            rows = test_rows(run.score_test(), data.test, config.evaluation)
            log.say(f"\n{run.title}\n{table(rows)}")
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


def _epoch(
    run: Run, log: RunLog, epoch: int, total: int, on_epoch: Callable[[Run, int], None] | None
) -> None:
    """Plan, train, validate, save; an epoch that was stopped in its middle goes on there."""
    run.start_epoch(epoch)
    if run.plan is None:
        run.plan = run.make_plan(epoch)
        for warning in run.health.plan(epoch, run.plan.streams, run.plan.warnings):
            # Of the epoch's first step: a resumed run that plans again warns again.
            log.warn(run.step + 1, **warning)
    means = _train_epoch(run, log, epoch, f"epoch {epoch + 1}/{total}")
    row = run.validate()
    if on_epoch is not None:
        on_epoch(run, epoch + 1)
    report = {**means, **run.plan.report, **row}
    best = max(row["rsum"], run.position["best_rsum"])
    log.epoch(run.step, epoch=epoch + 1, **report, best_rsum=best, seconds=run.seconds)
    for warning in run.health.epoch(epoch, next(iter(run.plan.streams)), report):
        log.warn(run.step, **warning)
    run.finish_epoch(epoch + 1, row["rsum"])


def _train_epoch(run: Run, log: RunLog, epoch: int, title: str) -> dict[str, float]:
    """One pass over the plan's first stream; returns the means of the step metrics."""
    settings = run.config.train
    stream = run.stream(run.plan, epoch)
    done = run.position.get("step_in_epoch", 0)
    means = Means(run.position.get("sums", {}))
    step, size = run.step, settings.batch_size
    with progress_bar(len(stream) * size, title, initial=done * size) as bar:
        for batch in stream.iterate(done):
            means.add(run.train_step(batch))
            step, done = step + 1, done + 1
            bar.update(size)
            save = done % settings.checkpoint_steps == 0 and done < len(stream)
            # A checkpoint closes the running means, so that a resumed run has the same.
            if save or done % settings.log_steps == 0 or done == len(stream):
                recent = means.flush()
                for at, metrics in enumerate(recent, step - len(recent) + 1):
                    require_finite(metrics, at, epoch + 1)
                values = average(recent)
                log.write("step", step, epoch=epoch + 1, **values)
                bar.set_postfix(loss=f"{values['loss']:.3f}")
            if save:
                run.save(step_in_epoch=done, sums=means.sums)
    return means.means()
