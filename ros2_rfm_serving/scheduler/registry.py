"""Registry of robots that were admitted at run time, with their leases, and recovery of it from the robots' status messages.

The registry is not kept in a file: each robot's status has its admission, so that a restarted scheduler, on this machine or on
another, finds the robots of the former one on the ROS graph. Robots of the descriptor are never in the registry. Time is passed as
durations between two polls: no clock is read, and none can be set back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ros2_rfm_serving.factory import Factory, RobotEntry
from ros2_rfm_serving.scheduler.active_fleet import ActiveFleet
from ros2_rfm_serving.scheduler.admission_query import ASKED, at_once
from ros2_rfm_serving.types import AdmissionRecord

DEFAULT_LEASE_S = 60.0
LOOK_PERIOD_S = 0.5
"""Time between two polls. A later poll counts no longer than this: messages that robots sent while the scheduler was busy or
stopped are not read yet, and may not be before it is stopped again."""
MAX_REMEMBERED = 1024
"""Largest number of remembered former robots, of each kind."""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RobotClaim:
    """Status that a robot reports of itself."""

    robot: str
    follows: int
    """Identity of the scheduler that it follows; 0: none yet."""
    admission: AdmissionRecord


@dataclass(slots=True)
class _Lease:
    task: str
    inherited: bool = False
    """Whether it is from another scheduler, by the robot's status."""
    follows: bool = False
    """Whether the robot has reported that it follows this scheduler."""
    silent_s: float = 0.0


class RobotRegistry:
    """Registry of the scheduler `identity`. Each status of a robot renews its lease; after `lease_s` of silence the lease ends."""

    def __init__(self, identity: int, lease_s: float = DEFAULT_LEASE_S) -> None:
        self.lease_s = lease_s
        self.ended = self.inherited = 0
        """Number of leases since the start."""
        self._identity = identity
        self._leases: dict[str, _Lease] = {}
        self._former: dict[str, str] = {}
        """Robot -> task, for leases that expired: a robot that returns is admitted again."""
        self._released: dict[str, None] = {}
        """Robots released by an operator: their later reports on another scheduler do not count."""

    @property
    def tasks(self) -> Mapping[str, str]:
        """Return robot -> task, in the order of admission."""
        return {robot: lease.task for robot, lease in self._leases.items()}

    @property
    def released(self) -> tuple[str, ...]:
        """Return robots that an operator released and that are not known to have received it."""
        return tuple(self._released)

    @property
    def silences_s(self) -> Mapping[str, float]:
        return {robot: lease.silent_s for robot, lease in self._leases.items()}

    def admit(self, robot: str, task: str) -> None:
        """Admit a robot by an operator's request with a new lease, also one that is yet to appear."""
        self._former.pop(robot, None)
        self._released.pop(robot, None)
        self._leases[robot] = _Lease(task)

    def inherit(self, robot: str, task: str) -> None:
        """Add a robot that a former scheduler's schedule serves; its status on that scheduler counts from its first message on."""
        self._leases[robot] = _Lease(task, inherited=True)
        self.inherited += 1

    def release(self, robot: str) -> None:
        self._forget(robot)
        _remember(self._released, robot, None)

    def hear(self, word: RobotClaim) -> None:
        """Renew a lease by a status. A robot of another scheduler is adopted, unless that scheduler has released it."""
        elsewhere = word.admission.task if word.admission.scheduler != self._identity else ""
        if not elsewhere:
            self._released.pop(word.robot, None)
        if lease := self._leases.get(word.robot):
            self._renew(word, lease)
        elif word.robot in self._former:
            self._leases[word.robot] = _Lease(self._former.pop(word.robot))
        elif elsewhere and word.robot not in self._released:
            self.inherit(word.robot, elsewhere)

    def hear_elsewhere(self, word: RobotClaim) -> None:
        """Process a status to another scheduler, of unknown age. While that one serves the robot, an inherited lease is renewed;
        its release ends the lease, until the robot follows this scheduler."""
        lease = self._leases.get(word.robot)
        if lease is None or not lease.inherited or lease.follows or not word.follows:
            return
        if word.admission.task:
            lease.silent_s = 0.0
        else:
            del self._leases[word.robot]

    def knows(self, robot: str) -> bool:
        """Return whether any status of the robot counts: it has a lease, or had one."""
        return robot in self._leases or robot in self._former or robot in self._released

    def elapse(self, seconds: float) -> list[str]:
        """Advance time since the last poll, and return robots whose leases end."""
        for lease in self._leases.values():
            lease.silent_s += min(seconds, LOOK_PERIOD_S)
        ended = [robot for robot, lease in self._leases.items() if lease.silent_s >= self.lease_s]
        for robot in ended:
            lease = self._leases.pop(robot)
            if lease.follows or not lease.inherited:  # otherwise its next status shows whether it is admitted
                _remember(self._former, robot, lease.task)
        self.ended += len(ended)
        return ended

    def limit_to(self, factory: Factory, present: Sequence[RobotEntry]) -> None:
        """Apply another descriptor: robots that it declares need no lease, those that it no longer declares get one, and those of
        tasks that it lacks are released, also silent ones."""
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

    def _renew(self, word: RobotClaim, lease: _Lease) -> None:
        lease.silent_s, lease.follows = 0.0, lease.follows or word.follows == self._identity
        if lease.inherited and word.follows not in (0, self._identity):  # then the record of that scheduler counts
            if word.admission.task:
                lease.task = word.admission.task
            else:
                del self._leases[word.robot]


def settled(
    fleet: ActiveFleet, tasks: Mapping[str, str], declared: Container[str], *, planning: bool = False, asking: bool = False
) -> tuple[ActiveFleet, dict[str, str]]:
    """Return the fleet with the robots of a registry and without released ones, with all other routes as they are; and robot ->
    reason for those that do not fit the servers as they are.
    planning: a plan with them is being made. Each admission before makes it obsolete, so that only a few are tried.
    asking: an assignment for them is being searched elsewhere.
    """
    for robot in fleet.robots:
        if robot.name not in declared and tasks.get(robot.name) != robot.task:
            fleet = fleet.release(robot.name)
    missing = newcomers(fleet, tasks)
    if asking or (planning and len(missing) > ASKED):
        return fleet, dict.fromkeys((robot.name for robot in missing), "it comes with the plan that is being made")
    return at_once(fleet, missing)


def newcomers(fleet: ActiveFleet, tasks: Mapping[str, str]) -> list[RobotEntry]:
    """Return robots of a registry that are not in the fleet."""
    counts = Counter(robot.task for robot in fleet.robots)
    found = []
    for name, task in tasks.items():
        if fleet.task_of(name) is None:
            found.append(RobotEntry(name=name, task=task, index=counts[task]))
            counts[task] += 1
    return found


def _remember(those: dict[str, T], robot: str, what: T) -> None:
    those[robot] = what
    if len(those) > MAX_REMEMBERED:
        del those[next(iter(those))]
