"""Time and memory of a step that trains a pretrained text encoder, beside PyTorch in one run.

    python -m experiments.bench.pretrained --pretrained=DIR --peer
    python -m experiments.bench.pretrained --pretrained=DIR --dropout=0.1 --remat --peer
    python -m experiments.bench.pretrained --clip --remat

A step is InfoNCE of the vectors of `--batch` random captions of `--pieces` tokens against given
vectors, and AdamW. `cpu_s` is CPU time, the smallest of `--repeats`: on a machine that others use,
it varies less than wall time. `temporary_mib` is what the compiler needs beside parameters, moments
and inputs. `--peer` takes the same steps with PyTorch's `transformers` and its fused attention.
`--clip` compiles a step of both sides of CLIP ViT-B/32, with random weights, and runs nothing.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench.measure import report
from l2rm_jax.bases import ImageBase, TextBase, read_image_base, read_text_base, with_dropout
from l2rm_jax.data.pretrained import open_pretrained
from l2rm_jax.losses.contrastive import info_nce
from l2rm_jax.methods.base import Optimiser
from l2rm_jax.models.layers import l2_normalise
from l2rm_jax.models.pretrained import TextTransformer, VisionTransformer

TAU, RATE = 0.05, 3e-5


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    flags.add_argument("--pretrained", help="directory of a BERT")
    flags.add_argument("--clip", action="store_true", help="compile a step of CLIP ViT-B/32")
    flags.add_argument("--batch", type=int, default=128)
    flags.add_argument("--pieces", type=int, default=24)
    flags.add_argument("--dropout", type=float, default=0.0)
    flags.add_argument("--remat", action="store_true")
    flags.add_argument("--repeats", type=int, default=5)
    flags.add_argument("--peer", action="store_true", help="also with PyTorch")
    flags.add_argument("--json", type=Path, help="also write the results to this file")
    sizes = flags.parse_args()
    results = clip_memory(sizes) if sizes.clip else bert_step(sizes)
    if sizes.peer:
        results |= peer_step(sizes)
        results["cpu_ratio"] = results["cpu_s"] / results["peer_cpu_s"]
    report(results, sizes)


def inputs_of(sizes: argparse.Namespace, rows: int, width: int) -> dict[str, np.ndarray]:
    """Random captions, all of full length, and the vectors that they are compared with."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(min(999, rows // 2), rows, (sizes.batch, sizes.pieces)).astype(np.int32)
    targets = rng.normal(size=(sizes.batch, width)).astype(np.float32)
    return {"tokens": tokens, "targets": targets}


def bert_step(sizes: argparse.Namespace) -> dict[str, float]:
    found = open_pretrained(sizes.pretrained, "bert", max_words=512)
    base = with_dropout(found.bases.text, sizes.dropout)
    inputs = inputs_of(sizes, base.pieces, base.stack.width)
    encode = text_vectors(base, sizes)

    def loss(params: Any, key: jax.Array) -> jax.Array:
        vectors = encode(params["text_base"], inputs["tokens"], key)
        return info_nce(l2_normalise(inputs["targets"]) @ vectors.T, tau=TAU)

    step, optimiser = make_step(loss)
    params = jax.tree.map(jnp.asarray, found.parameters())
    state = params, optimiser.init(params)
    compiled = step.lower(state, jax.random.key(0)).compile()
    results = {"temporary_mib": compiled.memory_analysis().temp_size_in_bytes / 2**20}
    del params

    def run() -> None:
        nonlocal state
        state, value = compiled(state, jax.random.key(0))
        jax.block_until_ready(value)

    return results | {"cpu_s": least_cpu_seconds(run, sizes.repeats)}


