"""A cause that a look speaks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ros2_rfm_serving.monitoring.findings.look import Look

FACTORY = ""
"""`about` of what concerns everybody."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    cause: str
    """As headed in docs/runbook.md."""
    about: str
    """A robot or a server."""
    evidence: tuple[str, ...]
    """What was seen, with figures."""
    mend: str
    concerns: tuple[str, ...] = ()
    """Robots and servers beside that one."""
    can_follow: bool = True
    """False: it is reported beside every other cause, since none can be its reason."""


Rule = Callable[[Look], Iterable[Finding]]
