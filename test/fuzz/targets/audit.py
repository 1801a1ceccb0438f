"""Pages of a recording that somebody else made: `audit/verify.py`, and `audit/replay.py`, which looks at no hash."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

from ros2_rfm_serving.audit.chain import NOTHING, Page
from ros2_rfm_serving.audit.journal import Journal
from ros2_rfm_serving.audit.replay import brains, replay
from ros2_rfm_serving.audit.robots.recorded import RecordedBrain
from ros2_rfm_serving.audit.robots.replay import RobotReplay
from ros2_rfm_serving.audit.servers.replay import ServerReplay
from ros2_rfm_serving.audit.verify import verify
from ros2_rfm_serving.robot import RobotConfig, Sensors, TaskGoal
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.types import NO_VALUES
from test.unit.audit.servers import Kept
from test.unit.fakes import FakeEngine, observation, schedule, session_request

MAKERS = {"robot": brains(RobotReplay), "server": brains(ServerReplay)}


def seeds() -> list[bytes]:
    """All lines; and the first two, without which nothing is replayed, with each further kind once. Of a robot, and of a server."""
    found = []
    for lines in (_of_robot(), _of_server()):
        kinds = {line.split(b'"kind":"')[1].split(b'"')[0]: line for line in lines}
        found += [b"\n".join(lines), *(b"\n".join([*lines[:2], line]) for line in kinds.values()), *kinds.values()]
    return found


def check(data: bytes) -> None:
    for writer, genuine in (("robot/r1", _of_robot()), ("server/s", _of_server())):
        page = _page(writer, [line for line in data.split(b"\n") if line])
        found = verify(lambda: [page])  # noqa: B023
        assert found.head and (found.flaws or page.lines == tuple(genuine))
        for result in replay([page], MAKERS):
            assert result.decisions >= 0 and all(isinstance(note, str) for note in result.notes)
        for result in replay([_page(writer, genuine)], MAKERS):
            assert result.difference is None and not result.refused, "what came before has spoilt a good recording"


def _page(writer: str, lines: Sequence[bytes]) -> Page:
    return Page(writer=writer, run=1, first=0, previous=NOTHING, lines=tuple(lines))


@functools.cache
def _of_server() -> list[bytes]:
    """Of a server with two robots and an operator: short."""
    server = ModelServer(ServerConfig(name="s", batch_size=2, dispatch="best"), FakeEngine())
    kept = Kept(server)
    epochs = {robot: server.open_session(session_request(robot)).session_epoch for robot in ("r1", "r2")}
    for sequence in (1, 2):
        for robot, epoch in epochs.items():
            server.submit(observation(epoch, sequence, robot), float(sequence))
        server.loop.step(lambda: sequence + 0.5)  # noqa: B023
    kept.snapshot()
    server.drain()
    kept.records()
    return [line for page in kept.pages for line in page.lines]


@functools.cache
def _of_robot() -> list[bytes]:
    """Of a robot that waits for a server: short."""
    pages: list[Page] = []
    runs = itertools.count(1)
    journal = Journal("robot/r1", "robot", send=pages.append, stamp_s=lambda: 1e9, draw=lambda: next(runs))
    brain = RecordedBrain(
        RobotConfig(name="r1", action_names=("x",), cameras=(), state_size=0, control_rate_hz=20.0, execution_horizon=3), journal
    )
    journal.listeners(1, -10.0)
    journal.tend(0.0)
    brain.on_schedule(schedule(), 0.0)
    brain.start(TaskGoal(task="t", instruction="go", time_budget_s=10.0, reset=False), 0.0)
    for step in range(3):
        brain.tick(Sensors(state=NO_VALUES, state_s=0.05 * step, images=(), images_s=0.05 * step), 0.05 * step)
        brain.on_server_status("s1", True, 0.05 * step)
    brain.pause(0.2)
    journal.close(0.3, "the end of the process")
    return [line for page in pages for line in page.lines]
