"""Scheduler in virtual time: the live node's own decisions (`scheduler/schedule_manager.py`) over hours with joining and leaving
robots.

There are no periodic ticks, since nothing changes between two events. A robot that is there counts as received whenever the
scheduler polls; the scheduler has to poll only while a robot is silent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.factory import Catalogue, Factory, RobotEntry
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler import (
    LOOK_PERIOD_S,
    ActiveFleet,
    AdmissionOffers,
    PlanJob,
    PlanResult,
    RobotClaim,
    RobotRegistry,
    ScheduleManager,
    SchedulerCommand,
    TelemetryController,
    answered,
    plan,
    resumed,
)
from ros2_rfm_serving.scheduler.estimation import EstimateChange, RobotStatusSample, ServerStatusSample
from ros2_rfm_serving.scheduler.planning import default_work
from ros2_rfm_serving.scheduler.schedule_log import ScheduleLog
from ros2_rfm_serving.types import AdmissionRecord, Schedule
from ros2_rfm_serving.virtual_time.events import Events

IDENTITY = 1
ROOM_WORK = 0.1
"""Work of a search for a place for one robot (see `budget`)."""


class NoScheduleLog:
    """Log that stores nothing."""

    def planned(self, planned: PlanResult, reason: str, *, background: bool = False, published: bool = True) -> None: ...
    def changed(self, before: ActiveFleet, after: ActiveFleet, reason: str) -> None: ...
    def saw(self, finding: EstimateChange, waiting: Sequence[RobotEntry], after: ActiveFleet) -> None: ...


class SimulatedScheduler:
    """Scheduler whose `published` are called with every schedule after the first, and the virtual time."""

    def __init__(
        self,
        factory: Factory,
        profile: Profile,
        catalogue: Catalogue | None,
        events: Events,
        *,
        lease_s: float = 60.0,
        policy: str = "best",
        work: float | None = None,
        unit_s: float = 1.0,
        book: ScheduleLog | None = None,
        found: Schedule | None = None,
    ) -> None:
        """Make the first plan.

        work: for one plan (see `budget`); None: that of the live scheduler. unit_s: duration of one unit of it. book: called with
        every schedule before it is published. found: active schedule of a predecessor. Raises: `RfmError`.
        """
        self.events, self.schedules = events, list[Schedule]()
        self.published: list[Callable[[Schedule, float], None]] = []
        self.silent: set[str] = set()
        """Robots that crashed, as long as they hold a lease."""
        self._profile, self._catalogue, self._work, self._unit_s = profile, catalogue, work, unit_s
        self._running: PlanJob | None = None
        self._looking = self._watches = False
        self.roster = RobotRegistry(IDENTITY, lease_s)
        order = PlanJob(factory=factory, robots=tuple(factory.robots), policy=policy)
        if found:
            first, self.words = resumed(order, found, profile, catalogue, work=work)
        else:
            first, self.words = plan(order, profile, catalogue, work=work), "begins"
        self.brain = ScheduleManager(first, self.roster, self._publish, logging.getLogger(__name__), book or NoScheduleLog())
        self._drive()

    # --- requests and events ---

    def admit(self, robot: str, task: str) -> SchedulerCommand:
        """Request admission of a robot. Raises: `RfmError` if it is refused at once."""
        self.silent.discard(robot)
        order = self.brain.admit(robot, task)
        self._drive()
        return order

    def release(self, robot: str) -> SchedulerCommand:
        """Request the release of a robot. Raises: `RfmError`."""
        self.silent.discard(robot)
        order = self.brain.release(robot)
        self._drive()
        return order

    def replan(self, factory: Factory | None = None) -> SchedulerCommand:
        order = self.brain.replan(factory or self.brain.factory, declared_anew=factory is not None)
        self._drive()
        return order

    def crash(self, robot: str) -> None:
        """Record that a robot sends no more messages."""
        self.silent.add(robot)
        self.look_on()

    def comes_back(self, robot: str) -> None:
        """Record that a robot identifies itself again."""
        self.silent.discard(robot)
        task = self.brain.fleet.task_of(robot) or self.roster.tasks.get(robot, "")
        self.roster.hear(RobotClaim(robot=robot, follows=IDENTITY, admission=AdmissionRecord(scheduler=IDENTITY, task=task)))
        self.look_on()

    def watch(
        self,
        servers: Callable[[], Iterable[ServerStatusSample]],
        robots: Callable[[], Iterable[RobotStatusSample]],
        lives: Callable[[], Iterable[RobotClaim]],
    ) -> None:
        """Monitor servers and robots from now on, without end: only their own messages keep leases."""
        self.lookout = TelemetryController(self.brain, self._profile, self._catalogue)
        self._servers, self._robots, self._lives = servers, robots, lives
        self._looking = self._watches = True
        self.events.at(self.events.now_s + LOOK_PERIOD_S, self._watch)

    def _watch(self) -> None:
        now_s = self.events.now_s
        self.events.at(now_s + LOOK_PERIOD_S, self._watch)
        for server in self._servers():
            self.lookout.hear_server(server, now_s)
        for robot in self._robots():
            self.lookout.hear_robot(robot, now_s)
        for word in self._lives():
            self.roster.hear(word)
        self.roster.elapse(LOOK_PERIOD_S)
        self.lookout.look(now_s)
        self.brain.settle()
        self._drive()

    # --- polling and planning ---

    def look_on(self) -> None:
        """Poll twice a second from now on, as long as there is a reason."""
        if not self._looking:
            self._looking = True
            self.events.at(self.events.now_s + LOOK_PERIOD_S, self._look)

    def _look(self) -> None:
        if self._watches:  # since this was planned
            return
        for robot, task in self.roster.tasks.items():
            if robot not in self.silent:
                self.roster.hear(
                    RobotClaim(robot=robot, follows=IDENTITY, admission=AdmissionRecord(scheduler=IDENTITY, task=task))
                )
        self.silent.difference_update(self.roster.elapse(LOOK_PERIOD_S))
        self.brain.settle()
        self._drive()
        self._looking = False
        if self.silent & self.roster.tasks.keys() or self.brain.no_room or self.brain.is_unsure:
            self.look_on()

    def _drive(self) -> None:
        """Make one plan at a time; a plan that a request waits for replaces any other."""
        if self.brain.is_unsure:
            self.look_on()
        wanted = self.brain.wanted
        if wanted is None or wanted is self._running:
            return
        if self._running is None or wanted.needed:
            self._running = wanted
            made = self._made(wanted)
            spent = self._spent(wanted, made)
            self.events.at(self.events.now_s + spent * self._unit_s, self._deliver, wanted, made)

    def _spent(self, order: PlanJob, made: PlanResult | AdmissionOffers | RfmError) -> float:
        if isinstance(made, AdmissionOffers):
            return ROOM_WORK * len(made.found)
        return made.work if isinstance(made, PlanResult) else default_work(len(order.factory.gpu_types))

    def _made(self, order: PlanJob) -> PlanResult | AdmissionOffers | RfmError:
        try:
            return answered(order, self._profile, self._catalogue, work=self._work, explained=False)
        except RfmError as error:
            return error

    def _deliver(self, order: PlanJob, made: PlanResult | AdmissionOffers | RfmError) -> None:
        if order is self._running:
            self._running = None
            self.brain.planned(order, made)
            self._drive()
            self.look_on()  # leases may have ended while others waited

    def _publish(self, schedule: Schedule, factory: Factory) -> None:
        schedule = replace(schedule, scheduler=IDENTITY, released=self.roster.released)
        self.schedules.append(schedule)
        for told in self.published:
            told(schedule, self.events.now_s)
