"""Waiting for a device that works behind the host's back."""

from __future__ import annotations

import torch


def settle(device: str) -> None:
    """Returns when the device has done what it was given: a GPU only queues it, so that what is measured around a call would be the
    host's part, and a kernel's error would fall into somebody else's call. Raises: `RuntimeError`, that error."""
    if torch.device(device).type == "cuda":
        torch.cuda.current_stream(device).synchronize()
