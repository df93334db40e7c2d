"""Audit: what a person reads of a judgement, and what they decide.

* `audit` is the whole of it: `inputs` and `shards` say what is read; `judging` judges it.
* `outputs` writes the files: the table of pairs (`pairs_table`, with what a run says of them,
  `of_run`), the table of the user (`kept_table`), `report`, and the page, whose decisions `review`
  reads.
* `command` is what `l2rm audit` does; `work` is the directory of an audit in progress.

May import `run` and what is below it, `train`, and `retriever`, whose pictures it shares.
"""

from l2rm_jax.audit.audit import Audit, Settings, audit_pairs
from l2rm_jax.audit.inputs import Inputs, inputs_of_arrays, read_inputs
from l2rm_jax.audit.outputs import write_audit

__all__ = [
    "Audit",
    "Inputs",
    "Settings",
    "audit_pairs",
    "inputs_of_arrays",
    "read_inputs",
    "write_audit",
]
