"""Names of pictures in another form than on the disk: of Windows, Unicode, other machines."""

from pathlib import Path
from unicodedata import normalize

import pytest

from l2rm_jax.errors import DataError
from tests.importing.made import encoded, imported, picture, write_csv

PLACES = ["Bäume/été {}.png", "Bäume/deep/ñ {}.png", "plain/{}.png"]
NAMES = [normalize("NFC", place.format(number)) for number in range(4) for place in PLACES]


def write_files(root: Path, names: list[str]) -> None:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(encoded(picture(number)))


def pairs_of(root: Path, names: list[str], **fields) -> dict[str, list[str]]:
    """Import a table with a caption for each name."""
    source = write_csv(root / "pairs.csv", [(n, f"text {at}") for at, n in enumerate(names)])
    return imported(root, source, split="1,0,0", **fields).pairs


EXPECTED = {name: [f"text {number}"] for number, name in enumerate(NAMES)}
SPELLINGS = {
    "as it is": lambda name: name,
    "NFD": lambda name: normalize("NFD", name),
    "Windows": lambda name: name.replace("/", "\\"),
    "Windows, here": lambda name: ".\\" + name.replace("/", "\\"),
    "Windows, NFD": lambda name: normalize("NFD", name.replace("/", "\\")),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("disk", ["NFC", "NFD", "folders in NFD", "files in NFD"])
def test_a_name_is_found_in_its_other_form(tmp_path, disk, spelling):
    def on_disk(name):
        folder, _, file = name.rpartition("/")
        form = "NFD" if disk in ("NFD", "folders in NFD") else "NFC"
        last = "NFD" if disk in ("NFD", "files in NFD") else "NFC"
        return f"{normalize(form, folder)}/{normalize(last, file)}"

    write_files(tmp_path, [on_disk(name) for name in NAMES])
    assert pairs_of(tmp_path, [SPELLINGS[spelling](name) for name in NAMES]) == EXPECTED


def test_spellings_of_one_file_are_one_image(tmp_path):
    write_files(tmp_path, [normalize("NFD", name) for name in NAMES])
    names = [spell(name) for spell in SPELLINGS.values() for name in NAMES]
    found = pairs_of(tmp_path, names)
    turns = range(0, len(names), len(NAMES))
    assert found == {n: [f"text {at + t}" for t in turns] for at, n in enumerate(NAMES)}


def test_files_whose_names_differ_only_in_form_stay_apart(tmp_path):
    names = ["a\\b.png", "a/b.png", "é.png", normalize("NFD", "é.png")]
    write_files(tmp_path, names)
    assert list(pairs_of(tmp_path, names)) == names


@pytest.mark.parametrize("moved", ["/data/upload/1/", "/", "C:/Users/me/set/", "/a/plain/"])
def test_absolute_names_of_another_machine_lose_their_common_folder(tmp_path, moved, caplog):
    write_files(tmp_path / "here", NAMES)
    names = [f"{moved}{name}" for name in NAMES]
    if moved.startswith("C:"):
        names = [name.replace("/", "\\") for name in names]
    with caplog.at_level("INFO", "l2rm_jax"):
        found = pairs_of(tmp_path, names, pictures=str(tmp_path / "here"))
    assert found == {f"{moved}{name}": own for name, own in EXPECTED.items()}
    assert f"without {moved}" in caplog.text


def test_names_that_share_no_folder_are_not_guessed(tmp_path):
    """Else two of them could be one file."""
    write_files(tmp_path, ["a.png", "b.png"])
    with pytest.raises(DataError, match="none of its 2 pictures"):
        pairs_of(tmp_path, ["/one/a.png", "/two/b.png"])


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_texts_beside_pictures_in_another_form(tmp_path, form):
    write_files(tmp_path / "files", NAMES)
    for number, name in enumerate(NAMES):
        text = (tmp_path / "files" / name).with_suffix(".txt")
        text.with_name(normalize(form, text.name)).write_text(f"text {number}")
    assert imported(tmp_path, "files", split="1,0,0").pairs == EXPECTED
