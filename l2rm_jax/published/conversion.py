"""Convert parameters of the authors' PyTorch models to Flax variables of `RetrievalModel`.

The parameter names are SGRAF's; L2RM, RCL, DECL, NCR and BiCro share them. `checkpoint.py` reads
them from files.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from l2rm_jax.config import default
from l2rm_jax.errors import CheckpointError
from l2rm_jax.models import RetrievalModel, make_model

# Name of the authors' layer -> path of our module, and shape of the weight, one letter per axis;
# linear layers are [outputs, inputs]. V: words in the vocabulary, W: word_dim, D: embed_dim,
# S: sim_dim, F: features of a region, R: regions of an image, G = 3 D: gates of the GRU.
_LINEARS = {
    "img_enc.fc": ("image_encoder/regions/projection", "DF"),
    **{
        f"sim_enc.{side}_global_w.embedding_{theirs}.0": (f"{ours}_encoder/attention/{layer}", axes)
        for side, ours in (("v", "image"), ("t", "text"))
        for theirs, layer, axes in (
            ("local", "local_projection", "DD"),
            ("global", "global_projection", "DD"),
            ("common", "common", "1D"),
        )
    },
    "sim_enc.sim_tranloc_w": ("similarity_head/local", "SD"),
    "sim_enc.sim_tranglo_w": ("similarity_head/overall", "SD"),
    "sim_enc.sim_eval_w": ("similarity_head/score", "1S"),
}
_NORMS = {
    "sim_enc.v_global_w.embedding_local.1": ("image_encoder/attention/local_norm", "R"),
    "sim_enc.v_global_w.embedding_global.1": ("image_encoder/attention/global_norm", "D"),
}
_GATE, _GATE_NORM = "sim_enc.SAF_module.attn_sim_w", "sim_enc.SAF_module.bn"
_GRAPH = {"graph_query_w": "query", "graph_key_w": "key", "sim_graph_w": "update"}
_GRU_SHAPES = {"weight_ih_l0": "GW", "weight_hh_l0": "GD", "bias_ih_l0": "G", "bias_hh_l0": "G"}


def _linears(steps: int) -> dict[str, tuple[str, str]]:
    """All linear layers of a network with `steps` of SGR's graph; 0 for SAF."""
    if not steps:
        return {**_LINEARS, _GATE: ("similarity_head/gate", "1S")}
    graph = {
        f"sim_enc.SGR_module.{step}.{theirs}": (f"similarity_head/graph_{step}/{ours}", "SS")
        for step in range(steps)
        for theirs, ours in _GRAPH.items()
    }
    return {**_LINEARS, **graph}


def check_state_dict(weights: Mapping[str, np.ndarray], where: str) -> dict[str, int]:
    """Check that the arrays are exactly the parameters of one network.

    Args:
      weights: as in `variables_from_state_dict`.
      where: the file and network, as the start of an error message.

    Returns:
      The size of each axis letter (`V`, `W`, `D`, `S`, `F`, `R`, `G`).

    Raises:
      CheckpointError: a name is missing or unknown, a shape does not fit the others, or a number
        is not finite.
    """
    shapes = _shapes(graph_steps(weights))
    missing, unknown = shapes.keys() - weights.keys(), weights.keys() - shapes.keys()
    if missing or unknown:
        raise CheckpointError(
            f"{where}: these are not the parameters of a network with head SGR or SAF and one "
            f"bidirectional GRU\n  missing: {', '.join(sorted(missing)) or 'none'}\n"
            f"  unknown: {', '.join(sorted(unknown)) or 'none'}"
        )
    sizes = {"1": 1}
    for name, axes in shapes.items():
        shape = weights[name].shape
        if len(shape) == len(axes):  # the first parameter with an axis sets the size of that axis
            sizes = {**dict(zip(axes, shape, strict=True)), **sizes}
        sizes["G"] = 3 * sizes.get("D", 0)
        expected = tuple(sizes.get(axis, axis) for axis in axes)
        if shape != expected:
            raise CheckpointError(f"{where}: {name} has the shape {shape}, expected {expected}")
        if not np.isfinite(weights[name]).all():
            raise CheckpointError(
                f"{where}: {name}: found values that are not finite, expected numbers"
            )
    return sizes


def model_from_state_dict(weights: Mapping[str, np.ndarray], **fields: Any) -> RetrievalModel:
    """Build the model for the authors' parameters; head and sizes are read from their shapes.

    Args:
      weights: as in `variables_from_state_dict`.
      **fields: other fields of the config's section `model` (dropout, chunk, ...).
    """
    config, steps = default(), graph_steps(weights)
    config.model.update(
        {
            "head": "sgr" if steps else "saf",
            "embed_dim": weights["img_enc.fc.weight"].shape[0],
            "word_dim": weights["txt_enc.embed.weight"].shape[1],
            "sim_dim": weights["sim_enc.sim_eval_w.weight"].shape[1],
            **({"sgr_steps": steps} if steps else {}),
            **fields,
        }
    )
    return make_model(config, vocabulary_size=len(weights["txt_enc.embed.weight"]))


