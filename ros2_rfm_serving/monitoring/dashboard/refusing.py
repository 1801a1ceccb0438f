"""Recent refusals of robots and servers, derived from their counters."""

from __future__ import annotations

from ros2_rfm_serving.monitoring.board import Board, RobotRow, ServerRow
from ros2_rfm_serving.monitoring.counters import COUNTERS
from ros2_rfm_serving.monitoring.explanations import explanation

RECENT_S = 10.0
MOST = 3
"""Maximum number of reasons that are shown for one robot or server."""


class RecentRefusals:
    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}
        self._at_s: dict[str, dict[str, float]] = {}

    def sample(self, board: Board, now_s: float) -> None:
        """Record which counters have grown since the last sample."""
        rows: dict[str, RobotRow | ServerRow] = {**board.robots, **board.servers}
        for name, row in rows.items():
            before = self._counts.get(name)
            if before is not None and row.refused != before:
                grown = {reason: now_s for reason, count in row.refused.items() if count > before.get(reason, 0)}
                self._at_s[name] = {**self._at_s.get(name, {}), **grown}
            self._counts[name] = row.refused
        for name in [name for name in self._counts if name not in rows]:
            del self._counts[name]
            self._at_s.pop(name, None)

    def of(self, name: str, now_s: float) -> list[dict[str, str]]:
        """Return possible obstacles of a process, the newest reasons first: the counter's name and its meaning."""
        noted = self._at_s.get(name, {}).items()
        recent = {reason: at_s for reason, at_s in noted if now_s - at_s <= RECENT_S and not _settles(reason)}
        newest = sorted(recent, key=lambda reason: -recent[reason])[:MOST]
        return [{"reason": reason, "meaning": explanation(reason).meaning} for reason in newest]


def _settles(reason: str) -> bool:
    """Return whether such refusals occur at a reset, a restart or a new schedule, and need no action."""
    return reason in COUNTERS and COUNTERS[reason].settles
