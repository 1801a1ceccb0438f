"""Budget of queue evaluations for admissions: one decision must not delay all other requests.

The immediate path makes one queue evaluation, 20 to 50 ms at 256 GPUs. A robot that does not fit by that gets the full number of
evaluations in the planning process, where others may be adjusted as well. Applying its result is quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import RobotEntry
from ros2_rfm_serving.scheduler.active_fleet import ActiveFleet
from ros2_rfm_serving.scheduler.admission import LOOKS
from ros2_rfm_serving.scheduler.admission_offer import AdmissionOffer

AT_ONCE, ASKED = 1, 16
"""Queue evaluations of one immediate decision; and robots per query to the planning process."""
WITHOUT = 0.25
"""Cost of an admission by curves alone, in queue evaluations."""
FEW_SERVERS = 16
"""Largest number of servers at which an adjustment for several robots is as cheap as for one."""


class AdmissionQuery(NamedTuple):
    """Admission query: which of these robots fit, in this order."""

    fleet: ActiveFleet
    robots: tuple[RobotEntry, ...]

    @property
    def may_have_room(self) -> bool:
        """Return whether it is not yet known that the first robot does not fit."""
        return not self.fleet.has_no_room(self.robots[0].task, adjusting=True, looks=LOOKS)

    def note_no_room(self, why: str) -> None:
        """Record that the first robot does not fit, as the planning process found."""
        self.fleet.note_no_room(self.robots[0].task, why, adjusting=True, looks=LOOKS)


class AdmissionOffers(NamedTuple):
    """Answer to an admission query: assignments, each valid in the fleet with those before it."""

    found: tuple[tuple[RobotEntry, AdmissionOffer], ...]


def at_once(fleet: ActiveFleet, robots: Sequence[RobotEntry]) -> tuple[ActiveFleet, dict[str, str]]:
    """Return the fleet with the robots that fit by little work, and robot -> reason for the others."""
    refused, looks = dict[str, str](), 0.0
    for robot in robots:
        if looks >= AT_ONCE and not fleet.has_no_room(robot.task, adjusting=False, looks=1):
            refused[robot.name] = "others come before it: room is looked for elsewhere"
            continue
        before, looked = fleet, fleet.looked
        try:
            fleet = fleet.admit(robot, adjusting=False, looks=1)
        except ScheduleError as error:
            refused[robot.name] = str(error)
        looks += max(before.looked - looked, WITHOUT * (fleet is not before))
    return fleet, refused


def rooms(enquiry: AdmissionQuery) -> AdmissionOffers:
    """Return assignments for at least one robot; several get one evaluation each. Raises: `ScheduleError` if none fits."""
    fleet, robots = enquiry
    adjusting, looks = len(robots) == 1 or len(fleet.hosts) <= FEW_SERVERS, LOOKS if len(robots) == 1 else 1
    found: list[tuple[RobotEntry, AdmissionOffer]] = []
    refused: ScheduleError | None = None
    for robot in robots[:ASKED]:
        try:
            room = fleet.room(robot, adjusting=adjusting, looks=looks)
        except ScheduleError as error:
            refused = refused or error
            continue
        fleet = fleet.taking(robot, room)
        found.append((robot, room))
    if refused and not found:
        raise refused
    return AdmissionOffers(tuple(found))


def taken(enquiry: AdmissionQuery, answer: AdmissionOffers) -> ActiveFleet:
    fleet = enquiry.fleet
    for robot, room in answer.found:
        fleet = fleet.taking(robot, room)
    return fleet
