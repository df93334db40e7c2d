"""Operations of compiled programs, as two versions are compared by."""

from collections import Counter

import jax
import jax.numpy as jnp

from experiments.bench import versions


def found(function, *inputs):
    text = jax.jit(function).lower(*inputs).compile().as_text()
    return Counter(match.groups() for match in versions.OPERATION.finditer(text))


def test_programs_are_compared_by_shape_and_name():
    ones = jnp.ones((3, 4))
    before, now = found(lambda x: jnp.sin(x) @ x.T, ones), found(lambda x: jnp.cos(x) @ x.T, ones)
    assert ("f32[3,4]{1,0}", "sine") in before and ("f32[3,4]{1,0}", "cosine") in now
    same = {"operations": before.total(), "in one alone": 0, "largest of these": 0}
    assert versions.compare_programs(before, before) == same
    assert versions.compare_programs(before, now) == {
        "operations": now.total(), "in one alone": 2, "largest of these": 12
    }  # fmt: skip


def test_numbers_of_a_shape():
    assert versions.numbers("(f32[3,4]{1,0}, s32[], pred[5]{0})") == 12
    assert versions.numbers("s32[]") == 1 and versions.numbers("()") == 0
