"""Causes that concern everybody: the scheduler, clocks, disks, and two factories that share a ROS domain."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator
from statistics import median

from ros2_rfm_serving.monitoring.findings.finding import FACTORY, Finding
from ros2_rfm_serving.monitoring.findings.look import OK, Look
from ros2_rfm_serving.types.following import REPEAT_PERIOD_S, SILENT_AFTER_S

REPEATED = 2
"""A scheduler that said something so often lives."""
APART_S = 1.0
"""Clocks of two machines that a time service keeps differ by far less."""
FULL, FULL_BYTES = 0.05, 10 * 2**30
"""A disk with less left than this share of it, and this."""
NO_SPACE = os.strerror(errno.ENOSPC)


def two_factories(look: Look) -> Iterator[Finding]:
    heard = Counter(one.schedule.scheduler for one in look.schedules)
    files = {one.schedule.scheduler: one.factory for one in look.schedules}
    alive = sorted(scheduler for scheduler, count in heard.items() if count >= REPEATED)
    names = [said for said in look.diagnosed if said.name.endswith(": name") and said.level > OK]
    evidence = [said.message for said in names]
    if len(alive) > 1:
        told = ", ".join(f"{scheduler:x} ({files[scheduler]})" for scheduler in alive)
        evidence.insert(0, f"{len(alive)} schedulers publish schedules: {told}")
    if evidence:
        yield Finding(
            cause="two factories in one domain",
            about=FACTORY,
            evidence=tuple(evidence),
            mend="end one of the two, or give it a domain (ROS_DOMAIN_ID, --domain) or a namespace (--namespace) of its own",
        )


def scheduler_gone(look: Look) -> Iterator[Finding]:
    silent_s = look.ended_s - (look.schedule.heard_s if look.schedule else look.begun_s)
    if silent_s <= SILENT_AFTER_S:
        return
    said = [rows[-1] for rows in look.servers.values() if rows], [rows[-1] for rows in look.robots.values() if rows]
    followed = Counter((row.scheduler, row.schedule_epoch) for rows in said for row in rows if row.scheduler)
    evidence = [f"no schedule was heard for {silent_s:.1f} s; a scheduler repeats its own every {REPEAT_PERIOD_S:g} s"]
    for (scheduler, epoch), count in followed.most_common(1):
        evidence.append(f"{count} robots and servers go on with schedule {epoch} of scheduler {scheduler:x}")
    yield Finding(
        cause="scheduler gone",
        about=FACTORY,
        evidence=tuple(evidence),
        mend="start it again with its descriptor (`rfm up` does); nobody stands for that, but nobody is admitted meanwhile",
    )


def clock_step(look: Look) -> Iterator[Finding]:
    evidence = [*_stepped(look), *_apart(look)]
    if evidence:
        yield Finding(
            cause="clock step",
            about=FACTORY,
            evidence=tuple(evidence),
            mend="look at the time service (`chronyc tracking`); robots and servers do not heed that clock, logs and recordings do",
        )


def _stepped(look: Look) -> Iterator[str]:
    """Of processes that saw it."""
    by_owner = {said.owner: said for said in look.diagnosed if "clock_step_s" in said.values}
    for owner, said in sorted(by_owner.items()):
        step_s, age_s = said.number("clock_step_s"), said.number("clock_step_age_s")
        yield f"the wall clock of {owner} was set by {step_s:+.1f} s, {age_s:.0f} s ago"


def _apart(look: Look) -> Iterator[str]:
    """Of processes whose stamps are of another time than this machine's."""
    for owner, apart_s in sorted(look.clocks_s.items()):
        if apart_s and abs(median(apart_s)) > APART_S:
            yield f"the stamps of {owner} are {median(apart_s):+.1f} s from this machine's clock"


def full_disk(look: Look) -> Iterator[Finding]:
    """Of the machine that looks, and of any whose processes say so."""
    disk, evidence = look.disk, [f"{said.name} says: {said.message}" for said in look.diagnosed if NO_SPACE in said.message]
    if disk and disk.free_bytes < min(FULL * disk.size_bytes, FULL_BYTES):
        left, size = disk.free_bytes / 1e6, disk.size_bytes / 1e6
        evidence = [f"{disk.folder} has {left:.1f} MB of {size:.1f} MB left", "logs and recordings stop there", *evidence]
    if evidence:
        mend = "remove old logs and recordings there; the factory runs on meanwhile"
        yield Finding(cause="full disk", about=FACTORY, evidence=tuple(evidence), mend=mend)


def reported(look: Look) -> Iterator[Finding]:
    """What a part says of itself all the time."""
    for said in look.diagnoses.values():
        if said and all(word.level > OK and NO_SPACE not in word.message for word in said):
            yield Finding(
                cause="reported trouble",
                about=said[-1].owner,
                evidence=(f"{said[-1].name} says: {said[-1].message}",),
                mend="it says what is in the way; its log has more, `rfm status` its figures",
            )
