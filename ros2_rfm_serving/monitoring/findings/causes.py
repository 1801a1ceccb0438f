"""All causes in the order of the report: the most severe first, and among equally severe ones a cause before its consequences."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ros2_rfm_serving.monitoring.findings import fleet, processes, refusals, robots, servers, setup
from ros2_rfm_serving.monitoring.findings.finding import FACTORY, Finding, Rule
from ros2_rfm_serving.monitoring.findings.look import SCHEDULER, Look


class Severity(enum.IntEnum):
    STOPS = 0
    """Robots stand still, or may follow another factory's schedule."""
    SLOWS = 1
    """Robots move, and answers come late."""
    WARNS = 2
    """Robots work; something else does not, or will fail soon."""
    NOTES = 3
    """Everything works as configured, which may not be intended."""


@dataclass(frozen=True)
class Cause:
    name: str
    """`cause` of the findings of its rule."""
    severity: Severity
    rule: Rule
    explains: tuple[str, ...] = ()
    """Causes that are consequences of this one: at the same robot or server, or at a robot that uses this server."""


REPORTED = "reported trouble"
UNANSWERED = ("overloaded server", "lossy network", REPORTED)
UNUSED = ("lossy network", REPORTED)
UNREAD = ("other state rate", *UNUSED)
STOPS, SLOWS, WARNS, NOTES = Severity
CAUSES = (
    Cause("two factories in one domain", STOPS, fleet.two_factories),
    Cause(
        "invalid certificate",
        STOPS,
        processes.invalid_certificate,
        ("server gone", "robot gone", "not configured", *UNANSWERED),
    ),
    Cause("not configured", STOPS, setup.not_configured, ("robot gone", *UNUSED)),
    Cause("server gone", STOPS, servers.gone, ("not in the schedule", "hung engine", "drifted profile", *UNANSWERED)),
    Cause("model not loaded", STOPS, servers.not_loaded, ("not in the schedule", *UNANSWERED)),
    Cause("hung engine", STOPS, servers.hung, ("drifted profile", *UNANSWERED)),
    Cause("changed model", STOPS, robots.changed_model, ("robot waits for a person", *UNUSED)),
    Cause("robot gone", STOPS, robots.gone, UNUSED),
    Cause("unusable answers", STOPS, servers.unusable, UNUSED),
    Cause("dead camera", STOPS, robots.dead_camera, UNREAD),
    Cause("dead joint states", STOPS, robots.dead_joints, UNREAD),
    Cause("commands not taken", STOPS, robots.commands_not_taken, ("commands without motion", REPORTED)),
    Cause("refused readings", STOPS, robots.refused_readings, UNREAD),
    Cause("old readings", STOPS, robots.old_readings, UNREAD),
    Cause("not in the schedule", STOPS, setup.not_in_the_schedule, (REPORTED,)),
    Cause("refused session", STOPS, setup.refused_session, (REPORTED,)),
    Cause("unusable actions", STOPS, setup.unusable_actions, ("commands without motion", REPORTED)),
    Cause("unknown start", STOPS, setup.unknown_start, (REPORTED,)),
    Cause("no reset service", STOPS, setup.no_reset, (REPORTED,)),
    Cause("commands without motion", STOPS, setup.nothing_moves, (REPORTED,)),
    Cause("two publishers of commands", STOPS, setup.two_commanders),
    Cause("robot waits for a person", STOPS, robots.waits_for_a_person, ("reported trouble",)),
    Cause(
        "overloaded machine",
        SLOWS,
        setup.overloaded_machine,
        ("drifted profile", *UNANSWERED[1:]),
    ),
    Cause("one robot asks too much", SLOWS, servers.greedy, ("robot gone", *UNANSWERED)),
    Cause("drifted profile", SLOWS, servers.drifted, UNANSWERED),
    Cause("overloaded server", SLOWS, servers.overloaded, UNANSWERED[1:]),
    Cause("lossy network", SLOWS, robots.lossy_network, ("reported trouble",)),
    Cause("full disk", WARNS, processes.full_disk),
    Cause("incomplete recording", WARNS, processes.incomplete_recording, ("reported trouble",)),
    Cause("scheduler gone", WARNS, fleet.scheduler_gone),
    Cause("certificate ends soon", WARNS, processes.certificate_warning),
    Cause("clock step", WARNS, fleet.clock_step),
    Cause("other state rate", WARNS, setup.other_state_rate),
    Cause("no simulated clock", WARNS, setup.no_simulated_clock),
    Cause("doubtful limits", WARNS, setup.doubtful_limits),
    Cause("refused messages", WARNS, refusals.refused_messages),
    Cause("reported trouble", WARNS, fleet.reported),
    Cause("no task", NOTES, setup.no_task),
    Cause("no monitor", NOTES, setup.no_monitor),
    Cause("tried out", NOTES, setup.tried_out),
)
NOTE_NAMES = frozenset(cause.name for cause in CAUSES if cause.severity is NOTES)


def is_trouble(finding: Finding) -> bool:
    """Return whether a finding is a problem, and not only a note."""
    return finding.cause not in NOTE_NAMES


def findings(look: Look) -> list[Finding]:
    """Return the findings of an observation, most severe first; empty: there is no problem."""
    found = {cause: list(cause.rule(look)) for cause in CAUSES}
    told: list[Finding] = []
    for cause, of_it in found.items():
        others = [one for other in CAUSES if cause.name in other.explains for one in found[other]]
        told += [one for one in of_it if not (one.can_follow and any(_reaches(look, other, one) for other in others))]
    return told


def _reaches(look: Look, finding: Finding, other: Finding) -> bool:
    """Return whether a finding can be the reason of another one, by their places.

    A problem of a robot has consequences only there; one of a server has them also at its robots. The scheduler reports that it
    works without a server, and a server reports that it works without the scheduler.
    """
    places = (finding.about, *finding.concerns)
    if finding.about == FACTORY or other.about in places:
        return True
    via = {place for place in places if place in look.servers or (place == SCHEDULER and other.cause == REPORTED)}
    return any(look.are_related(place, other.about) for place in via)


def _concerns(look: Look, finding: Finding, name: str) -> bool:
    return finding.about == FACTORY or any(look.are_related(one, name) for one in (finding.about, *finding.concerns))


def concerning(look: Look, found: list[Finding], name: str) -> list[Finding]:
    """Return the findings of a robot, a server or another process, those of its servers or robots, and the factory's."""
    return [one for one in found if _concerns(look, one, name)]
