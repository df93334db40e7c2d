"""Published checkpoints: every layout, and damaged, unrelated or malicious files."""

import os
from pathlib import Path

import numpy as np
import pytest

from l2rm_jax.data.text import Vocabulary
from l2rm_jax.errors import CheckpointError
from l2rm_jax.published.checkpoint import read_checkpoint, weights_for_data
from tests.published.checkpoint_files import golden, options, parts, save, tensors

torch = pytest.importorskip("torch")


@pytest.fixture
def weights():
    return golden("bc_sim_SGR").under("w/")


def layouts(weights, other):
    return {
        "l2rm": {"net": tensors(weights), "cost_function": {}},
        "l2rm, DataParallel": {"net": tensors(weights, "module.")},
        "sgraf": {"model": parts(weights), "Eiters": 7},
        "rcl, DataParallel": {"model": parts(weights, "module.")},
        "decl": {"model": parts(weights), "step": 12},
        "ncr": {"model_A": parts(weights), "model_B": parts(other)},
        "bicro, old file": {"model_A": parts(weights), "model_B": parts(other), "legacy": True},
    }


@pytest.mark.parametrize("layout", layouts({}, {}))
def test_every_layout_holds_the_same_arrays(weights, tmp_path, layout):
    counters = [name for name in weights if name.endswith("num_batches_tracked")]
    other = {name: 2 * x for name, x in weights.items()}
    content = layouts(weights, other)[layout]
    networks = read_checkpoint(save(tmp_path / "a.pth.tar", weights, **content))
    assert list(networks) == [key for key in content if key in ("net",) or "model" in key]
    assert counters
    for network, expected in zip(networks.values(), (weights, other), strict=False):
        assert network.keys() == weights.keys() - set(counters)
        for name, x in network.items():
            np.testing.assert_array_equal(x, expected[name])
            assert x.dtype == np.float32


def test_tensors_of_an_accelerator_come_to_the_host(weights, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    path = save(tmp_path / "a.pth.tar", weights, net=tensors(weights))
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="CUDA"):
            torch.load(path, weights_only=False)
    network = read_checkpoint(path)["net"]
    np.testing.assert_array_equal(network["img_enc.fc.bias"], weights["img_enc.fc.bias"])


class Malicious:
    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self):
        return os.system, (f"touch {self.trace}",)


@pytest.mark.parametrize("legacy", [False, True])
def test_nothing_in_a_file_is_executed(weights, tmp_path, legacy):
    trace = tmp_path / "trace"
    content = {"net": tensors(weights), "extra": Malicious(trace), "legacy": legacy}
    path = save(tmp_path / "a.pth.tar", weights, **content)
    with pytest.raises(CheckpointError, match=r"(posix|nt)\.system"):
        read_checkpoint(path)
    assert not trace.exists()
    torch.load(path, weights_only=False)  # the attack works on an unsafe reader
    assert trace.exists()


def test_an_old_pytorch_that_may_execute_code_is_refused(weights, tmp_path, monkeypatch):
    path = save(tmp_path / "a.pth.tar", weights, net=tensors(weights))
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(CheckpointError, match=r"2\.5\.1\+cpu.*2\.6"):
        read_checkpoint(path)


def test_other_globals_are_refused_by_name(weights, tmp_path):
    path = save(tmp_path / "a.pth.tar", weights, net=tensors(weights), extra=Vocabulary({}))
    with pytest.raises(CheckpointError, match=r"l2rm_jax\.data\.text\.Vocabulary"):
        read_checkpoint(path)


