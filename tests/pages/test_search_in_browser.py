"""The page of a real search, in a browser."""

import pytest

from l2rm_jax.cli.parse import parse
from l2rm_jax.main import MODES
from tests.retriever.runs import make_run

pytestmark = pytest.mark.slow

QUERY = "<script>alert(1)</script> red ball"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    make_run(folder / "saf", "saf", score=False)
    words = ["search", f"--workdir={folder / 'saf'}", "--gallery=scenes:test", "--top_k=4"]
    command = parse([*words, f"--query={QUERY}", f"--html={folder / 'page.html'}"], MODES)
    command.mode.run(command)
    return (folder / "page.html").as_uri()


def test_a_search_shows_pictures_and_what_matched(address, tab, events):
    tab.goto(address)
    sizes = tab.evaluate(
        "Promise.all([...document.images].map(async image => {"
        "await image.decode(); return image.naturalWidth; }))"
    )
    assert sizes == [192] * 4
    assert QUERY in tab.text_content("body")
    tab.hover(".hit:first-child .word:last-child")
    assert tab.text_content(".word[aria-current]") == "ball"
    assert "region" in tab.text_content(".hit .regions")
    assert events.requests == []
