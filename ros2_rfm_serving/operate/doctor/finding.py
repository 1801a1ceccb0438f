"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(str, Enum):
    OK = "ok"
    MISSING = "missing"
    """The quickstart, or a node, does not work without it."""
    OPTIONAL = "not here"
    """Only the feature that is named does."""
    NOTE = "note"
    """Nothing is missing, but something should be looked at."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    part: str
    verdict: Verdict
    found: str
    fix: str = ""
    """How to get it, from the package index or the system. Empty: nothing to do."""
    fix_in_workspace: str = ""
    """The same for who builds with colcon on a ROS installation. Empty: no other way."""
