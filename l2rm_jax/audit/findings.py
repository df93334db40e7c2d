"""What an audit finds: the arrays and numbers that the table, the report and the page show."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.audit.inputs import Inputs, Settings

# What is said of a pair. `matched` and `alternate` are kept, the others are doubted: `doubtful` by
# itself, `foreign_set` with all captions of its image, `shifted` as part of a run of rows;
# `placeholder` as its picture stands with many captions that have nothing in common.
MATCHED, ALTERNATE, DOUBTFUL, FOREIGN_SET, UNINFORMATIVE, SHIFTED, PLACEHOLDER = range(7)
KINDS = (
    *("matched", "alternate", "doubtful", "foreign_set", "uninformative", "shifted"),
    "placeholder",
)


class PairFindings(NamedTuple):
    """What is known of each pair, in the order of the input.

    Pairs of placeholders are not judged: they count as mismatched, have no fold, no similarity and
    no information, and come last in the order.

    Attributes:
      image: row of the image that the caption is stored with.
      fold: fold of that image; -1 for placeholders.
      group: group of the image: images with near duplicates or equal captions share one.
      similarity: cosine of image and caption, by models that have not seen the pair.
      information: information of the pair in nats; 0 is no better than a random pair.
      posterior_set: probability that all captions of the image are mismatched together.
      posterior_caption: probability that the caption is mismatched by itself.
      posterior: probability that the pair is mismatched, in [0, 1]. Their mean is the rate.
      q: share of false alarms among all pairs that are as doubtful or more.
      kind: what is said of the pair, as an index of `KINDS`.
      proposal: [pairs, top] captions that may fit the image better, as rows, best first; -1: none.
      probability: [pairs, top] probability that each proposal fits.
      none_fits: probability that no caption of the set fits; NaN where none was looked for.
      order: pairs, the most doubtful first.
    """

    image: Int[np.ndarray, " pairs"]
    fold: Int[np.ndarray, " pairs"]
    group: Int[np.ndarray, " pairs"]
    similarity: Float[np.ndarray, " pairs"]
    information: Float[np.ndarray, " pairs"]
    posterior_set: Float[np.ndarray, " pairs"]
    posterior_caption: Float[np.ndarray, " pairs"]
    posterior: Float[np.ndarray, " pairs"]
    q: Float[np.ndarray, " pairs"]
    kind: Int[np.ndarray, " pairs"]
    proposal: Int[np.ndarray, "pairs top"]
    probability: Float[np.ndarray, "pairs top"]
    none_fits: Float[np.ndarray, " pairs"]
    order: Int[np.ndarray, " pairs"]


class Rate(NamedTuple):
    """Share of pairs that are as doubtful as random ones, in [0, 1].

    Attributes:
      estimate: the share.
      low: lower end of its 90% interval, by bootstrap over groups.
      high: upper end.
      strict: the estimate from the most doubtful fifth of random pairs alone. If it differs from
        `estimate` by more than the width of the interval, the assumptions are in doubt.
    """

    estimate: float
    low: float
    high: float
    strict: float


class Mechanism(NamedTuple):
    """How well one kind of mismatch is found, measured on pairs that were mismatched on purpose.

    Attributes:
      name: `image` (all captions of an image moved), `caption` (one caption moved) or `near` (one
        caption moved to an image whose captions are similar).
      auroc: share of (mismatched, matched) pairs that are told apart, corrected for the mismatched
        pairs that the data hold already.
      recall: share of these mismatched pairs that are in the list of doubted pairs.
      false_positives: share of stored pairs above the doubt at which 90% of these are found.
      cosine_auroc: `auroc` of the scorer's similarity alone: the cosine, for the linear one.
    """

    name: str
    auroc: float
    recall: float
    false_positives: float
    cosine_auroc: float


class Shift(NamedTuple):
    """Rows whose captions fit the images of other rows: first to last, both included.

    Attributes:
      first: first row.
      last: last row.
      offset: the image of row k + offset fits the caption of row k.
    """

    first: int
    last: int
    offset: int


class Repeated(NamedTuple):
    """A text that stands with many images: `row` is the first of its captions."""

    row: int
    images: int


class Placeholder(NamedTuple):
    """A picture that stands with many captions which have nothing in common.

    Attributes:
      row: the first of its images.
      images: how many images it is.
      pairs: how many captions are stored with them.
    """

    row: int
    images: int
    pairs: int


@dataclass(frozen=True)
class Audit:
    """The findings of an audit.

    Attributes:
      inputs: what was audited.
      settings: how.
      findings: what is known of each pair, in the order of the input.
      rate: share of pairs that are as doubtful as random ones.
      mechanisms: how well mismatches of each kind are found.
      listed: how many pairs, the most doubtful ones, have 10% false alarms.
      shifts: runs of rows whose captions fit the images of other rows.
      repeated: texts that stand with many images.
      conflicts: [n, 2] pairs of which the images are the same and the captions are not.
      near: [images, 3] rows of the most similar images.
      scorer: what judged the pairs.
      cannot_tell: why the rate and the posteriors are doubtful; "" if they are not.
      auroc: share of (random, matched) pairs that are told apart, less its standard error.
      ranks: whether the order of the pairs can be used, even where the rate is doubtful.
      placeholders: pictures that stand with many captions; their pairs are not judged.
    """

    inputs: Inputs
    settings: Settings
    findings: PairFindings
    rate: Rate
    mechanisms: list[Mechanism]
    listed: int
    shifts: list[Shift]
    repeated: list[Repeated]
    conflicts: Int[np.ndarray, "n 2"]
    near: Int[np.ndarray, "images 3"]
    scorer: str
    cannot_tell: str
    auroc: float
    ranks: bool
    placeholders: list[Placeholder] = field(default_factory=list)
