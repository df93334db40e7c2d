"""Make the data of the suite `clip-tier`: a model that has not seen noisy pairs, and its scores.

python -m experiments.papers.clip_tier --path=DIR --out=TIER
python -m experiments.benchmark --suite=clip-tier --path=TIER --out=runs/benchmark
python -m experiments.papers.clip_tier --summary=experiments/results/clip_tier_summary.csv

DIR is Flickr8k with `train_minilm.npy`, vectors of its training captions. Its training images are
divided: 1000 for the start (A; also their first 300), 2000 to fine-tune on (B), 500 to validate on,
1000 to test on (C). TIER gets a data set of vectors for A and B, a work directory `start-SIZE` of
`cca` on the clean pairs of A, and for every mismatch of B:

- `start-SIZE-NOISE.npy`: cosine by that model, less the mean cosine of other images and captions;
- `bank-SIZE-NOISE.npy`: NPC's bank, the posterior of the lower component of a mixture of two
  Gaussians of the pairs' losses in batches of 256;
- `judged-NOISE.npz`: the judgement of the pairs out of fold, which uses B alone, and the rematched
  pairs.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
from jaxtyping import Float

import l2rm_jax
from experiments.benchmark.records import Record, read_records
from experiments.benchmark.statistics import mean_of, paired_difference
from experiments.benchmark.suites.clip_tier import (
    GROUPS,
    PROTOCOLS,
    RATES,
    SEEDS,
    SIDE_RATE,
    SIZES,
    bank_file,
    judged_file,
    start_directory,
    start_file,
)
from experiments.benchmark.tables import by_cell
from experiments.papers.vectors import pooled
from experiments.script import new_parser, start, write_rows
from l2rm_jax.data import load_data
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.errors import DataError
from l2rm_jax.jobs.files import new_directory
from l2rm_jax.judging import judge_pairs, write_judgement
from l2rm_jax.judging.transport_em import rematch
from l2rm_jax.linear.set_features import fit_pooling
from l2rm_jax.losses import info_nce_per_pair
from l2rm_jax.run.config_file import load_config, with_changes
from l2rm_jax.run.sampling import REMATCHED
from l2rm_jax.train import train

PARTS = {"a300": (0, 300), "a1000": (0, 1000), "b": (1000, 3000), "dev": (3000, 3500)}
TEST = (3500, 4500)
BATCH, LOGIT_SCALE = 256, 20.0  # of the losses of NPC's bank; the scale is 1 / loss.tau
RESULTS = Path("experiments/results/benchmark_clip_tier.csv")


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--path", type=Path, help="directory of Flickr8k")
    parser.add_argument("--out", type=Path, help="the new directory")
    parser.add_argument("--summary", type=Path, help="write the tables of the page")
    flags = parser.parse_args()
    if flags.summary:
        records, (main_group, *others) = read_records(RESULTS), GROUPS
        write_rows(flags.summary, summary(records, [main_group], RATES))
        further = flags.summary.with_stem(f"{flags.summary.stem}_further")
        write_rows(further, summary(records, others, [SIDE_RATE]))
    if not flags.out:
        return
    with new_directory(flags.out) as out:
        write_vectors(flags.path, out)
        for size in SIZES:
            fit_start(out, size)
        for protocol, rate, seed in product(PROTOCOLS, RATES, SEEDS):
            write_scores(out, protocol, rate, seed)


def write_vectors(path: Path, out: Path) -> None:
    """Write the data sets of A and of B; images are pooled by a fit to the images of A."""
    images, captions = RegionFeatures.read(path / "train_ims.npy"), path / "train_caps.txt"
    first = np.arange(*PARTS["a1000"])
    pooling = fit_pooling(
        lambda k: (images.rows(first[k]), images.region_counts(first[k])), len(first)
    )
    vectors = pooled(images, pooling)
    sentences = np.load(path / "train_minilm.npy")
    texts = captions.read_text().splitlines()
    for name in ("a300", "a1000", "b"):
        (out / name).mkdir()
        for split, (begin, end) in {
            "train": PARTS[name],
            "dev": PARTS["dev"],
            "test": TEST,
        }.items():
            np.save(out / name / f"{split}_ims.npy", vectors[begin:end])
            np.save(out / name / f"{split}_caps.npy", sentences[5 * begin : 5 * end])
            lines = "\n".join(texts[5 * begin : 5 * end])
            (out / name / f"{split}_caps.txt").write_text(f"{lines}\n")


def fit_start(out: Path, size: int) -> None:
    """Fit the model of the start to the clean pairs of A."""
    changes = {
        "data.name": "flickr8k",
        "data.path": str(out / f"a{size}"),
        "data.train_images": 0,
        "method": "cca",
        "model.head": "linear",
        "mismatch.rate": 0.0,
    }
    train(with_changes(load_config("flickr8k:vectors"), changes), out / start_directory(size))


def write_scores(out: Path, protocol: str, rate: float, seed: int) -> None:
    """Score and judge the pairs of B with one mismatch."""
    noise = {"mismatch.protocol": protocol, "mismatch.rate": rate, "mismatch.seed": seed}
    changes = {"data.path": str(out / "b"), "data.train_images": 0, **noise}
    config = with_changes(load_config("flickr8k:vectors"), changes)
    pairs = load_data(config.data, config.mismatch, workdir=None).train
    for size in SIZES:
        model = l2rm_jax.load(out / start_directory(size))
        images = model.encode_images(pairs.images.rows(np.arange(len(pairs.images)))).vectors()
        captions = model.encode_captions(pairs.tokens.rows(np.arange(len(pairs)))).vectors()
        rows = images[pairs.stored_image]
        cosines = np.einsum("nd,nd->n", rows, captions)
        threshold = rows.mean(axis=0) @ captions.mean(axis=0)
        np.save(out / start_file(size, protocol, rate, seed), cosines - threshold)
        np.save(out / bank_file(size, protocol, rate, seed), bank_posterior(rows, captions))
    judgement = judge_pairs(pairs.to_judge, seed=seed)
    rematched = rematch(pairs.to_judge, judgement.posterior)._asdict()
    more = {f"{REMATCHED}_{name}": array for name, array in rematched.items()}
    write_judgement(out / judged_file(protocol, rate, seed), judgement, **more)


def bank_posterior(
    images: Float[np.ndarray, "pairs d"], captions: Float[np.ndarray, "pairs d"]
) -> Float[np.ndarray, " pairs"]:
    """Posterior of the lower component of NPC's mixture; the losses are of batches in order."""
    from sklearn.mixture import GaussianMixture

    losses = np.concatenate(
        [
            info_nce_per_pair(
                images[k : k + BATCH] @ captions[k : k + BATCH].T, tau=1 / LOGIT_SCALE
            )
            for k in range(0, len(images), BATCH)
        ]
    )[:, None]
    mixture = GaussianMixture(2, max_iter=100, tol=1e-2, reg_covar=5e-4, random_state=0).fit(losses)
    return mixture.predict_proba(losses)[:, mixture.means_.argmin()]


