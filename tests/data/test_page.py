"""The page of the data formats: run its code, and read the files that it writes."""

from pathlib import Path

import numpy as np

from l2rm_jax import data, main
from tests.page_commands import commands
from tests.test_pages import FENCE

PAGE = Path(data.__file__).with_name("README.md")


def test_what_the_python_code_writes_is_read_by_the_first_command(tmp_path, monkeypatch, capsys):
    blocks = FENCE.findall(PAGE.read_text())
    [code] = [text for _, language, text in blocks if language == "python"]
    check, *_ = [text for _, language, text in blocks if language == "bash"]
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
    [[program, *words]] = commands(check)
    assert program == "l2rm"
    main.main([*words, "--config.data.min_count=1", "--config.train.batch_size=8"])
    expected = "train: 8 images of 3 regions x 5 features, 16 captions, 2 per image"
    assert expected in capsys.readouterr().out
