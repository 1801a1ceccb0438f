"""When a model was served at all, and which requests never came to wait, by the records of servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from ros2_rfm_serving.audit.log import SERVER, AuditLog, Entry, Key, event_name, event_of, mapping

Window = tuple[float, float]
"""By the machine's monotonic clock, s."""


def served(log: AuditLog, model: str) -> list[Window]:
    """One per server and life of its model, from its being ready to its last record."""
    found = []
    for writer in log.by_writer:
        if writer.startswith(SERVER):
            for _, entries in groupby(sorted(log.by_writer[writer], key=lambda one: (one.run, one.t_s)), key=lambda one: one.run):
                if (window := _ready(list(entries), model)) is not None:
                    found.append(window)
    return sorted(found)


def without_any(since_s: float, until_s: float, windows: Iterable[Window]) -> float:
    """How much of that time is in none of them, s."""
    gone_s, at_s = 0.0, since_s
    for begin_s, end_s in sorted(windows):
        gone_s += max(0.0, min(begin_s, until_s) - at_s)
        at_s = max(at_s, min(end_s, until_s))
    return gone_s + max(0.0, until_s - at_s)


def replaced_early(log: AuditLog) -> set[Key]:
    """Requests that a newer one had followed before their images were looked at: of these a server notes no more than that."""
    return {
        Key(*(about[name] for name in Key._fields))
        for writer in log.by_writer
        for entry in (log.of(writer, "event") if writer.startswith(SERVER) else ())
        if event_name(entry) == "RequestSuperseded" and (about := mapping(event_of(entry).get("request")))
    }


def _ready(entries: Sequence[Entry], model: str) -> Window | None:
    """Of one chain, which has one model or none. Whoever was ready when the recorder came says nothing of it."""
    began = next((one for one in entries if one.kind == "begin"), None)
    if began is None or mapping(began.body.get("engine")).get("model") != model:
        return None
    ready_s = [one.t_s for one in entries if one.kind == "transition" and one.body.get("to") == "ready"]
    return (ready_s[0] if ready_s else began.t_s), entries[-1].t_s
