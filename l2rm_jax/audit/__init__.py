"""Audit: report a judgement to a person, and read that person's decisions.

* `audit` has the main type and function; `open` reads a finished audit, `notebook` displays one.
* `outputs` writes the files: the `table` of pairs, with columns of a run from `run_columns`, the
  user's table without suspicious rows (`cleaned_table`), the `report`, and the page, from which
  `review` reads the decisions; `certificate` tests the kept pairs by them.
* `rates_by` estimates the rate of each value of a column, such as the source of the pairs.
* `misaligned` looks for misaligned rows and undoes them; `realigned_table` writes the user's table
  after the repair, `lines` numbers the pairs as the file does.
* `inputs` reads the training pairs of a directory or a run, `checked_inputs` after all checks.
* `command` implements `l2rm audit`.

May import `run` and the rooms below it, `train`, and `retriever`, for its pictures.
"""

from l2rm_jax.audit.audit import Audit, Settings, audit_pairs
from l2rm_jax.audit.open import open_audit

__all__ = ["Audit", "Settings", "audit_pairs", "open_audit"]
