"""What a session has sent and nobody here has seen: lost in the network, or by a reader whose queue was full."""

from __future__ import annotations

from ros2_rfm_serving.types import RequestId

MAX_SESSIONS = 65_536
"""That are remembered."""
MAX_GAP = 1_000_000
"""A larger one is no loss but a number that somebody made up."""


class Arrivals:
    """A robot counts the requests of a session without a gap, so that each gap is what did not arrive: sent = seen + lost."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], tuple[int, int]] = {}
        """(robot, component) -> (session's epoch, sequence)"""

    def lost_before(self, request: RequestId) -> int:
        """Requests of its session that were sent since the last one that was seen, and did not arrive."""
        key = (request.robot, request.component)
        epoch, newest = self._newest.get(key, (request.session_epoch, request.sequence - 1))
        if epoch != request.session_epoch:  # another session; its first ones may have been lost, or this is not its first
            newest = request.sequence - 1
        if len(self._newest) >= MAX_SESSIONS:
            self._newest.clear()
        self._newest[key] = (request.session_epoch, max(newest, request.sequence))
        gap = request.sequence - newest - 1
        return gap if 0 < gap <= MAX_GAP else 0
