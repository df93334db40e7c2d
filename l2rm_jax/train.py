"""The training loop, the same for every method and every head: plan, train, validate, save."""

import math
import shlex
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from l2rm_jax.console import EpochTable, clock, progress_bar
from l2rm_jax.data.train_pairs import Data
from l2rm_jax.devices.hosts import exit_on_host_failure, is_primary, is_single_host
from l2rm_jax.devices.parallel import Replicas, in_float32
from l2rm_jax.errors import CheckpointError, DivergedError, StoppedError
from l2rm_jax.evaluation.protocols import recall_rows
from l2rm_jax.evaluation.recall import recall_table
from l2rm_jax.run.config_file import check_workdir
from l2rm_jax.run.data_hashes import keep_hashes
from l2rm_jax.run.description import data_warnings, describe, expected_epoch
from l2rm_jax.run.detector import open_detector
from l2rm_jax.run.fold_runs import judged_epoch
from l2rm_jax.run.health import require_finite
from l2rm_jax.run.initialise import (
    begin_epoch,
    open_run,
    open_workdir,
    start_from_fit,
    take_fit,
)
from l2rm_jax.run.inputs import check_data, check_values, read_data
from l2rm_jax.run.judgement import Summary, judge_data, keep_split
from l2rm_jax.run.load_trained import add_start
from l2rm_jax.run.log import Means, RunLog, require_tensorboard
from l2rm_jax.run.pretrained import changed_directories, with_judged_vectors
from l2rm_jax.run.results import chance_of, versions, write_results
from l2rm_jax.run.run import Run
from l2rm_jax.run.stop_signal import StopSignal

OnEpoch = Callable[[Run, int, Mapping[str, float]], None]


@in_float32
def train(
    config: ConfigDict,
    workdir: str | Path,
    replicas: Replicas | None = None,
    on_epoch: OnEpoch | None = None,
    data: Data | None = None,
) -> dict:
    """Train a model, validate it after each epoch, and test the best one.

    A run that was stopped in `workdir` continues, and a finished one trains more epochs if
    `train.epochs` is higher than before. On several hosts, each host calls this with the same
    arguments, and all share `workdir`.

    Args:
      config: config of the run, with the fields of `l2rm_jax.config.default`.
      workdir: work directory, created if missing.
      replicas: devices to train on; all devices of all hosts when None.
      on_epoch: `on_epoch(run, epochs, recalls)`, called after the validation of an epoch and before
        its checkpoint, with the number of finished epochs; experiments measure here. A run that is
        stopped in between calls it again for the same epoch.
      data: the data, before any judgement; None reads those that the config describes.

    Returns:
      The contents of `results.json`: config, versions, test recalls, warnings, seconds and more.

    Raises:
      ConfigError, DataError: the config or the data are invalid, differ between hosts, or belong to
        another run than that in `workdir`; or another process trains there.
      CheckpointError: a checkpoint cannot be read, or the disk is full.
      DivergedError: the loss or the scores are no longer finite.
      StoppedError: SIGTERM or Ctrl-C came during training; the run is saved.
      KeyboardInterrupt: Ctrl-C came before training.
    """
    tensorboard = config.train.tensorboard
    if tensorboard:
        require_tensorboard()
    check_workdir(workdir, config)
    data = read_data(config, workdir) if data is None else check_data(config, data)
    check_values(data.dev, data.test)  # a run of days must not fail at its end
    replicas = replicas or Replicas()
    replicas.check_batch(config.train.batch_size)
    keep_hashes(config, data, workdir)
    data = with_judged_vectors(config, data, workdir)
    data = add_start(config, data, workdir)
    runs = {"workdir": workdir, "replicas": replicas, "train": train}
    detector = partial(open_detector, config, **runs)
    judge = partial(judge_data, config, workdir=workdir, open_detector=detector)
    try:
        with exit_on_host_failure():
            data, judged = judge(data)
    except StoppedError as error:  # in the run of a fold
        raise _stopped(error, error.place, workdir) from None
    with (
        open_run(config, data, workdir, replicas) as run,
        open_workdir(config, data, workdir) as change,
    ):
        resume_step = run.step if run.restore() else None
        settings = {
            "epochs": run.position["epoch"],
            "tensorboard": tensorboard,
            "primary": is_primary(),
        }
        with (
            RunLog(workdir, run.header, resume_step=resume_step, **settings) as log,
            StopSignal(run.checkpoints.describe_loss) as stop,
        ):
            log.say(f"training in {workdir}\n{describe(run, replicas)}")
            if change:
                log.say(change)
            if judged:
                log.say(judged.sentence)
            if judged and resume_step is None:
                log.write("judgement", run.step, **judged.report)
            if resume_step is None:
                for warning in run.health.check_plan(0, {}, data_warnings(data, judged)):
                    log.warn(run.step, **warning)
            if resume_step is not None:
                log.say(f"continuing at {_place(run)}")
                if is_primary():
                    for original in changed_directories(data.pretrained, config):
                        log.say(f"{original} has changed; the run keeps using its own copy")
            try:
                if resume_step is None and run.method.fit and run.method.plan:
                    log.say("fitting in closed form")
                    with stop.interruptible():
                        start, best = start_from_fit(run)
                    log.say(
                        f"starts from a fit in closed form: validation rSum {start:.1f} (best fit: "
                        f"{best:.1f})"
                    )
                _train_epochs(run, log, stop, judge, on_epoch)
                with stop.interruptible():
                    run.restore_best()
                    sims = run.score(data.test)
            except StoppedError as error:
                if "step_in_epoch" in run.position:
                    run.save()
                # newest() waits for the save, while Ctrl-C still asks first.
                saved = "saved" if run.checkpoints.newest() else "nothing to save yet"
                place = error.place or f"{_place(run)}; {saved}"
                raise _stopped(error, place, workdir) from None
            except OSError as error:  # a full disk, for example
                raise CheckpointError(f"{error}; {_newest_checkpoint(run)}") from error
            test, settings = data.test, config.evaluation
            protocols = settings.protocol, settings.dual_softmax
            rows = recall_rows(sims, test.captions_per_image, *protocols)
            chance = chance_of(test, settings)
            log.say(f"\n{recall_table({**rows, **chance}, config.data.test_split)}")
            if run.method.fit and run.method.plan and run.step == 0:
                log.say("the best model is the fit in closed form: no epoch was better")
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


