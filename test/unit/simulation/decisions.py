"""All that robots and servers decide in virtual time, one after the other, as text: to be compared with what they decided before.

`python -m test.unit.simulation.decisions` writes the digests anew, where other decisions are meant.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ros2_rfm_serving.faults import FaultPlan
from ros2_rfm_serving.robot import RobotCore
from ros2_rfm_serving.server import ServerCore
from ros2_rfm_serving.simulation import Crash, NetworkConditions, SimulationConditions, TaskArrivals, simulate
from test.unit.simulation.simulated import factory, models, schedule

KEPT = Path(__file__).with_name("decisions.json")
FAULTS = "drop=0.03 duplicate=0.05 reorder=0.05 corrupt=0.05 delay_ms=5 jitter_ms=3 cut_up=2-2.5 cut_down=4-5"
FAULTY = NetworkConditions(latency_s=0.004, jitter_s=0.002, faults=FaultPlan.parse(FAULTS))
LOSSY = NetworkConditions(latency_s=0.004, jitter_s=0.01, loss=0.05)
CRASHES = (Crash(server="s1", at_s=3.0, restart_after_s=2.0), Crash(server="s3", at_s=4.0, restart_after_s=1.0))
ARRIVALS = TaskArrivals(rate_hz=0.3, duration_s=2.0)


def runs(simulate: Callable[..., object] = simulate) -> dict[str, Callable[[], object]]:
    """Of 8 s each, by name. simulate: by what."""

    def run(mode: str, plan: dict[str, Any], **conditions: Any) -> Callable[[], object]:
        plant = factory(6, plans=0.2, safety=True, mode=mode)
        made, given = schedule(plant, **plan), SimulationConditions(**conditions)
        return lambda: simulate(made, plant, models(0.1), seconds=6.0, warm_up_s=2.0, seed=1, conditions=given)

    batches = {"batch_size": 4}
    return {
        "synchronous": run("sync", batches),
        "asynchronous": run("async", batches),
        "overloaded": run("async", {"batch_size": 1, "rate_hz": 4.0}),
        "faults, synchronous": run("sync", batches, network=FAULTY),
        "faults, asynchronous": run("async", batches, network=FAULTY),
        "lossy, tasks arrive": run("async", batches, network=LOSSY, arrivals=ARRIVALS, leaves={"pick_3": 6.0}),
        "crashes": run("sync", {**batches, "standby": True}, crashes=CRASHES),
    }


@contextlib.contextmanager
def noted() -> Iterator[list[str]]:
    """What changes anything: ticks that only look do not."""
    notes: list[str] = []

    def tick(brain: RobotCore, sensors: Any, now_s: float) -> Any:
        decided = ticks(brain, sensors, now_s)
        if decided.command is not None or decided.requests or decided.opens or decided.resets:
            asked = [(server, request.id, request.report, request.inference_delay_steps) for server, request in decided.requests]
            why = brain.why._replace(limited_from=None) if decided.command is not None else ""
            notes.append(f"{brain.config.name} {now_s!r} {why} {asked} {decided.opens} {decided.resets}")
        return decided

    def reply(brain: RobotCore, reply: Any, now_s: float) -> Any:
        taken = replies(brain, reply, now_s)
        notes.append(f"{now_s!r} {reply.id} {reply.served} {taken} {brain.queue_depth} {brain.state.name}")
        return taken

    def begin(brain: ServerCore, tier: int, now_s: float) -> Any:
        work = begins(brain, tier, now_s)
        notes.append(f"{brain.config.name} {now_s!r} {[waiting.request.id for waiting in work.batch] if work else ''}")
        return work

    ticks, replies, begins = RobotCore.tick, RobotCore.on_reply, ServerCore.begin
    with (
        patch.object(RobotCore, "tick", tick),
        patch.object(RobotCore, "on_reply", reply),
        patch.object(ServerCore, "begin", begin),
    ):
        yield notes


def digests() -> dict[str, str]:
    found = {}
    for name, run in runs().items():
        with noted() as notes:
            notes.append(str(run()))
        found[name] = f"{len(notes)} {hashlib.sha256(chr(10).join(notes).encode()).hexdigest()}"
    return found


if __name__ == "__main__":
    KEPT.write_text(json.dumps(digests(), indent=1) + "\n", encoding="utf-8")
