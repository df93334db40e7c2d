"""Write a new method and its test, from the example, for `l2rm new method NAME`."""

import importlib.util
import keyword
import re
from pathlib import Path

from l2rm_jax.errors import ConfigError
from l2rm_jax.methods.registry import METHODS

_EXAMPLE = "focal"
_DIRECTORY = Path(__file__).parent / "example"
# The module and the method, whose name changes; the loss keeps its name.
_OLD_NAME = re.compile(rf"({__package__}\.example\.|(?<![a-z])){_EXAMPLE}(?!_triplet)")


def write_method(name: str, directory: Path) -> tuple[Path, Path]:
    """Write `NAME.py` and `test_NAME.py`: the example of a method under another name.

    Args:
      name: name of the method and of its module, in lower case.
      directory: where the files are written; both are new.

    Returns:
      The files of the method and of its test.

    Raises:
      ConfigError: the name is no Python name in lower case, or another method or module has it; or
        one of the files exists.
    """
    files = directory / f"{name}.py", directory / f"test_{name}.py"
    _check_name(name)
    for file in files:
        if file.exists():
            raise ConfigError(f"{file}: exists, expected a new file; choose another name")
    if importlib.util.find_spec(name) is not None:
        raise ConfigError(f"{name}: a Python module has this name; choose another one")
    for file, source in zip(files, (f"{_EXAMPLE}.py", f"test_{_EXAMPLE}.py"), strict=True):
        text = _OLD_NAME.sub(name, (_DIRECTORY / source).read_text())
        with file.open("x") as stream:
            stream.write(text)
    return files


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"name: found {name!r}, expected lower-case letters, digits and _, as in my_method"
        )
    if name in METHODS:
        raise ConfigError(f"name: found {name}, a method of the library; choose another one")