def _place(run: Run) -> str:
    """Describe the progress of a run: the epoch, from 1, and the number of its finished steps."""
    epoch, step = run.position["epoch"], run.position.get("step_in_epoch", 0)
    return "the test" if epoch == run.total_epochs else f"epoch {epoch + 1}, step {step}"


def _stopped(error: StoppedError, place: str, workdir: str | Path) -> StoppedError:
    """The error of a run that was stopped, with the command that continues it."""
    message = f"stopped at {place}. Continue: {_command(workdir)}"
    return StoppedError(message, error.signal, place)


def _command(workdir: str | Path) -> str:
    """Return the shell command that resumes the run."""
    if not is_single_host():
        return "start all hosts again with the same commands"
    return f"l2rm --workdir={shlex.quote(str(workdir))}"


def _newest_checkpoint(run: Run) -> str:
    newest = run.checkpoints.newest()
    return f"the last good checkpoint is {newest}" if newest else "there is no checkpoint yet"


def _train_epochs(
    run: Run, log: RunLog, stop: StopSignal, judge: Callable, on_epoch: OnEpoch | None
) -> None:
    """Judge, plan and train (or fit), validate and save each epoch that is left.

    A stopped epoch continues.
    """
    total, last = run.total_epochs, 0
    table = EpochTable(
        total,
        splits=run.method.splits,
        knows_truth=not run.data.train.matched.all(),
        moves_mass=run.method.moves_mass,
    )
    for epoch in range(run.position["epoch"], total):
        with stop.interruptible():
            begin_epoch(run, epoch)
        judged = None
        if last != (last := judged_epoch(run.config, epoch)):
            run.checkpoints.wait()  # two saves in progress would share one barrier
            with stop.interruptible():
                run.data, judged = judge(run.data, epoch=last)
        if run.method.plan is None:
            with stop.interruptible():
                take_fit(run, epoch)
            means = {}
        else:
            _plan_epoch(run, log, stop, epoch, judged if last == epoch else None)
            means = _train_epoch(run, log, stop, epoch, f"epoch {epoch + 1}/{total}")
        with stop.interruptible():
            row = run.validate()
        if on_epoch is not None:
            on_epoch(run, epoch + 1, row)
        _finish_epoch(run, log, table, epoch, means, row)
    for warning in run.health.check_end(total, run.position["best_rsum"]):
        log.warn(run.step, **warning)


def _plan_epoch(
    run: Run, log: RunLog, stop: StopSignal, epoch: int, judged: Summary | None
) -> None:
    """Choose the pairs of an epoch, unless it was stopped and has its plan already.

    `judged` sums up the judgement that was made just before it.
    """
    if run.plan is not None:
        return
    with stop.interruptible():
        plan = run.make_plan(epoch)
    if plan.split is not None and is_primary():
        keep_split(run.workdir, epoch + 1, run.data.train.stored_image, plan.split)
    run.plan, warnings = plan, plan.warnings
    if judged:
        log.say(judged.sentence)
        log.write("judgement", run.step, epoch=epoch + 1, **judged.report)
        warnings = {**warnings, **judged.warnings}
    for warning in run.health.check_plan(epoch, plan.streams, warnings):
        log.warn(run.step, **warning)


