"""The factory, its robots and the schedule in force: from one schedule to the next (ROSA §3.4.4).

What fits the servers as they are is done at once. What does not waits for a plan of the whole factory, which the body makes
elsewhere (`wanted`) and hands back (`planned`); comings and goings go on meanwhile. A plan of a fleet that has changed since is
refused and made again; after `PATIENT` of those, everybody else waits, so that whoever asks has an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from ros2_rfm_serving.errors import ConfigurationError, PlannerError, RfmError, ScheduleError
from ros2_rfm_serving.factory import Factory, Robot
from ros2_rfm_serving.scheduler.adaptation import Fleet
from ros2_rfm_serving.scheduler.orders import Admit, Order, Release, Replan
from ros2_rfm_serving.scheduler.planned import Planned, PlanOrder
from ros2_rfm_serving.scheduler.planning import Refit
from ros2_rfm_serving.scheduler.promises import broken
from ros2_rfm_serving.scheduler.repair import seeing
from ros2_rfm_serving.scheduler.roster import Roster, newcomers, settled
from ros2_rfm_serving.scheduler.seen import Seen
from ros2_rfm_serving.scheduler.standby import uncovered
from ros2_rfm_serving.scheduler.watch import Finding
from ros2_rfm_serving.types import Schedule

PATIENT = 2
"""Plans in vain for one order before the others wait for it."""


class Log(Protocol):
    def info(self, message: str) -> Any: ...
    def warning(self, message: str) -> Any: ...


class Book(Protocol):
    """Hears of every schedule, and why, before it is published."""

    def planned(self, planned: Planned, reason: str, *, background: bool = False, published: bool = True) -> None: ...
    def changed(self, before: Fleet, after: Fleet, reason: str) -> None: ...
    def saw(self, finding: Finding, after: Fleet) -> None: ...


class InForce:
    """Whatever changes is published at once. What is refused has changed nothing."""

    def __init__(self, first: Planned, roster: Roster, publish: Callable[[Schedule, str], None], log: Log, book: Book) -> None:
        """publish: takes a schedule and the name of its factory."""
        self.policy = first.policy
        """Of the next plan."""
        self.no_room: dict[str, str] = {}
        """Robots of the roster that no schedule serves: why."""
        self._roster, self._publish_it, self._log, self._book = roster, publish, log, book
        self._waiting: list[Order] = []
        """For a plan of the whole factory, which is made for the first of them."""
        self._stranded: dict[str, str] = {}
        """Declared robots whose server was lost and that no other one took: robot -> task."""
        self.seen: Seen = first.seen
        """What plans are made with, beside the descriptor and the profiles."""
        self._asked: PlanOrder | None = None
        self._background: PlanOrder | None = None
        self._tried: tuple[object, ...] = ()
        """Beside which schedule, and for whom, room was to be made last."""
        self._impossible: dict[object, str] = {}
        """Fleets of this factory that could not be planned: why. The same input gives the same answer."""
        self._uncovered: tuple[str, ...] = ()
        self._fleet = first.fleet
        self._run(first.factory)
        book.planned(first, "the scheduler began")
        self._publish(first.fleet)

    @property
    def epoch(self) -> int:
        return self._fleet.schedule.epoch

    @property
    def fleet(self) -> Fleet:
        return self._fleet

    @property
    def wanted(self) -> PlanOrder | None:
        """What is to be planned and handed to `planned`; nothing else is any more."""
        return self._asked or self._background

    # --- by somebody's order. Raises: `RfmError` for what is refused at once ---

    def admit(self, robot: str, task: str) -> Order:
        """The same robot again changes nothing but its lease; for another task it is another admission."""
        self._check(robot, task)
        for order in self._waiting:
            if isinstance(order, Admit) and (order.robot, order.task) == (robot, task):
                return order
        self._withdraw(robot, f"{robot!r} asks for {task!r} now")
        return self._take(Admit(robot=robot, task=task))

    def release(self, robot: str) -> Order:
        waited = self._withdraw(robot, f"{robot!r} was released while it waited")
        waited |= self._stranded.pop(robot, None) is not None
        if not waited and self._fleet.task_of(robot) is None and robot not in self._roster.tasks:
            raise ConfigurationError(f"robot {robot!r} is not in the factory")
        return self._take(Release(robot=robot))

    def replan(self, factory: Factory, *, declared_anew: bool) -> Order:
        """declared_anew: with this descriptor come its robots, beside those that were admitted; otherwise those of now stay."""
        why = f"replanned{f' for {Path(factory.file).name}' if declared_anew else ''} by somebody's order"
        return self._take(Replan(factory=factory, declared_anew=declared_anew, why=why))

    # --- by itself ---

    def settle(self) -> None:
        """The schedule follows the roster: leases end, and robots that a former scheduler admitted are found."""
        if self._others_wait:
            return
        fleet, self.no_room = settled(self._fleet, self._expected, self.declared)
        if fleet is not self._fleet:
            self._change(fleet, f"beside the robots of the descriptor: {', '.join(self._roster.tasks) or 'none'}")
        attempt = (self.epoch, *self.no_room)
        if self.no_room and attempt != self._tried:
            self._tried = attempt
            self._log.warning("; ".join(dict.fromkeys(self.no_room.values())) + ": planning the whole factory anew")
            self._background = self._order(self.factory, [*fleet.robots, *newcomers(fleet, self._expected)])

    def see(self, finding: Finding, refit: Refit) -> None:
        """The factory is not as it was planned for. What must change at once does, without a solver; whether another plan is
        needed, or would be worth it, is looked at in the background."""
        factory, before = self.factory, self._fleet
        fleet, refused = seeing(before, factory, finding.seen, finding.lost, finding.back, refit)
        self.seen, self._tried = finding.seen, ()
        self._impossible.clear()
        self._stranded |= {robot: self.declared[robot] for robot in refused if robot in self.declared}
        self._log.warning(f"{finding.words}{''.join(f'; {why}' for why in dict.fromkeys(refused.values()))}")
        self._book.saw(finding, fleet)
        if fleet.schedule is before.schedule:
            self._fleet = fleet
        else:
            self._publish(fleet)
        robots = [*fleet.robots, *newcomers(fleet, self._expected)]
        needed = bool(refused or broken(fleet))
        self._background = self._order(factory, robots, needed=needed) if robots else None

    def planned(self, order: PlanOrder, made: Planned | RfmError) -> None:
        """What became of an order. One that is not wanted any more changes nothing."""
        if order is self._asked:
            self._asked = None
            self._conclude(self._waiting[0], order, made)
            self._go_on()
        elif order is self.wanted:
            self._background = None
            self._consider(order, made)

    def end(self) -> None:
        """Whoever waits is refused."""
        waiting, self._waiting, self._asked, self._background = self._waiting, [], None, None
        for order in waiting:
            order.close(ScheduleError("the scheduler ends: ask the next one"))

    # --- orders, one after the other ---

    @property
    def _others_wait(self) -> bool:
        return bool(self._waiting) and self._waiting[0].in_vain >= PATIENT

    def _take(self, order: Order) -> Order:
        if self._others_wait or not self._done_at_once(order):
            self._waiting.append(order)
        self._go_on()
        return order

    def _withdraw(self, robot: str, why: str) -> bool:
        """Whether it waited."""
        those = [order for order in self._waiting if isinstance(order, Admit) and order.robot == robot]
        for order in those:
            if order is self._waiting[0]:
                self._asked = None
            self._waiting.remove(order)
            order.close(ScheduleError(why))
        return bool(those)

    def _go_on(self) -> None:
        """What the servers as they are have room for by now; for the first that remains the whole factory is planned."""
        while self._waiting and self._asked is None:
            looked_at = self._waiting[:1] if self._others_wait else self._waiting
            done = [order for order in looked_at if self._done_at_once(order)]
            self._waiting = [order for order in self._waiting if order not in done]
            if self._waiting and self._waiting[0] in looked_at:
                self._ask_for(self._waiting[0])

    def _done_at_once(self, order: Order) -> bool:
        try:
            if isinstance(order, Release):
                self._release(order.robot)
            elif not isinstance(order, Admit) or not self._admitted(order):
                return False
        except RfmError as error:
            order.close(error)
            return True
        order.close(self.epoch)
        return True

    def _admitted(self, order: Admit) -> bool:
        """Without any other robot's leaving its server. Raises: `ConfigurationError`."""
        self._check(order.robot, order.task)
        if self._fleet.task_of(order.robot) == order.task:
            self._log.info(f"{order.robot!r} is admitted for {order.task!r} already: its lease begins anew")
        else:
            others = self._others(order.robot)
            try:
                fleet = others.admit(others.newcomer(order.robot, order.task))
            except ScheduleError as error:
                order.why = f"{order.robot!r} does not fit the placement: {error}"
                return False
            self._change(fleet, f"admitted {order.robot!r}")
        self._enrol(order)
        return True

    def _release(self, robot: str) -> None:
        served = self._fleet.task_of(robot) is not None
        self._roster.release(robot)
        self.no_room.pop(robot, None)
        fleet = self._fleet.release(robot) if served else self._fleet.again()  # for one without routes it says so in words
        self._change(fleet, f"released {robot!r}; no other route changes")

    def _ask_for(self, order: Order) -> None:
        """A plan of the whole factory, unless there is none for such a fleet."""
        asked = self._whole(order)
        if why := self._impossible.get(_kind(asked)) if asked.factory is self.factory else None:
            self._waiting.remove(order)
            order.close(ScheduleError(why))
            return
        self._log.info(f"{order.why}: planning the whole factory anew")
        self._asked = asked

    def _whole(self, order: Order) -> PlanOrder:
        if isinstance(order, Admit):
            others = self._others(order.robot)
            return self._order(self.factory, [*others.robots, others.newcomer(order.robot, order.task)])
        assert isinstance(order, Replan)
        factory = order.factory
        robots = [robot for robot in self._fleet.robots if robot.task in factory.tasks]
        if order.declared_anew:
            guests = self._roster.tasks.keys() - {robot.name for robot in factory.robots}
            robots = [*factory.robots, *(robot for robot in robots if robot.name in guests)]
        return self._order(factory, robots)

    # --- plans that were made ---

    def _conclude(self, order: Order, asked: PlanOrder, made: Planned | RfmError) -> None:
        if asked.epoch != self.epoch + 1 or asked.seen != self.seen:
            order.in_vain += 1
            self._log.info(f"the fleet changed while it was planned ({asked.epoch} would follow {self.epoch}): planning it again")
            return
        self._waiting.remove(order)
        if isinstance(made, RfmError):
            self._note_impossible(asked, made)
            order.close(made)
            return
        self._go_over(made, order.why)
        if isinstance(order, Admit):
            self._enrol(order)
        order.close(self.epoch)

    def _consider(self, order: PlanOrder, made: Planned | RfmError) -> None:
        """Goes over to a plan that nobody asked for if it is worth it."""
        if isinstance(made, RfmError):
            self._note_impossible(order, made)
            self._log.warning(f"the factory could not be planned anew: {made}")
            return
        if order.epoch != self.epoch + 1:
            return
        migration = self._fleet.migration_to(made.fleet.schedule)
        published = order.needed or migration.worth_it
        told = (
            f"another schedule would gain {migration.gained_actions:.0f} actions and lose {migration.lost_actions:.0f} "
            f"({len(migration.moved_servers)} servers and {len(migration.moved_robots)} robots move): "
            + ("published" if published else "not worth it")
        )
        self._log.info(told)
        self._book.planned(made, told, background=True, published=published)
        if published:
            self._publish(made.fleet)

    def _note_impossible(self, order: PlanOrder, why: RfmError) -> None:
        """The same input gives the same answer, unless the planner failed."""
        if isinstance(why, ScheduleError) and not isinstance(why, PlannerError) and order.factory is self.factory:
            self._impossible[_kind(order)] = str(why)

    # --- parts ---

    def _run(self, factory: Factory) -> None:
        self.factory = factory
        self.declared = {robot.name: robot.task for robot in factory.robots}
        """Robot -> task."""
        self._impossible.clear()
        self._stranded = {}

    @property
    def _expected(self) -> dict[str, str]:
        """Robot -> task, of those that are to be served beside the ones that are."""
        self._stranded = {robot: task for robot, task in self._stranded.items() if self._fleet.task_of(robot) is None}
        return {**self._stranded, **self._roster.tasks}

    def _check(self, name: str, task: str) -> None:
        if task not in self.factory.tasks:
            raise ConfigurationError(f"no task {task!r}; there are: {', '.join(self.factory.tasks)}")
        if (declared := self.declared.get(name, task)) != task:
            fix = "change the descriptor and call replan, or choose another name"
            raise ConfigurationError(
                f"robot {name!r} is declared for {declared!r}, not for {task!r}", file=self.factory.file, fix=fix
            )

    def _others(self, robot: str) -> Fleet:
        return self._fleet if self._fleet.task_of(robot) is None else self._fleet.release(robot)

    def _enrol(self, order: Admit) -> None:
        if order.robot not in self.declared:
            self._roster.admit(order.robot, order.task)

    def _order(self, factory: Factory, robots: Iterable[Robot], *, needed: bool = True) -> PlanOrder:
        previous = self._fleet.schedule
        return PlanOrder(
            factory=factory, robots=tuple(robots), policy=self.policy, previous=previous, needed=needed, seen=self.seen
        )

    def _change(self, fleet: Fleet, what: str) -> None:
        """A local one; whether another schedule would be worth it is looked at in the background."""
        self._log.info(what)
        self._book.changed(self._fleet, fleet, what)
        self._publish(fleet)
        self._background = self._order(self.factory, fleet.robots, needed=False) if fleet.robots else None

    def _go_over(self, planned: Planned, why: str) -> None:
        """To a plan of the whole factory."""
        self._background = None
        self._run(planned.factory)
        self._roster.limit_to(planned.factory, planned.fleet.robots)
        self._book.planned(planned, why)
        self._publish(planned.fleet)

    def _publish(self, fleet: Fleet) -> None:
        self._fleet = fleet
        if fleet.uncovered != self._uncovered:
            self._uncovered = fleet.uncovered
            self._log.info(uncovered(fleet.uncovered) if fleet.uncovered else "a standby covers the loss of any server")
        self._publish_it(fleet.schedule, self.factory.name)


def _kind(order: PlanOrder) -> object:
    """Robots of a task are alike."""
    return order.policy, frozenset(Counter(robot.task for robot in order.robots).items())
