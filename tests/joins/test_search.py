"""Pieces of one rule become this rule, even if it ends elsewhere than they do."""

import numpy as np

from l2rm_jax.joins import maps, search
from l2rm_jax.joins.emission import make_view
from l2rm_jax.joins.evidence import fit_evidence
from l2rm_jax.joins.table import CAPTION_COMPONENTS, IMAGE_COMPONENTS, make_table, principal
from tests.joins.kinds import KINDS
from tests.joins.tables import make_case, synthetic


def test_a_rule_that_reaches_into_the_next_pieces_replaces_both():
    case = make_case(KINDS["swapped_neighbours"], synthetic(600, 1, 1))
    sides = principal(case.images, IMAGE_COMPONENTS), principal(case.captions, CAPTION_COMPONENTS)
    table = make_table(*sides, case.stored)
    view = make_view(table, fit_evidence(table, case.truth))
    rules = [maps.stored(table), maps.none(table), maps.rows_on(table, 1), maps.rows_on(table, -1)]
    rows = np.arange(len(table))
    labels = np.where((rows >= 100) & (rows < 260), 2 + rows % 2, search.STORED)
    labels[180:182] = search.STORED
    found = search._simpler(search.Explanation(view, rules, labels), maps.Orders())
    moved = found.join()[100:260]
    assert (moved == case.truth[100:260]).mean() > 0.9
    assert {m.name[1] for m in found.maps[2:]} == {"neighbours"}
