"""Ours beside PyTorch: python -m experiments.bench.peer --head=sgr --batch=32 --embed_dim=256

A whole step of L2RM and the scoring of a test set, each in turns with the same in PyTorch as public
code has it, one caption at a time (`caption_loop.py`), on one machine, the CPU, each in a process
of its own; only the transport stops where the authors stop it. `..._ratio` is how many times longer
PyTorch takes, by the medians; `..._bound` is what this would be, were ours nothing but its matrix
products, at the rate of one large product (`product_gflops`). Needs the extra `torch`.
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
from experiments.scaling import bench_operations, mean_words, work_of
from experiments.sweep import start
from l2rm_jax.data.batches import Batch
from l2rm_jax.devices.hosts import usable_cores
from l2rm_jax.devices.parallel import matmul_precision
from l2rm_jax.errors import ConfigError
from l2rm_jax.models import make_model


def main() -> None:
    flags = score.flags(__doc__)
    flags.set_defaults(images=200, captions=1000, method="l2rm")
    flags.add_argument("--batch", type=int, default=128, help="pairs of a stream, all devices")
    flags.add_argument("--only", choices=tuple(OURS), help="what to time (both)")
    sizes = flags.parse_args()
    if sizes.head not in ("sgr", "saf"):
        raise ConfigError(f"--head: found {sizes.head}, expected sgr or saf")
    if jax.devices()[0].platform != "cpu":
        raise ConfigError("JAX found an accelerator; set JAX_PLATFORMS=cpu, as PyTorch runs there")
    rate = product_rate()
    results: dict[str, float | dict] = {"product_gflops": rate / 1e9}
    for name in [sizes.only] if sizes.only else OURS:
        with matmul_precision(sizes.precision), torch_process(name, sizes) as theirs:
            results |= in_turns(name, our_seconds(name, sizes), theirs, sizes.repeats)
        least = OPERATIONS[name](sizes) / rate
        results[f"{name}_bound"] = results[f"{name}_torch_s"]["median"] / least
    report({**results, "torch": torch.__version__}, sizes)


def in_turns(
    name: str, ours: Callable[[], float], theirs: Callable[[], float], repeats: int
) -> dict[str, float | dict[str, float]]:
    """Seconds of both, by turns. Of two calls in a row the second counts: the first finds the
    caches of the other."""
    seconds = [(ours(), theirs()) for _ in range(repeats)]
    of_ours, of_theirs = (spread(list(values)) for values in zip(*seconds, strict=True))
    return {
        f"{name}_ours_s": of_ours,
        f"{name}_torch_s": of_theirs,
        f"{name}_ratio": of_theirs["median"] / of_ours["median"],
    }


def product_rate(size: int = 2048) -> float:
    """Operations a second of one large product, at best."""
    square = jnp.ones((size, size))
    product = jax.jit(jnp.matmul)
    return 2 * size**3 / min(measure(lambda: product(square, square), 9))


def our_seconds(name: str, sizes: argparse.Namespace) -> Callable[[], float]:
    """What times ours, made once."""
    function = OURS[name](sizes)
    return lambda: measure(function, 1)[0]


@contextlib.contextmanager
def torch_process(name: str, sizes: argparse.Namespace) -> Iterator[Callable[[], float]]:
    """A process that times PyTorch when asked: with threads of its own, and memory as it comes by
    default, while ours keeps what it frees."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_answer, args=(name, sizes, there), daemon=True)
    process.start()
    there.close()  # so that the end of the process is noticed

    def seconds() -> float:
        here.send("time")
        return here.recv()

    try:
        yield seconds
    finally:
        here.close()
        process.join()


def _answer(name: str, sizes: argparse.Namespace, pipe: Connection) -> None:
    """Sends PyTorch's seconds as often as asked."""
    torch.set_num_threads(usable_cores())
    function = THEIRS[name](sizes)
    with contextlib.suppress(EOFError):  # nobody asks any more
        while pipe.recv():
            pipe.send(measure(function, 1)[0])


def their_step(sizes: argparse.Namespace) -> Callable:
    trainer = caption_loop.Trainer(network(sizes), sizes.batch)
    batches = step.made_up_batches(sizes, step.streams(sizes.method))
    theirs = {name: as_tensors(batch) for name, batch in batches.items()}
    return lambda: trainer.step(**theirs)


def our_scoring(sizes: argparse.Namespace) -> Callable:
    return score.prepare(sizes, score.test_set(sizes))


def their_scoring(sizes: argparse.Namespace) -> Callable:
    split = score.test_set(sizes)
    images = torch.from_numpy(split.images.array)
    tokens = [torch.from_numpy(caption).long() for caption in split.tokens]
    lengths = torch.from_numpy(split.lengths).long()
    known = network(sizes)
    return lambda: caption_loop.score(known, images, tokens, lengths)


def scoring_operations(sizes: argparse.Namespace) -> float:
    """Of the products of our scoring, every caption of the mean number of words."""
    model = make_model(config_of(sizes), VOCABULARY)

    def inputs(images: int, captions: int) -> list[jax.ShapeDtypeStruct]:
        regions = jax.ShapeDtypeStruct((images, sizes.regions, sizes.features), "float32")
        tokens = jax.ShapeDtypeStruct((captions, mean_words(sizes)), "int32")
        return [regions, tokens, jax.ShapeDtypeStruct((captions,), "int32")]

    variables = jax.eval_shape(model.init, jax.random.key(0), *inputs(2, 2))
    program = jax.make_jaxpr(model.apply)(variables, *inputs(sizes.images, sizes.captions))
    return work_of(program.jaxpr, 1).operations


OURS = {"step": step.stepping, "score": our_scoring}
OPERATIONS = {"step": bench_operations, "score": scoring_operations}
THEIRS = {"step": their_step, "score": their_scoring}


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


def as_tensors(batch: Batch) -> caption_loop.Pairs:
    """A batch as PyTorch takes it."""
    given = batch.images, batch.tokens.astype(np.int64), batch.lengths.astype(np.int64)
    return caption_loop.Pairs(*(torch.from_numpy(array) for array in given))


if __name__ == "__main__":
    start(main)
