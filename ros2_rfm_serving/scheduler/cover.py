"""Who can take a server's place without a look at anything: for plans, and for what runs."""

from __future__ import annotations

from ros2_rfm_serving.scheduler.prediction.curves import Config, Curves


def stands_in(standby: Config, server: Config, *, idle: bool) -> bool:
    """Set up alike, and idle: whatever robots keep where they are, which the curves may know nothing of, they keep there."""
    return idle and standby == server


def has_rows(config: Config, rows: int, curves: Curves) -> bool:
    """For so many of pipelined sessions: a server refuses those beyond."""
    return not rows or rows <= curves.frame_rows(config)
