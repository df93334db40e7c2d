"""Runs on pixels with a pretrained image encoder."""

import math
import re
import shutil
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

import l2rm_jax
from l2rm_jax.data.features import Pixels
from l2rm_jax.data.vectors import image_vectors
from l2rm_jax.errors import ConfigError, DataError, StoppedError
from l2rm_jax.evaluate import evaluate_runs
from l2rm_jax.evaluation.recall import recalls
from l2rm_jax.models import REGIONS
from l2rm_jax.run.frozen_encoder import FrozenImages, judged_vectors
from l2rm_jax.run.inputs import check_settings, read_data
from l2rm_jax.run.load_trained import read_trained
from l2rm_jax.run.pretrained import find_pretrained, with_judged_vectors
from tests.models.pretrained.golden import GOLDEN, read_parameters
from tests.run.pixel_runs import SIZES, clip_config, open_model, pictures, write_pixels
from tests.run.pretrained_runs import copy_model, make_run, run
from tests.run.test_pretrained import assert_equal, assert_same_training, differs
from tests.run.test_resume import asked_to_stop
from tests.run.tiny_runs import records
from tests.shared_programs import shared_programs


def image_states(pixels, kind, vector):
    opened = open_model(kind)
    params = opened.parameters()["image_base"]
    encoder = FrozenImages(opened.bases.image, params, vector)
    return np.concatenate([states for _, states, _ in encoder.blocks(pixels, 8)])


@pytest.mark.slow
def test_a_frozen_image_base_equals_imported_features(tmp_path):
    """Train on pixels with the frozen base, and on the states of the same base as features."""
    kind, states = "siglip", "all"
    data = write_pixels(tmp_path / "pixels", kind)
    fields = {"model__image_states": states, "train__epochs": 1, "train__batch_size": 12}
    pixel_results = run(
        clip_config(data, kind=kind, optim__image_rate=0.0, **fields), tmp_path / "pixel run"
    )
    shutil.copytree(data, tmp_path / "features")
    for split in SIZES:
        pixels = Pixels.read(data / f"{split}_pixels.npy")
        np.save(
            tmp_path / f"features/{split}_ims.npy", image_states(pixels, kind, states == "vector")
        )
    config = clip_config(tmp_path / "features", kind=kind, **fields)
    config.model.image_encoder = REGIONS
    feature_results = run(config, tmp_path / "feature run")
    workdirs = tmp_path / "pixel run", tmp_path / "feature run"
    assert_same_training(pixel_results, feature_results, *workdirs)
    frozen = read_trained(tmp_path / "pixel run", "last").state
    assert_equal(frozen.params["image_base"], read_parameters(kind)["image_base"])
    assert differs(frozen.params["text_base"], read_parameters(kind)["text_base"])
    moments = [
        jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(frozen.opt_state)
    ]
    assert not any("image_base" in name for name in moments)


@pytest.mark.slow
@shared_programs()
def test_a_run_on_pixels_goes_on_without_its_original_directory(tmp_path):
    """Stopped in the middle of an epoch, resumed, evaluated, loaded and searched; bit for bit.

    With crops, a region mask, dropout and length groups. Photographs are searched by their files.
    """
    data = write_pixels(tmp_path / "data")
    fields = {
        "data__pixel_crop": 0.6,
        "model__region_mask": 0.3,
        "model__base_dropout": 0.1,
        "train__length_groups": 2,
        "train__checkpoint_steps": 3,
    }
    original = copy_model(tmp_path / "model", "clip")
    whole = run(clip_config(data, original, **fields), tmp_path / "whole")
    config = clip_config(data, original, **fields)
    with asked_to_stop(15, "train_step"), pytest.raises(StoppedError):
        run(config, tmp_path / "stopped")
    shutil.rmtree(original)
    assert run(config, tmp_path / "stopped")["test"] == whole["test"]
    one, other = (read_trained(tmp_path / name, "last") for name in ("whole", "stopped"))
    for part in ("params", "opt_state", "step"):
        assert_equal(getattr(one.state, part), getattr(other.state, part))
    assert records(tmp_path / "whole") == records(tmp_path / "stopped")
    assert differs(one.state.params["image_base"], read_parameters("clip")["image_base"])
    row = evaluate_runs([tmp_path / "stopped"])
    assert next(iter(row.values()))["rsum"] == pytest.approx(whole["rsum"])

    retriever = l2rm_jax.load(tmp_path / "stopped")
    images = retriever.encode_images(f"{data}:test")
    captions = retriever.encode_captions((data / "test_caps.txt").read_text().splitlines())
    sims = retriever.similarity(images, captions)
    assert recalls(sims, 5)["rsum"] == pytest.approx(whole["rsum"])
    files = []
    for number, picture in enumerate(pictures("test")):
        files.append(tmp_path / f"{number}.png")
        picture.save(files[-1])
    by_file = retriever.encode_images(files)
    assert by_file.ids == [*map(str, files)] and by_file.picture(1) == files[1]
    np.testing.assert_allclose(by_file.vectors(), images.vectors(), atol=1e-6)
    np.testing.assert_array_equal(
        retriever.encode_images(pictures("test")).vectors(), by_file.vectors()
    )
    single = retriever.encode_images(str(files[2]))
    np.testing.assert_allclose(single.vectors()[0], images.vectors()[2], atol=1e-6)
    hits = retriever.search(captions, by_file, top_k=3)
    np.testing.assert_array_equal(hits.rows, np.argsort(-sims.T, kind="stable")[:, :3])
    hits.to_html(tmp_path / "page.html")
    assert "data:image" in (tmp_path / "page.html").read_text()

    saved = tmp_path / "saved"
    retriever.save_pretrained(saved)
    assert "clip (model)" in (saved / "README.md").read_text()
    np.testing.assert_array_equal(
        l2rm_jax.load(saved).encode_images(files).vectors(), by_file.vectors()
    )


