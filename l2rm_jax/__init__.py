"""Image-text retrieval learned from noisy pairs, in JAX: L2RM and its relatives.

The public names below are imported when they are first used, so that `import l2rm_jax` takes no
time and starts no JAX. Where everything else is: `l2rm_jax/README.md`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from l2rm_jax.version import __version__ as __version__

if TYPE_CHECKING:
    from l2rm_jax.audit import Audit as Audit
    from l2rm_jax.audit import audit_pairs as audit_pairs
    from l2rm_jax.audit import open_audit as open_audit
    from l2rm_jax.data.layouts import open_pairs as open_pairs
    from l2rm_jax.data.pairs import Pairs as Pairs
    from l2rm_jax.fitting import fit as fit
    from l2rm_jax.joins import find_misaligned as find_misaligned
    from l2rm_jax.judging import open_judge as open_judge
    from l2rm_jax.judging import register_detector as register_detector
    from l2rm_jax.methods import register_method as register_method
    from l2rm_jax.models import register_head as register_head
    from l2rm_jax.ot import partial_sinkhorn as partial_sinkhorn
    from l2rm_jax.retriever import Retriever as Retriever
    from l2rm_jax.retriever import load as load

_HOMES = {
    "Audit": "l2rm_jax.audit",
    "Pairs": "l2rm_jax.data.pairs",
    "Retriever": "l2rm_jax.retriever",
    "audit_pairs": "l2rm_jax.audit",
    "find_misaligned": "l2rm_jax.joins",
    "fit": "l2rm_jax.fitting",
    "load": "l2rm_jax.retriever",
    "open_audit": "l2rm_jax.audit",
    "open_judge": "l2rm_jax.judging",
    "open_pairs": "l2rm_jax.data.layouts",
    "partial_sinkhorn": "l2rm_jax.ot",
    "register_detector": "l2rm_jax.judging",
    "register_head": "l2rm_jax.models",
    "register_method": "l2rm_jax.methods",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
