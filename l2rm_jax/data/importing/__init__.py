"""Import the user's own data: tables, photographs and arrays become a directory that runs read.

* `encoder` says what turns photographs and captions into features; `encoders/` holds the encoders.

May import `config`, `console` and `errors`, and of `data` what opens and replaces files.
"""
