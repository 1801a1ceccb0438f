"""Every pair of causes at once: both are named, the graver first, unless one is declared to explain the other."""

from __future__ import annotations

import copy
import functools
import itertools
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from ros2_rfm_serving.monitoring.findings.causes import CAUSES, findings
from ros2_rfm_serving.monitoring.findings.finding import FACTORY
from ros2_rfm_serving.monitoring.findings.look import HeardSchedule, Look
from ros2_rfm_serving.types.process_problems import CERTIFICATE_INVALID, CERTIFICATE_WARNING, LOG_DISK_SILENT

from .test_findings import ROBOTS, SEEN, SERVER, camera, caused, healthy, of_process, says, silent_server

PLACE = {cause.name: place for place, cause in enumerate(CAUSES)}
EXPLAINED = {cause.name: cause.explains for cause in CAUSES}
MAKES = {cause.name: [spoil for spoil, expected in SEEN if [name for name, _ in expected] == [cause.name]] for cause in CAUSES}
"""Cause -> what makes it alone, in several ways."""
SECOND = {"arm_1": "arm_3", "arm_2": "arm_4", "server_1": "server_2", "guest": "visitor"}
"""Names of a second cell of the same factory."""
EXCLUSIVE = {
    frozenset(pair)
    for pair in (
        ("server gone", "model not loaded"),  # a server that is silent reports no state
        ("model not loaded", "hung engine"),  # one state at a time
        ("robot gone", "robot waits for a person"),  # a robot that is silent does not say that it waits
        ("drifted profile", "no task"),  # a robot without a task asks for nothing
        ("overloaded server", "no task"),
        ("lossy network", "no task"),
        ("no task", "no monitor"),
        ("scheduler gone", "no monitor"),  # the schedule says whether there is a monitor
        ("scheduler gone", "not in the schedule"),
    )
}
"""Causes that one server or robot cannot have at once."""


ONE_SCHEDULE = {
    frozenset(pair)
    for pair in (
        ("scheduler gone", "no monitor"),
        ("scheduler gone", "not in the schedule"),
        ("server gone", "not in the schedule"),  # a robot without a route may have lost that server
    )
}
"""Causes that two cells cannot have at once: they share one schedule."""


PAIRS = [pair for pair in itertools.combinations(MAKES, 2) if frozenset(pair) not in EXCLUSIVE]


