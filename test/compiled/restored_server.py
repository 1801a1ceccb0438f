"""Servers that go on from their states, interpreted or in machine code: what they decide, and their states at the end."""

from __future__ import annotations

import json
import random
from typing import Any

from ros2_rfm_serving import compiled
from test.compiled.restored import text

ROBOTS = ("r1", "r2", "r3", "r4", "r5")


def decisions(core: Any, now_s: float) -> list[Any]:
    """Return what a core decides from now on: what runs, and all replies. Rows of `continuous` go on by two steps."""
    from ros2_rfm_serving.server import events
    from ros2_rfm_serving.server.horizon import NO_HORIZON_DECISION
    from ros2_rfm_serving.types import EngineReply
    from test.unit.fakes import rows

    decided, works = [], []
    while (work := core.handle(events.EnginePolled(0), now_s)) is not None:
        works.append(work)
        decided.append((work.number, work.whole, [waiting.request.id for waiting in work.batch]))
    entered = tuple((work.number, 2) for work in works)
    if works and core.queues[0].view.in_flight is not None and not works[0].whole:
        decided.append(core.handle(events.BatchesPerceived(entered), now_s + 0.01))
        for step in (1, 2):
            decided.append(core.handle(events.SolverStepPolled(tuple(n for n, _ in entered), 0.01), now_s + 0.01 * (1 + step)))
    answer = EngineReply(chunk_model=rows(), chunk_robot=rows())
    for work in works:
        size = len(work.batch)
        decided.append(core.handle(events.BatchEnded(work.number, (True,) * size, 0), now_s + 0.05))
        decided += [
            core.handle(events.AnswerReceived(work.number, row, answer, NO_HORIZON_DECISION), now_s + 0.05) for row in range(size)
        ]
    return [*decided, core.handle(events.FiguresRequested(), now_s + 0.06)]


def restored(batching: str, dispatch: str) -> tuple[bool, list[Any], Any]:
    """Return whether restored cores were alike, what was decided, and the state at the end."""
    from ros2_rfm_serving.server import ModelServer, ServerConfig, ServerCore
    from ros2_rfm_serving.types import ActionChunk
    from test.unit.fakes import observation, session_request
    from test.unit.stepping import FakeStepping

    server = ModelServer(ServerConfig(name="s", batch_size=2, dispatch=dispatch, batching=batching), FakeStepping())
    core, rng, same = server.core, random.Random(1), True
    epochs = {robot: server.open_session(session_request(robot, slo_s=0.2)).session_epoch for robot in ROBOTS}
    replies: list[Any] = []
    for number in range(1, 31):
        for robot in rng.sample(ROBOTS, 3):
            server.submit(observation(epochs[robot], number, robot, 1 + number // 10), float(number))
        state = core.state()
        twin = ServerCore.from_state(core.config, core.contract, core.limits, state)
        same = same and text(twin.state()) == text(state)
        decided, again = (decisions(each, number + 0.1) for each in (core, twin))
        same = same and text(decided) == text(again) and text(core.state()) == text(twin.state())
        replies += [each for each in decided if isinstance(each, ActionChunk)]
    return same, replies, core.state()


if __name__ == "__main__":
    used = compiled.use()
    found = [restored(*way) for way in (("fixed", "fifo"), ("wait", "balanced"), ("continuous", "wait_ratio"))]
    decided = {"answered": sum(len(replies) for _, replies, _ in found), "decided": text(found)}
    print(json.dumps({"compiled": used, "same": all(same for same, _, _ in found), **decided}))
