"""Finding: a cause that an observation supports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ros2_rfm_serving.monitoring.findings.look import Look

FACTORY = ""
"""Value of `about` for the whole factory."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    cause: str
    """Heading in docs/runbook.md."""
    about: str
    """Name of a robot or a server."""
    evidence: tuple[str, ...]
    """Observations with figures."""
    mend: str
    concerns: tuple[str, ...] = ()
    """Further robots and servers that are affected."""
    can_follow: bool = True
    """Another cause may be the reason of this finding; if False, it is reported beside every other cause."""


Rule = Callable[[Look], Iterable[Finding]]
