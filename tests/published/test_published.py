"""Published PyTorch checkpoints: files in their layouts, made from the authors' own weights."""

import argparse
import collections
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from experiments.fidelity.__main__ import GOLDEN
from experiments.fidelity.arrays import Arrays
from l2rm_jax import config as defaults
from l2rm_jax.data.text import Vocabulary
from l2rm_jax.errors import CheckpointError, ConfigError, L2RMError
from l2rm_jax.evaluate import evaluate_checkpoints
from l2rm_jax.evaluation.scoring import Scorer
from l2rm_jax.methods.cost import cost, resize_cost
from l2rm_jax.published.checkpoint import fit_data, read_checkpoint
from l2rm_jax.published.conversion import variables_from_state_dict
from l2rm_jax.published.import_run import import_checkpoint

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("img_enc", "txt_enc", "sim_enc")


def golden(name: str) -> Arrays:
    return Arrays.load(GOLDEN / f"{name}.npz")


def tensors(weights, prefix=""):
    """A state dict as torch makes it."""
    made = collections.OrderedDict()
    for name, x in weights.items():
        made[prefix + name] = torch.from_numpy(np.array(x))
    made._metadata = collections.OrderedDict(version=1)
    return made


def parts(weights, prefix=""):
    """The list of three state dicts that SGRAF's `state_dict` returns."""
    return [
        tensors({n.removeprefix(f"{p}."): x for n, x in weights.items() if n.startswith(p)}, prefix)
        for p in PARTS
    ]


def options(weights, **fields) -> argparse.Namespace:
    vocabulary_size, word_dim = weights["txt_enc.embed.weight"].shape
    embed_size, img_dim = weights["img_enc.fc.weight"].shape
    sgr = any("SGR_module" in name for name in weights)
    values = {
        "data_name": "f30k_precomp",
        "module_names": ["SAF", "SGR"],  # what is not checked may be anything plain
        "resume": None,
        "learning_rate": 2e-4,
        "module_name": "SGR" if sgr else "SAF",
        "sgr_step": 3,
        "vocab_size": vocabulary_size,
        "word_dim": word_dim,
        "embed_size": embed_size,
        "sim_dim": weights["sim_enc.sim_eval_w.weight"].shape[1],
        "img_dim": img_dim,
        "num_layers": 1,
        "bi_gru": True,
        "no_imgnorm": False,
        "no_txtnorm": False,
    }
    return argparse.Namespace(**{**values, **fields})


def save(path: Path, weights, /, legacy: bool = False, **content) -> Path:
    content = {"epoch": 3, "best_rsum": 400.5, "opt": options(weights), **content}
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    return path


@pytest.fixture
def weights():
    return golden("bc_sim_SGR").under("w/")


