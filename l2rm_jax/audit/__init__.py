"""Audit: report a judgement to a person, and read that person's decisions.

* `audit` has the main function: `inputs` and `shards` read the pairs, `judging` judges them.
* `outputs` writes the files: the table of pairs, with columns of a run from `run_columns`, the
  user's table without suspicious rows (`cleaned_table`), the `report`, and the page, from which
  `review` reads the decisions.
* `command` implements `l2rm audit`; `work` is the directory of an audit in progress.

May import `run` and the rooms below it, `train`, and `retriever`, for its pictures.
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
