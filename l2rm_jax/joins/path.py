"""Find where each map holds: the most probable sequence of states along the rows.

Staying in a state is free, entering it has a cost that does not depend on the state before. Rows
are cut into blocks. The best values between all pairs of states of a block are computed for all
blocks at once, row by row within the block; a short loop over blocks then joins them.

References:
    Viterbi, Error bounds for convolutional codes, IEEE Transactions on Information Theory 1967.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

WIDTH = 32  # rows of a block


def best_path(
    gains: Float[np.ndarray, "S P"],
    enter: Float[np.ndarray, " S"],
    active: Int[np.ndarray, "blocks K"],
) -> Int[np.ndarray, " P"]:
    """Return the state of each row whose sum of gains, less the costs of entering, is largest.

    Args:
      gains: log probability of each row in each state, up to a constant of the row.
      enter: cost of entering each state, 0 or more; the first row enters state 0 free of cost.
      active: states that are possible in each block of `WIDTH` rows, filled up with -1.
    """
    there = active >= 0
    cost = np.where(there, enter[active], np.inf).astype(np.float32)
    e = _in_blocks(gains, active)
    count, k = active.shape
    between = np.where(np.eye(k, dtype=bool), np.float32(0), np.float32(-np.inf))
    between = np.where(there[:, :, None], between, -np.inf).astype(np.float32)
    for w in range(1, WIDTH):
        top = between.max(axis=2, keepdims=True)
        between = np.maximum(between, top - cost[:, None]) + e[:, w, None]
    first, stays, best_before = _forward(e, between, cost, active, len(enter))
    start, end = np.empty(count, int), np.empty(count, int)
    state = None
    for b in range(count - 1, -1, -1):
        total = first[b][:, None] + between[b]
        end[b] = (
            total.max(axis=0).argmax() if state is None else np.flatnonzero(active[b] == state)[0]
        )
        start[b] = total[:, end[b]].argmax()
        state = active[b, start[b]] if stays[b, start[b]] else best_before[b]
    return _within(e, cost, active, start, end).ravel()[: gains.shape[1]]


def all_active(states: int, rows: int) -> Int[np.ndarray, "blocks K"]:
    """Return `active` for `best_path` with every state in every block."""
    return np.tile(np.arange(states), (-(-rows // WIDTH), 1))


def two_states(gain: Float[np.ndarray, " P"], cost: float) -> Bool[np.ndarray, " P"]:
    """Return where a state with this log ratio against its absence holds; changes have a cost."""
    gains = np.stack([np.zeros_like(gain), gain])
    return best_path(gains, np.full(2, cost), all_active(2, len(gain))) == 1


def runs(flags: Bool[np.ndarray, " P"]) -> list[tuple[int, int]]:
    """Return the first row and the end of each run of true rows."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(int), [0]])))
    return [(a, b) for a, b in edges.reshape(-1, 2).tolist()]


def pieces(labels: Int[np.ndarray, " P"]) -> list[tuple[int, int]]:
    """Return the first row and the end of each run of equal labels."""
    ends = (np.flatnonzero(np.diff(labels)) + 1).tolist()
    return list(zip([0, *ends], [*ends, len(labels)], strict=True))


def _in_blocks(gains: np.ndarray, active: np.ndarray) -> np.ndarray:
    """Return gains [blocks, WIDTH, K]; 0 for rows after the last one."""
    states, rows = gains.shape
    padded = np.zeros((states, len(active) * WIDTH), np.float32)
    padded[:, :rows] = gains
    blocks = padded.reshape(states, len(active), WIDTH)
    return blocks[active, np.arange(len(active))[:, None]].transpose(0, 2, 1)


def _forward(
    e: np.ndarray, between: np.ndarray, cost: np.ndarray, active: np.ndarray, states: int
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Return values at the first row of each block, and where each state there came from."""
    value = np.full(states + 1, -np.inf)  # the last entry stands for -1
    value[0] = 0.0
    first, stays, best_before = [], np.zeros(active.shape, bool), np.zeros(len(active), int)
    for b, ids in enumerate(active):
        best = int(value.argmax())
        stays[b], best_before[b] = value[ids] >= value[best] - cost[b], best
        at_start = np.maximum(value[ids], value[best] - cost[b]) + e[b, 0]
        first.append(at_start)
        value = np.full(states + 1, -np.inf)
        value[ids] = (at_start[:, None] + between[b]).max(axis=0)
        value[-1] = -np.inf
    return first, stays, best_before


def _within(
    e: np.ndarray, cost: np.ndarray, active: np.ndarray, start: np.ndarray, end: np.ndarray
) -> Int[np.ndarray, "blocks WIDTH"]:
    """Return the states between the known first and last state of each block."""
    at = np.arange(len(active))
    value = np.full(active.shape, -np.inf, np.float32)
    value[at, start] = 0
    jumped = np.zeros((WIDTH, *active.shape), bool)
    source = np.zeros((WIDTH, len(active)), int)
    for w in range(1, WIDTH):
        source[w] = value.argmax(axis=1)
        other = value[at, source[w]][:, None] - cost
        jumped[w] = other > value
        value = np.maximum(value, other) + e[:, w]
    labels, state = np.empty((len(active), WIDTH), int), end.copy()
    for w in range(WIDTH - 1, -1, -1):
        labels[:, w] = active[at, state]
        state = np.where(jumped[w, at, state], source[w], state)
    return labels
