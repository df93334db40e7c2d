"""The judgement of the pairs of a data set: one type and one file, whoever asks for it."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.data.files import open_arrays, replace_arrays
from l2rm_jax.data.pairs import Pairs, same_pairs
from l2rm_jax.errors import DataError
from l2rm_jax.judging.groups import Placeholder, Repeated
from l2rm_jax.judging.rate import Rate

if TYPE_CHECKING:
    from l2rm_jax.judging.kept_judge import KeptJudge

JUDGEMENT_FILE = "judgement.npz"

# Kinds of pairs. `matched` and `near_duplicate` pairs are kept, the others are suspicious:
# `swapped_caption` alone, `swapped_set` with all captions of its image, `suspicious` as the only
# caption of its image, and `placeholder` because its picture has many unrelated captions. `unlike`
# pairs, of a kept judge, fit worse than 95% of matched pairs, but are probably matched: they are
# kept.
MATCHED, NEAR_DUPLICATE, SWAPPED_CAPTION, SWAPPED_SET = range(4)
UNINFORMATIVE, PLACEHOLDER, SUSPECT, UNLIKE = range(4, 8)
KINDS = (
    *("matched", "near_duplicate", "swapped_caption", "swapped_set"),
    *("uninformative", "placeholder", "suspicious", "unlike"),
)
KEPT = MATCHED, NEAR_DUPLICATE, UNLIKE


class Provenance(NamedTuple):
    """Origin of a judgement.

    Attributes:
      detector: name of the detector; `judgement.detector` of the config.
      by: scorer that the detector chose: the linear detector may choose the plain cosine.
      folds: number of folds.
      seed: seed of the folds and samples.
      data: hash of all pairs, in hexadecimal, whatever their order.
      version: version of this package.
      fingerprint: of the pairs (`data.pairs.Pairs.fingerprint`).
      judge: hash of the pairs of the kept judge that judged these; "" without one.
    """

    detector: str
    by: str
    folds: int
    seed: int
    data: str
    version: str
    fingerprint: str = ""
    judge: str = ""


class Mechanism(NamedTuple):
    """Detection quality for one kind of mismatch, measured on simulated swaps.

    Attributes:
      name: `image` (all captions of an image moved), `caption` (one caption moved) or `near` (one
        caption moved to an image whose captions are similar).
      auroc: share of (mismatched, matched) pairs that are ranked correctly, corrected for the
        mismatched pairs already in the data.
      recall: share of the simulated swaps that would be in the list of suspicious pairs.
      false_positives: share of stored pairs above the suspicion that finds 90% of the swaps.
      cosine_auroc: `auroc` of the detector's similarity alone: the cosine, for the linear one.
    """

    name: str
    auroc: float
    recall: float
    false_positives: float
    cosine_auroc: float


@dataclass(frozen=True, eq=False)
class Judgement:
    """Results for each pair, in the order of the data, and for the data set.

    Pairs of placeholders are not judged: they count as mismatched, have no fold, no similarity and
    no information, and rank last.

    Attributes:
      image_of: [pairs] row of the image that the caption is stored with.
      fold: [pairs] fold of that image; -1 for placeholders.
      group: [pairs] group of the image: images with near duplicates or equal captions share one.
      similarity: [pairs] of image and caption, by models that have not seen the pair.
      information: [pairs] of the pair in nats; 0 is no better than a random pair.
      posterior_set: [pairs] probability that all captions of the image are mismatched together.
      posterior_caption: [pairs] probability that the caption alone is mismatched.
      posterior: [pairs] probability that the pair is mismatched, in [0, 1]. Their mean is the rate.
      fdr: [pairs] false discovery rate: share of false alarms among pairs at least as suspicious.
      kind: [pairs] kind of the pair, as an index of `KINDS`.
      proposal: [pairs, top] captions that may fit the image better, as rows, best first; -1: none.
      probability: [pairs, top] probability that each proposal fits.
      none_fits: [pairs] probability that no caption of the set fits; NaN without a search for one.
      order: [pairs] the most suspicious pair first.
      conflicts: [n, 2] pairs with the same image whose captions contradict each other.
      nearest_images: [images, 3] rows of the most similar images.
      rate: share of pairs that match no better than random pairs.
      mechanisms: detection quality for each kind of mismatch.
      list_length: length of the longest list of the most suspicious pairs with 10% false alarms.
      repeated: captions stored with many images.
      placeholders: pictures stored with many unrelated captions; their pairs are not judged.
      unreliable_reason: why the rate and the posteriors are unreliable; "" if they are reliable.
      auroc: share of (random, matched) pairs that are ranked correctly, less its standard error.
      is_rankable: whether the ranking of the pairs is usable, even if the rate is unreliable.
      made: origin of the judgement.
      upper_bound: largest share of mismatched pairs if similar images had swapped captions.
      p: [pairs] share of the reference's matched pairs that fit no better; NaN without a reference.
      likeness: [pairs] of the caption to captions of similar trusted images; NaN without any.
      witness: [pairs, 3] captions of the most similar trusted images, as places in `said`, -1 for
        none; [pairs, 0] without any.
      notes: warnings of a kept judge.
      said: texts of these captions.
      judge: the judge that the audit keeps for new pairs, not in the judgement's file; None if the
        detector is trained, or the pairs were judged earlier or by a kept judge.
    """

    image_of: Int[np.ndarray, " pairs"]
    fold: Int[np.ndarray, " pairs"]
    group: Int[np.ndarray, " pairs"]
    similarity: Float[np.ndarray, " pairs"]
    information: Float[np.ndarray, " pairs"]
    posterior_set: Float[np.ndarray, " pairs"]
    posterior_caption: Float[np.ndarray, " pairs"]
    posterior: Float[np.ndarray, " pairs"]
    fdr: Float[np.ndarray, " pairs"]
    kind: Int[np.ndarray, " pairs"]
    proposal: Int[np.ndarray, "pairs top"]
    probability: Float[np.ndarray, "pairs top"]
    none_fits: Float[np.ndarray, " pairs"]
    order: Int[np.ndarray, " pairs"]
    conflicts: Int[np.ndarray, "n 2"]
    nearest_images: Int[np.ndarray, "images 3"]
    rate: Rate
    mechanisms: tuple[Mechanism, ...]
    list_length: int
    repeated: tuple[Repeated, ...]
    placeholders: tuple[Placeholder, ...]
    unreliable_reason: str
    auroc: float
    is_rankable: bool
    made: Provenance
    upper_bound: float
    p: Float[np.ndarray, " pairs"]
    likeness: Float[np.ndarray, " pairs"]
    witness: Int[np.ndarray, "pairs shown"]
    notes: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    judge: "KeptJudge | None" = None

    def __len__(self) -> int:
        return len(self.image_of)

    @property
    def matched(self) -> Float[np.ndarray, " pairs"]:
        """[pairs] probability that the pair is matched, 1 - posterior."""
        return 1 - self.posterior

    def __str__(self) -> str:
        from l2rm_jax.judging.verdict import verdict

        return "\n".join(verdict(self))

    def __repr__(self) -> str:
        return str(self)  # a notebook shows this, and not a page of arrays

    def decided(self, fits: Int[np.ndarray, " n"], wrong: Int[np.ndarray, " m"]) -> "Judgement":
        """Return the judgement with the results of reviewed pairs replaced by the decisions.

        Args:
          fits: pairs decided to be matched.
          wrong: pairs decided to be mismatched.
        """
        changed = {}
        for name in ("posterior", "posterior_caption"):
            values = getattr(self, name).copy()
            values[fits], values[wrong] = 0, 1
            changed[name] = values
        kind, together = self.kind.copy(), self.posterior_set.copy()
        kind[fits], together[fits] = MATCHED, 0
        new = wrong[np.isin(kind[wrong], KEPT)]
        is_alone = np.bincount(self.image_of)[self.image_of[new]] == 1
        kind[new] = np.where(is_alone, SUSPECT, SWAPPED_CAPTION)
        return dataclasses.replace(self, kind=kind, posterior_set=together, **changed)


def empty_fields(pairs: int) -> dict[str, Any]:
    """Return the fields of a judgement before a search for proposals and groups."""
    nothing = np.full(pairs, np.nan)
    return {
        "proposal": np.zeros((pairs, 0), np.int64),
        "probability": np.zeros((pairs, 0)),
        "none_fits": nothing,
        "nearest_images": np.zeros((0, 3), np.int64),
        **dict.fromkeys(("repeated", "placeholders"), ()),
        **dict.fromkeys(("p", "likeness"), nothing),
        "witness": np.zeros((pairs, 0), np.int32),
    }


_LISTS = {"mechanisms": Mechanism, "repeated": Repeated, "placeholders": Placeholder}
_ABOUT = (
    "rate",
    *_LISTS,
    "list_length",
    "unreliable_reason",
    "auroc",
    "is_rankable",
    "made",
    "upper_bound",
    "notes",
    "said",
)
_ARRAYS = tuple(f.name for f in dataclasses.fields(Judgement) if f.name not in (*_ABOUT, "judge"))
_DECIDED = ("kind", "posterior", "posterior_caption", "posterior_set")  # changed by decisions
_BEFORE = "before_"  # name of these arrays before the decisions


def write_judgement(
    path: Path, judgement: Judgement, before: Judgement | None = None, **more: np.ndarray
) -> None:
    """Write a judgement and further arrays to one file, which appears when it is complete.

    Args:
      path: the file.
      judgement: the judgement.
      before: the same before the decisions of a reviewer; None without decisions.
      **more: the further arrays.
    """
    if before is not None:
        more |= {f"{_BEFORE}{name}": getattr(before, name) for name in _DECIDED}
    about = {name: getattr(judgement, name) for name in _ABOUT}
    about["rate"], about["made"] = judgement.rate._asdict(), judgement.made._asdict()
    about |= {name: [each._asdict() for each in about[name]] for name in _LISTS}
    arrays = {name: getattr(judgement, name) for name in _ARRAYS}
    text = np.array(json.dumps(about))
    replace_arrays(path, {**arrays, "about": text, **more})


def read_judgement(path: Path, is_decided: bool = True) -> Judgement:
    """Read a judgement.

    Args:
      path: the file.
      is_decided: whether the decisions of a reviewer count, if there are any.

    Raises:
      DataError: the file is missing or damaged.
    """
    with open_arrays(path, "a judgement of pairs", "remove it to have the pairs judged") as file:
        stored: dict[str, Any] = {name: file[name] for name in file}
        about: dict[str, Any] = json.loads(str(stored["about"]))
        for name, kind in _LISTS.items():
            about[name] = tuple(kind(**each) for each in about[name])
        about["rate"], about["made"] = Rate(**about["rate"]), Provenance(**about["made"])
        about |= {name: tuple(about[name]) for name in ("notes", "said")}
        arrays = {name: stored[name] for name in _ARRAYS}
        if not is_decided and f"{_BEFORE}{_DECIDED[0]}" in stored:
            arrays |= {name: stored[f"{_BEFORE}{name}"] for name in _DECIDED}
        return Judgement(**arrays, **about)


def is_of_pairs(judgement: Judgement, pairs: Pairs) -> bool:
    """Return whether a judgement belongs to these pairs: same rows, captions and ids, if known."""
    return np.array_equal(judgement.image_of, pairs.image_of) and same_pairs(
        judgement.made.fingerprint, pairs.fingerprint
    )


def check_same_pairs(judgement: Judgement, pairs: Pairs, path: str | Path) -> None:
    """Check that a judgement belongs to these pairs.

    Raises:
      DataError: the number of pairs differs, a pair is stored with another image, or the captions
        differ.
    """
    if len(judgement) != len(pairs):
        raise DataError(
            f"{path}: found a judgement of {len(judgement):,} pairs, expected one of the "
            f"{len(pairs):,} training pairs of {pairs.name}"
        )
    differs = np.flatnonzero(judgement.image_of != pairs.image_of)
    if len(differs):
        row = differs[0]
        raise DataError(
            f"{path}: image of pair {row:,}: found row {judgement.image_of[row]:,}, expected "
            f"{pairs.image_of[row]:,}; this is a judgement of other pairs"
        )
    if not same_pairs(judgement.made.fingerprint, pairs.fingerprint):
        raise DataError(
            f"{path}: found a judgement of other captions or images, expected those of {pairs.name}"
        )
