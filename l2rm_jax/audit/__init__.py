"""Audit: which pairs of a data set are mismatched, how many in all, and what would fit better.

* `audit` is the whole of it: `inputs` says what is read, `findings` what is found.
* `canonical` makes the order of the input irrelevant, `groups` finds what must stay together,
  `stages` keeps what is done.
* `scorers` judge folds that they have not seen; `scores` and `neighbours` score the pairs, and
  known mismatches (`fold_pairs`).
* `levels` turns scores into doubts, `calibration` doubts into a rate and probabilities, and `judge`
  puts these together; `kinds` says what else is known of a pair.
* `shift` finds shifted rows, `proposals` captions that fit better.
* `outputs` writes the files: table, `kept_table`, `report` and page (`gallery`), whose decisions
  `review` reads.
* `trained` is the scorer that is trained, `command` what `l2rm audit` does.

May import `run` and what is below it, and `retriever`, whose table and pictures it shares.
"""

from l2rm_jax.audit.audit import audit_data, audit_pairs
from l2rm_jax.audit.findings import Audit
from l2rm_jax.audit.inputs import Inputs, Settings, inputs_of_arrays, read_inputs
from l2rm_jax.audit.outputs import write_audit

__all__ = [
    "Audit",
    "Inputs",
    "Settings",
    "audit_data",
    "audit_pairs",
    "inputs_of_arrays",
    "read_inputs",
    "write_audit",
]
