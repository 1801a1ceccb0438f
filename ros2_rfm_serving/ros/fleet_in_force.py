"""The factory, its robots and the schedule in force: from one schedule to the next, for the scheduler node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ros2_rfm_serving.audit.schedulers.book import Book
from ros2_rfm_serving.errors import ConfigurationError, RfmError, ScheduleError
from ros2_rfm_serving.factory import Factory, Robot, load_factory
from ros2_rfm_serving.ros.planner import Planner
from ros2_rfm_serving.scheduler import Fleet, Roster, newcomers, settled
from ros2_rfm_serving.types import Schedule


class FleetInForce:
    """Whatever changes is published at once. What raises `RfmError` has changed nothing."""

    def __init__(
        self, file: Path, planner: Planner, roster: Roster, publish: Callable[[Schedule, str], None], log: Any, book: Book
    ) -> None:
        """publish: takes a schedule and the name of its factory. book: hears of every schedule, and why. Raises: `RfmError`."""
        self._run(load_factory(file))
        self.no_room: dict[str, str] = {}
        """Robots of the roster that no schedule serves: why."""
        self._file, self._planner, self._roster, self._publish_it, self._log = file, planner, roster, publish, log
        self._book = book
        self._tried: tuple[object, ...] = ()
        """Beside which schedule, and for whom, room was to be made last."""
        planned = planner.plan(self.factory, self.factory.robots)
        book.planned(planned, "the scheduler began")
        self._publish(planned.fleet)

    @property
    def epoch(self) -> int:
        return self._fleet.schedule.epoch

    # --- by somebody's order ---

    def admit(self, name: str, task: str) -> None:
        """The same robot again changes nothing but its lease; for another task it is another admission."""
        self._check(name, task)
        now, others = self._fleet.task_of(name), self._fleet
        if now == task:
            self._log.info(f"{name!r} is admitted for {task!r} already: its lease begins anew")
        else:
            others = others if now is None else others.release(name)
            self._add(others.newcomer(name, task), others)
        if name not in self.declared:
            self._roster.admit(name, task)

    def release(self, name: str) -> None:
        served = self._fleet.task_of(name) is not None
        if not served and name not in self._roster.tasks:
            raise ConfigurationError(f"robot {name!r} is not in the factory")
        self._roster.release(name)
        self.no_room.pop(name, None)
        fleet = self._fleet.release(name) if served else self._fleet.again()  # for one without routes it says so in words
        self._change(fleet, f"released {name!r}; no other route changes")

    def replan(self, file: Path | None) -> None:
        """With another descriptor come its robots, beside those that were admitted; without one it is read again, and those of now
        stay."""
        file_now = file or self._file
        factory = load_factory(file_now)
        robots = [robot for robot in self._fleet.robots if robot.task in factory.tasks]
        if file:
            guests = self._roster.tasks.keys() - {robot.name for robot in factory.robots}
            robots = [*factory.robots, *(robot for robot in robots if robot.name in guests)]
        self._go_over(factory, robots, f"replanned{f' for {file.name}' if file else ''} by somebody's order")
        self._file = file_now

    # --- by itself ---

    def settle(self) -> None:
        """The schedule follows the roster: leases end, and robots that a former scheduler admitted are found."""
        fleet, self.no_room = settled(self._fleet, self._roster.tasks, self.declared)
        if fleet is not self._fleet:
            self._change(fleet, f"beside the robots of the descriptor: {', '.join(self._roster.tasks) or 'none'}")
        attempt = (self.epoch, *self.no_room)
        if self.no_room and attempt != self._tried:
            self._tried = attempt
            self._log.warning("; ".join(self.no_room.values()) + ": planning the whole factory anew")
            robots = [*fleet.robots, *newcomers(fleet, self._roster.tasks)]
            self._planner.begin(self.factory, robots, fleet.schedule, needed=True)

    def take_background(self) -> None:
        """Goes over to the schedule planned in the background if it is still of this fleet, and worth it."""
        try:
            made = self._planner.take()
        except RfmError as error:
            self._log.warning(f"the factory could not be planned anew: {error}")
            return
        if made is None or made[0].fleet.schedule.epoch != self.epoch + 1:
            return
        planned, needed = made
        fleet = planned.fleet
        migration = self._fleet.migration_to(fleet.schedule)
        published = needed or migration.worth_it
        told = (
            f"another schedule would gain {migration.gained_actions:.0f} actions and lose {migration.lost_actions:.0f} "
            f"({len(migration.moved_servers)} servers and {len(migration.moved_robots)} robots move): "
            + ("published" if published else "not worth it")
        )
        self._log.info(told)
        self._book.planned(planned, told, background=True, published=published)
        if published:
            self._publish(fleet)

    # --- parts ---

    def _run(self, factory: Factory) -> None:
        self.factory = factory
        self.declared = {robot.name: robot.task for robot in factory.robots}
        """Robot -> task."""

    def _check(self, name: str, task: str) -> None:
        if task not in self.factory.tasks:
            raise ConfigurationError(f"no task {task!r}; there are: {', '.join(self.factory.tasks)}")
        if (declared := self.declared.get(name, task)) != task:
            fix = "change the descriptor and call replan, or choose another name"
            raise ConfigurationError(
                f"robot {name!r} is declared for {declared!r}, not for {task!r}", file=self.factory.file, fix=fix
            )

    def _add(self, robot: Robot, others: Fleet) -> None:
        try:
            self._change(others.admit(robot), f"admitted {robot.name!r}; no other route changes")
        except ScheduleError as error:
            self._log.info(f"{robot.name!r} does not fit the placement ({error}): planning the whole factory anew")
            self._go_over(self.factory, [*others.robots, robot], f"{robot.name!r} does not fit the placement: {error}")

    def _change(self, fleet: Fleet, what: str) -> None:
        """A local one; whether another schedule would be worth it is looked at in the background."""
        self._log.info(what)
        self._book.changed(self._fleet, fleet, what)
        self._publish(fleet)
        if fleet.robots:
            self._planner.begin(self.factory, fleet.robots, fleet.schedule)

    def _go_over(self, factory: Factory, robots: list[Robot], why: str) -> None:
        """To a plan of the whole factory."""
        planned = self._planner.plan(factory, robots, self._fleet.schedule)
        fleet = planned.fleet
        self._planner.forget()
        self._run(factory)
        self._roster.limit_to(factory, fleet.robots)
        self._book.planned(planned, why)
        self._publish(fleet)

    def _publish(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._publish_it(fleet.schedule, self.factory.name)
