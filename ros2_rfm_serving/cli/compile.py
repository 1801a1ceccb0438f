"""`rfm compile`: virtual time in machine code."""

from __future__ import annotations

from ros2_rfm_serving.operate.inputs import console
from ros2_rfm_serving.operate.progress import spinner


def compile_() -> None:
    """Compiles what a request passes through in virtual time, which `rfm simulate` and `rfm bench simulation` then use.

    The same source and the same decisions, which is checked; it takes some minutes at most, a C compiler, and the extra `compile`.
    Once for an installation, and again after another version was installed: it is kept in the user's cache. `RFM_COMPILED=no`
    leaves it unused.

    Example:  rfm compile
    """
    from ros2_rfm_serving import compiled
    from ros2_rfm_serving.operate.compiling import compile_modules

    with spinner("compiling"):
        kept = compile_modules()
    console.print(f"{len(compiled.MODULES)} modules, in {kept}", soft_wrap=True)
