"""Page of an audit: contents of the file, and escaping of all texts."""

import base64
import gzip
import hashlib
import json
import re
import tracemalloc

import numpy as np
import pytest

from l2rm_jax.errors import ConfigError
from l2rm_jax.judging.judgement import KINDS
from l2rm_jax.pages.gallery import write_gallery
from tests.pages.galleries import HOSTILE, TOP, make_gallery, write_picture

ELEMENT = re.compile(r"<script([^>]*)>(.*?)</script>", re.DOTALL)


def read_elements(page: str) -> list[tuple[str, str]]:
    """Attributes and content of each script element, in their order."""
    return ELEMENT.findall(page)


def read_block(page: str, name: str) -> bytes:
    pieces = [content for attributes, content in read_elements(page)
              if f'data-block="{name}"' in attributes]  # fmt: skip
    return gzip.decompress(b"".join(base64.b64decode(piece, validate=True) for piece in pieces))


def decoded(page: str, name: str, low: float, high: float) -> np.ndarray:
    codes = np.frombuffer(read_block(page, name), "<u2")
    return np.where(codes == 65535, np.nan, low + codes / 65534 * (high - low))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures") / 'a "b" <i>#?%'
    folder.mkdir()
    files = [folder / f"{n} <img src=x>.png" for n in range(40)]
    for number, file in enumerate(files[:39]):  # the last one is missing
        write_picture(file, number)
    return files


@pytest.fixture(scope="module")
def gallery(pictures):
    return make_gallery(200, pictures=pictures)


@pytest.fixture(scope="module")
def page(gallery, pictures):
    path = pictures[0].parents[1] / "audit" / "gallery.html"
    write_gallery(path, gallery)
    return path.read_text(encoding="utf-8")


def test_the_columns_are_those_of_the_findings(gallery, page):
    findings = gallery.judgement
    for name, dtype in (("kind", "u1"), ("image", "<i4"), ("order", "<i4"), ("proposal", "<i4")):
        column = getattr(findings, "image_of" if name == "image" else name)
        found = np.frombuffer(read_block(page, name), dtype).reshape(column.shape)
        np.testing.assert_array_equal(found, column)
    np.testing.assert_array_equal(
        np.frombuffer(read_block(page, "near"), "<i4"), gallery.judgement.nearest_images.flat
    )
    low, high = findings.information.min(), findings.information.max()
    for name, low_, high_ in (("posterior", 0, 1), ("probability", 0, 1), ("none_fits", 0, 1),
                              ("information", low, high)):  # fmt: skip
        column = getattr(findings, name).ravel()
        half = (high_ - low_) / 65534 / 2
        np.testing.assert_allclose(decoded(page, name, low_, high_), column, atol=half, rtol=1e-6)


def test_texts_are_lines_of_utf_8(gallery, page):
    captions = read_block(page, "captions").decode().split("\n")
    for found, caption in zip(captions, gallery.captions, strict=True):
        assert found == " ".join(caption.replace("\ud83d", "\ufffd").split())
    assert "two lines" in captions and "half a character \ufffd" in captions
    assert len(read_block(page, "ids").decode().split("\n")) == len(gallery.ids)


def test_no_text_is_more_than_text(page):
    kinds = {"application/gzip", "application/json", "image/png", "image/jpeg"}
    for attributes, content in read_elements(page)[:-1]:
        assert re.fullmatch(r' type="([a-z/]+)" (id|data-block|data-image)="\w+"', attributes)
        assert re.match(r' type="([a-z/]+)"', attributes)[1] in kinds and "<" not in content
    assert read_elements(page)[-1][0] == ""  # the script itself
    rest = ELEMENT.sub("", page)
    for text in (*HOSTILE[:3], "<b>", "<i>", "<u>"):
        assert text not in rest
    assert "&lt;b&gt;data&lt;/b&gt;" in rest and "<td>&lt;u&gt;</td>" in rest


def test_the_policy_lets_nothing_run_but_the_page_s_own_script(page):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    script = read_elements(page)[-1][1]
    hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
              for part in (style, script)]  # fmt: skip
    assert policy == (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src 'self' data: file:; "
        f"style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'"
    )
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in script


def test_what_is_not_a_column(gallery, page):
    about = next(
        content for attributes, content in read_elements(page) if 'id="about"' in attributes
    )
    about = json.loads(about)
    assert about["key"] == "hash of 200" and about["kinds"] == list(KINDS) and about["top"] == TOP
    assert about["review"] == gallery.review.tolist()
    assert about["weights"] == gallery.review_weight.tolist()


def test_pictures_of_the_review_and_the_most_suspicious_are_embedded(gallery, pictures, page):
    embedded = re.findall(r'<script type="image/png" data-image="(\d+)">', page)
    pairs = [*gallery.review, *gallery.judgement.order[:10]]
    images = dict.fromkeys(int(gallery.judgement.image_of[pair]) for pair in pairs)
    assert 39 in images  # whose file is missing
    assert embedded == [str(image) for image in images if image != 39]
    content = re.search(rf'data-image="{embedded[0]}">([^<]*)<', page)[1]
    assert base64.b64decode(content) == pictures[int(embedded[0])].read_bytes()


def test_addresses_are_relative_and_quoted(page):
    addresses = read_block(page, "files").decode().split("\n")
    assert addresses[7] == "../a%20%22b%22%20%3Ci%3E%23%3F%25/7%20%3Cimg%20src%3Dx%3E.png"


def test_the_same_gallery_gives_the_same_bytes_and_no_file_is_replaced(gallery, page, tmp_path):
    bare = gallery._replace(pictures=None)
    for name in ("a.html", "b.html"):
        write_gallery(tmp_path / name, bare)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert 'data-block="files"' not in (tmp_path / "a.html").read_text()
    with pytest.raises(ConfigError, match=r"a\.html"):
        write_gallery(tmp_path / "a.html", bare)


@pytest.mark.slow
def test_a_hundred_thousand_pairs_take_eight_megabytes_at_most(tmp_path):
    gallery = make_gallery(100_000)
    tracemalloc.start()
    write_gallery(tmp_path / "gallery.html", gallery)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 2e6 < (tmp_path / "gallery.html").stat().st_size <= 8e6
    assert peak < 40e6  # a block of rows, not the file and its base64
