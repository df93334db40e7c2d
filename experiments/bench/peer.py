"""Our speed against PyTorch: python -m experiments.bench.peer --head=sgr --batch=32

Times a whole training step of L2RM and the scoring of a test set, in turns with the same work in
PyTorch, written as in public code: one caption at a time (`caption_loop.py`). Both run on the CPU,
each in a process of its own. They differ only in the transport, which the PyTorch code stops where
the authors stop it. `..._ratio` is PyTorch's median time divided by ours. `..._bound` is the ratio
if our code computed nothing but its matrix products, at the speed of one large product
(`product_gflops`). Needs the extra `torch`.
"""

import argparse
import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import jax
import jax.numpy as jnp
import numpy as np
import torch

from experiments.bench import caption_loop, score, step
from experiments.bench.measure import VOCABULARY, config_of, measure, report, spread
from experiments.bench.step import bench_operations, mean_words
from experiments.script import start
from l2rm_jax.devices.batch import Batch
from l2rm_jax.devices.hosts import usable_cores
from l2rm_jax.devices.operations import operations_of
from l2rm_jax.devices.parallel import matmul_precision
from l2rm_jax.errors import ConfigError
from l2rm_jax.models import make_model


def main() -> None:
    flags = score.flags(__doc__)
    flags.set_defaults(images=200, captions=1000, method="l2rm")
    flags.add_argument("--batch", type=int, default=128, help="pairs of a stream on all devices")
    flags.add_argument("--only", choices=tuple(OURS), help="time only this (default: both)")
    sizes = flags.parse_args()
    if sizes.head not in ("sgr", "saf"):
        raise ConfigError(f"--head: found {sizes.head}, expected sgr or saf")
    if jax.devices()[0].platform != "cpu":
        raise ConfigError(
            "JAX found an accelerator; set JAX_PLATFORMS=cpu, as PyTorch uses the CPU"
        )
    rate = product_rate()
    results: dict[str, float | dict] = {"product_gflops": rate / 1e9}
    for name in [sizes.only] if sizes.only else OURS:
        with matmul_precision(sizes.precision), torch_process(name, sizes) as theirs:
            results |= time_in_turns(name, our_timer(name, sizes), theirs, sizes.repeats)
        least_seconds = OPERATIONS[name](sizes) / rate
        results[f"{name}_bound"] = results[f"{name}_torch_s"]["median"] / least_seconds
    report({**results, "torch": torch.__version__}, sizes)


def time_in_turns(
    name: str, ours: Callable[[], float], theirs: Callable[[], float], repeats: int
) -> dict[str, float | dict[str, float]]:
    """Time both in turns and return the seconds of each and their ratio.

    Each timer makes two calls and returns the seconds of the second one, because the first one
    finds the data of the other process in the CPU's caches.
    """
    seconds = [(ours(), theirs()) for _ in range(repeats)]
    our_spread, their_spread = (spread(list(values)) for values in zip(*seconds, strict=True))
    return {
        f"{name}_ours_s": our_spread,
        f"{name}_torch_s": their_spread,
        f"{name}_ratio": their_spread["median"] / our_spread["median"],
    }


def product_rate(size: int = 2048) -> float:
    """Return the operations per second of one large matrix product, the best of nine."""
    square = jnp.ones((size, size))
    product = jax.jit(jnp.matmul)
    return 2 * size**3 / min(measure(lambda: product(square, square), 9))


def our_timer(name: str, sizes: argparse.Namespace) -> Callable[[], float]:
    """Return a function that times our code once; inputs and programs are made here."""
    function = OURS[name](sizes)
    return lambda: measure(function, 1)[0]


@contextlib.contextmanager
def torch_process(name: str, sizes: argparse.Namespace) -> Iterator[Callable[[], float]]:
    """Start a process that times PyTorch whenever the yielded function is called.

    In a process of its own, PyTorch has its own threads and the system's default memory allocation;
    our process keeps freed memory.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve_times, args=(name, sizes, there), daemon=True)
    process.start()
    there.close()  # so that `recv` fails if the process ends

    def seconds() -> float:
        here.send("time")
        return here.recv()

    try:
        yield seconds
    finally:
        here.close()
        process.join()


def _serve_times(name: str, sizes: argparse.Namespace, pipe: Connection) -> None:
    """Send PyTorch's seconds on every request, until the pipe is closed."""
    torch.set_num_threads(usable_cores())
    function = THEIRS[name](sizes)
    with contextlib.suppress(EOFError):  # the pipe is closed
        while pipe.recv():
            pipe.send(measure(function, 1)[0])


def their_step(sizes: argparse.Namespace) -> Callable:
    trainer = caption_loop.Trainer(network(sizes), sizes.batch)
    batches = step.random_batches(sizes, {"matched": 1, "mismatched": 1})
    theirs = {name: as_tensors(batch) for name, batch in batches.items()}
    return lambda: trainer.step(**theirs)


def our_scoring(sizes: argparse.Namespace) -> Callable:
    return score.prepare(sizes, score.test_set(sizes))


def their_scoring(sizes: argparse.Namespace) -> Callable:
    split = score.test_set(sizes)
    images = torch.from_numpy(split.images.array)
    tokens = [torch.from_numpy(caption).long() for caption in split.tokens]
    lengths = torch.from_numpy(split.lengths).long()
    model = network(sizes)
    return lambda: caption_loop.score(model, images, tokens, lengths)


def scoring_operations(sizes: argparse.Namespace) -> float:
    """Return the operations of the products of our scoring, for captions of mean length."""
    model = make_model(config_of(sizes), VOCABULARY)

    def batch(images: int, captions: int) -> Batch:
        features = jax.ShapeDtypeStruct((images, sizes.regions, sizes.features), "float32")
        tokens = jax.ShapeDtypeStruct((captions, mean_words(sizes)), "int32")
        counts = [jax.ShapeDtypeStruct((count,), "int32") for count in (images, captions)]
        return Batch(features, counts[0], tokens, counts[1])

    variables = jax.eval_shape(model.init, jax.random.key(0), batch(2, 2))
    program = jax.make_jaxpr(model.apply)(variables, batch(sizes.images, sizes.captions))
    return operations_of(program.jaxpr)


OURS = {"step": step.make_step, "score": our_scoring}
OPERATIONS = {"step": bench_operations, "score": scoring_operations}
THEIRS = {"step": their_step, "score": their_scoring}


def network(sizes: argparse.Namespace) -> caption_loop.Network:
    """Return the PyTorch network with the sizes of our model."""
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


def as_tensors(batch: Batch) -> caption_loop.Pairs:
    """Return the batch as PyTorch tensors."""
    arrays = batch.images, batch.tokens.astype(np.int64), batch.lengths.astype(np.int64)
    return caption_loop.Pairs(*(torch.from_numpy(array) for array in arrays))


if __name__ == "__main__":
    start(main)