def layouts(weights, other):
    return {
        "l2rm": {"net": tensors(weights)},
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
    published = read_checkpoint(save(tmp_path / "a.pth.tar", weights, **content))
    assert list(published.networks) == [key for key in content if key in ("net",) or "model" in key]
    assert counters and published.cost is None
    for network, expected in zip(published.networks.values(), (weights, other), strict=False):
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
    network = read_checkpoint(path).networks["net"]
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
    with pytest.raises(CheckpointError, match=r"needs the global (posix|nt)\.system, and"):
        read_checkpoint(path)
    assert not trace.exists()
    torch.load(path, weights_only=False)  # it would have worked
    assert trace.exists()


def test_a_pytorch_that_may_execute_is_refused(weights, tmp_path, monkeypatch):
    path = save(tmp_path / "a.pth.tar", weights, net=tensors(weights))
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(CheckpointError, match=r"PyTorch 2\.5\.1\+cpu .* expected 2\.6 or newer"):
        read_checkpoint(path)


def test_other_globals_are_refused_by_name(weights, tmp_path):
    path = save(tmp_path / "a.pth.tar", weights, net=tensors(weights), extra=Vocabulary({}))
    with pytest.raises(CheckpointError, match=r"the global l2rm_jax\.data\.text\.Vocabulary"):
        read_checkpoint(path)


def test_damaged_and_foreign_files(weights, tmp_path):
    whole = save(tmp_path / "a.pth.tar", weights, net=tensors(weights)).read_bytes()
    legacy = save(tmp_path / "b.pth.tar", weights, legacy=True, net=tensors(weights)).read_bytes()
    damaged = [b"", b'{"net": 1}', whole[:5], whole[: len(whole) // 2], legacy[: len(legacy) // 2]]
    for content in damaged:
        (tmp_path / "c.pth.tar").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"c\.pth\.tar: refused, it is damaged, or no"):
            read_checkpoint(tmp_path / "c.pth.tar")
    with pytest.raises(CheckpointError, match="No such file"):
        read_checkpoint(tmp_path / "nowhere.pth.tar")
    with pytest.raises(CheckpointError, match="cannot be read: Is a directory"):
        read_checkpoint(tmp_path)
    torch.save(torch.ones(2), tmp_path / "d.pth.tar")
    with pytest.raises(CheckpointError, match="holds a Tensor, expected a dictionary"):
        read_checkpoint(tmp_path / "d.pth.tar")


def test_one_number_that_stands_for_many_is_refused(weights, tmp_path):
    net = tensors(weights)
    net["img_enc.fc.bias"] = torch.zeros(1).expand(24)
    path = save(tmp_path / "a.pth.tar", weights, net=net)
    with pytest.raises(CheckpointError, match=r"fc\.bias: found fewer numbers than its shape \[24"):
        read_checkpoint(path)


FC, GRU = "img_enc.fc.weight", "txt_enc.cap_rnn.weight_hh_l0"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"img_enc.fc.bias": None}, r"missing: img_enc\.fc\.bias\n  unknown: none"),
        ({"a.b": np.ones(2)}, r"missing: none\n  unknown: a\.b$"),
        ({f"{GRU}_reverse": None}, rf"missing: {GRU}_reverse"),
        ({"txt_enc.cap_rnn.bias_ih_l1": np.ones(2)}, r"unknown: txt_enc\.cap_rnn\.bias_ih_l1"),
        ({GRU: np.ones((72, 23))}, rf"{GRU} has the shape \(72, 23\), expected \(72, 24\)"),
        ({GRU: np.ones((70, 24))}, rf"{GRU} has the shape \(70, 24\), expected \(72, 24\)"),
        ({FC: np.ones(24)}, rf"{FC} has the shape \(24,\), expected \('D', 'F'\)"),
        ({FC: np.full((24, 32), np.nan)}, f"{FC} holds numbers that are not finite"),
        ({FC: np.ones((24, 32), np.int64)}, f"{FC}: found Tensor, expected a tensor of floats"),
        (
            {"sim_enc.SAF_module.bn.bias": np.ones(1)},
            r"unknown: sim_enc\.SAF_module\.bn\.bias",
        ),
    ],
)
def test_parameters_that_are_not_a_network(weights, tmp_path, change, message):
    changed = {name: x for name, x in {**weights, **change}.items() if x is not None}
    path = save(tmp_path / "a.pth.tar", weights, model=parts(changed), net=tensors(changed))
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(path)


def test_keys_and_cost_of_another_kind(weights, tmp_path):
    path = tmp_path / "a.pth.tar"
    cases = [
        ({"weights": 1}, "found the keys epoch, best_rsum, opt, weights; expected net, or model"),
        ({"model": parts(weights)[:2]}, "model: found 2 state dicts, expected img_enc, txt_enc"),
        ({"net": 3}, "net: found int, expected a state dict"),
        ({"net": tensors(weights), "opt": 3}, "opt is a int, expected the options"),
        ({"cost_function": tensors({"fc.bias": np.ones(4)})}, "expected fc.weight"),
        (
            {"cost_function": tensors({"fc.weight": np.ones((4, 3)), "fc.bias": np.ones(4)})},
            r"fc\.weight': \(4, 3\).*expected fc\.weight \[B, B\]",
        ),
    ]
    for content, message in cases:
        if "cost_function" in content:
            content["net"] = tensors(weights)
        with pytest.raises(CheckpointError, match=message):
            read_checkpoint(save(path, weights, **content))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("module_name", "SAF"),
        ("sgr_step", 2),
        ("vocab_size", 41),
        ("word_dim", 300),
        ("embed_size", 1024),
        ("sim_dim", 256),
        ("img_dim", 2048),
        ("bi_gru", False),
        ("num_layers", 2),
        ("no_imgnorm", True),
        ("no_txtnorm", True),
    ],
)
def test_options_of_another_network(weights, tmp_path, field, value):
    opt = options(weights, **{field: value})
    path = save(tmp_path / "a.pth.tar", weights, net=tensors(weights), opt=opt)
    with pytest.raises(CheckpointError, match=f"the options say {field} = {value}, but"):
        read_checkpoint(path)


