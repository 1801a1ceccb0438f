"""Memory that was freed and is kept nevertheless."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """To the system. glibc keeps pieces of up to 32 MB, once such were freed, and all that lies between used ones: a
    network that was rounded layer by layer would go on taking what it took before. Elsewhere nothing is done."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
