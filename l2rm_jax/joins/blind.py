"""Find a join to start from where the stored one has nothing to fit a model to.

Images and captions vary together under the right join and under no other. For whitened vectors v
and t, n |mean of v t'|^2 per entry is 1 on average if they have nothing in common. One Fourier
transform per entry gives it for all offsets of two lists.

References:
    Welch, Lower bounds on the maximum cross correlation of signals, IEEE Transactions on
    Information Theory 1974: correlation at all lags; the transform is the usual one.
"""

import math
from collections.abc import Iterator

import numpy as np
import scipy.fft
from jaxtyping import Float, Float32, Int

from l2rm_jax.joins import maps as rules
from l2rm_jax.joins.evidence import LEAST_IMAGES, Fits
from l2rm_jax.joins.keys import shuffles
from l2rm_jax.joins.maps import Map, Orders
from l2rm_jax.joins.path import pieces
from l2rm_jax.joins.table import Table

_DIMENSIONS = 12
_LEAST_Z = 6.0  # deviations from which a join is a start
_DEALT = 64  # most lists that rows were dealt to
_COUNTS = range(2, 13)  # captions per image that may have been assumed
_WIDTHS = (512, 256, 128, 64, 32)
_SHUFFLED = 6000  # most rows for which shuffles are tried at all offsets
_BLOCKS = (8, 16, 32, 40, 50, 64, 80, 100, 128, 160, 200, 256, 320, 512)


def find_start(table: Table, orders: Orders, fits: Fits) -> Map | None:
    """Return a map under which images and captions vary together; None if there is none."""
    v, t = whitened(table.images), whitened(table.captions)
    best = _best_rule(table, orders, v, t, fits.seed)
    return best if best is not None else _from_windows(table, v, t, fits)


def shuffled_within(table: Table) -> int:
    """Return the size of blocks within which captions may be shuffled; 0 for none."""
    v, t = whitened(table.images)[table.stored], whitened(table.captions)
    found = [(_of_blocks(v, t, size), size) for size in _BLOCKS if size * 12 <= len(table)]
    z, size = max(found, default=(0.0, 0))
    return size if z > 5 else 0


def whitened(components: Float32[np.ndarray, "n p"]) -> Float32[np.ndarray, "n k"]:
    """Return the first principal components, each with variance 1."""
    x = components[:, :_DIMENSIONS]
    x = x - x.mean(axis=0)
    return (x / np.maximum(x.std(axis=0), 1e-9)).astype(np.float32)


def common(v: Float32[np.ndarray, "n p"], t: Float32[np.ndarray, "n q"]) -> float:
    """Return n |mean of v t'|^2 per entry."""
    c = v.T @ t
    return float((c * c).sum() / max(len(v), 1) / c.size)


def lag_spectrum(
    v: Float32[np.ndarray, "m p"], t: Float32[np.ndarray, "n q"], least: int
) -> tuple[Int[np.ndarray, " lags"], Float[np.ndarray, " lags"]]:
    """Return `common` of caption k with image k + d for all d with at least this many pairs."""
    size = scipy.fft.next_fast_len(len(v) + len(t), real=True)
    a = scipy.fft.rfft(v.T, size)
    total = np.zeros(size, np.float32)
    for row in np.conj(scipy.fft.rfft(t.T, size)):
        products = scipy.fft.irfft(a * row, size)
        total += np.einsum("pn,pn->n", products, products)
    lags = np.arange(1 - len(t), len(v))
    pairs = np.minimum(len(v), lags + len(t)) - np.maximum(0, lags)
    lags, pairs = lags[pairs >= least], pairs[pairs >= least]
    return lags, total[lags % size] / pairs / (v.shape[1] * t.shape[1])


