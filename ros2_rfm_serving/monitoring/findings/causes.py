"""Every cause, in the order in which they are told: what others follow from comes first."""

from __future__ import annotations

from dataclasses import dataclass

from ros2_rfm_serving.monitoring.findings import fleet, robots, servers
from ros2_rfm_serving.monitoring.findings.finding import FACTORY, Finding, Rule
from ros2_rfm_serving.monitoring.findings.look import Look


@dataclass(frozen=True)
class Cause:
    name: str
    """Of the findings of its rule."""
    rule: Rule
    explains: tuple[str, ...] = ()
    """Causes that are none where this one is: of the same robot or server, or of one that asks the other."""


UNANSWERED = ("overloaded server", "lossy network", "reported trouble")
CAUSES = (
    Cause("two factories in one domain", fleet.two_factories, ("reported trouble",)),
    Cause("server gone", servers.gone, ("hung engine", "drifted profile", *UNANSWERED)),
    Cause("model not loaded", servers.not_loaded, UNANSWERED),
    Cause("hung engine", servers.hung, ("drifted profile", *UNANSWERED)),
    Cause("changed model", robots.changed_model, ("lossy network", "robot waits for a person", "reported trouble")),
    Cause("robot gone", robots.gone, ("lossy network", "reported trouble")),
    Cause("one robot asks too much", servers.greedy, ("robot gone", *UNANSWERED)),
    Cause("unusable answers", servers.unusable, ("lossy network", "reported trouble")),
    Cause("dead camera", robots.dead_camera, ("lossy network", "reported trouble")),
    Cause("dead joint states", robots.dead_joints, ("lossy network", "reported trouble")),
    Cause("commands not taken", robots.commands_not_taken, ("reported trouble",)),
    Cause("refused readings", robots.refused_readings, ("lossy network", "reported trouble")),
    Cause("old readings", robots.old_readings, ("lossy network", "reported trouble")),
    Cause("drifted profile", servers.drifted, UNANSWERED),
    Cause("overloaded server", servers.overloaded, UNANSWERED[1:]),
    Cause("lossy network", robots.lossy_network, ("reported trouble",)),
    Cause("robot waits for a person", robots.waits_for_a_person, ("reported trouble",)),
    Cause("scheduler gone", fleet.scheduler_gone),
    Cause("clock step", fleet.clock_step),
    Cause("full disk", fleet.full_disk),
    Cause("reported trouble", fleet.reported),
)


def findings(look: Look) -> list[Finding]:
    """What the look speaks for, the most telling first; none: nothing is wrong."""
    found = {cause: list(cause.rule(look)) for cause in CAUSES}
    told: list[Finding] = []
    for cause, of_it in found.items():
        others = [one for other in CAUSES if cause.name in other.explains for one in found[other]]
        told += [one for one in of_it if not any(_concerns(look, other, one.about) for other in others)]
    return told


def _concerns(look: Look, finding: Finding, name: str) -> bool:
    return finding.about == FACTORY or any(look.are_related(one, name) for one in (finding.about, *finding.concerns))


def concerning(look: Look, found: list[Finding], name: str) -> list[Finding]:
    """Of a robot or server: its own, those of whom it asks or who ask it, and what concerns everybody."""
    return [one for one in found if _concerns(look, one, name)]
