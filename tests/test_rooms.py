"""Layout of the package: its rooms, and the rooms that each of them may import."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import l2rm_jax

ROOT = Path(l2rm_jax.__file__).parent
# A room may import those of later lines; within a line too, but never in a circle.
LINES = (
    ("__main__",),
    ("main", "fitting"),
    ("train", "evaluate", "check", "retriever", "audit"),
    ("published", "importing"),
    ("pages", "cli"),
    ("run",),
    ("methods", "evaluation"),
    ("models", "judging"),
    ("data",),
    ("pretrained",),
    ("joins",),
    ("linear",),
    ("losses", "ot", "mixture", "auroc", "devices", "jobs", "config", "settings"),
    ("console", "interrupt", "errors", "version"),
)
EXAMPLE = ROOT / "methods" / "example"  # a user's files, which import the public names
LINE_OF = {room: number for number, line in enumerate(LINES) for room in line}
# These import nothing of the package at all.
ALONE = ("losses", "ot", "mixture", "interrupt", "errors", "version")
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))


def imported_modules(source: str) -> set[str]:
    """Return all modules that a file imports, anywhere in it."""
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def room_imports() -> dict[str, set[str]]:
    """Return the other rooms that each room imports."""
    rooms: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        if path.parent == EXAMPLE:
            continue
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        parts = (name.split(".") for name in imported_modules(path.read_text()))
        used = {name[1] for name in parts if name[0] == "l2rm_jax" and len(name) > 1}
        rooms.setdefault(room, set()).update(used - {room})
    return rooms


def test_the_root_holds_the_rooms_and_nothing_else():
    modules = {path.stem for path in ROOT.glob("*.py")} - {"__init__"}
    assert modules | set(PACKAGES) == set(LINE_OF)


def test_imports_point_to_the_right():
    rooms = room_imports()
    for room, used in rooms.items():
        for other in used:
            assert LINE_OF[room] <= LINE_OF[other], f"{room} imports {other}"
    TopologicalSorter(rooms).prepare()  # raises CycleError where rooms of a line form a circle


def test_these_rooms_stand_alone():
    rooms = room_imports()
    assert {room: rooms[room] for room in ALONE if rooms[room]} == {}


def test_data_and_models_do_not_meet():
    rooms = room_imports()
    assert "models" not in rooms["data"] and "data" not in rooms["models"]


def test_the_library_imports_no_experiment_and_no_test():
    for path in ROOT.rglob("*.py"):
        tops = {name.split(".")[0] for name in imported_modules(path.read_text())}
        assert not tops & {"experiments", "tests"}, path


def test_packages_say_what_they_hold():
    for name in PACKAGES:
        package = import_module(f"l2rm_jax.{name}")
        assert "May import" in package.__doc__, name
        assert set(getattr(package, "__all__", ())) <= set(dir(package)), name


def test_importing_the_package_starts_no_jax():
    code = "import sys, l2rm_jax; dir(l2rm_jax); print(sorted({'jax', 'numpy'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_public_names_are_found_where_they_live():
    for name in l2rm_jax.__all__:
        assert getattr(l2rm_jax, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = l2rm_jax.nonsense