def _best_rule(table: Table, orders: Orders, v: np.ndarray, t: np.ndarray, seed: int) -> Map | None:
    rng = np.random.default_rng(seed)
    of_rows = v[table.stored]
    null = [common(of_rows, np.roll(t, d, axis=0)) for d in rng.integers(1, len(t), 24)]
    middle, spread = np.median(np.log(null)), max(np.log(null).std(), 0.02)
    found = []
    for m in _whole_rules(table, orders):
        there = m.images >= 0
        if there.sum() > 30:
            z = (math.log(common(v[m.images[there]], t[there]) + 1e-12) - middle) / spread
            found.append((z, m))
    least = max(50, len(table) // 10)
    for name, order in _lists(table, orders).items():
        lags, values = lag_spectrum(v[order], t, least)
        logs = np.log(np.maximum(values, 1e-9))
        at = int(logs.argmax())
        z = (logs[at] - np.median(logs)) / max(np.quantile(logs, 0.84) - np.median(logs), 1e-3)
        found.append((float(z), _at_offset(table, name, order, int(lags[at]))))
    best = max((z for z, _ in found), default=0.0)
    if best <= _LEAST_Z:
        return None
    return min((m for z, m in found if z > 0.97 * best), key=lambda m: m.cost)


def _whole_rules(table: Table, orders: Orders) -> Iterator[Map]:
    total, slots = len(table), table.stored
    for name, cost, images in rules.arranged(table, orders, 0, total):
        yield Map(("order", *name, 0, total), cost, images)
    for n in range(2, min(_DEALT, total // 2) + 1):
        order = rules.dealt(np.arange(total), n)
        for how, images in (("dealt", slots[order]), ("interleaved", slots[rules.inverse(order)])):
            yield Map(("order", how, n, "rows", 0, total), math.log(256), images)
    yield from rules.by_number(table, orders)
    yield from rules.by_keys(table)
    yield from rules.grouped(table, orders)
    for name, wins, images in rules.same_key(table, orders, 0, total):
        if len(np.unique(images)) > 30:
            yield Map(("same key", name, wins), 4.0, images)
    listed = np.unique(slots)
    for count in _COUNTS:
        images = listed[np.minimum(np.arange(total) // count, len(listed) - 1)]
        yield Map(("captions per image", count), math.log(24), images)


def _lists(table: Table, orders: Orders) -> dict[tuple, np.ndarray]:
    """Return lists of images that captions may follow at an offset."""
    slots = table.stored
    found = {("rows",): slots, ("rows reversed",): slots[::-1]}
    for name, _, images in rules.arranged(table, orders, 0, len(table)):
        if name[0] in ("ids", "ids reversed"):
            found[name] = images
    if len(table) <= _SHUFFLED:
        for name, order in shuffles(len(table)):
            found["shuffled", name] = slots[order]
    return found


def _at_offset(table: Table, name: tuple, order: np.ndarray, d: int) -> Map:
    if name == ("rows",):
        return rules.rows_on(table, d)
    if name == ("rows reversed",):
        return rules.line(table, -1, len(table) - 1 - d)
    return rules.in_list(table, name, order, d)


def _from_windows(table: Table, v: np.ndarray, t: np.ndarray, fits: Fits) -> Map | None:
    """Return pieces that go with pieces elsewhere, by what right guesses have in common.

    Each piece of captions has a few candidate offsets. Right candidates share one cross-moment,
    wrong ones share nothing: the leading eigenvector of their similarities picks the right ones.
    """
    slots, tried = table.stored, []
    each = max(1, round(len(table) / len(pieces(slots))))
    forwards, t = _smoothed(v[slots], each), _smoothed(t, each)
    sides = {1: forwards, -1: forwards[::-1]}
    for width in _WIDTHS:
        if width > len(table) // 6:
            continue
        ratio, chosen, count = _consistent(sides, t, width)
        tried.append((ratio, chosen))
        if ratio > 8 and len(chosen) > 0.2 * count:
            break
    for ratio, chosen in sorted(tried, key=lambda x: -x[0])[:3]:
        if ratio < 2.5 or len(chosen) < 3:
            continue
        images = np.full(len(table), -1)
        for start, d, slope, width in chosen:
            images[start : start + width] = slots[::slope][d : d + width]
        if len(np.unique(images[images >= 0])) < LEAST_IMAGES:
            continue
        if fits(images).usable:
            return Map(("windows", len(chosen)), 0.0, images)
    return None


def _consistent(
    sides: dict[int, np.ndarray], t: np.ndarray, width: int
) -> tuple[float, list[tuple[int, int, int, int]], int]:
    """Return how far candidates agree, the agreeing ones, and the number of all candidates.

    A candidate is (first row, place in the list of images, slope, rows).
    """
    total = len(t)
    starts = np.linspace(0, total - width, min(80, 2 * total // width)).astype(int).tolist()
    guesses, moments = [], []
    for start in starts:
        piece, best = t[start : start + width], []
        for slope, side in sides.items():
            lags, values = lag_spectrum(side, piece, width)
            best += [(float(values[k]), slope, int(lags[k])) for k in np.argsort(-values)[:2]]
        for _, slope, d in sorted(best, reverse=True)[:3]:
            moments.append((sides[slope][d : d + width].T @ piece).ravel())
            guesses.append((start, d, slope, width))
    m = np.array(moments)
    m /= np.maximum(np.linalg.norm(m, axis=1, keepdims=True), 1e-9)
    at = np.array([start for start, *_ in guesses])
    apart = np.abs(at[:, None] - at) >= width
    similar = np.where(apart, m @ m.T, 0)
    usual = np.median(np.abs(similar[apart])) / 0.6745
    values, vectors = np.linalg.eigh(similar)
    leading = vectors[:, -1] * np.sign(vectors[:, -1].sum())
    chosen = [g for g, u in zip(guesses, leading, strict=True) if u > 0.5 * leading.max()]
    return float(values[-1] / (usual * len(m) ** 0.5)), chosen, len(guesses)


def _smoothed(x: Float32[np.ndarray, "n k"], width: int) -> Float32[np.ndarray, "n k"]:
    """Return means of this many consecutive rows, whitened: captions of an image are adjacent."""
    if width < 2:
        return x
    ends = (width // 2 + 1, width - 1 - width // 2), (0, 0)
    sums = np.cumsum(np.pad(x, ends, mode="edge"), axis=0)
    return whitened((sums[width:] - sums[:-width])[: len(x)])


def _of_blocks(v: np.ndarray, t: np.ndarray, size: int) -> float:
    """Return how far means of blocks vary together, in deviations of shuffled blocks."""
    count = len(v) // size
    a, b = (whitened(x[: count * size].reshape(count, size, -1).mean(axis=1)) for x in (v, t))
    rng = np.random.default_rng(size)
    null = np.log([common(a, b[rng.permutation(count)]) for _ in range(40)])
    return float((math.log(common(a, b) + 1e-12) - null.mean()) / null.std())
