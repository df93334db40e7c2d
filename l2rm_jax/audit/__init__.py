"""Audit: which pairs of a data set are mismatched, how many in all, and what would fit better.

* `inputs` reads what is audited; `findings` says what an audit finds, as arrays.
* `gallery` writes the page on which a person looks at the pairs and decides.

May import `run` and what is below it, and `retriever`, whose table and pictures it shares.
"""

__all__: list[str] = []
