"""Run the modes `search` and `embed`."""

import logging
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from l2rm_jax.data.npy_files import write_array
from l2rm_jax.errors import DataError
from l2rm_jax.jobs.files import check_new, new_directory, replace_lines
from l2rm_jax.retriever.hits import Hits
from l2rm_jax.retriever.loading import load, open_vectors
from l2rm_jax.retriever.retriever import Retriever
from l2rm_jax.retriever.search import check_top_k
from l2rm_jax.retriever.sources import open_named_split, scene_pictures, split_name
from l2rm_jax.run.data_hashes import check_own_images
from l2rm_jax.run.results import write_json

_log = logging.getLogger(__name__)


def search(
    workdirs: Sequence[str] | None,
    gallery: str,
    queries: Sequence[str],
    top_k: int = 10,
    proposer: str | None = None,
    candidates: int | None = None,
    html: str | Path | None = None,
) -> Hits:
    """Search the images of a split for captions.

    Args:
      workdirs: work directories of the runs; similarities of several runs are averaged. None: use
        the vectors of the gallery without a run.
      gallery: the split, `DIR:split`.
      queries: the captions.
      top_k: number of images to find per query.
      proposer: work directory of a run with vectors, which proposes candidates.
      candidates: number of candidates per query; None: 100, or `top_k` if that is more.
      html: file of a page to write, which must not exist.

    Raises:
      L2RMError: as `load`, `Retriever.encode_images` and `Retriever.search`.
    """
    check_top_k(top_k)
    if html is not None:
        check_new(Path(html), "page")
    if workdirs:
        retriever = load(workdirs)
        _check_own(workdirs, gallery, retriever)
    else:
        retriever = open_vectors(gallery.rpartition(":")[0] or gallery)
    for number, query in enumerate(queries, start=1):
        if not query.strip():
            raise DataError(f"--query: found an empty text as number {number}, expected a caption")
    first = None if proposer is None else load(proposer)
    began = time.monotonic()
    encoded = retriever.encode_images(gallery)
    seconds = time.monotonic() - began
    _log.info("%s; %s images encoded in %.1f s", retriever.title, f"{len(encoded):,}", seconds)
    if candidates is None:
        candidates = max(100, top_k)
    hits = retriever.search(list(queries), encoded, top_k, proposer=first, candidates=candidates)
    if html is not None:
        with tempfile.TemporaryDirectory() as folder:
            drawn = scene_pictures(gallery, retriever.data_config, Path(folder))
            hits.to_html(html, drawn)
    return hits


def _check_own(workdirs: Sequence[str], name: str, retriever: Retriever) -> None:
    """Check that a run's own test split has the images that it began with.

    Raises:
      ConfigError: it has others.
    """
    directory, _ = split_name(name)
    if Path(directory).is_dir():
        split = open_named_split(name, retriever.data_config, retriever.preparation is not None)
        for workdir in workdirs:
            check_own_images(workdir, directory, split)


def embed(workdirs: Sequence[str], data: str, out: str | Path) -> str:
    """Write the vectors of a split's images and captions to a new directory.

    It holds `images.npy` and `captions.npy`, float32 `[N, d]`; `image_ids.txt`, the user's id of
    each image; `captions.txt`; `pairs.npy`, the image row of each caption; and `about.json`: run,
    fingerprint, head, data and the metric of the vectors. Without captions, it lacks their files.

    Args:
      workdirs: work directories of the runs.
      data: the split, `DIR:split`.
      out: the directory, which appears when it is complete.

    Returns:
      A sentence that describes the directory.

    Raises:
      ConfigError: `out` exists, or the head has no vectors.
      L2RMError: as `load` and `Retriever.encode_images`.
    """
    check_new(Path(out), "directory")
    retriever = load(workdirs)
    retriever.maker.require_vectors()
    _check_own(workdirs, data, retriever)
    images = retriever.encode_images(data)
    in_pixels = retriever.preparation is not None
    stored = open_named_split(data, retriever.data_config, in_pixels)
    vectors, count = images.vectors(), len(stored)
    if count:
        texts = stored.texts if retriever.in_words or stored.captions is None else stored.captions
        captions = retriever.encode_captions(texts)
    about = {"run": retriever.title, "fingerprint": retriever.maker.fingerprint, "data": data}
    with new_directory(Path(out)) as directory:
        write_array(directory / "images.npy", vectors)
        replace_lines(directory / "image_ids.txt", images.ids)
        if count:
            write_array(directory / "captions.npy", captions.vectors())
            write_array(directory / "pairs.npy", stored.image_of)
            replace_lines(directory / "captions.txt", stored.labels)
        write_json(directory / "about.json", about | {"head": images.head, "metric": images.metric})
    size, metric = vectors.shape[1], images.metric
    return f"{out}: {len(images):,} images, {count:,} captions, {size} numbers each ({metric})"