def variables_from_state_dict(weights: Mapping[str, np.ndarray]) -> dict:
    """Convert the authors' parameters to the variables of `RetrievalModel`.

    Args:
      weights: arrays by their flat names (`img_enc.*`, `txt_enc.*`, `sim_enc.*`), all of one
        network of L2RM, SGRAF, RCL, DECL, NCR or BiCro.

    Returns:
      `{"params": ..., "batch_stats": ...}`, for `model.apply`.

    Raises:
      KeyError: a parameter of the head is missing.
    """
    params: dict = {}
    stats: dict = {}
    steps = graph_steps(weights)
    for name, (path, _) in _linears(steps).items():
        _put(params, path, linear_from_state_dict(weights, name))
    for name, (path, _) in _NORMS.items():
        scale, running = _batch_norm(weights, name)
        _put(params, path, scale)
        _put(stats, path, running)
    _put(params, "text_encoder/words", words_from_state_dict(weights))
    if not steps:
        norm, running = _batch_norm(weights, _GATE_NORM)
        for ours, theirs in (("gate_scale", "scale"), ("gate_shift", "bias")):
            _put(params, f"similarity_head/{ours}", norm[theirs].reshape(()))
        stats["similarity_head"] = {k: v.reshape(()) for k, v in running.items()}
    return {"params": params, "batch_stats": stats}


def words_from_state_dict(weights: Mapping[str, np.ndarray], gru: str = "txt_enc.cap_rnn") -> dict:
    """Convert the embedding and both directions of the GRU to parameters of `WordEncoder`."""
    return {
        "embedding": weights["txt_enc.embed.weight"],
        "forward": gru_from_state_dict(weights, gru, ""),
        "backward": gru_from_state_dict(weights, gru, "_reverse"),
    }


def linear_from_state_dict(weights: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """Convert the linear layer called `name`; PyTorch stores the kernel transposed."""
    return {"kernel": weights[f"{name}.weight"].T, "bias": weights[f"{name}.bias"]}


def _shapes(steps: int) -> dict[str, str]:
    """Axis letters of every parameter of a network with `steps` of SGR's graph; 0 for SAF."""
    shapes = {"txt_enc.embed.weight": "VW"}
    for name, (_, axes) in _linears(steps).items():
        shapes |= {f"{name}.weight": axes, f"{name}.bias": axes[0]}
    norms = {name: axes for name, (_, axes) in _NORMS.items()}
    for name, axes in (norms if steps else {**norms, _GATE_NORM: "1"}).items():
        leaves = ("weight", "bias", "running_mean", "running_var")
        shapes |= {f"{name}.{leaf}": axes for leaf in leaves}
    for direction in ("", "_reverse"):
        shapes |= {f"txt_enc.cap_rnn.{x}{direction}": axes for x, axes in _GRU_SHAPES.items()}
    return shapes


def _put(tree: dict, path: str, value: Any) -> None:
    """Store `value` in nested dictionaries, at keys separated by `/`."""
    *parents, leaf = path.split("/")
    for name in parents:
        tree = tree.setdefault(name, {})
    tree[leaf] = value


def _batch_norm(weights: Mapping[str, np.ndarray], name: str) -> tuple[dict, dict]:
    """Parameters and running statistics of the batch normalisation called `name`."""
    params = {"scale": weights[f"{name}.weight"], "bias": weights[f"{name}.bias"]}
    running = {"mean": weights[f"{name}.running_mean"], "var": weights[f"{name}.running_var"]}
    return params, running


def gru_from_state_dict(
    weights: Mapping[str, np.ndarray], name: str, suffix: str
) -> dict[str, np.ndarray]:
    """Convert one direction of the GRU called `name`, to parameters of `gru.Direction`.

    PyTorch orders the gates reset, update, new, as ours does.
    """
    return {
        "input_kernel": weights[f"{name}.weight_ih_l0{suffix}"].T,
        "input_bias": weights[f"{name}.bias_ih_l0{suffix}"],
        "hidden_kernel": weights[f"{name}.weight_hh_l0{suffix}"].T,
        "hidden_bias": weights[f"{name}.bias_hh_l0{suffix}"],
    }


def graph_steps(weights: Mapping[str, np.ndarray]) -> int:
    """Number of graph reasoning steps of SGR; 0 if the head is SAF."""
    return sum(
        name.startswith("sim_enc.SGR_module.") and name.endswith(".sim_graph_w.weight")
        for name in weights
    )
