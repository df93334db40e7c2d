"""Import the user's own data: tables, photographs and arrays become a directory that runs read.

* `request` is what the flags ask for, `importer` does it, `fit` chooses a head and sizes for it.
* `plan` reads a source up to pairs, with `sources`, `columns`, `pairs` and `rejected`.
* `sources` opens what the user has: `records` and `delimited` read tables of text, `json_rows`
  JSON, `samples` archives and directories of files; `texts` knows encodings, `names` usual names.
* `cells` says what captions a cell holds, `pictures` what name or bytes, `splits` which split.
* `features` encodes or copies, with `pictures`, `shards` and `vectors`; `splits` and `writing`
  make the directory.
* `encoder` says what turns photographs and captions into features; `encoders/` holds the encoders.

May import `config`, `console` and `errors`, and of `data` what reads files and captions.
"""
