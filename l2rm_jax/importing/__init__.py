"""Import the user's own data: tables, photographs and arrays become a directory that runs read.

* `request` is what the flags ask for, `importer` does it, `command` is the mode of the
  command line.
* `plan` reads a source up to pairs, with `sources`, `columns`, `pairs` and `rejected`; `of_shards`
  does so for vectors in shards.
* `sources` opens what the user has: `records` and `delimited` read tables of text, `json_rows`
  JSON, `samples` archives and directories of files; `texts` knows encodings, `names` usual names.
* `cells` says what captions a cell holds, `pictures` what name or bytes, `splits` which split.
* `features` encodes or copies, with `pictures`, `shards` and `vectors`; `splits` and `writing`
  make the directory; `by_file` makes a shard of each file of the source instead.
* `kept` copies the samples of archives that an audit keeps.

What turns photographs and captions into features is in `data.encoders`. May import `cli`,
`run`, `data` and what is below them.
"""

from l2rm_jax.importing.request import Request

__all__ = ["Request"]
