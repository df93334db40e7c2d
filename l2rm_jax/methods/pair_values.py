"""Values that the state keeps for each training pair: `state.own["pairs"]`, `[N]` per name.

A method names them with their initial values in `Method.pair_values`. For n networks they are
`[n, N]` in the whole state, and `[N]` in the part of one network (see `networks.py`).
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from l2rm_jax.devices import parallel
from l2rm_jax.methods.base import Method, TrainState


def initial_state(method: Method, key: Array, batch: Any, pairs: int) -> TrainState:
    """State before the first step.

    Args:
      method: the method.
      key: the run's PRNG key.
      batch: any batch; only its shapes matter.
      pairs: number of training pairs.
    """
    state = method.init(key, batch)
    if not method.pair_values:
        return state
    shape = (pairs,) if method.networks == 1 else (method.networks, pairs)
    initial = method.pair_values.items()
    values = {name: jnp.full(shape, value, jnp.float32) for name, value in initial}
    return state.replace(own={**(state.own or {}), "pairs": values})


def replace_pair_values(state: TrainState, values: Mapping[str, np.ndarray]) -> TrainState:
    """Replace the values of all pairs with the ones of a plan (`EpochPlan.values`)."""
    new = {name: jnp.asarray(value, jnp.float32) for name, value in values.items()}
    return state.replace(own={**state.own, "pairs": {**state.own["pairs"], **new}})


def read_pair_values(
    state: TrainState, name: str, batch: Any, axis_name: str | None
) -> Float[Array, " B"]:
    """Read one value of each pair in the global batch; NaN for rows that are not stored pairs."""
    rows = parallel.global_rows(batch.pair_index, axis_name)
    return jnp.where(rows >= 0, state.own["pairs"][name][rows], jnp.nan)


def write_pair_values(
    state: TrainState, name: str, batch: Any, values: Float[Array, " B"], axis_name: str | None
) -> TrainState:
    """Replace one value of each pair in the global batch, identically on all devices.

    If a pair is in the batch several times, the largest of its `values` (>= 0) is kept. Rows that
    are not stored pairs are ignored.
    """
    rows, old = parallel.global_rows(batch.pair_index, axis_name), state.own["pairs"][name]
    rows = jnp.where(rows >= 0, rows, len(old))  # out of range
    new = old.at[rows].set(0.0, mode="drop").at[rows].max(values, mode="drop")
    return state.replace(own={**state.own, "pairs": {**state.own["pairs"], name: new}})