def renamed(value: Any, names: dict[str, str]) -> Any:
    """Return a copy in which every text has the names of another cell."""
    if isinstance(value, str):
        for old, new in names.items():
            value = value.replace(old, new)
        return value
    if isinstance(value, dict):
        return {renamed(key, names): renamed(one, names) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(renamed(one, names) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        for part in fields(value):
            object.__setattr__(made, part.name, renamed(getattr(value, part.name), names))
        return made
    return value


@functools.cache
def cell(cause: str, *, is_second: bool = False) -> Look:
    """Return a look at one cell with one trouble."""
    look = healthy()
    MAKES[cause][0](look)
    return renamed(look, SECOND) if is_second else look


def both_cells(first: str, second: str) -> Look:
    """Return a look at two cells of one factory, each with a trouble of its own."""
    one, other = cell(first), cell(second, is_second=True)
    shared = [name for name in one.diagnoses.keys() & other.diagnoses.keys() if told(one, name) > told(other, name)]
    return replace(
        one,
        robots=one.robots | other.robots,
        servers=one.servers | other.servers,
        clocks_s=one.clocks_s | other.clocks_s,
        diagnoses=one.diagnoses | other.diagnoses | {name: one.diagnoses[name] for name in shared},
        disk=min((one.disk, other.disk), key=lambda disk: disk.free_bytes if disk else 0),
        schedules=merged(one.schedules, other.schedules),
        ended_s=max(one.ended_s, other.ended_s),
    )


def told(look: Look, name: str) -> tuple[int, int]:
    """How much a status tells that both cells have, as the scheduler's."""
    return max(one.level for one in look.diagnoses[name]), len(look.diagnoses[name][-1].process_problems)


def merged(first: list[HeardSchedule], second: list[HeardSchedule]) -> list[HeardSchedule]:
    """Return the schedules of both cells as one factory's: none where one cell has none, and the rivals of either."""
    if not first or not second:
        return []
    found = {(one.schedule.scheduler, one.heard_s): one for one in second}
    for one in first:
        key = (one.schedule.scheduler, one.heard_s)
        if same := found.get(key):
            placements = one.schedule.placements + same.schedule.placements
            schedule = replace(one.schedule, placements=placements, routes=one.schedule.routes + same.schedule.routes)
            found[key] = replace(one, schedule=schedule)
        else:
            found[key] = one
    return sorted(found.values(), key=lambda one: one.heard_s)


def named(look: Look) -> set[tuple[str, str]]:
    """Return (cause, robot or server) of all that findings are about or concern: processes with one problem share a finding."""
    return {(one.cause, name) for one in findings(look) for name in (one.about, *one.concerns)}


def in_order(found: list[tuple[str, str]]) -> bool:
    places = [PLACE[cause] for cause, _ in found]
    return places == sorted(places)


def test_every_cause_is_made_alone_by_something() -> None:
    assert all(MAKES.values()), [cause for cause, spoils in MAKES.items() if not spoils]


def test_causes_are_in_the_order_of_their_severity() -> None:
    assert [cause.severity for cause in CAUSES] == sorted(cause.severity for cause in CAUSES)


@pytest.mark.parametrize("first", MAKES)
def test_two_cells_with_a_trouble_each_have_both_named(first: str) -> None:
    """Of another cell's robots and servers no cause explains anything."""
    for second in MAKES:
        if frozenset((first, second)) in ONE_SCHEDULE:
            continue
        look, alone = both_cells(first, second), (cell(first), cell(second, is_second=True))
        assert named(look) == named(alone[0]) | named(alone[1]), (first, second, caused(look))
        assert in_order(caused(look))


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=[f"{first}, {second}" for first, second in PAIRS])
def test_one_cell_with_two_troubles_has_both_named_unless_one_explains_the_other(first: str, second: str) -> None:
    """Two ways to make them may be of one sensor: others are not."""
    wanted = {first, second} - {*EXPLAINED[first], *EXPLAINED[second]}
    found = []
    for one, other in itertools.product(MAKES[first], MAKES[second]):
        look = healthy()
        one(look), other(look)
        found.append(caused(look))
        assert in_order(found[-1])
    assert any(wanted <= {cause for cause, _ in causes} for causes in found), found


@pytest.mark.parametrize("owner", ["arm_1", "scheduler"])
def test_a_certificate_that_ended_elsewhere_does_not_hide_a_dead_server(owner: str) -> None:
    look = healthy()
    silent_server(look)
    of_process(look, owner, CERTIFICATE_INVALID, "own certificate has ended", 2)
    assert caused(look) == [("invalid certificate", owner), ("server gone", "server_1")]


def test_what_is_wrong_with_a_robot_does_not_hide_what_its_server_reports() -> None:
    look = healthy()
    camera(look)
    says(look, "server_1: server", 1, "2 requests were not answered")
    assert caused(look) == [("dead camera", "arm_1"), ("reported trouble", "server_1")]


def test_what_concerns_everybody_explains_nothing_of_one_robot() -> None:
    explaining = {cause.name for cause in CAUSES if cause.explains}
    for spoil, expected in SEEN:
        look = healthy()
        spoil(look)
        assert not [one for one in findings(look) if one.about == FACTORY and one.cause in explaining], expected


@pytest.mark.parametrize("cause", MAKES)
def test_the_disk_of_a_process_is_named_beside_every_cause(cause: str) -> None:
    """A log disk that does not answer has no other reason, whichever robots and servers report it."""
    owners = (*ROBOTS, SERVER, "scheduler")
    for spoil in MAKES[cause]:
        look = healthy()
        spoil(look)
        for owner in owners:
            of_process(look, owner, LOG_DISK_SILENT, "no answer from the disk of /logs")
        silent = [one for one in findings(look) if any("no answer from the disk" in line for line in one.evidence)]
        assert [{one.about, *one.concerns} for one in silent] == [set(owners)], spoil
        assert cause in {name for name, _ in caused(look)}, spoil


@pytest.mark.parametrize("cause", MAKES)
@pytest.mark.parametrize("status", ["arm_1: descriptor", "arm_1: zenoh", "server_1: descriptor"])
def test_what_a_node_reports_of_its_own_setup_is_named_beside_every_cause(cause: str, status: str) -> None:
    for spoil in MAKES[cause]:
        look = healthy()
        spoil(look)
        says(look, status, 1, "that is not the scheduler's")
        assert any(f"{status} reports: that is not the scheduler's" in one.evidence for one in findings(look)), spoil
        assert cause in {name for name, _ in caused(look)}, spoil


def test_a_certificate_that_has_ended_does_not_hide_others_that_end_soon() -> None:
    look = healthy()
    of_process(look, SERVER, CERTIFICATE_INVALID, "own certificate has ended", 2)
    for owner in ROBOTS:
        of_process(look, owner, CERTIFICATE_WARNING, "own certificate ends in 5 days")
    first, second = findings(look)
    assert (first.cause, first.about) == ("invalid certificate", SERVER)
    assert (second.cause, second.about, second.concerns) == ("certificate ends soon", "arm_1", ("arm_2",))


def two_factories() -> Look:
    """Return a look at two healthy factories that share a domain, each with a scheduler, robots and a server of its own."""
    one, other = healthy(), renamed(healthy(), SECOND)
    for rows in (*other.robots.values(), *other.servers.values()):
        for row in rows:
            row.scheduler = 9
    theirs = [
        replace(each, schedule=replace(each.schedule, scheduler=9), factory="two.yaml", heard_s=each.heard_s + 0.5)
        for each in other.schedules
    ]
    return replace(
        one,
        robots=one.robots | other.robots,
        servers=one.servers | other.servers,
        clocks_s=one.clocks_s | other.clocks_s,
        diagnoses=one.diagnoses | other.diagnoses,
        schedules=sorted([*one.schedules, *theirs], key=lambda each: each.heard_s),
    )


def test_two_factories_are_the_only_cause_where_each_of_them_works() -> None:
    """The newest schedule has routes for the robots of one factory alone."""
    for phase, server in (("executing", None), ("executing", ""), ("idle", "")):
        look = two_factories()
        for rows in look.robots.values():
            for row in rows:
                row.phase, row.server = phase, row.server if server is None else server
        wanted = [("two factories in one domain", FACTORY), *[("no task", "arm_1")] * (phase == "idle")]
        assert caused(look) == wanted, (phase, server)


@pytest.mark.parametrize("cause", [cause for cause in MAKES if cause not in ("two factories in one domain", "scheduler gone")])
def test_a_trouble_in_one_of_two_factories_is_named_beside_the_other_factory(cause: str) -> None:
    for spoil in MAKES[cause]:
        look = two_factories()
        mine = [one for one in look.schedules if one.schedule.scheduler != 9]
        theirs = [one for one in look.schedules if one.schedule.scheduler == 9]
        look.schedules = mine
        spoil(look)
        look.schedules = sorted([*look.schedules, *theirs], key=lambda each: each.heard_s)
        found = caused(look)
        assert found[0] == ("two factories in one domain", FACTORY) and cause in {name for name, _ in found}, (spoil, found)
