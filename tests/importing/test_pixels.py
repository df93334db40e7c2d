"""Imports of pixels."""

import numpy as np
import pytest

from l2rm_jax import main
from l2rm_jax.cli.config_flags import fitting_fields
from l2rm_jax.data.record import read_record
from tests.importing.made import COUNT, picture, read_directory, rows_of, write_csv
from tests.models.pretrained.golden import GOLDEN

CLIP = GOLDEN / "clip"
NAMES = [f"images/{number:03}.png" for number in range(COUNT)]


def imported(root, kind):
    """Import a table of small pictures, whose captions the small CLIP can read."""
    source = write_csv(root / "pairs.csv", rows_of(NAMES))
    flags = [f"--source={source}", "--split=0.5,0.25,0.25", f"--encoder=pixels:{GOLDEN / kind}"]
    main.main(["import", *flags, f"--out={root}/out"])
    return read_directory(root / "out")


def test_pixels_are_written_as_the_model_takes_them(root, capsys):
    content = imported(root, "clip")
    pixels = content["train_pixels.npy"]
    assert pixels.dtype == np.uint8 and pixels.shape[1:] == (24, 24, 3)
    assert not any(name.endswith(("_ims.npy", "_caps.npy")) for name in content)
    for row, name in zip(pixels, content["train_ids.txt"], strict=True):
        expected = picture(NAMES.index(name)).resize((24, 24), resample=3)
        np.testing.assert_array_equal(row, np.asarray(expected))
    record = content["dataset.json"]
    assert record["images"] == {"kind": "pixels", "size": 24, "dtype": "uint8"}
    assert record["encoder"]["images"] == {
        **{"model": f"pixels:{CLIP}", "kind": "pixels"},
        **{"image_size": 24, "short_side": 24, "resample": 3},
    }
    assert f"l2rm --data={root}/out --pretrained=DIR" in capsys.readouterr().out
    assert fitting_fields(read_record(root / "out"))["model.head"] == "vse"


def test_pixels_made_for_another_model_are_refused(root):
    """The size is right, but SigLIP resizes pictures whatever their shape."""
    imported(root, "siglip")
    flags = (f"--data={root}/out", "--config.train.batch_size=4", "--config.data.max_words=40")
    with pytest.raises(SystemExit, match=r"made by \{.*'short_side': 0.*\}, expected .*: 24"):
        main.main(["check", f"--pretrained={CLIP}", *flags])
