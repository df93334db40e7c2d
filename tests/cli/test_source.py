"""The positional SOURCE: which flag it is the value of, and the name of the directory."""

import numpy as np
import pytest

from l2rm_jax.cli.mode import DATA, Flag, Mode
from l2rm_jax.cli.source import place_source
from l2rm_jax.errors import ConfigError
from tests.cli.modes import WORKDIR

FLAGS = (Flag("source", "S", "the source"), DATA, WORKDIR)
OWN = *FLAGS, Flag("out", "DIR", "output"), Flag("pictures", "DIR", "of the import")
AUDIT = Mode("audit", "audit", "l2rm audit S", OWN, print)
CHECK = Mode("check", "check", "l2rm check S", FLAGS, print)
IMPORT = Mode("import", "import", "l2rm import S", (FLAGS[0], Flag("out", "DIR", "output")), print)


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("run/checkpoints", "precomp", "imported", "shards/img_emb", "photos.v1", "none"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("run/config.json", "imported/dataset.json", "precomp/test_caps.txt", "a.b.csv"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "photos.v1/config.json").write_text("{}")  # as such, no run
    np.save(tmp_path / "shards/img_emb/img_emb_0.npy", np.zeros((2, 3)))
    return tmp_path


@pytest.mark.parametrize(
    ("source", "flag", "out"),
    [
        ("run", "workdir", "run-audit"),
        ("./run/", "workdir", "run-audit"),
        ("precomp", "data", "precomp-audit"),
        ("imported", "data", "imported-audit"),
        ("shards", "data", "shards-audit"),
        ("photos.v1", "source", "photos.v1-audit"),
        ("a.b.csv", "source", "a.b-audit"),
        ("none/*.csv", "source", "none-audit"),
        ("nowhere.tar", "source", "nowhere-audit"),
    ],
)
def test_a_source_is_the_value_of_one_flag(places, source, flag, out):
    assert place_source([("source", source)], AUDIT) == ((flag, source), ("out", out))
    assert place_source([("source", source)], CHECK) == ((flag, source),)
    assert place_source([("source", source)], IMPORT) == (("source", source),)
    given = [("out", "mine"), ("source", source)]
    assert place_source(given, AUDIT) == (("out", "mine"), (flag, source))


def test_the_current_directory_has_a_name(places):
    [_, (_, out)] = place_source([("source", ".")], AUDIT)
    assert out == f"{places.name}-audit"


@pytest.mark.parametrize("other", ["data", "workdir"])
def test_the_data_are_named_once(places, other):
    with pytest.raises(ConfigError, match=f"cannot be combined with --{other}"):
        place_source([("source", "run"), (other, "x")], AUDIT)


def test_a_run_is_trained_on_a_source_in_a_directory_of_its_own(places):
    mode = CHECK._replace(name="train")
    flags = [("source", "imported"), ("workdir", "runs/mine")]
    assert place_source(flags, mode) == (("data", "imported"), ("workdir", "runs/mine"))
    with pytest.raises(ConfigError, match="cannot be combined with --workdir"):
        place_source([("source", "run"), ("workdir", "runs/mine")], mode)


def test_flags_of_the_import_require_an_import(places):
    for flags in ([("data", "precomp")], [("source", "precomp")], []):
        with pytest.raises(ConfigError, match="--encoder requires"):
            place_source([*flags, ("encoder", "jax:x")], AUDIT)
