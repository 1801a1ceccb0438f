"""Result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(str, Enum):
    OK = "ok"
    MISSING = "missing"
    """The quickstart, or a node, does not work without it."""
    OPTIONAL = "not here"
    """The named feature alone does not work without it."""
    NOTE = "note"
    """Nothing is missing, but the user should look at something."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    part: str
    verdict: Verdict
    found: str
    fix: str = ""
    """How to get it, from the package index or the system. Empty: nothing to do."""
    fix_in_workspace: str = ""
    """The same for users that build with colcon on a ROS installation. Empty: no other way."""
