"""Detection of a lost GPU context: every call on the device fails from then on, until a new process has a new context."""

from __future__ import annotations

import sys
from typing import Any

CUDA_ERROR = "CUDA error: "
"""Beginning of PyTorch's message for a CUDA error (c10/cuda/CUDAException.cpp).
Since 2.8 it is an `AcceleratorError`, before that a plain `RuntimeError`."""
OF_THE_DEVICE = ("CUDA", "cuDNN")
"""Words in the messages of libraries: `Triton Error [CUDA]: ...` from a compiled kernel, `cuDNN error: ...`."""


def is_device_lost(error: BaseException) -> bool:
    """Return whether an error of a device is permanent, by another call on it, as PyTorch's own tests do. A permanent error, such
    as an assertion or an invalid address, comes again. A temporary one, such as a refused launch, does not."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not any(word in str(error) for word in OF_THE_DEVICE) or not torch.cuda.is_initialized():
        return False
    try:
        for device in range(torch.cuda.device_count()):
            if torch.cuda.memory_reserved(device):  # on any other device this call would create a context of this process
                torch.cuda.current_stream(device).synchronize()
    except RuntimeError as again:
        return CUDA_ERROR in str(again)
    return False