def test_a_vocabulary_fits_or_is_one_word_short(weights):
    fitted = fit_data(weights, 40, (36, 32), "a")
    assert fitted.keys() == weights.keys()
    fitted = fit_data(weights, 39, (36, 32), "a")  # <mask>, which no caption holds
    np.testing.assert_array_equal(
        fitted["txt_enc.embed.weight"], weights["txt_enc.embed.weight"][:39]
    )
    for words in (38, 41):
        with pytest.raises(
            CheckpointError, match=rf"has 40 words and data\.vocabulary has {words}"
        ):
            fit_data(weights, words, (36, 32), "a")
    with pytest.raises(CheckpointError, match="of 36 regions x 32 features, found 12 x 32"):
        fit_data(weights, 40, (12, 32), "a")


def test_a_learned_cost_for_another_batch_size():
    rng = np.random.default_rng(0)
    learned = {"kernel": rng.normal(size=(5, 5)), "bias": 3.0 + rng.normal(size=5)}
    same = resize_cost(learned, 5)
    assert all(same[name] is learned[name] for name in learned)
    # What carries over is what does not depend on the order of the captions, the mean over all
    # orders; captions that come twice then cost what they cost once.
    orders = list(itertools.permutations(range(5)))
    kernel = np.mean([learned["kernel"][np.ix_(order, order)] for order in orders], axis=0)
    expected = {"kernel": kernel, "bias": np.full(5, learned["bias"].mean())}
    sims = rng.uniform(size=(3, 5)).astype(np.float32)
    twice = cost(resize_cost(learned, 10), np.tile(sims, 2))
    np.testing.assert_allclose(twice, np.tile(cost(expected, sims), 2), rtol=1e-5, atol=1e-6)


def write_data(directory: Path, **splits) -> Path:
    """Files in SCAN's layout, five captions an image, and the vocabulary w4 .. w39."""
    directory.mkdir()
    for split, (images, tokens, lengths) in splits.items():
        np.save(directory / f"{split}_ims.npy", images)
        lines = [
            " ".join(f"w{t}" for t in line[:n]) for line, n in zip(tokens, lengths, strict=True)
        ]
        (directory / f"{split}_caps.txt").write_text("\n".join(lines) + "\n")
    words = ["<pad>", "<start>", "<end>", "<unk>", *(f"w{i}" for i in range(4, 40))]
    Vocabulary({word: i for i, word in enumerate(words)}).write(directory / "vocabulary.json")
    return directory


def data_config(directory: Path):
    config = defaults.default()
    config.data.name, config.data.path = "golden", str(directory)
    config.data.vocabulary = str(directory / "vocabulary.json")
    return config


@pytest.fixture
def test_data(tmp_path):
    arrays = golden("l_eval")
    split = [arrays[f"in/{name}"] for name in ("images", "captions", "lengths")]
    return arrays, write_data(tmp_path / "data", test=split)


def test_recalls_of_checkpoints_and_ensembles(test_data, tmp_path, monkeypatch):
    arrays, directory = test_data
    sgr, saf = arrays.under("w_SGR/"), arrays.under("w_SAF/")

    # The arrays' captions are bare numbers, without <start> and <end>.
    def encode(self, caption, sentences=None):
        return np.array([int(word[1:]) for word in caption.split()], np.int32)

    found = []

    def scored(*inputs):
        found.append(similarities(*inputs))
        return found[-1]

    similarities = Scorer.similarities
    monkeypatch.setattr(Vocabulary, "encode", encode)
    monkeypatch.setattr(Scorer, "similarities", scored)
    # RCL's vocabulary has <mask> at its end.
    embedding = np.pad(saf["txt_enc.embed.weight"], ((0, 1), (0, 0)))
    masked = {**saf, "txt_enc.embed.weight": embedding}
    config = data_config(directory)
    paths = [
        save(tmp_path / "a.pth.tar", sgr, net=tensors(sgr)),
        save(tmp_path / "b.pth.tar", masked, model=parts(masked)),
        save(tmp_path / "c.pth.tar", sgr, model_A=parts(sgr), model_B=parts(saf), opt=None),
    ]
    rows = evaluate_checkpoints(config, paths)
    a, b, c = paths
    names = [a, b, f"{c} (model_A)", f"{c} (model_B)", c, "mean of 3 checkpoints"]
    assert list(rows) == [f"{name}, custom" for name in names]
    heads = ["SGR", "SAF", "SGR", "SAF", "SGRAF", "SGRAF"]
    for row, head in zip(rows.values(), heads, strict=True):
        for direction in ("i2t", "t2i"):
            keys = ("r1", "r5", "r10", "median", "mean")
            recalls = [row[f"{direction}_{key}"] for key in keys]
            np.testing.assert_allclose(recalls, arrays[f"out/{head}/{direction}"], rtol=1e-9)
    for sims, head in zip(found, heads, strict=False):
        np.testing.assert_allclose(sims, arrays[f"out/{head}/sims"], rtol=0, atol=1e-5)
    for field in ("vocabulary", "path"):
        setattr(config.data, field, "")
        with pytest.raises(ConfigError, match=rf"data\.{field} is empty; --checkpoint needs"):
            evaluate_checkpoints(config, paths)


