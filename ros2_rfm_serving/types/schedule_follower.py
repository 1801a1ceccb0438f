"""Rule that decides which schedule is active. Robots and servers apply it alike."""

from __future__ import annotations

import enum
import math
from typing import ClassVar

from ros2_rfm_serving.types.schedule import Schedule
from ros2_rfm_serving.types.state import kept

REPEAT_PERIOD_S = 2.0
"""Period at which a scheduler repeats the active schedule; the repetitions show that it is alive."""
SILENT_AFTER_S = 2.5 * REPEAT_PERIOD_S
"""The active scheduler counts as gone when no schedule of it was received for this long; one repetition may be lost."""
ALIVE_AFTER_S = 0.5 * REPEAT_PERIOD_S
"""Minimum time between two messages of the same scheduler that shows it is alive: one message alone, old or forged, does not."""
MAX_OTHERS = 16
"""Limit for the schedulers remembered beside the active one, however many identities are invented."""


class ScheduleVerdict(enum.Enum):
    """Result of receiving a schedule. The values of refused ones are the names of their counters."""

    NEWER = "newer"
    REPEATED = "repeated"
    TAKEOVER = "takeover"
    """It comes from another scheduler that is alive, and replaces one that has gone."""
    STALE = "stale_schedule"
    """It comes from the active scheduler, and is older than the active schedule or another one with the same epoch."""
    RIVAL = "rival_schedule"
    """It comes from another scheduler than the active one."""

    @property
    def is_accepted(self) -> bool:
        return self not in (ScheduleVerdict.STALE, ScheduleVerdict.RIVAL)


class ScheduleFollower:
    """The active schedule of one process.

    Epochs are counted by each scheduler, so a newer one is only known within the same scheduler, and is followed at once.
    Everything else is refused while the active schedule is repeated. After `SILENT_AFTER_S` without a repetition, another scheduler
    that is alive takes over, or the same one with a lower epoch. A forged schedule is thereby replaced in time, whatever it claims.
    """

    KEPT: ClassVar = kept("schedule", "takeovers", received_s="_received_s", rivals="_rivals")

    def __init__(self) -> None:
        self.schedule: Schedule | None = None
        """Active schedule; None: there is none yet."""
        self.takeovers = 0
        self._received_s = -math.inf
        self._rivals: dict[int, tuple[float, float]] = {}
        """Scheduler that is not followed -> (start of its reception without a gap, time of its last message)."""

    @property
    def epoch(self) -> int:
        """Epoch of the active schedule; 0: there is none yet."""
        return self.schedule.epoch if self.schedule else 0

    @property
    def scheduler(self) -> int:
        """Identity of the active scheduler; 0: there is none yet."""
        return self.schedule.scheduler if self.schedule else 0

    def on_schedule(self, schedule: Schedule, now_s: float) -> ScheduleVerdict:
        """Return the result of receiving a schedule, and follow it if that is `is_accepted`. `now_s` never decreases."""
        heard = self._classify(schedule, now_s)
        if heard.is_accepted:
            self.takeovers += heard is ScheduleVerdict.TAKEOVER
            self._rivals.pop(schedule.scheduler, None)
            self.schedule, self._received_s = schedule, now_s
        return heard

    def num_rivals(self, now_s: float) -> int:
        """Return the number of other schedulers that were received within `SILENT_AFTER_S`."""
        return sum(
            now_s - received_s <= SILENT_AFTER_S
            for scheduler, (_, received_s) in self._rivals.items()
            if scheduler != self.scheduler
        )

    def _classify(self, schedule: Schedule, now_s: float) -> ScheduleVerdict:
        if self.schedule is None:
            return ScheduleVerdict.NEWER
        if schedule == self.schedule:
            return ScheduleVerdict.REPEATED
        same = schedule.scheduler == self.scheduler
        if same and schedule.epoch > self.epoch:
            return ScheduleVerdict.NEWER
        if self._is_alive(schedule.scheduler, now_s) and now_s - self._received_s > SILENT_AFTER_S:
            return ScheduleVerdict.TAKEOVER
        return ScheduleVerdict.STALE if same else ScheduleVerdict.RIVAL

    def _is_alive(self, scheduler: int, now_s: float) -> bool:
        """Record a message of a scheduler, and return whether it was received for some time without a gap."""
        since_s, received_s = self._rivals.get(scheduler, (now_s, now_s))
        since_s = now_s if now_s - received_s > SILENT_AFTER_S else since_s
        self._rivals[scheduler] = since_s, now_s
        if len(self._rivals) > MAX_OTHERS:
            del self._rivals[min(self._rivals, key=lambda other: self._rivals[other][1])]
        return now_s - since_s >= ALIVE_AFTER_S
