"""Every cause, in the order in which they are reported: the graver first, and of equally grave ones what others follow from."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ros2_rfm_serving.monitoring.findings import fleet, processes, robots, servers
from ros2_rfm_serving.monitoring.findings.finding import FACTORY, Finding, Rule
from ros2_rfm_serving.monitoring.findings.look import SCHEDULER, Look


class Severity(enum.IntEnum):
    STOPS = 0
    """Robots stand, or may follow somebody else's schedule."""
    SLOWS = 1
    """Robots move, and answers come late."""
    WARNS = 2
    """Robots work; something else does not, or will not for long."""


@dataclass(frozen=True)
class Cause:
    name: str
    """`cause` of the findings of its rule."""
    severity: Severity
    rule: Rule
    explains: tuple[str, ...] = ()
    """Causes that only follow from this one: at the same robot or server, or at a robot that asks this server."""


REPORTED = "reported trouble"
UNANSWERED = ("overloaded server", "lossy network", REPORTED)
UNUSED = ("lossy network", REPORTED)
STOPS, SLOWS, WARNS = Severity
CAUSES = (
    Cause("two factories in one domain", STOPS, fleet.two_factories),
    Cause(
        "invalid certificate",
        STOPS,
        processes.invalid_certificate,
        ("server gone", "robot gone", "certificate ends soon", *UNANSWERED),
    ),
    Cause("server gone", STOPS, servers.gone, ("hung engine", "drifted profile", *UNANSWERED)),
    Cause("model not loaded", STOPS, servers.not_loaded, UNANSWERED),
    Cause("hung engine", STOPS, servers.hung, ("drifted profile", *UNANSWERED)),
    Cause("changed model", STOPS, robots.changed_model, ("robot waits for a person", *UNUSED)),
    Cause("robot gone", STOPS, robots.gone, UNUSED),
    Cause("unusable answers", STOPS, servers.unusable, UNUSED),
    Cause("dead camera", STOPS, robots.dead_camera, UNUSED),
    Cause("dead joint states", STOPS, robots.dead_joints, UNUSED),
    Cause("commands not taken", STOPS, robots.commands_not_taken, ("reported trouble",)),
    Cause("refused readings", STOPS, robots.refused_readings, UNUSED),
    Cause("old readings", STOPS, robots.old_readings, UNUSED),
    Cause("robot waits for a person", STOPS, robots.waits_for_a_person, ("reported trouble",)),
    Cause("one robot asks too much", SLOWS, servers.greedy, ("robot gone", *UNANSWERED)),
    Cause("drifted profile", SLOWS, servers.drifted, UNANSWERED),
    Cause("overloaded server", SLOWS, servers.overloaded, UNANSWERED[1:]),
    Cause("lossy network", SLOWS, robots.lossy_network, ("reported trouble",)),
    Cause("full disk", WARNS, processes.full_disk),
    Cause("incomplete recording", WARNS, processes.incomplete_recording, ("reported trouble",)),
    Cause("scheduler gone", WARNS, fleet.scheduler_gone),
    Cause("certificate ends soon", WARNS, processes.certificate_warning),
    Cause("clock step", WARNS, fleet.clock_step),
    Cause("reported trouble", WARNS, fleet.reported),
)


def findings(look: Look) -> list[Finding]:
    """Return what the look speaks for, the graver first; none: nothing is wrong."""
    found = {cause: list(cause.rule(look)) for cause in CAUSES}
    told: list[Finding] = []
    for cause, of_it in found.items():
        others = [one for other in CAUSES if cause.name in other.explains for one in found[other]]
        told += [one for one in of_it if not any(_reaches(look, other, one) for other in others)]
    return told


def _reaches(look: Look, finding: Finding, other: Finding) -> bool:
    """Whether a finding can be the reason of another one, by where they are.

    What is wrong with a robot has consequences there alone; with a server, at its robots too. The scheduler reports what it does
    without a server, and a server what it does without the scheduler.
    """
    places = (finding.about, *finding.concerns)
    if finding.about == FACTORY or other.about in places:
        return True
    via = {place for place in places if place in look.servers or (place == SCHEDULER and other.cause == REPORTED)}
    return any(look.are_related(place, other.about) for place in via)


def _concerns(look: Look, finding: Finding, name: str) -> bool:
    return finding.about == FACTORY or any(look.are_related(one, name) for one in (finding.about, *finding.concerns))


def concerning(look: Look, found: list[Finding], name: str) -> list[Finding]:
    """Of a robot or server: its own, those of whom it asks or who ask it, and what concerns everybody."""
    return [one for one in found if _concerns(look, one, name)]