@pytest.mark.slow
def test_captions_and_images_may_have_models_of_their_own(tmp_path):
    """BERT reads captions, CLIP pictures; the run keeps both."""
    data = write_pixels(tmp_path / "data")
    models = {name: copy_model(tmp_path / name, name) for name in ("bert", "clip")}
    fields = {"model__image_encoder": "clip", "model__pretrained_images": str(models["clip"])}
    config = clip_config(data, models["bert"], "bert", **fields)
    make_run(config, tmp_path / "run")
    for directory in models.values():
        shutil.rmtree(directory)
    data = read_data(config, tmp_path / "run")
    assert data.pretrained.bases.text.kind == "bert" and data.pretrained.bases.image.kind == "clip"
    trained = read_trained(tmp_path / "run")
    for group, kind in (("text_base", "bert"), ("image_base", "clip")):
        assert_equal(trained.state.params[group], read_parameters(kind)[group])
    retriever = l2rm_jax.load(tmp_path / "run")
    hits = retriever.search(["a red cube"], retriever.encode_images(pictures("test")), top_k=2)
    assert hits.rows.shape == (1, 2)


@pytest.mark.slow
def test_judged_images_are_the_vectors_of_the_pretrained_encoder(tmp_path):
    """For cross-fitting alone; in float16, and taken with their images."""
    config = clip_config(write_pixels(tmp_path / "data"), train__draw="judgement")
    data = with_judged_vectors(config, read_data(config, tmp_path), tmp_path / "work")
    expected = image_states(data.train.images, "clip", vector=True)
    rows = np.arange(len(data.train.images))
    np.testing.assert_allclose(data.train.encoded.images.rows(rows), expected, rtol=0, atol=5e-4)
    fitted = image_vectors(data.train.to_judge)
    assert fitted.fit is None and fitted.rows.shape == (12, 10)
    part = data.train.cross(np.array([3, 1]), np.array([7]))
    np.testing.assert_array_equal(
        part.encoded.images.rows([0, 1]), fitted.rows[np.array([3, 1])][:, None]
    )
    np.testing.assert_array_equal(part.images.rows([0]), data.train.images.rows([3]))
    images = data.train.encoded.images
    judged = replace(data.dev, encoded=replace(data.dev.pairs, images=images)).head(3)
    assert len(judged.encoded.images) == len(judged.images) == 3
    judged = judged_vectors(data.pretrained, data.train, 4)
    assert sorted(judged) == ["captions", "images"]


@pytest.mark.slow
def test_without_a_projection_a_run_starts_at_the_cosines_of_the_model(tmp_path):
    """`model.embed_dim=0` with the vectors of both sides."""
    data = write_pixels(tmp_path / "data")
    fields = {f"model__{side}_states": "vector" for side in ("text", "image")}
    config = clip_config(data, model__embed_dim=0, **fields)
    make_run(config, tmp_path / "run")
    retriever = l2rm_jax.load(tmp_path / "run")
    assert sorted(read_trained(tmp_path / "run").state.params) == ["image_base", "text_base"]
    images = retriever.encode_images(f"{data}:test")
    captions = (data / "test_caps.txt").read_text().splitlines()
    found = retriever.similarity(images, retriever.encode_captions(captions))
    config = clip_config(data)
    loaded = read_data(config, tmp_path / "none")
    judged = judged_vectors(loaded.pretrained, loaded.test, 4)
    one, other = (judged[x] for x in ("images", "captions"))
    expected = one.astype(np.float32) @ other.astype(np.float32).T
    np.testing.assert_allclose(found, expected, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "method", "size", "expected"),
    [
        ("clip", "infonce", 8, {"log_scale": math.log(10)}),
        ("siglip", "sigmoid", 0, {"log_scale": 0.38524902, "bias": -0.02934289}),
    ],
)
def test_a_learned_scale_starts_at_that_of_the_model(tmp_path, kind, method, size, expected):
    """At the model's own cosines; with a projection, at the temperature of the config."""
    fields = {f"model__{side}_states": "vector" for side in ("text", "image")}
    fields |= {"method": method, "loss__learn_scale": True, "loss__tau": 0.1}
    data = write_pixels(tmp_path / "data", kind)
    make_run(clip_config(data, kind=kind, model__embed_dim=size, **fields), tmp_path / "run")
    learned = read_trained(tmp_path / "run").state.params["loss"]
    assert {name: float(value) for name, value in learned.items()} == pytest.approx(expected)


