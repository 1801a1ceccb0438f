"""Causes that concern the whole fleet: the scheduler, clocks, two factories in one ROS domain, and reported problems without a
rule."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator

from ros2_rfm_serving.monitoring.findings.finding import FACTORY, Finding
from ros2_rfm_serving.monitoring.findings.look import OK, Diagnosis, HeardSchedule, Look
from ros2_rfm_serving.monitoring.findings.processes import NO_SPACE, owners_of, report_of
from ros2_rfm_serving.types.names import DISPUTED, LOST
from ros2_rfm_serving.types.process_problems import LOG_DISK_SILENT
from ros2_rfm_serving.types.schedule_follower import REPEAT_PERIOD_S, SILENT_AFTER_S

OWN_PROBLEMS = ("descriptor", "name", "zenoh")
"""Parts of a node that report their own problems, which have no reason elsewhere."""
REPEATED = 2
"""Number of messages from which a scheduler counts as running; a single one may be old or late."""
APART_S = 1.0
"""Clock difference that is reported; the clocks of two machines with a time service differ by far less."""


def two_factories(look: Look) -> Iterator[Finding]:
    refused = [[said for said in words if _is_refused_name(said)] for words in look.diagnoses.values()]
    evidence = [said[-1].message for said in refused if said]
    if rivals := _rivals(look):
        told = ", ".join(f"{scheduler:x} ({factory})" for scheduler, factory in rivals)
        evidence.insert(0, f"{len(rivals)} schedulers publish schedules: {told}")
    if evidence:
        yield Finding(
            cause="two factories in one domain",
            about=FACTORY,
            evidence=tuple(evidence),
            mend="end one of the two, or give it a domain (ROS_DOMAIN_ID, --domain) or a namespace (--namespace) of its own",
        )


def _is_refused_name(said: Diagnosis) -> bool:
    return said.values.get("claim") in (DISPUTED, LOST)


def _rivals(look: Look) -> list[tuple[int, str]]:
    """Return (scheduler, its descriptor) of those that publish at the same time; a successor begins when the other has ended."""
    heard: dict[int, list[HeardSchedule]] = defaultdict(list)
    for one in look.schedules:
        heard[one.schedule.scheduler].append(one)
    alive = [(scheduler, said) for scheduler, said in sorted(heard.items()) if len(said) >= REPEATED]
    return [
        (scheduler, said[-1].factory)
        for scheduler, said in alive
        if any(
            said[0].heard_s < other[-1].heard_s and other[0].heard_s < said[-1].heard_s for _, other in alive if other is not said
        )
    ]


def scheduler_gone(look: Look) -> Iterator[Finding]:
    silent_s = look.ended_s - (look.schedule.heard_s if look.schedule else look.begun_s)
    if silent_s <= SILENT_AFTER_S:
        return
    said = [rows[-1] for rows in look.servers.values() if rows], [rows[-1] for rows in look.robots.values() if rows]
    followed = Counter((row.scheduler, row.schedule_epoch) for rows in said for row in rows if row.scheduler)
    evidence = [f"no schedule was received for {silent_s:.1f} s; a scheduler publishes one every {REPEAT_PERIOD_S:g} s"]
    for (scheduler, epoch), count in followed.most_common(1):
        evidence.append(f"{count} robots and servers still follow schedule {epoch} of scheduler {scheduler:x}")
    yield Finding(
        cause="scheduler gone",
        about=FACTORY,
        evidence=tuple(evidence),
        mend="restart the scheduler with its descriptor (`rfm up` does); robots keep working, but none can be admitted meanwhile",
    )


def clock_step(look: Look) -> Iterator[Finding]:
    evidence = [*_stepped(look), *_apart(look)]
    if evidence:
        yield Finding(
            cause="clock step",
            about=FACTORY,
            evidence=tuple(evidence),
            mend="check the time service (`chronyc tracking`); logs and recordings use that clock, robots and servers do not",
        )


def _stepped(look: Look) -> Iterator[str]:
    """Yield the clock steps that processes noticed themselves."""
    by_owner = {said.owner: said for said in look.diagnosed if "clock_step_s" in said.values}
    for owner, said in sorted(by_owner.items()):
        step_s, age_s = said.number("clock_step_s"), said.number("clock_step_age_s")
        if math.isfinite(step_s) and math.isfinite(age_s):
            yield f"the wall clock of {owner} was set by {step_s:+.1f} s, {age_s:.0f} s ago"


def _apart(look: Look) -> Iterator[str]:
    """Yield the processes whose stamps differ from this machine's clock, judged by the stamp with the least delay."""
    for owner, apart_s in sorted(look.clocks_s.items()):
        known = [one for one in apart_s if math.isfinite(one)]
        if len(known) >= REPEATED and abs(max(known)) > APART_S:
            yield f"the stamps of {owner} differ from this machine's clock by {max(known):+.1f} s"


def reported(look: Look) -> Iterator[Finding]:
    """Yield the problems that a part reports in all of its statuses."""
    mend = "the message names the problem; the log has more, and `rfm status` has the figures"
    are_two = any(two_factories(look))
    for said in look.diagnoses.values():
        if are_two and said and (_is_refused_name(said[-1]) or said[-1].number("rival_schedulers") > 0):
            continue
        if len(said) >= REPEATED and all(word.level > OK and NO_SPACE not in word.message for word in said):
            newest = said[-1]
            yield Finding(
                cause="reported trouble",
                about=newest.owner,
                evidence=(f"{newest.name} reports: {newest.message}",),
                mend=mend,
                can_follow=newest.part not in OWN_PROBLEMS,
            )
    for problem, owners in owners_of(look, LOG_DISK_SILENT):
        evidence = (f"{report_of(owners)}: {problem}",)
        yield Finding(
            cause="reported trouble", about=owners[0], concerns=owners[1:], evidence=evidence, mend=mend, can_follow=False
        )