def summary(
    records: Sequence[Record], groups: Sequence[str], rates: Sequence[float]
) -> list[dict[str, str]]:
    """Return a table of the page: mean test rSum over seeds, and the lead over `share`.

    A row per start, learning rate and use of the scores; a column per protocol and rate of
    mismatch. The lead has Student's 95% interval of paired differences.

    Args:
      records: rows of the suite's finished runs.
      groups: keys of `GROUPS`, which name the start and the learning rate.
      rates: rates of mismatch.

    Raises:
      DataError: a run has no row, so a cell would be empty.
    """
    values, rows = by_cell(records, "test_rsum"), []
    for group, name in ((each, name) for each in groups for name in GROUPS[each]):
        row = {"start": group, "pairs": name.removesuffix(group).strip()}
        for protocol, rate in product(PROTOCOLS, rates):
            own, share = (
                values.get((each, "linear", protocol, str(rate)), {})
                for each in (name, f"share {group}")
            )
            lead = paired_difference(own, share)
            if lead is None or lead.pairs < len(SEEDS):
                raise DataError(f"found no run of {name}, {protocol} {rate:g}, for every seed")
            interval = f" [{lead.low:+.1f}, {lead.high:+.1f}]" if row["pairs"] != "share" else ""
            row[f"{protocol} {rate:g}"] = f"{mean_of([*own.values()]).mean:.1f}{interval}"
        rows.append(row)
    return rows


if __name__ == "__main__":
    start(main)
