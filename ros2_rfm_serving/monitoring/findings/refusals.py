"""Refused messages: growing refusal counters, each with its meaning and fix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ros2_rfm_serving.monitoring.counters import ROBOT, SERVER, ZENOH_DOOR, RefusalCounter, Table
from ros2_rfm_serving.monitoring.findings.finding import Finding
from ros2_rfm_serving.monitoring.findings.look import ZENOH_BRIDGE, Diagnosis, Look, Row, grown, refused

UNKNOWN = RefusalCounter("messages were refused", "the log of the process that counts it has the reason")
DOOR = f"{ZENOH_BRIDGE}: door"
DOOR_PREFIX = "refused_"


def refused_messages(look: Look) -> Iterator[Finding]:
    """Yield the counters that grew during the observation, each with its last reason."""
    for owner, rows in look.robots.items():
        yield from _of_rows(ROBOT, owner, rows, look.diagnosis(f"{owner}: robot"))
    for owner, servers in look.servers.items():
        yield from _of_rows(SERVER, owner, servers, look.diagnosis(f"{owner}: server"))
    yield from _of_door(look.diagnoses.get(DOOR, []))


def _of_rows(table: Table, owner: str, rows: Sequence[Row], said: Diagnosis | None) -> Iterator[Finding]:
    for kind in sorted(rows[-1].refused) if rows else ():
        last = said.values.get(f"last {kind}", "") if said else ""
        yield from _refusal(table, owner, kind, grown(rows, refused(kind)), last)


def _of_door(said: Sequence[Diagnosis]) -> Iterator[Finding]:
    for key in said[-1].values if said else ():
        if key.startswith(DOOR_PREFIX):
            before = said[0].number(key) if key in said[0].values else 0.0
            yield from _refusal(ZENOH_DOOR, ZENOH_BRIDGE, key.removeprefix(DOOR_PREFIX), said[-1].number(key) - before, "")


def _refusal(table: Table, owner: str, kind: str, more: float, last: str) -> Iterator[Finding]:
    """Yield the finding of a counter. more: refusals during the observation. last: reason of the last one."""
    counter = table.get(kind, UNKNOWN)
    if counter.causes or not more >= counter.fewest:
        return
    evidence = [f"{more:,.0f} times on {owner}: {counter.meaning} ({kind})"]
    evidence += [f"the last one: {last}"] if last else []
    yield Finding(cause="refused messages", about=owner, evidence=tuple(evidence), mend=counter.fix)
