"""Requests of operators for the active schedule, in virtual time and live: each is fulfilled at once or by a new plan.

A request that fits the servers as they are by a quick check is fulfilled at once. Any other waits for a longer search for an
assignment, and for a plan of the whole factory if there is none. The adapter computes both elsewhere (`wanted`) and returns them
(`plan_job`); robots are admitted and released meanwhile. Robots that have lost their server and wait for another come before
admission candidates. A plan of a fleet that has changed since is discarded and made again; after `PATIENT` of those all other
requests wait, so that the first one gets its answer. Admission candidates wait as well for a plan that a promise needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ros2_rfm_serving.errors import ConfigurationError, PlannerError, RfmError, ScheduleError
from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.scheduler.admission_query import AdmissionOffers, AdmissionQuery, taken
from ros2_rfm_serving.scheduler.commands import AdmitCommand, ReleaseCommand, ReplanCommand, SchedulerCommand
from ros2_rfm_serving.scheduler.plan_job import PlanJob, PlanResult
from ros2_rfm_serving.scheduler.registry import RobotRegistry, newcomers
from ros2_rfm_serving.scheduler.schedule_log import OperatorLog, ScheduleLog
from ros2_rfm_serving.scheduler.schedule_state import PATIENT, SAID, ScheduleState
from ros2_rfm_serving.types import Schedule

MOST_WAITING = 1024
"""Largest number of waiting orders: each change checks all of them, 40 ms for this number."""


class ScheduleManager(ScheduleState):
    """Active schedule with the requests that wait for it."""

    def __init__(
        self,
        first: PlanResult,
        roster: RobotRegistry,
        publish: Callable[[Schedule, Factory], None],
        log: OperatorLog,
        book: ScheduleLog,
    ) -> None:
        super().__init__(first, roster, publish, log, book)
        self._waiting: list[SchedulerCommand] = []
        """Orders that wait for a plan of the whole factory, which is made for the first of them."""
        self._asked: PlanJob | None = None

    @property
    def wanted(self) -> PlanJob | None:
        """Return the one order that is to be planned and given to `planned`; all earlier ones are obsolete."""
        first = self._background if self.must_be_planned or (self._needs_plan and self._in_line(self._fleet)) else None
        return first or self._asked or self._background

    # --- requests of operators; they raise `RfmError` for what is refused at once ---

    def admit(self, robot: str, task: str) -> SchedulerCommand:
        """Admit a robot. A repeated request only renews the lease; for another task it is another admission."""
        self._check(robot, task)
        for order in self._waiting:
            if isinstance(order, AdmitCommand) and (order.robot, order.task) == (robot, task):
                return order
        self._withdraw(robot, f"{robot!r} asks for {task!r} now")
        return self._take(AdmitCommand(robot=robot, task=task))

    def release(self, robot: str) -> SchedulerCommand:
        waited = self._withdraw(robot, f"{robot!r} was released while it waited")
        waited |= self._stranded.pop(robot, None) is not None
        if not waited and self._fleet.task_of(robot) is None and robot not in self._roster.tasks:
            raise ConfigurationError(f"robot {robot[:SAID]!r} is not in the factory")
        again = (order for order in self._waiting if isinstance(order, ReleaseCommand) and order.robot == robot)
        return next(again, None) or self._take(ReleaseCommand(robot=robot))

    def replan(self, factory: Factory, *, declared_anew: bool) -> SchedulerCommand:
        """Plan the factory anew. declared_anew: use the descriptor's robots, beside admitted ones, instead of the present ones."""
        last = next((order for order in reversed(self._waiting) if isinstance(order, ReplanCommand)), None)
        if last and last is not self._waiting[0] and (last.declared_anew, last.factory) == (declared_anew, factory):
            return last
        why = f"replanned{f' for {Path(factory.file).name}' if declared_anew else ''} on an operator's command"
        return self._take(ReplanCommand(factory=factory, declared_anew=declared_anew, why=why))

    def settle(self) -> None:
        if not self._others_wait:
            super().settle()

    def planned(self, order: PlanJob, made: PlanResult | AdmissionOffers | RfmError) -> None:
        """Accept the result of an order; the result of an obsolete order changes nothing."""
        if order is self._asked:
            self._asked = None
            self._conclude(self._waiting[0], order, made)
            self._go_on()
        elif order is self.wanted:
            self._background = None
            before = self._fleet
            self._consider(order, made)
            if self._fleet is not before:
                self._asked = None  # its fleet is obsolete
                self._go_on()

    def end(self) -> None:
        """Refuse all requests that wait."""
        waiting, self._waiting, self._asked, self._background = self._waiting, [], None, None
        for order in waiting:
            order.close(ScheduleError("the scheduler ends: ask the next one"))

    # --- orders, one after the other ---

    @property
    def _others_wait(self) -> bool:
        return bool(self._waiting) and self._waiting[0].in_vain >= PATIENT

    def _take(self, order: SchedulerCommand) -> SchedulerCommand:
        if self._others_wait or not self._done_at_once(order):
            if len(self._waiting) >= MOST_WAITING and not isinstance(order, ReleaseCommand):
                order.close(ScheduleError(f"{len(self._waiting)} others wait for a plan: ask again later"))
                return order
            self._waiting.append(order)
        self._go_on()
        return order

    def _withdraw(self, robot: str, why: str) -> bool:
        """Withdraw the waiting admissions of a robot, and return whether there were any."""
        those = [order for order in self._waiting if isinstance(order, AdmitCommand) and order.robot == robot]
        for order in those:
            if order is self._waiting[0]:
                self._asked = None
            self._waiting.remove(order)
            order.close(ScheduleError(why))
        return bool(those)

    def _go_on(self) -> None:
        """Fulfil all orders that fit the servers as they are by now; for the first that remains the whole factory is planned."""
        while self._waiting and self._asked is None:
            looked_at = self._waiting[:1] if self._others_wait else self._waiting
            done = [order for order in looked_at if self._done_at_once(order)]
            self._waiting = [order for order in self._waiting if order not in done]
            if self._waiting and self._waiting[0] in looked_at:
                self._ask_for(self._waiting[0])

    def _done_at_once(self, order: SchedulerCommand) -> bool:
        try:
            if isinstance(order, ReleaseCommand):
                self._release(order.robot)
            elif not isinstance(order, AdmitCommand) or not self._admitted(order):
                return False
        except RfmError as error:
            order.close(error)
            return True
        order.close(self.epoch)
        return True

    def _admitted(self, order: AdmitCommand) -> bool:
        """Admit a robot without moving any other, and return whether it fits. Raises: `ConfigurationError`."""
        self._check(order.robot, order.task)
        if self._fleet.task_of(order.robot) == order.task:
            self._log.info(f"{order.robot!r} is admitted for {order.task!r} already: its lease begins anew")
            self._enrol(order.robot, order.task)
            return True
        others = self._others(order.robot)
        if self.must_be_planned:
            order.why = f"{order.robot!r} comes after a plan that others need"
            return False
        if waiting := self._in_line(others, order.robot):
            order.why = f"{order.robot!r} comes after {len(waiting)} that wait for a server"
            return False
        try:
            fleet = others.admit(others.newcomer(order.robot, order.task), adjusting=False, looks=1)
        except ScheduleError as error:
            order.why = f"{order.robot!r} does not fit the placement: {error}"
            return False
        self._enrol(order.robot, order.task)
        self._change(fleet, f"admitted {order.robot!r}")
        return True

    def _release(self, robot: str) -> None:
        served = self._fleet.task_of(robot) is not None
        self._roster.release(robot)
        self.no_room.pop(robot, None)
        fleet = self._fleet.release(robot) if served else self._fleet.again()  # `Schedule.released` names one without routes
        self._change(fleet, f"released {robot!r}; no other route changes")

    def _ask_for(self, order: SchedulerCommand) -> None:
        """Request an assignment or a plan of the whole factory, or refuse the order if it is known that there is neither."""
        asked = self._whole(order)
        asked = replace(asked, hopeless=self._impossible.why(asked))
        if asked.hopeless and not (asked.first and asked.first.may_have_room):
            self._waiting.remove(order)
            order.close(ScheduleError(asked.hopeless))
            return
        self._log.info(f"{order.why}: planning the whole factory anew")
        self._asked = asked

    def _whole(self, order: SchedulerCommand) -> PlanJob:
        if isinstance(order, AdmitCommand):
            others = self._others(order.robot)
            tasks = {robot.name: robot.task for robot in self._in_line(others, order.robot)}
            robots = newcomers(others, {**tasks, order.robot: order.task})
            in_turn = not tasks and order.in_vain < PATIENT  # robots that wait for a server come before admission candidates
            first = AdmissionQuery(others, tuple(robots)) if in_turn else None
            return replace(self._order(self.factory, [*others.robots, *robots]), first=first)
        assert isinstance(order, ReplanCommand)
        factory = order.factory
        robots = [*self._fleet.robots, *self._in_line(self._fleet)]
        robots = [robot for robot in robots if robot.task in factory.tasks]
        if order.declared_anew:
            guests = self._roster.tasks.keys() - {robot.name for robot in factory.robots}
            robots = [*factory.robots, *(robot for robot in robots if robot.name in guests)]
        return self._order(factory, robots)

    # --- plans that were made ---

    def _conclude(self, order: SchedulerCommand, asked: PlanJob, made: PlanResult | AdmissionOffers | RfmError) -> None:
        if asked.epoch != self.epoch + 1 or self._out_of_date(asked, order):
            order.in_vain += 1
            self._log.info(f"the fleet changed while it was planned ({asked.epoch} would follow {self.epoch}): planning it again")
            return
        self._waiting.remove(order)
        if isinstance(made, RfmError):
            self._impossible.note(asked, made)
            if asked.first and not isinstance(made, PlannerError):
                asked.first.note_no_room(str(made))
            if isinstance(order, AdmitCommand) and not isinstance(made, PlannerError) and asked.first is None:
                made = ScheduleError(f"{made}; {order.why}")  # no assignment was searched for since
            order.close(made)
            return
        if isinstance(order, AdmitCommand):
            self._enrol(order.robot, order.task)
        if isinstance(made, AdmissionOffers):
            assert asked.first and isinstance(order, AdmitCommand)
            self._change(taken(asked.first, made), f"admitted {order.robot!r}")
        else:
            order.note = self._go_over(made, order.why)
        if asked.seen != self.seen:
            self._background = self._order(self.factory, self._fleet.robots)
        order.close(self.epoch)

    def _out_of_date(self, asked: PlanJob, order: SchedulerCommand) -> bool:
        """Return whether a result is obsolete; figures of a large factory may change faster than it is planned, so that an order
        that waited long accepts older ones."""
        return asked.seen.lost != self.seen.lost if order.in_vain >= PATIENT and not asked.first else asked.seen != self.seen