def clip_memory(sizes: argparse.Namespace) -> dict[str, float]:
    """Memory of a compiled step of both sides of CLIP ViT-B/32, by the shapes of its arrays."""
    config = {"model_type": "clip"}
    text = with_dropout(read_text_base(config), sizes.dropout)
    image = read_image_base(config)
    encode_text, encode_image = text_vectors(text, sizes), image_vectors(image, sizes)
    side = image.image_size
    pixels = jax.ShapeDtypeStruct((sizes.batch, side, side, 3), jnp.float32)
    tokens = jax.ShapeDtypeStruct((sizes.batch, sizes.pieces), jnp.int32)

    def start(key: jax.Array, tokens: jax.Array, pixels: jax.Array) -> Any:
        lengths = jnp.full(len(tokens), tokens.shape[1])
        params = {
            "text": TextTransformer(text, vector=True).init(key, tokens, lengths, False)["params"],
            "image": VisionTransformer(image, vector=True).init(key, pixels, False)["params"],
        }
        return params, Optimiser(RATE, 1).init(params)

    def step(state: Any, key: jax.Array, tokens: jax.Array, pixels: jax.Array) -> Any:
        def loss(params: Any, key: jax.Array) -> jax.Array:
            texts = encode_text(params["text"], tokens, key)
            return info_nce(encode_image(params["image"], pixels) @ texts.T, tau=TAU)

        return make_step(loss)[0](state, key)

    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(start, key, tokens, pixels)
    compiled = jax.jit(step, donate_argnums=0).lower(state, key, tokens, pixels).compile()
    memory = compiled.memory_analysis()
    return {
        "temporary_mib": memory.temp_size_in_bytes / 2**20,
        "state_mib": memory.argument_size_in_bytes / 2**20,
    }


def text_vectors(base: TextBase, sizes: argparse.Namespace) -> Callable:
    model = TextTransformer(base, vector=True, remat=sizes.remat)

    def encode(params: Any, tokens: jax.Array, key: jax.Array) -> jax.Array:
        lengths = jnp.full(len(tokens), tokens.shape[1])
        rngs = {"dropout": key}
        return model.apply({"params": params}, tokens, lengths, True, rngs=rngs)[0][:, 0]

    return encode


def image_vectors(base: ImageBase, sizes: argparse.Namespace) -> Callable:
    model = VisionTransformer(base, vector=True, remat=sizes.remat)
    return lambda params, pixels: model.apply({"params": params}, pixels, True)[:, 0]


def make_step(loss: Callable) -> tuple[Any, Optimiser]:
    """A compiled step of AdamW, whose state is donated; and its optimiser."""
    optimiser = Optimiser(RATE, 1)

    def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        params, opt_state = state
        value, grads = jax.value_and_grad(loss)(params, key)
        return optimiser.update(grads, opt_state, params, jnp.int32(0)), value

    return jax.jit(step, donate_argnums=0), optimiser


def least_cpu_seconds(step: Callable[[], None], repeats: int) -> float:
    """CPU time of a step, of all threads; the first call does not count."""
    step()
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        step()
        seconds.append(time.process_time() - start)
    return min(seconds)


def peer_step(sizes: argparse.Namespace) -> dict[str, float]:
    """The same steps by PyTorch."""
    import torch
    import transformers

    rates = {"hidden_dropout_prob": sizes.dropout, "attention_probs_dropout_prob": sizes.dropout}
    model = transformers.AutoModel.from_pretrained(sizes.pretrained, **rates)
    model.pooler = None
    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    pooling = Path(sizes.pretrained, "1_Pooling", "config.json")
    takes_mean = pooling.exists() and json.loads(pooling.read_bytes())["pooling_mode_mean_tokens"]
    inputs = inputs_of(sizes, model.config.vocab_size, model.config.hidden_size)
    tokens, targets = torch.tensor(inputs["tokens"]).long(), torch.tensor(inputs["targets"])
    targets = torch.nn.functional.normalize(targets, dim=-1)
    wanted = torch.arange(sizes.batch)
    cross_entropy = torch.nn.functional.cross_entropy

    def run() -> None:
        optimiser.zero_grad()
        states = model(tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state
        vectors = states.mean(1) if takes_mean else states[:, 0]
        logits = targets @ torch.nn.functional.normalize(vectors, dim=-1).T / TAU
        (cross_entropy(logits, wanted) + cross_entropy(logits.T, wanted)).backward()
        optimiser.step()

    return {"peer_cpu_s": least_cpu_seconds(run, sizes.repeats)}


if __name__ == "__main__":
    main()
