"""How episodes ended and what they were about, as robots and simulated worlds told it on their topics."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ros2_rfm_serving.robot.task import DONE, FAILED

STATUS, SCORE = "rfm_serving/msg/RobotStatus", "rfm_serving/msg/EpisodeScore"


@dataclass
class Labels:
    tasks: dict[tuple[str, int], str] = field(default_factory=dict)
    """Robot and episode -> task."""
    verdicts: dict[tuple[str, int], str] = field(default_factory=dict)
    """The monitor's last one."""
    scores: dict[str, list[tuple[float, int, bool | None]]] = field(default_factory=lambda: defaultdict(list))
    """Robot -> ROS time, episode as its world counts them, success; None: it goes on. Of simulated robots alone."""

    def add(self, messages: Iterable[tuple[str, float, Any]]) -> Labels:
        """Type, ROS time in s, and the message."""
        for kind, stamp_s, message in messages:
            robot = message.header.frame_id
            if kind == SCORE:
                ended = bool(message.success) if message.success or message.finished else None
                self.scores[robot].append((stamp_s, message.episode, ended))
            elif message.task:
                self.tasks[robot, message.episode] = message.task
                self.verdicts[robot, message.episode] = message.verdict
        return self

    def success(self, robot: str, episode: int, since_s: float, until_s: float) -> bool | None:
        """A simulated world knows it; else the monitor's word counts. None: nobody said."""
        of_world = self._of_world(robot, since_s, until_s)
        if of_world is not None:
            return of_world
        return {DONE: True, FAILED: False}.get(self.verdicts.get((robot, episode), ""))

    def _of_world(self, robot: str, since_s: float, until_s: float) -> bool | None:
        """Of the world's episode that most of this time belongs to: its numbers are its own."""
        told = self.scores.get(robot, [])
        numbers = Counter(number for stamp_s, number, _ in told if since_s <= stamp_s <= until_s)
        if not numbers:
            return None
        (number, _), *_ = numbers.most_common(1)
        ends = [success for _, one, success in told if one == number and success is not None]
        return any(ends) if ends else None