@pytest.fixture
def train_data(tmp_path):
    arrays = golden("l_eval")
    images, tokens, lengths = (arrays[f"in/{name}"] for name in ("images", "captions", "lengths"))
    tokens, lengths = np.maximum(tokens, 4), np.minimum(lengths, 6)  # one bucket to compile for
    splits = {"train": slice(0, 12), "dev": slice(9, 13), "test": slice(0, 13)}
    parts = {
        name: (images[s], tokens[5 * s.start : 5 * s.stop], lengths[5 * s.start : 5 * s.stop])
        for name, s in splits.items()
    }
    return write_data(tmp_path / "data", **parts)


def test_a_refused_import_leaves_no_trace(train_data, tmp_path):
    weights = golden("m_train_SAF").under("w_after/")
    wide = {**weights, FC: np.pad(weights[FC], ((0, 0), (0, 1)))}
    config = data_config(train_data)
    cases = [
        ({"model_A": parts(weights), "model_B": parts(weights)}, "holds 2 networks"),
        ({"model": parts(wide), "opt": None}, "36 regions x 13 features, found 36 x 12"),
        ({"model": parts(weights), "opt": options(wide)}, "the options say img_dim = 13"),
    ]
    for content, message in cases:
        path = save(tmp_path / "a.pth.tar", weights, **content)
        with pytest.raises(L2RMError, match=message):
            import_checkpoint(config, path, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="expected a new or an empty directory"):
        import_checkpoint(config, path, train_data)


def main(*arguments) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "l2rm_jax.main", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_a_run_goes_on_from_a_checkpoint(train_data, tmp_path):
    arrays = golden("m_train_SAF")
    weights, learned = arrays.under("w_after/"), arrays.under("w_cost_after/")
    path, workdir = tmp_path / "a.pth.tar", tmp_path / "run"
    save(path, weights, net=tensors(weights), cost_function=tensors(learned))
    flags = [
        "--config=configs/f30k.py",
        "--config.evaluation.protocol=custom",
        f"--config.data.path={train_data}",
        f"--config.data.vocabulary={train_data / 'vocabulary.json'}",
        f"--checkpoint={path}",
    ]
    sizes = ["--config.train.batch_size=20", "--config.train.epochs=1"]
    done = main("--mode=import", *flags, *sizes, f"--workdir={workdir}")
    assert done.returncode == 0, done.stderr
    assert f"{path}, validation" in done.stdout

    config = json.loads((workdir / "config.json").read_text())
    assert config["model"]["head"] == "saf" and config["model"]["embed_dim"] == 24
    [imported] = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    assert imported["kind"] == "import" and imported["checkpoint"] == str(path)
    state = ocp.StandardCheckpointer().restore(workdir / "checkpoints" / "best" / "0" / "state")
    expected = variables_from_state_dict(weights)
    for name in ("params", "batch_stats"):
        jax.tree.map(np.testing.assert_array_equal, state[name], expected[name])
    np.testing.assert_array_equal(state["own"]["cost"]["kernel"], learned["fc.weight"].T)
    np.testing.assert_array_equal(state["own"]["cost"]["bias"], learned["fc.bias"])
    optimisers = jax.tree.leaves((state["opt_state"], state["own"]["cost_opt"]))
    assert optimisers and not any(np.any(x) for x in optimisers)

    done = main(f"--workdir={workdir}")
    assert done.returncode == 0, done.stderr
    results = json.loads((workdir / "results.json").read_text())
    assert 0 < results["rsum"] < 600 and results["head"] == "saf"
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    kinds = [(line["kind"], line.get("epoch")) for line in lines]
    assert kinds[0] == ("import", None) and kinds[-1] == ("epoch", 6)  # after five of warm-up
