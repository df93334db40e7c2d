"""Page of the data formats: its code writes a data set that its first command reads."""

import re
from pathlib import Path

import numpy as np

from l2rm_jax import data, main
from tests.test_pages import blocks, commands

PAGE = Path(data.__file__).with_name("README.md")


def test_what_the_python_code_writes_is_read_by_the_first_command(tmp_path, monkeypatch, capsys):
    [opening, code, *_], [check, *_] = blocks(PAGE, "python"), blocks(PAGE, "bash")
    monkeypatch.chdir(tmp_path)
    Path("DIR").mkdir()
    rng = np.random.default_rng(0)
    for split, images in (("train", 8), ("dev", 4), ("test", 4)):
        names = {
            "features": rng.normal(size=(images, 3, 5)).astype(np.float32),
            "captions_of_images": [
                [f"ein Würfel {split} {n}", f"block {n}"] for n in range(images)
            ],
        }
        exec(code.replace("train_", f"{split}_"), names)
        np.testing.assert_array_equal(np.load(f"DIR/{split}_ims.npy"), names["features"])
    names = {}
    exec(opening.replace("data/mine", "DIR"), names)
    assert (names["pairs"].split, len(names["pairs"])) == ("dev", 8)
    [[program, *words]] = commands(check)
    assert program == "l2rm"
    main.main([*words, "--config.data.min_count=1", "--config.train.batch_size=8"])
    assert {"8", "3", "5", "16", "2"} <= set(re.findall(r"\d+", capsys.readouterr().out))
