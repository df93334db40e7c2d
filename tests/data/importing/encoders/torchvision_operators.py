"""Make torchvision importable beside a PyTorch without CUDA.

The torchvision of PyPI is built for CUDA. Beside a PyTorch for the CPU its compiled part cannot be
loaded, and importing it fails, as it describes an operator that does not exist then. Declared here,
that operator lets the import pass; timm uses none of the compiled part.
"""

import torch

try:
    import torchvision  # noqa: F401
except ImportError:
    pass  # not installed
except RuntimeError:
    OPERATORS = torch.library.Library("torchvision", "DEF")
    OPERATORS.define("nms(Tensor boxes, Tensor scores, float threshold) -> Tensor")
