"""The import with a real encoder, a tiny CLIP of random weights, by the command line."""

import numpy as np
import pytest

pytest.importorskip("datasets", reason="the extra `import` is not installed")

from l2rm_jax import main
from l2rm_jax.data.encoders import make_encoder
from tests.data.encoders.tiny_models import save_clip
from tests.importing.made import picture, read_directory, rows_of, write_csv, write_pictures


def test_vectors_of_a_table_are_those_of_the_encoder(tmp_path, monkeypatch, capsys):
    names = write_pictures(tmp_path)
    write_csv(tmp_path / "pairs.csv", rows_of(names))
    save_clip(tmp_path / "clip")
    monkeypatch.chdir(tmp_path)
    flags = ["--source=pairs.csv", "--encoder=transformers:clip", "--split=0.5,0.25,0.25"]
    for out, more in (("vectors", []), ("tokens", ["--tokens=patches"])):
        main.main(["import", *flags, *more, f"--out={out}"])
        content = read_directory(tmp_path / out)
        encoder = make_encoder("transformers:clip", "patches" if more else None)
        assert content["dataset.json"]["encoder"] == encoder.describe()
        ids, captions = content["train_ids.txt"], content["train_caps.txt"]
        images = encoder.encode_images([picture(names.index(name)) for name in ids])
        vectors, lengths = encoder.encode_captions(captions)
        assert content["train_ims.npy"].dtype == np.float16
        np.testing.assert_allclose(content["train_ims.npy"], images, rtol=0, atol=2e-3)
        if more:
            np.testing.assert_array_equal(content["train_lengths.npy"], lengths)
            width = lengths.max()
            np.testing.assert_allclose(
                content["train_caps.npy"][:, :width], vectors[:, :width], rtol=0, atol=2e-3
            )
        else:
            np.testing.assert_allclose(content["train_caps.npy"], vectors, rtol=0, atol=2e-3)
        assert f"train on them:     l2rm --data={out}" in capsys.readouterr().out
