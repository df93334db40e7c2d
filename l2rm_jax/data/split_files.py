"""Names of the files of a split in the layout of SCAN and NCR; no other room knows them."""

from pathlib import Path

_NAMES = {
    "features": "ims.npy",
    "pixels": "pixels.npy",
    "texts": "caps.txt",
    "named_texts": "caps.tsv",
    "vectors": "caps.npy",
    "ids": "ids.txt",
    "image_of": "pairs.npy",
    "rows": "rows.npy",  # row of the user's table of each caption
    "digests": "digests.npy",  # of the contents of the images
    "columns": "columns.parquet",  # further columns of the user's table
}


def split_file(directory: str | Path, split: str, content: str) -> Path:
    """Return the file of a split that has some content; it may be missing.

    Args:
      directory: directory of the data.
      split: "train", "dev", "test".
      content: "features", "pixels", "texts", "named_texts", "vectors", "ids", "image_of", "rows",
        "digests" or "columns".
    """
    return Path(directory) / f"{split}_{_NAMES[content]}"
