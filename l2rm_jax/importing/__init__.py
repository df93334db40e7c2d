"""Import the user's own data: tables, photographs and arrays become a directory that runs read.

* `command` holds the modes of the command line, `request` the flags of an import, and `importer`
  the import itself; `sharded_import` writes one shard per file of the source instead.
* `resolve` reads a source up to pairs, with `columns`, `table_pairs` and `rejected`;
  `from_embeddings` reads the pairs of vectors in shards.
* `sources` opens a source of any kind: `csv_rows` and `delimited` read tables of text, `json_rows`
  JSON, `samples` archives and directories of files; `text_io` handles encodings, `column_names`
  lists usual names.
* `caption_cells` reads the captions of a cell, `text_lists` lists written as text, and `pictures`
  the names or bytes of pictures.
* `features` encodes or copies, with `chunks`; `splits` and `writing` make the directory.
* `filter_tar` copies the samples of archives that an audit keeps.

`run.choose_encoder` has the encoders of photographs and captions. May import `cli`, `run`, `data`
and the packages below them.
"""

from l2rm_jax.importing.request import Request

__all__ = ["Request"]
