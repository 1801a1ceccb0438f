"""Who was admitted while the factory runs, how long each was not heard, and what their words say to a scheduler that knows nobody.

Nothing of it is kept in a file: whoever is in the factory says so in its status, so that a scheduler that is started again, on this
machine or on another, finds its predecessor's robots on the graph. Robots of the descriptor are never in it.

Time comes as durations between two looks: no clock is read, and none can be set back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ros2_rfm_serving.factory import Factory, Robot
from ros2_rfm_serving.scheduler.adaptation import Fleet
from ros2_rfm_serving.scheduler.enquiry import ASKED, at_once
from ros2_rfm_serving.types import Admission

DEFAULT_LEASE_S = 60.0
LOOK_PERIOD_S = 0.5
"""Between two looks. One that comes later counts no longer: what the robots said while the scheduler was busy or stopped is not
read yet, and may not be before it is stopped again."""
MAX_REMEMBERED = 1024
"""Robots that have gone, of each kind."""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Word:
    """What a robot says of itself."""

    robot: str
    follows: int
    """A scheduler; 0: none yet."""
    admission: Admission


@dataclass(slots=True)
class _Lease:
    task: str
    inherited: bool = False
    """From another scheduler, by the robot's word."""
    follows: bool = False
    """Its robot was heard to follow this scheduler."""
    silent_s: float = 0.0


class Roster:
    """Of the scheduler `identity`. A lease is as good as new whenever its robot is heard; after `lease_s` of silence it ends."""

    def __init__(self, identity: int, lease_s: float = DEFAULT_LEASE_S) -> None:
        self.lease_s = lease_s
        self.ended = self.inherited = 0
        """Leases, since the start."""
        self._identity = identity
        self._leases: dict[str, _Lease] = {}
        self._former: dict[str, str] = {}
        """Robot -> task, of leases that ended by themselves: who comes back is admitted again."""
        self._released: dict[str, None] = {}
        """By somebody's order: what they still say of another scheduler does not count."""

    @property
    def tasks(self) -> Mapping[str, str]:
        """Robot -> task, in the order of their coming."""
        return {robot: lease.task for robot, lease in self._leases.items()}

    @property
    def released(self) -> tuple[str, ...]:
        """By somebody's order, and not known to have heard of it."""
        return tuple(self._released)

    @property
    def silences_s(self) -> Mapping[str, float]:
        return {robot: lease.silent_s for robot, lease in self._leases.items()}

    def admit(self, robot: str, task: str) -> None:
        """By somebody's order, with a new lease: also for one that is to appear."""
        self._former.pop(robot, None)
        self._released.pop(robot, None)
        self._leases[robot] = _Lease(task)

    def inherit(self, robot: str, task: str) -> None:
        """It is served by the schedule of a former scheduler: what it says of that one counts, as soon as it is heard."""
        self._leases[robot] = _Lease(task, inherited=True)
        self.inherited += 1

    def release(self, robot: str) -> None:
        self._forget(robot)
        _remember(self._released, robot, None)

    def hear(self, word: Word) -> None:
        """A sign of life. A robot that another scheduler admitted is taken over, as long as that scheduler does not release it."""
        elsewhere = word.admission.task if word.admission.scheduler != self._identity else ""
        if not elsewhere:
            self._released.pop(word.robot, None)
        if lease := self._leases.get(word.robot):
            self._renew(word, lease)
        elif word.robot in self._former:
            self._leases[word.robot] = _Lease(self._former.pop(word.robot))
        elif elsewhere and word.robot not in self._released:
            self.inherit(word.robot, elsewhere)

    def hear_elsewhere(self, word: Word) -> None:
        """Said to another scheduler, nobody knows when. That that one serves it keeps a lease which was inherited, and that it
        has released it ends that, until the robot follows this scheduler."""
        lease = self._leases.get(word.robot)
        if lease is None or not lease.inherited or lease.follows or not word.follows:
            return
        if word.admission.task:
            lease.silent_s = 0.0
        else:
            del self._leases[word.robot]

    def knows(self, robot: str) -> bool:
        """A word of it counts whatever it says: it has a lease, or had one."""
        return robot in self._leases or robot in self._former or robot in self._released

    def elapse(self, seconds: float) -> list[str]:
        """So much time has passed since the last look. Whose leases end."""
        for lease in self._leases.values():
            lease.silent_s += min(seconds, LOOK_PERIOD_S)
        ended = [robot for robot, lease in self._leases.items() if lease.silent_s >= self.lease_s]
        for robot in ended:
            lease = self._leases.pop(robot)
            if lease.follows or not lease.inherited:  # else it says itself whether it is admitted, when it follows this one
                _remember(self._former, robot, lease.task)
        self.ended += len(ended)
        return ended

    def limit_to(self, factory: Factory, present: Sequence[Robot]) -> None:
        """Another descriptor counts: robots that it declares need no lease, those that it no longer declares get one, and those of
        tasks that it lacks have been released, also where they are silent."""
        declared = {robot.name for robot in factory.robots}
        for name, task in {**self._former, **self.tasks}.items():
            if name in declared:
                self._forget(name)
            elif task not in factory.tasks:
                self.release(name)
        for robot in present:
            if robot.name not in declared and robot.name not in self._leases:
                self.admit(robot.name, robot.task)

    def _forget(self, robot: str) -> None:
        self._leases.pop(robot, None)
        self._former.pop(robot, None)

    def _renew(self, word: Word, lease: _Lease) -> None:
        lease.silent_s, lease.follows = 0.0, lease.follows or word.follows == self._identity
        if lease.inherited and word.follows not in (0, self._identity):  # then the book of that scheduler counts
            if word.admission.task:
                lease.task = word.admission.task
            else:
                del self._leases[word.robot]


def settled(
    fleet: Fleet, tasks: Mapping[str, str], declared: Container[str], *, planning: bool = False, asking: bool = False
) -> tuple[Fleet, dict[str, str]]:
    """The fleet with the robots of a roster and without those that are no longer in it, every other route as it is; and who
    finds no room on the servers as they are: robot -> why.

    planning: a plan is being made that has them. It is made anew for each that finds room before: so only a few are looked at.
    asking: they are being looked for elsewhere."""
    for robot in fleet.robots:
        if robot.name not in declared and tasks.get(robot.name) != robot.task:
            fleet = fleet.release(robot.name)
    missing = newcomers(fleet, tasks)
    if asking or (planning and len(missing) > ASKED):
        return fleet, dict.fromkeys((robot.name for robot in missing), "it comes with the plan that is being made")
    return at_once(fleet, missing)


def newcomers(fleet: Fleet, tasks: Mapping[str, str]) -> list[Robot]:
    """Robots of a roster that the fleet is without."""
    counts = Counter(robot.task for robot in fleet.robots)
    found = []
    for name, task in tasks.items():
        if fleet.task_of(name) is None:
            found.append(Robot(name=name, task=task, index=counts[task]))
            counts[task] += 1
    return found


def _remember(those: dict[str, T], robot: str, what: T) -> None:
    those[robot] = what
    if len(those) > MAX_REMEMBERED:
        del those[next(iter(those))]
