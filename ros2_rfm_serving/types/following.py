"""Which schedule counts: one rule for everybody who follows one, robots and servers alike."""

from __future__ import annotations

import enum
import math
from typing import ClassVar

from ros2_rfm_serving.types.schedule import Schedule
from ros2_rfm_serving.types.state import kept

REPEAT_PERIOD_S = 2.0
"""A scheduler says the schedule in force over and over: that is how others know that it lives."""
SILENT_AFTER_S = 2.5 * REPEAT_PERIOD_S
"""Whoever is followed has gone when nothing was heard of it for this long; one repetition may be lost."""
LIVES_AFTER_S = 0.5 * REPEAT_PERIOD_S
"""Between two words of the same scheduler: one message alone, old or forged, proves no life."""
MAX_OTHERS = 16
"""Schedulers remembered beside the one that is followed, whatever somebody makes up."""


class Heard(enum.Enum):
    """What a schedule is to those who hear it. Those that are refused bear the name of their counter."""

    NEWER = "newer"
    REPEATED = "repeated"
    TAKEOVER = "takeover"
    """Of a scheduler that lives, in place of one that has gone."""
    STALE = "stale_schedule"
    """Of the scheduler that is followed: older than what is in force, or another one under the same epoch."""
    RIVAL = "rival_schedule"
    """Of another scheduler."""

    @property
    def taken(self) -> bool:
        return self not in (Heard.STALE, Heard.RIVAL)


class Following:
    """Epochs are counted by a scheduler's identity, so what is newer is known of one scheduler alone: that is followed at once.
    Everything else is refused while the schedule in force is repeated. When that has been silent for `SILENT_AFTER_S`, whoever
    lives takes over, be it the same scheduler with a lower epoch: so one that was forged heals by itself, whatever it claims.
    """

    KEPT: ClassVar = kept("schedule", "takeovers", received_s="_heard_s", others="_others")

    def __init__(self) -> None:
        self.schedule: Schedule | None = None
        """In force; None: none yet."""
        self.takeovers = 0
        self._heard_s = -math.inf
        self._others: dict[int, tuple[float, float]] = {}
        """Scheduler that is not followed -> since when it has been received without a gap, and when it was received last."""

    @property
    def epoch(self) -> int:
        """Of the schedule in force; 0: none yet."""
        return self.schedule.epoch if self.schedule else 0

    @property
    def scheduler(self) -> int:
        """Who is followed; 0: nobody yet."""
        return self.schedule.scheduler if self.schedule else 0

    def hear(self, schedule: Schedule, now_s: float) -> Heard:
        """Follow it if it was `taken`. `now_s` never goes back."""
        heard = self._judge(schedule, now_s)
        if heard.taken:
            self.takeovers += heard is Heard.TAKEOVER
            self._others.pop(schedule.scheduler, None)
            self.schedule, self._heard_s = schedule, now_s
        return heard

    def num_rivals(self, now_s: float) -> int:
        """Other schedulers that have been heard lately."""
        return sum(
            now_s - received_s <= SILENT_AFTER_S
            for scheduler, (_, received_s) in self._others.items()
            if scheduler != self.scheduler
        )

    def _judge(self, schedule: Schedule, now_s: float) -> Heard:
        if self.schedule is None:
            return Heard.NEWER
        if schedule == self.schedule:
            return Heard.REPEATED
        same = schedule.scheduler == self.scheduler
        if same and schedule.epoch > self.epoch:
            return Heard.NEWER
        if self._lives(schedule.scheduler, now_s) and now_s - self._heard_s > SILENT_AFTER_S:
            return Heard.TAKEOVER
        return Heard.STALE if same else Heard.RIVAL

    def _lives(self, scheduler: int, now_s: float) -> bool:
        """Notes that it was heard, and whether that was over some time without a gap."""
        since_s, received_s = self._others.get(scheduler, (now_s, now_s))
        since_s = now_s if now_s - received_s > SILENT_AFTER_S else since_s
        self._others[scheduler] = since_s, now_s
        if len(self._others) > MAX_OTHERS:
            del self._others[min(self._others, key=lambda other: self._others[other][1])]
        return now_s - since_s >= LIVES_AFTER_S