@pytest.mark.slow
def test_data_that_do_not_fit_are_refused(tmp_path):
    data = write_pixels(tmp_path / "data")
    read = partial(read_data, workdir=tmp_path / "none")
    features = clip_config(data, model__image_encoder=REGIONS)
    with pytest.raises(DataError, match=r"train_ims\.npy.*train_pixels\.npy"):
        read(features)
    with pytest.raises(ConfigError, match=r"data\.name.*scenes"):
        read(clip_config("", data__name="scenes"))
    pixels = np.load(data / "dev_pixels.npy")
    np.save(data / "dev_pixels.npy", pixels[:, :20, :20])
    with pytest.raises(DataError, match=r"dev_pixels\.npy.*20 x 20.*24 x"):
        read(clip_config(data))
    np.save(data / "dev_pixels.npy", pixels.astype(np.float32))
    with pytest.raises(DataError, match=r"float32 \[4, 24, 24, 3\].*uint8"):
        read(clip_config(data))
    for split in SIZES:
        (data / f"{split}_pixels.npy").rename(data / f"{split}_ims.npy")
    with pytest.raises(DataError, match=r"--encoder=pixels:DIR"):
        read(clip_config(data))


@pytest.mark.slow
def test_features_and_pictures_are_not_confused(tmp_path):
    make_run(clip_config(write_pixels(tmp_path / "data")), tmp_path / "run")
    retriever = l2rm_jax.load(tmp_path / "run")
    with pytest.raises(DataError, match=r"float64 \[2, 3\].*uint8"):
        retriever.encode_images(np.zeros((2, 3)))
    with pytest.raises(DataError, match="8 x 8"):
        retriever.encode_images(np.zeros((2, 8, 8, 3), np.uint8))
    with pytest.raises(DataError):
        retriever.encode_images([])
    (tmp_path / "x.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError) as found:
        retriever.encode_images([tmp_path / "x.jpg", tmp_path / "y.jpg", 3])
    named = [f"{tmp_path}/x.jpg: ", f"{tmp_path}/y.jpg: ", "images: number 2: "]
    assert all(map(str.startswith, found.value.args, named)) and len(found.value.args) == 3


def test_fields_must_fit(tmp_path):
    regions = {"model__image_encoder": REGIONS}
    frozen = {"optim__text_rate": 0.0, "optim__image_rate": 0.0}
    wrong = [
        ("model.image_encoder", {"model__image_encoder": "bert"}),
        ("model.image_states", {"model__image_states": "x"}),
        ("model.pretrained", {"model__pretrained": ""}),
        ("optim.image_rate", {"optim__image_rate": -1.0}),
        ("data.pixel_crop", {"data__pixel_crop": 1.5}),
        ("model.embed_dim", {"model__embed_dim": -1}),
        ("data.pixel_crop", regions | {"data__pixel_crop": 0.5}),
        ("model.image_encoder", regions | {"model__pretrained_images": "DIR"}),
        ("model.embed_dim", regions | {"model__embed_dim": 0}),
        ("model.embed_dim", {"model__embed_dim": 0, "model__head": "chan"}),
        ("optim.image_rate=0", {"model__embed_dim": 0, **frozen}),
        ("model.image_states", {"model__head": "linear", "model__text_states": "vector"}),
        ("model.region_mask", {"model__head": "saf", "model__region_mask": 0.2}),
    ]
    for named, fields in wrong:
        with pytest.raises(ConfigError, match=re.escape(named)):
            check_settings(clip_config(tmp_path, **fields))
    config = clip_config(tmp_path, GOLDEN / "clip")
    config.model.image_encoder = "siglip"
    with pytest.raises(DataError, match=r"clip.*siglip"):
        find_pretrained(config, None)