def _finish_epoch(
    run: Run,
    log: RunLog,
    table: EpochTable,
    epoch: int,
    means: dict[str, float],
    row: dict[str, float],
) -> None:
    """Log an epoch with its warnings, and save it; `row` holds its validation recalls."""
    report = {**means, **run.plan.report, **row}
    best = max(row["rsum"], run.position["best_rsum"])
    values = {"epoch": epoch + 1, **report, "best_rsum": best, "seconds": run.seconds}
    log.write("epoch", run.step, **values)
    log.say(table.lines(values, run.epoch_seconds))
    for warning in run.health.check_epoch(epoch, next(iter(run.plan.streams)), report):
        log.warn(run.step, **warning)
    run.finish_epoch(epoch + 1, row["rsum"])


def _train_epoch(
    run: Run, log: RunLog, stop: StopSignal, epoch: int, title: str
) -> dict[str, float]:
    """Train on one pass over the plan's first stream; return the means of the step metrics."""
    settings = run.config.train
    stream = run.stream(run.plan, epoch)
    done = run.position.get("step_in_epoch", 0)
    means = Means(run.position)
    step, size = run.step, settings.batch_size

    def fetch_metrics() -> None:
        for ago, bad in means.fetch():
            pairs = stream.pairs(done - 1 - ago)
            _stop_or_record_skip(run, log, epoch, step - ago, bad, pairs)

    began, timed_from = time.monotonic(), done
    with progress_bar(len(stream) * size, title, initial=done * size) as bar:
        for batch in map(run.shard, stream.iterate(done)):
            if not run.is_compiled(batch):
                if done:  # a signal may end the wait: set the position that is saved then
                    fetch_metrics()
                    run.position |= {"step_in_epoch": done, **means.state}
                if not done and (line := expected_epoch(run, batch, len(stream))):
                    log.say(line)
                with bar.paused("compiling"):
                    run.compile_step(batch, stop.wait)
                if epoch < settings.warmup_epochs:
                    run.compile_main_step(epoch)
                began, timed_from = time.monotonic(), done
            means.add(run.train_step(batch))
            step, done = step + 1, done + 1
            bar.update(size)
            is_log_step = done % settings.log_steps == 0 or done == len(stream)
            is_save_step = done % settings.checkpoint_steps == 0 and done < len(stream)
            # Asked once a step, so that the branches below agree. Several hosts ask each other only
            # at steps where they wait for the device anyway.
            must_stop = (is_log_step or is_save_step or is_single_host()) and stop.is_requested()
            if is_log_step or is_save_step or must_stop:
                fetch_metrics()
                if is_log_step:
                    values = means.flush()
                    log.write("step", step, epoch=epoch + 1, **values)
                    left = (run.total_epochs - epoch) * len(stream) - done
                    seconds = left * (time.monotonic() - began) / (done - timed_from)
                    note = f"loss {values.get('loss', math.nan):.3f}"
                    bar.note(f"{note}, all epochs in {clock(seconds)}")
                run.position |= {"step_in_epoch": done, **means.state}
            if must_stop:
                stop.check()  # raises StoppedError; `train` then saves
            if is_save_step:
                run.save()
    if not means.means():
        raise DivergedError(
            f"epoch {epoch + 1}: no step had a finite loss and gradient, expected some. Try, in "
            "another workdir, a lower optim.learning_rate"
        )
    skipped = {"skipped": means.skipped} if settings.non_finite == "skip" else {}
    return {**means.means(), **skipped}


def _stop_or_record_skip(
    run: Run,
    log: RunLog,
    epoch: int,
    step: int,
    bad: Mapping[str, float],
    pairs: Mapping[str, np.ndarray],
) -> None:
    """Log a step whose metrics are not finite (its update was skipped); the run may stop there.

    Args:
      run, log: the run and its log.
      epoch: the epoch, counted from 0.
      step: global step.
      bad: metrics of the step that are not finite.
      pairs: rows of the step's pairs, by stream name.
    """
    rows = {name: indices.tolist() for name, indices in pairs.items()}
    log.write("skipped", step, epoch=epoch + 1, non_finite=list(bad), pairs=rows)
    if run.config.train.non_finite == "stop":
        details = f"metrics.jsonl names its pairs, {_newest_checkpoint(run)}"
        require_finite(bad, step, epoch + 1, details)