def test_damaged_and_foreign_files(weights, tmp_path):
    whole = save(tmp_path / "a.pth.tar", weights, net=tensors(weights)).read_bytes()
    legacy = save(tmp_path / "b.pth.tar", weights, legacy=True, net=tensors(weights)).read_bytes()
    damaged = [b"", b'{"net": 1}', whole[:5], whole[: len(whole) // 2], legacy[: len(legacy) // 2]]
    for content in damaged:
        (tmp_path / "c.pth.tar").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"c\.pth\.tar: "):
            read_checkpoint(tmp_path / "c.pth.tar")
    with pytest.raises(CheckpointError, match="no such file"):
        read_checkpoint(tmp_path / "nowhere.pth.tar")
    with pytest.raises(CheckpointError, match="found a directory"):
        read_checkpoint(tmp_path)
    torch.save(torch.ones(2), tmp_path / "d.pth.tar")
    with pytest.raises(CheckpointError, match="Tensor"):
        read_checkpoint(tmp_path / "d.pth.tar")


def test_an_expanded_tensor_is_refused(weights, tmp_path):
    net = tensors(weights)
    net["img_enc.fc.bias"] = torch.zeros(1).expand(24)
    path = save(tmp_path / "a.pth.tar", weights, net=net)
    with pytest.raises(CheckpointError, match=r"img_enc\.fc\.bias"):
        read_checkpoint(path)


FC, GRU = "img_enc.fc.weight", "txt_enc.cap_rnn.weight_hh_l0"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"img_enc.fc.bias": None}, r"missing: img_enc\.fc\.bias\n  unknown: none"),
        ({"a.b": np.ones(2)}, r"missing: none\n  unknown: a\.b$"),
        ({f"{GRU}_reverse": None}, rf"missing: {GRU}_reverse"),
        ({"txt_enc.cap_rnn.bias_ih_l1": np.ones(2)}, r"unknown: txt_enc\.cap_rnn\.bias_ih_l1"),
        ({GRU: np.ones((72, 23))}, rf"{GRU}.* \(72, 23\)"),
        ({FC: np.ones(24)}, rf"{FC}.* \(24,\)"),
        ({FC: np.full((24, 32), np.nan)}, f"{FC}: found .* not finite"),
        ({FC: np.ones((24, 32), np.int64)}, f"{FC}: found .* Tensor"),
    ],
)
def test_parameters_that_are_not_a_network(weights, tmp_path, change, message):
    changed = {name: x for name, x in {**weights, **change}.items() if x is not None}
    path = save(tmp_path / "a.pth.tar", weights, model=parts(changed), net=tensors(changed))
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(path)


def test_keys_and_values_of_another_kind(weights, tmp_path):
    path = tmp_path / "a.pth.tar"
    cases = [
        ({"weights": 1}, "weights"),
        ({"model": parts(weights)[:2]}, "model: "),
        ({"net": 3}, "net: .*int"),
        ({"net": tensors(weights), "opt": 3}, "opt .*int"),
    ]
    for content, message in cases:
        with pytest.raises(CheckpointError, match=message):
            read_checkpoint(save(path, weights, **content))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("module_name", "SAF"),
        ("sgr_step", 2),
        ("vocab_size", 41),
        ("bi_gru", False),
        ("no_txtnorm", True),
    ],
)
def test_options_of_another_network(weights, tmp_path, field, value):
    opt = options(weights, **{field: value})
    path = save(tmp_path / "a.pth.tar", weights, net=tensors(weights), opt=opt)
    with pytest.raises(CheckpointError, match=f"{field} = {value}"):
        read_checkpoint(path)


def test_a_vocabulary_fits_or_is_one_word_short(weights):
    assert weights_for_data(weights, 40, (36, 32), "a").keys() == weights.keys()
    cut = weights_for_data(weights, 39, (36, 32), "a")  # drops <mask>, which no caption contains
    np.testing.assert_array_equal(cut["txt_enc.embed.weight"], weights["txt_enc.embed.weight"][:39])
    for words in (38, 41):
        with pytest.raises(CheckpointError, match=rf"{words} words.*40 words"):
            weights_for_data(weights, words, (36, 32), "a")
    with pytest.raises(CheckpointError, match=r"12 regions .*36 x 32"):
        weights_for_data(weights, 40, (12, 32), "a")
