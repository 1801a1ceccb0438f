"""Return of freed memory to the operating system."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Return freed memory to the system.

    glibc keeps freed pieces of up to 32 MB, and all that lies between used ones. A network that was rounded layer by layer would
    continue to occupy its former size. Other C libraries have no such call, and nothing is done.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
