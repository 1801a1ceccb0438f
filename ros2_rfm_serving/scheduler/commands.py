"""Orders of operators to the scheduler. An answer is known at once, or when the whole factory has been planned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.factory import Factory


@dataclass(kw_only=True, eq=False)
class SchedulerCommand:
    answer: int | RfmError | None = None
    """Epoch of the schedule that fulfils the order, or the error that refuses it; None: not known yet."""
    why: str = ""
    """Reason why the whole factory has to be planned for it."""
    note: str = ""
    """Additional information on the answer."""
    in_vain: int = 0
    """Plans that were made for it and became obsolete, because the fleet changed meanwhile."""
    watchers: list[Callable[[], None]] = field(default_factory=list)
    """Callbacks for the answer."""

    def close(self, answer: int | RfmError) -> None:
        self.answer = answer
        for watcher in self.watchers:
            watcher()


@dataclass(kw_only=True, eq=False)
class AdmitCommand(SchedulerCommand):
    robot: str
    task: str


@dataclass(kw_only=True, eq=False)
class ReleaseCommand(SchedulerCommand):
    robot: str


@dataclass(kw_only=True, eq=False)
class ReplanCommand(SchedulerCommand):
    factory: Factory
    declared_anew: bool
    """Whether the descriptor's robots come beside those that were admitted; False: the present ones stay."""
