"""Why a control period's command is what it is: for those who record and explain it. Nothing is decided from this."""

from __future__ import annotations

import enum
import math
from typing import NamedTuple

from ros2_rfm_serving.robot.config import Motion
from ros2_rfm_serving.types import Array, RequestId


class By(enum.Enum):
    """What a command comes from."""

    ROW = "row"
    """Of a chunk."""
    PART = "part"
    """Of the way to one."""
    RUNG = "rung"
    """Of the fallback ladder, which may command nothing."""
    STAND = "stand"
    """At once, whatever was planned."""
    NOTHING = "nothing"


class Origin(NamedTuple):
    """Whose chunk."""

    id: RequestId
    """That it answers."""
    server: str
    model_hash: str
    ended_with: int | None = None
    """Sequence number of the observation that its last steps saw, of a pipelined session; None: that of `id`."""
    begun_s: float = math.nan
    """When the observation was taken that it began with, on the robot's clock."""


class Why(NamedTuple):
    by: By
    origin: Origin | None = None
    """Of a row, and of a part of the way to it; None: not known."""
    row: int = -1
    """Index in that chunk."""
    staleness_s: float = math.nan
    """Age of the observation behind it."""
    oldest_staleness_s: float = math.nan
    """Of the observation that its chunk began with, where that is another one; NaN: it is the same."""
    limited_from: Array | None = None
    """[A] what was wanted; None: the limits changed nothing."""
    rung: Motion | None = None
    reason: str = ""
    """Why no action was begun; empty: one was."""
