"""Parts of an explanation about the network, the server and the model of a request."""

from __future__ import annotations

import math
from typing import Any

from ros2_rfm_serving.audit.explain.behind import NONE, Moment
from ros2_rfm_serving.audit.explain.explanation import Part, clock, duration
from ros2_rfm_serving.audit.explain.processes import Presence, fate_of
from ros2_rfm_serving.audit.log import SERVER, Entry, event_of, keys_in, mapping, real, refusal_of
from ros2_rfm_serving.types import EnginePhases

DECODING = "decoding_s"
SERVED = ("queue_wait_s", "inference_s", "batch_size", "superseded", "server_load", DECODING, *EnginePhases.__slots__)


def network_part(found: Moment) -> Part:
    """Return the network's delays. Durations are of one clock each; directions are of two, and as good as those agree."""
    if found.sent is None or found.answered is None:
        return Part(name="network", lines=("no request with its answer is recorded",), known=False)
    trip_s = found.answered.t_s - found.sent.t_s
    served = found.reply.get("served") or NONE
    inside_s = sum(real(served.get(name)) for name in ("queue_wait_s", "inference_s"))
    facts: dict[str, Any] = {"round_trip_s": trip_s, "on_server_s": inside_s, "out_and_back_s": trip_s - inside_s}
    lines = [
        f"request to chunk {duration(trip_s)}; {duration(trip_s - inside_s)} of it on the way, {duration(inside_s)} on the server"
    ]
    arrived, replied = found.of_server("request"), found.of_server("reply")
    if arrived is not None and replied is not None:
        out_s, back_s = arrived.stamp_s - found.sent.stamp_s, found.answered.stamp_s - replied.stamp_s
        facts |= {"out_s": out_s, "back_s": back_s}
        lines.append(f"out {duration(out_s)}, back {duration(back_s)}, as far as the two machines' clocks agree")
    return Part(name="network", lines=tuple(lines), facts=facts)


def server_part(found: Moment) -> Part:
    if not found.server:
        return Part(name="server", lines=("none: no request to a policy is recorded before",), known=False)
    served = found.reply.get("served") or NONE
    facts: dict[str, Any] = {"server": found.server, **{name: served.get(name) for name in SERVED if name in served}}
    lines = [found.server]
    if served:
        waited, ran, load = (real(served.get(name)) for name in ("queue_wait_s", "inference_s", "server_load"))
        lines[0] += f": waited {duration(waited)}, inference {duration(ran)}, load {load:.0%}"
        if served.get(DECODING):
            lines.append(f"of the wait {duration(real(served[DECODING]))} decoding of its images")
        if steps := served.get("solver_steps"):
            seen, solved = real(served.get("perception_s")), real(served.get("solver_s"))
            lines.append(f"of the inference {duration(seen)} perception, {duration(solved)} in {steps} solver steps")
        lines += [f"{served['superseded']} older requests were replaced by newer ones"] * bool(served.get("superseded"))
    fate = fate_of(found.log, SERVER + found.server, found.at_s)
    facts |= {"process": fate.facts()}
    if fate.presence is Presence.UNKNOWN:
        lines.append(fate.text)
        return Part(name="server", lines=tuple(lines), facts=facts, known=bool(served))
    more, told = _on_server(found)
    told += [fate.text] * (fate.presence is not Presence.RUNNING)
    return Part(name="server", lines=(*lines, *told), facts=facts | more)


def _on_server(found: Moment) -> tuple[dict[str, Any], list[str]]:
    request, batch = found.of_server("request"), found.of_server("batch")
    facts: dict[str, Any] = {}
    lines = []
    if request is None and found.answered is None:
        lines.append(f"it has no record of the request: {_why_not(found)}")
    elif request is not None and (refusal := refusal_of(request)):
        counter, problem = refusal
        facts |= {"refused": counter, "problem": problem}
        lines.append(f"it refused the request: {problem or counter}")
    if batch is not None:
        others = [one for one in keys_in(batch) if one != found.key]
        number, padded = mapping(batch.body.get("result")).get("batch"), batch.body.get("padded_rows")
        facts |= {"batch": number, "batch_with": [one._asdict() for one in others]}
        facts |= {"padded": padded, "tier": event_of(batch).get("engine")}
        names = ", ".join(f"{one.robot} ({one.component})" for one in others) or "nobody"
        rows = "1 row" if not others else f"{len(others) + 1} rows"
        lines.append(f"batch {number}: {rows}, computed as {padded}; with {names}")
    change = _state_then(found)
    if change is not None:
        facts["transition"] = {name: change.body.get(name) for name in ("from", "to", "reason")} | {"stamp_s": change.stamp_s}
        because = f": {change.body['reason']}" if change.body.get("reason") else ""
        lines.append(f"{_state(change.body.get('to'))} since {clock(change.stamp_s)}{because}")
        if missing := _missing(found, change.stamp_s):
            lines.append(f"{missing} of its records are missing since then: its state may have changed meanwhile")
        facts["certain"] = not missing
    return facts, lines


def _missing(found: Moment, since_s: float) -> int:
    """Return the number of the server's missing records from a time until the moment."""
    run = fate_of(found.log, SERVER + found.server, found.at_s).run
    return run.missing(since_s, found.at_s) if run is not None else 0


def _why_not(found: Moment) -> str:
    """Return why the server has no record of a request, by its records at the time of sending."""
    if found.sent is None:
        return "when it was sent is not in this recording"
    then = fate_of(found.log, SERVER + found.server, found.sent.stamp_s)
    return "it was lost on the way, as the server was still writing records" if then.runs else f"when it was sent: {then.text}"


def _state_then(found: Moment) -> Entry | None:
    """Return the last state change of the server's process at the moment; those of an earlier process do not apply."""
    run = fate_of(found.log, SERVER + found.server, found.at_s).run
    changes = found.log.within(SERVER + found.server, -math.inf, found.at_s, "transition")
    return next((one for one in reversed(changes) if run is not None and found.log.process_of(one) == run.process), None)


def _state(found: Any) -> str:
    return str(found.get("state", found)) if isinstance(found, dict) else str(found)


def model_part(found: Moment) -> Part:
    chunk, request = found.why.get("chunk") or NONE, found.of_server("request")
    model_hash = str(chunk.get("model_hash") or found.reply.get("model_hash") or "")
    noise = request.body.get("noise_seed") if request else None
    facts = {"model_hash": model_hash, "emulated": found.reply.get("emulated"), "noise": noise}
    if not (model_hash or found.reply):
        return Part(name="model", lines=("no model answered",), known=False)
    name = f"SHA-256 {model_hash[:16]}" if model_hash else "emulated: no model ran"
    drawn = f"noise drawn from {noise} and the model's seed" if noise else "what its noise was drawn from was not recorded"
    return Part(name="model", lines=(name, drawn), facts=facts)
