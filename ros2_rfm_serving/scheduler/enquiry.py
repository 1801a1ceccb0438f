"""How much is looked at for newcomers, and where: whoever decides must not keep everybody else waiting.

At once one look at robots' own queues is had, 20 to 50 ms at 256 GPUs. Whoever finds no room so has all looks
that there are, and others may make room for it, in the process that plans. What it found is done in a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import Robot
from ros2_rfm_serving.scheduler.adaptation import Fleet
from ros2_rfm_serving.scheduler.admission import LOOKS
from ros2_rfm_serving.scheduler.room import Room

AT_ONCE, ASKED = 1, 16
"""Looks at queues in one go; and robots that are looked at elsewhere."""
WITHOUT = 0.25
"""Of a look, for a robot whom curves alone let in."""
FEW_SERVERS = 16
"""Up to so many it is as little work to make room for several robots."""


class Enquiry(NamedTuple):
    """Is there room for some of these, in this order?"""

    fleet: Fleet
    robots: tuple[Robot, ...]

    @property
    def may_have_room(self) -> bool:
        """It is not known yet that there is none for the first."""
        return not self.fleet.has_no_room(self.robots[0].task, adjusting=True, looks=LOOKS)

    def note_no_room(self, why: str) -> None:
        """For the first, as was found elsewhere."""
        self.fleet.note_no_room(self.robots[0].task, why, adjusting=True, looks=LOOKS)


class Rooms(NamedTuple):
    """There is, for these: each in the fleet with those before it."""

    found: tuple[tuple[Robot, Room], ...]


def at_once(fleet: Fleet, robots: Sequence[Robot]) -> tuple[Fleet, dict[str, str]]:
    """With some more robots, as far as that is little work; and who finds no room on the servers as they are: robot -> why."""
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


def rooms(enquiry: Enquiry) -> Rooms:
    """For at least one of them; several have one look each. Raises: `ScheduleError`, with why there is none for the first."""
    fleet, robots = enquiry
    adjusting, looks = len(robots) == 1 or len(fleet.hosts) <= FEW_SERVERS, LOOKS if len(robots) == 1 else 1
    found: list[tuple[Robot, Room]] = []
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
    return Rooms(tuple(found))


def taken(enquiry: Enquiry, answer: Rooms) -> Fleet:
    fleet = enquiry.fleet
    for robot, room in answer.found:
        fleet = fleet.taking(robot, room)
    return fleet
