"""Make torchvision importable beside a PyTorch without CUDA.

The torchvision of PyPI is built for CUDA. Beside a PyTorch for the CPU its compiled part cannot be
loaded, and importing it fails, as it describes two operators that do not exist then. Declared here,
they let the import pass; timm uses none of the compiled part.
"""

from torch import library

try:
    import torchvision  # noqa: F401
except ImportError:
    pass  # not installed
except RuntimeError:
    OPERATORS = library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        OPERATORS.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
