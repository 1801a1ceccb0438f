"""Outcomes and tasks of episodes, by the topics of robots and simulated worlds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ros2_rfm_serving.robot.task import DONE, FAILED

STATUS, SCORE = "rfm_serving/msg/RobotStatus", "rfm_serving/msg/EpisodeScore"
AFTER_S = 3.0
"""Longest delay of an episode's last status after its last command; a restarted robot counts its episodes anew."""


class Status(NamedTuple):
    stamp_s: float
    task: str = ""
    verdict: str = ""


class Score(NamedTuple):
    stamp_s: float
    episode: int
    """Number by the world's count."""
    success: bool | None
    """Outcome; None while it goes on."""


@dataclass
class Labels:
    statuses: dict[tuple[str, int], list[Status]] = field(default_factory=lambda: defaultdict(list))
    """Robot and episode -> statuses."""
    scores: dict[str, list[Score]] = field(default_factory=lambda: defaultdict(list))
    """Simulated robot -> scores."""

    def add(self, messages: Iterable[tuple[str, float, Any]]) -> Labels:
        """Add messages: type, ROS time in s, and content, in order."""
        for kind, stamp_s, message in messages:
            robot = message.header.frame_id
            if kind == SCORE:
                ended = bool(message.success) if message.success or message.finished else None
                self.scores[robot].append(Score(stamp_s, message.episode, ended))
            elif message.task:
                self._note(self.statuses[robot, message.episode], Status(stamp_s, message.task, message.verdict))
        return self

    def _note(self, told: list[Status], status: Status) -> None:
        if not told or told[-1][1:] != status[1:]:
            told.append(status)

    def task(self, robot: str, episode: int, until_s: float) -> str:
        """Return the task of an episode; empty if unknown."""
        return self._status(robot, episode, until_s).task

    def success(self, robot: str, episode: int, since_s: float, until_s: float) -> bool | None:
        """Return the outcome of an episode, by the simulated world, or else by the monitor; None if unknown."""
        of_world = self._of_world(robot, since_s, until_s)
        if of_world is not None:
            return of_world
        return {DONE: True, FAILED: False}.get(self._status(robot, episode, until_s).verdict)

    def _status(self, robot: str, episode: int, until_s: float) -> Status:
        told = self.statuses.get((robot, episode), [])
        return next((one for one in reversed(told) if one.stamp_s <= until_s + AFTER_S), Status(until_s))

    def _of_world(self, robot: str, since_s: float, until_s: float) -> bool | None:
        """Return the outcome of the world's episode with most scores in this time, because it has its own numbers."""
        told = self.scores.get(robot, [])
        numbers = Counter(one.episode for one in told if since_s <= one.stamp_s <= until_s)
        if not numbers:
            return None
        (number, _), *_ = numbers.most_common(1)
        ends = [one.success for one in told if one.episode == number and one.success is not None]
        return any(ends) if ends else None
