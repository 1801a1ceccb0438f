"""Planning jobs and their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ros2_rfm_serving.factory import Factory, RobotEntry
from ros2_rfm_serving.scheduler.active_fleet import ActiveFleet
from ros2_rfm_serving.scheduler.admission_query import AdmissionQuery
from ros2_rfm_serving.scheduler.estimates import AS_DECLARED, FactoryEstimates
from ros2_rfm_serving.types import Schedule


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanJob:
    """Planning job as plain data, which another process may execute. Orders are compared by identity."""

    factory: Factory
    robots: tuple[RobotEntry, ...]
    policy: str
    previous: Schedule | None = None
    """Schedule that the plan may replace; None: it is the first plan."""
    needed: bool = True
    """Whether robots are unserved or a request waits without it; False: it might only be better than the active schedule."""
    seen: FactoryEstimates = AS_DECLARED
    """Observations where the running factory is not as declared."""
    effort: int = 1
    """Multiple of the work of one plan (see `budget`): more where the last one was cut short and time is left."""

    first: AdmissionQuery | None = None
    """Admission query that is answered first, on the servers as they are; a plan is made only if no robot fits."""
    hopeless: str = ""
    """Known reason why such a fleet has no plan; then only `first` is answered."""

    @property
    def epoch(self) -> int:
        return self.previous.epoch + 1 if self.previous else 1


class ExpectedActions(NamedTuple):
    """Simulated throughputs of the same robots in weighted actions/s, which a schedule alone does not give."""

    before_hz: float
    """Throughput under the schedule beside which a plan was made."""
    planned_hz: float


class PlanResult(NamedTuple):
    fleet: ActiveFleet
    """The planned schedule with its robots."""
    factory: Factory
    previous: Schedule | None
    """Schedule beside which it was made."""
    policy: str
    work: float = 0.0
    """Work of the search (see `budget`)."""
    seen: FactoryEstimates = AS_DECLARED
    complete: bool = True
    """False: the work budget ended the search, and more work may find a better plan."""
    effort: int = 1
    """Effort that it was made with (see `PlanJob`)."""
    doing: ExpectedActions | None = None
    """Present where queues of asynchronous robots decide which of two schedules is better."""
    found: Schedule | None = None
    """Schedule that was active when the scheduler started: it is adopted, or the plan was made beside it (see `recovery`)."""
