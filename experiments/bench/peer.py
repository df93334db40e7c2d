"""Ours beside PyTorch: python -m experiments.bench.peer --head=sgr --batch=32 --embed_dim=256

A whole step of L2RM and the scoring of a test set, each in turns with the same in PyTorch as public
code has it, one caption at a time (`caption_loop.py`), on one machine, the CPU; only the transport
stops where the authors stop it. `..._ratio` is how many times longer PyTorch takes, by the medians.
Needs the extra `torch`.
"""

import argparse
from collections.abc import Callable, Mapping

import jax
import numpy as np
import torch

from experiments.bench import caption_loop, score, step
from experiments.bench.measure import VOCABULARY, config_of, measure, report, spread
from experiments.sweep import start
from l2rm_jax.data.batches import Batch
from l2rm_jax.errors import ConfigError
from l2rm_jax.hosts import usable_cores
from l2rm_jax.parallel import products_in


def main() -> None:
    flags = score.flags(__doc__)
    flags.set_defaults(images=200, captions=1000, method="l2rm")
    flags.add_argument("--batch", type=int, default=128, help="pairs of a stream, all devices")
    flags.add_argument("--only", choices=("step", "score"), help="what to time (both)")
    sizes = flags.parse_args()
    if sizes.head not in ("sgr", "saf"):
        raise ConfigError(f"--head: found {sizes.head}, expected sgr or saf")
    if jax.devices()[0].platform != "cpu":
        raise ConfigError("JAX found an accelerator; set JAX_PLATFORMS=cpu, as PyTorch runs there")
    torch.set_num_threads(usable_cores())
    results: dict[str, float | dict] = {}
    with products_in(sizes.precision):
        for name, make in {"step": steps, "score": scorings}.items():
            if sizes.only in (None, name):
                results |= in_turns(name, make(sizes), sizes.repeats)
    report({**results, "torch": torch.__version__}, sizes)


def in_turns(
    name: str, functions: Mapping[str, Callable], repeats: int
) -> dict[str, float | dict[str, float]]:
    """Seconds of each function by turns. Of two calls in a row the second counts: the first finds
    the caches, and the threads, of the other."""
    seconds: dict[str, list[float]] = {of: [] for of in functions}
    for _ in range(repeats):
        for of, function in functions.items():
            seconds[of] += measure(function, 1)
    found = {of: spread(values) for of, values in seconds.items()}
    ratio = found["torch"]["median"] / found["ours"]["median"]
    return {f"{name}_{of}_s": values for of, values in found.items()} | {f"{name}_ratio": ratio}


def steps(sizes: argparse.Namespace) -> dict[str, Callable]:
    """A training step of either."""
    trainer = caption_loop.Trainer(network(sizes), sizes.batch)
    prepared = step.prepare(sizes, step.streams(sizes.method))
    state = prepared.state
    theirs = {name: pairs(batch) for name, batch in prepared.batches.items()}

    def ours():
        nonlocal state
        state, metrics = prepared.step(state, prepared.shards())
        return metrics

    return {"ours": ours, "torch": lambda: trainer.step(**theirs)}


def scorings(sizes: argparse.Namespace) -> dict[str, Callable]:
    """The scoring of a test set by either."""
    split = score.test_set(sizes)
    images = torch.from_numpy(split.images.array)
    tokens = [torch.from_numpy(caption).long() for caption in split.tokens]
    lengths = torch.from_numpy(split.lengths).long()
    known = network(sizes)
    return {
        "ours": score.prepare(sizes, split),
        "torch": lambda: caption_loop.score(known, images, tokens, lengths),
    }


def network(sizes: argparse.Namespace) -> caption_loop.Network:
    """Theirs, of the sizes of ours."""
    model = config_of(sizes).model
    return caption_loop.Network(
        sizes.head,
        vocabulary=VOCABULARY,
        regions=sizes.regions,
        features=sizes.features,
        word_dim=model.word_dim,
        embed_dim=model.embed_dim,
        sim_dim=model.sim_dim,
        sgr_steps=model.sgr_steps,
        dropout=model.dropout,
    )


def pairs(batch: Batch) -> caption_loop.Pairs:
    """A batch as PyTorch takes it."""
    given = batch.images, batch.tokens.astype(np.int64), batch.lengths.astype(np.int64)
    return caption_loop.Pairs(*(torch.from_numpy(array) for array in given))


if __name__ == "__main__":
    start(main)
