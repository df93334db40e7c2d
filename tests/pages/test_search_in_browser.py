"""The page of a real search, in a browser."""

import pytest

from l2rm_jax.cli.parse import parse
from l2rm_jax.main import MODES
from tests.browser import Browser, find_browser
from tests.retriever.runs import make_run

pytestmark = pytest.mark.slow

if find_browser() is None:
    pytest.skip("no Chromium on the path", allow_module_level=True)


def test_a_search_shows_pictures_and_what_matched(tmp_path):
    make_run(tmp_path / "saf", "saf", score=False)
    page, query = tmp_path / "page.html", "<script>alert(1)</script> red ball"
    words = ["search", f"--workdir={tmp_path / 'saf'}", "--gallery=scenes:test", "--top_k=4"]
    command = parse([*words, f"--query={query}", f"--html={page}"], MODES)
    command.mode.run(command)
    with Browser(tmp_path / "profile") as browser:
        browser.resize(1280, 900)
        browser.open(page)
        sizes = browser.run(
            "Promise.all([...document.images].map(async image => {"
            "await image.decode(); return image.naturalWidth; }))"
        )
        assert sizes == [192] * 4
        assert query in browser.run("document.body.textContent")
        browser.point_at(".hit:first-child .word:last-child")
        assert browser.run("document.querySelector('.word[aria-current]').textContent") == "ball"
        assert "region" in browser.run("document.querySelector('.hit .regions').textContent")
        assert browser.errors == [] and browser.requests == []
