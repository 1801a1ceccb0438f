"""Rules by which a standby can replace a server without any queue evaluation, for plans and for running schedules."""

from __future__ import annotations

from ros2_rfm_serving.scheduler.prediction.curves import Curves, ServerConfiguration


def stands_in(standby: ServerConfiguration, server: ServerConfiguration, *, idle: bool) -> bool:
    """Return whether a standby is idle and configured as its server: it then keeps every SLO that the server keeps."""
    return idle and standby == server


def has_rows(config: ServerConfiguration, rows: int, curves: Curves) -> bool:
    """Return whether a server accepts this number of rows of pipelined sessions; it refuses those beyond."""
    return not rows or rows <= curves.frame_rows(config)
