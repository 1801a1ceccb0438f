"""A device whose context is spoilt for good: whatever is asked of it from then on fails, until a new process has a new one."""

from __future__ import annotations

import sys
from typing import Any

CUDA_ERROR = "CUDA error: "
"""PyTorch begins so what CUDA says (c10/cuda/CUDAException.cpp): since 2.8 an `AcceleratorError`, before a plain `RuntimeError`."""
OF_THE_DEVICE = ("CUDA", "cuDNN")
"""Libraries say it in words of their own: `Triton Error [CUDA]: ...` whoever starts a compiled kernel, `cuDNN error: ...`."""


def device_is_lost(error: BaseException) -> bool:
    """Asks once more, as PyTorch's own tests do: an error that lasts, such as an assertion or a wrong address, comes again. Any
    other, such as a launch that was refused, does not."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not any(word in str(error) for word in OF_THE_DEVICE) or not torch.cuda.is_initialized():
        return False
    try:
        for device in range(torch.cuda.device_count()):
            if torch.cuda.memory_reserved(device):  # another's would get a context of this process
                torch.cuda.current_stream(device).synchronize()
    except RuntimeError as again:
        return CUDA_ERROR in str(again)
    return False
