"""Count of the requests that a session sent and that never arrived: lost in the network, or dropped from a full reader queue."""

from __future__ import annotations

from ros2_rfm_serving.types import RequestId

MAX_SESSIONS = 65_536
"""Maximum number of remembered sessions."""
MAX_GAP = 1_000_000
"""Largest gap that counts as loss; a larger one comes from an invalid sequence number."""


class Arrivals:
    """Newest sequence number of each session. A robot numbers the requests of a session without gaps, so that each gap is a loss:
    sent = seen + lost."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], tuple[int, int]] = {}
        """(robot, component) -> (session's epoch, sequence)"""

    def lost_before(self, request: RequestId) -> int:
        """Return how many requests of this session were lost between the last one that arrived and this one."""
        key = (request.robot, request.component)
        epoch, newest = self._newest.get(key, (request.session_epoch, request.sequence - 1))
        if epoch != request.session_epoch:  # another session; its first requests may be lost, or this may not be its first
            newest = request.sequence - 1
        if len(self._newest) >= MAX_SESSIONS:
            self._newest.clear()
        self._newest[key] = (request.session_epoch, max(newest, request.sequence))
        gap = request.sequence - newest - 1
        return gap if 0 < gap <= MAX_GAP else 0
