"""What somebody asks of the scheduler. The answer is known at once, or when the whole factory has been planned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.factory import Factory


@dataclass(kw_only=True, eq=False)
class Order:
    answer: int | RfmError | None = None
    """Epoch of the schedule that fulfils it, or why it is refused; None: not known yet."""
    why: str = ""
    """The whole factory has to be planned for it."""
    note: str = ""
    """What else whoever asks should know of the answer."""
    in_vain: int = 0
    """Plans that were made for it, of a fleet that had changed meanwhile."""
    watchers: list[Callable[[], None]] = field(default_factory=list)
    """Called when the answer is there."""

    def close(self, answer: int | RfmError) -> None:
        self.answer = answer
        for watcher in self.watchers:
            watcher()


@dataclass(kw_only=True, eq=False)
class Admit(Order):
    robot: str
    task: str


@dataclass(kw_only=True, eq=False)
class Release(Order):
    robot: str


@dataclass(kw_only=True, eq=False)
class Replan(Order):
    factory: Factory
    declared_anew: bool
    """Its robots come, beside those that were admitted; False: those of now stay."""
