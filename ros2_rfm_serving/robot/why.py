"""Explanation of a control period's command, for recording and diagnosis. No decision follows from it."""

from __future__ import annotations

import enum
import math
from typing import NamedTuple

from ros2_rfm_serving.robot.config import Motion
from ros2_rfm_serving.types import Array, RequestId


class CommandSource(enum.Enum):
    """Source of a command."""

    STEP = "row"
    """A step of a chunk."""
    PARTIAL_STEP = "part"
    """A part of the way to a step."""
    FALLBACK = "rung"
    """A rung of the fallback ladder, which may command nothing."""
    STOP = "stand"
    """An immediate stop, whatever was planned."""
    NONE = "nothing"


class CommandOrigin(NamedTuple):
    """Origin of a chunk."""

    id: RequestId
    """Identity of the answered request."""
    server: str
    model_hash: str
    ended_with: int | None = None
    """Sequence number of the observation that its last steps saw, of a pipelined session; None: that of `id`."""
    begun_s: float = math.nan
    """Time, on the robot's clock, of the observation that it began with."""


class Why(NamedTuple):
    by: CommandSource
    origin: CommandOrigin | None = None
    """Origin of a step, and of a part of the way to it; None: unknown."""
    row: int = -1
    """Index of the step in that chunk."""
    staleness_s: float = math.nan
    """Age of the observation behind it."""
    oldest_staleness_s: float = math.nan
    """Age of the observation that its chunk began with, where that is another one; NaN: it is the same."""
    limited_from: Array | None = None
    """[A] the wanted command; None: the limits changed nothing."""
    rung: Motion | None = None
    reason: str = ""
    """Reason why no action was begun; empty: one was."""
