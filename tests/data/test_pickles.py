import collections
import os
import pickle
import tracemalloc

import numpy as np
import pytest

from l2rm_jax.data.pickles import read_pickle
from l2rm_jax.errors import DataError

HARMLESS = {
    "arrays": {"a": np.arange(6.0).reshape(2, 3), "b": np.float32([1, np.nan])},
    "numbers": [np.float64(1.5), 3, None, True, np.int64(4)],
    "words": collections.OrderedDict(video=[["a", "caf\xe9"], "text", b"\xff\x00"]),
}


class Hostile:
    """An object that calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_and_containers_are_read(tmp_path, protocol):
    path = tmp_path / "data.pkl"
    path.write_bytes(pickle.dumps(HARMLESS, protocol=protocol))
    content = read_pickle(path)
    np.testing.assert_equal(content, HARMLESS)
    assert content["arrays"]["b"].dtype == np.float32


def test_what_python_2_wrote_is_read(tmp_path):
    # {'a': numpy.array([1.5], '<f4')} by protocol 2, its strings being bytes.
    content = (
        b"\x80\x02}U\x01acnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x01\x85cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x04\x00\x00\xc0?tbs."
    )
    (tmp_path / "old.pkl").write_bytes(content)
    np.testing.assert_equal(read_pickle(tmp_path / "old.pkl"), {"a": np.float32([1.5])})


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (os.system, ("touch {}",)),
        (os.mkdir, ("{}",)),
        (eval, ("open('{}', 'w')",)),
        (getattr, ("text", "upper")),
        (np.save, ("{}", [1])),
        (np.load, ("{}",)),
        (pickle.loads, (pickle.dumps(Hostile(os.mkdir, "{}")),)),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_nothing_foreign_is_executed(tmp_path, function, arguments, protocol):
    target, path = tmp_path / "touched.npy", tmp_path / "bad.pkl"
    fill = [a.format(target) if isinstance(a, str) else a for a in arguments]
    content = {"a": np.zeros(2), "b": [Hostile(function, *fill)]}
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    with pytest.raises(DataError, match=r"bad\.pkl: .* [\w.]+\.\w+"):
        read_pickle(path)
    assert sorted(tmp_path.iterdir()) == [path]


def test_other_codecs_are_not_looked_up(tmp_path):
    path = tmp_path / "bad.pkl"
    path.write_bytes(b"c_codecs\nencode\n(Vabc\nVhex\ntR.")
    with pytest.raises(DataError, match="hex"):
        read_pickle(path)


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps([1, 2, 3])[:-3], b"(d\x00"])
def test_damage_is_refused(tmp_path, content):
    path = tmp_path / "bad.pkl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.pkl: "):
        read_pickle(path)
    with pytest.raises(DataError, match=r"none\.pkl"):
        read_pickle(tmp_path / "none.pkl")


def test_a_large_memo_takes_no_memory(tmp_path):
    """Ten bytes of a pickle ask for entry 2^26 of the memo."""
    path = tmp_path / "data.pkl"
    path.write_bytes(b"\x80\x02Nr\x00\x00\x00\x04.")
    tracemalloc.start()
    try:
        assert read_pickle(path) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
