"""`batching: continuous`: rows join a running batch, go on together and leave it, each for itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.types import Chunk, OutputKind, Reply, Serving
from test.unit.fakes import CONTRACT, FakeEngine, observation, session_request
from test.unit.stepping import FakeStepping

PERCEIVE_S, STEP_S = 0.01, 0.1


class Rig:
    """Steps of an engine by hand, at times of our choice."""

    def __init__(self, engine: FakeEngine | None = None, **config: object) -> None:
        self.now_s = 0.0
        self.engine = engine if engine is not None else FakeStepping(self.spend, lambda rows: PERCEIVE_S, lambda rows: STEP_S)
        made = ServerConfig(**{"name": "s1", "batch_size": 8, "batching": "continuous", "max_sessions": 16, **config})  # type: ignore[arg-type]
        self.server = ModelServer(made, self.engine)  # type: ignore[arg-type]
        self._sessions: dict[str, tuple[int, int]] = {}

    def spend(self, seconds: float) -> None:
        self.now_s += seconds

    def clock(self) -> float:
        self.now_s += 1e-3
        return self.now_s

    def ask(self, robot: str, episode: int = 1, **session: object) -> None:
        epoch, sequence = self._sessions.get(robot, (0, 0))
        epoch = epoch or self.server.open_session(session_request(robot, **session)).session_epoch
        self._sessions[robot] = epoch, sequence + 1
        with self.server.counting_refusals():
            self.server.submit(observation(epoch, sequence + 1, robot, episode), self.clock())

    def epoch(self, robot: str) -> int:
        return self._sessions[robot][0]

    def step(self, times: int = 1) -> list[Reply]:
        return [reply for _ in range(times) for reply in self.server.step(self.clock)]

    @property
    def stepping(self) -> FakeStepping:
        assert isinstance(self.engine, FakeStepping)
        return self.engine


def robots(replies: list[Reply]) -> list[str]:
    return [reply.id.robot for reply in replies]


def test_a_request_joins_a_running_batch_and_each_is_answered_when_it_is_done() -> None:
    rig = Rig()
    rig.ask("r1")
    assert rig.step() == []
    rig.ask("r2")
    assert rig.step() == []
    assert robots(rig.step()) == ["r1"] and robots(rig.step()) == ["r2"]
    assert rig.stepping.turns == [[1], [1, 2], [1, 2], [2]] and rig.stepping.entered == [[1], [2]]
    assert rig.server.is_idle and rig.server.snapshot(rig.now_s).served == 2


def test_who_waits_together_is_perceived_together_and_is_told_how_many_rows_shared_its_turns() -> None:
    rig = Rig()
    for robot in ("r1", "r2", "r3"):
        rig.ask(robot)
    replies = rig.step(3)
    assert rig.stepping.entered == [[1, 2, 3]] and robots(replies) == ["r1", "r2", "r3"]
    assert [reply.served.batch_size for reply in replies] == [3, 3, 3]
    assert all(isinstance(reply, Chunk) and reply.chunk_model[0, 0] == 1.0 for reply in replies)


def test_no_more_rows_than_the_engine_has_room_for() -> None:
    rig = Rig(batch_size=2)
    for robot in ("r1", "r2", "r3"):
        rig.ask(robot)
    rig.step(2)
    assert rig.stepping.entered == [[1, 2]] and rig.server.num_waiting == 1
    assert robots(rig.step(4)) == ["r1", "r2", "r3"]


@pytest.mark.parametrize(
    ("how", "counter"), [("closes", "session_ended"), ("opens anew", "session_ended"), ("resets", "stale_episode")]
)
def test_a_row_whose_session_is_over_leaves_at_once(how: str, counter: str) -> None:
    rig = Rig()
    rig.ask("r1")
    rig.ask("r2")
    rig.step()
    if how == "closes":
        rig.server.close_session("r1", "system1", rig.epoch("r1"))
    elif how == "opens anew":
        rig.server.open_session(session_request("r1"))
    else:
        rig.server.reset_episode("r1", "system1", rig.epoch("r1"), 2)
    assert robots(rig.step(2)) == ["r2"]
    assert rig.stepping.left == [1] and rig.stepping.turns == [[1, 2], [2], [2]]
    assert rig.server.refused == {counter: 1} and rig.server.is_idle


def test_a_newer_request_takes_the_place_of_the_one_in_flight() -> None:
    rig = Rig()
    rig.ask("r1")
    rig.step()
    rig.ask("r1")
    replies = rig.step(4)
    assert [reply.id.sequence for reply in replies] == [2] and replies[0].served.superseded == 1
    assert rig.stepping.left == [1] and rig.server.snapshot(rig.now_s).superseded == 1 and rig.server.refused == {}


def test_only_what_has_solver_steps_and_no_state_between_chunks_is_served_so() -> None:
    with pytest.raises(ConfigurationError, match=r"batching: .*whole chunks only") as told:
        Rig(FakeEngine())
    assert told.value.key == "batching" and "fixed" in str(told.value)
    alone = FakeStepping()
    alone.contract = replace(CONTRACT, serving=Serving.EXCLUSIVE)
    with pytest.raises(ConfigurationError, match="one session"):
        Rig(alone)
    words = FakeEngine()
    words.contract = replace(CONTRACT, output=OutputKind.JUDGEMENT)
    assert not Rig(words).server.steps(), "text models answer as they do"


def test_rows_in_flight_end_before_batches_run_and_the_other_way_round() -> None:
    rig = Rig()
    config = rig.server.config
    rig.ask("r1")
    rig.step()
    rig.server.reconfigure(replace(config, batching="fixed"))
    rig.ask("r2")
    assert rig.step() == [] and robots(rig.step()) == ["r1"] and rig.stepping.entered == [[1]]
    assert robots(rig.step()) == ["r2"] and len(rig.engine.batches) == 1
    rig.server.reconfigure(config)
    rig.ask("r1")
    assert robots(rig.step(3)) == ["r1"] and len(rig.engine.batches) == 1 and len(rig.stepping.turns) == 6
