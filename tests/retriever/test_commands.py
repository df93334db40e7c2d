"""Modes `search` and `embed`, as a user runs them."""

import json
import re

import numpy as np
import pytest

import l2rm_jax
from l2rm_jax.cli.parse import parse
from l2rm_jax.errors import L2RMError
from l2rm_jax.main import MODES
from tests.retriever.runs import IMAGES, make_run

pytestmark = pytest.mark.slow  # a run is made first


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run") / "vse"
    make_run(workdir, "vse", score=False)
    return workdir


def run(*words: str) -> None:
    """Run a command line in this process."""
    command = parse(words, MODES)
    command.mode.run(command)


def test_search_prints_a_table_or_json(workdir, capsys):
    words = ("search", f"--workdir={workdir}", "--gallery=scenes:test", "--top_k=2")
    words += ("--query=a red ball", "--query", "a blue square")
    run(*words)
    lines = capsys.readouterr().out.splitlines()
    run(*words, "--json")
    found = json.loads(capsys.readouterr().out)
    retriever = l2rm_jax.load(workdir)
    hits = retriever.search(["a red ball", "a blue square"], "scenes:test", 2)
    assert lines == str(hits).splitlines()
    assert [[hit["row"] for hit in query["hits"]] for query in found] == hits.rows.tolist()


def test_search_writes_a_page(workdir, tmp_path):
    page = tmp_path / "page.html"
    words = ("search", f"--workdir={workdir}", "--gallery=scenes:test", "--query=a red ball")
    run(*words, "--top_k=3", f"--html={page}")
    assert page.read_text().count("data:image/png;base64,") == 3
    with pytest.raises(L2RMError, match=r"page.html"):
        run(*words, f"--html={page}")


def test_embed_writes_what_other_tools_read(workdir, tmp_path, capsys):
    out = tmp_path / "vectors"
    run("embed", f"--workdir={workdir}", "--data=scenes:test", f"--out={out}")
    assert {"37", "185", "8"} <= set(re.findall(r"\d+", capsys.readouterr().out))
    images, captions, pairs = (np.load(out / f"{x}.npy") for x in ("images", "captions", "pairs"))
    retriever = l2rm_jax.load(workdir)
    np.testing.assert_array_equal(images, retriever.encode_images("scenes:test").vectors())
    texts = (out / "captions.txt").read_text().splitlines()
    np.testing.assert_array_equal(captions, retriever.encode_captions(texts).vectors())
    np.testing.assert_array_equal(pairs, np.repeat(np.arange(IMAGES), 5))
    assert len((out / "image_ids.txt").read_text().splitlines()) == IMAGES
    about = json.loads((out / "about.json").read_text())
    assert (about["metric"], about["head"]) == ("ip", "vse")
    assert about["fingerprint"] == retriever.maker.fingerprint
    with pytest.raises(L2RMError, match=str(out)):
        run("embed", f"--workdir={workdir}", "--data=scenes:test", f"--out={out}")


SEARCH = ("search", "--workdir=W", "--gallery=scenes:test", "--query=a")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("search", "--gallery=scenes:test", "--query=a"), "--workdir"),
        (("search", "--workdir=W", "--query=a"), "--gallery"),
        (("search", "--workdir=W", "--gallery=scenes:test"), "--query"),
        (("search", "--workdir=W", "--gallery=scenes:test", "--query= "), "number 1"),
        (("search", "--workdir=W", "--gallery=no:test", "--query=a"), "no "),
        (("embed", "--workdir=W", "--data=scenes:test"), "--out"),
        ((*SEARCH, "--candidates=9"), "--proposer"),
        ((*SEARCH, "--proposer=W", "--candidates=0"), "candidates: found 0"),
        ((*SEARCH, "--top_k=0"), "top_k: found 0"),
    ],
)
def test_bad_input_is_one_clear_line(words, message, workdir):
    words = (word.replace("=W", f"={workdir}") for word in words)
    with pytest.raises(L2RMError, match=message):
        run(*words)
