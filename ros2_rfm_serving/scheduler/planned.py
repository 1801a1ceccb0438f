"""A whole factory to be planned, and the plan of it with all that it was made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ros2_rfm_serving.factory import Factory, Robot
from ros2_rfm_serving.scheduler.adaptation import Fleet
from ros2_rfm_serving.scheduler.enquiry import Enquiry
from ros2_rfm_serving.scheduler.seen import AS_DECLARED, Seen
from ros2_rfm_serving.types import Schedule


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanOrder:
    """Plain data: whoever plans may do so in another process. One order is another one's equal only if it is the same."""

    factory: Factory
    robots: tuple[Robot, ...]
    policy: str
    previous: Schedule | None = None
    """Beside which it is made; None: the first."""
    needed: bool = True
    """Some of these robots are not served without, or somebody waits; False: it might be better than what there is."""
    seen: Seen = AS_DECLARED
    """Where the running factory is not as declared."""
    effort: int = 1
    """Times the work of one plan (see `budget`): more where the last one was cut short and there is time."""

    first: Enquiry | None = None
    """Whether there is room for some of its robots on the servers as they are; a plan only if there is none."""
    hopeless: str = ""
    """Why there is no plan for such a fleet, as is known: then only `first` is looked at."""

    @property
    def epoch(self) -> int:
        return self.previous.epoch + 1 if self.previous else 1


class Doing(NamedTuple):
    """Weighted actions/s that the same robots are expected to do in their own queues, of which a schedule says nothing."""

    before_hz: float
    """Under the schedule beside which a plan was made."""
    planned_hz: float


class Planned(NamedTuple):
    fleet: Fleet
    """As planned, with its robots."""
    factory: Factory
    previous: Schedule | None
    """Beside which it was made."""
    policy: str
    work: float = 0.0
    """Done to find it (see `budget`)."""
    seen: Seen = AS_DECLARED
    complete: bool = True
    """False: the work that was allowed ended the search, and more of it may find a better one."""
    effort: int = 1
    """It was made with (see `PlanOrder`)."""
    doing: Doing | None = None
    """Where the queues of asynchronous robots decide which of two schedules is better."""
    found: Schedule | None = None
    """In force when its scheduler was started: taken up as it is, or what the plan was made beside (see `takeover`)."""
