"""Pipelined sessions at a server: who may open one, what is in flight, and what is told of it (AURAS §4.2.2, §4.3)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from ros2_rfm_serving.errors import BadMessageError, CapacityError, ConfigurationError, ContractError, ModelError
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.server.openpi.protocol import OpenpiClient
from ros2_rfm_serving.types import (
    ActionChunk,
    Conditioning,
    EngineReply,
    InferenceRequest,
    PipelineConfig,
)
from test.unit.fakes import CONTRACT, FakeEngine, observation, rows, session_request
from test.unit.server.frames_machine import FramesMachine
from test.unit.stepping import FakeStepping

TWO, THREE = PipelineConfig(), PipelineConfig(pp_generation=2)


class Framed(FakeStepping):
    """Of one robot: a row goes on by one step per frame, from the one after its own on, and sees the newest observation."""

    contract = replace(CONTRACT, pipelines=True)
    num_steps = 2

    def __init__(self, max_rows: int = 8) -> None:
        super().__init__()
        self.seen, self.max_rows = 0, max_rows

    def require_pipelining(self, pipelining: PipelineConfig, num_steps: int = 0) -> None:
        if pipelining.pp_generation > self.num_steps:
            raise ModelError(f"pp_generation is {pipelining.pp_generation}; the model has {self.num_steps} steps")

    def enter(self, rows: Mapping[int, InferenceRequest]) -> Mapping[int, ModelError]:
        for number, request in rows.items():
            if request.pipelining:
                self.waits, self.seen = {number}, request.id.sequence
        return super().enter(rows)

    def iterate(self, rows: Collection[int]) -> Mapping[int, EngineReply | ModelError]:
        given = super().iterate(rows)
        self.waits |= {number for number in rows if number in self.in_flight and self.in_flight[number][0].pipelining}
        return {
            number: replace(answer, ended_with=self.seen) for number, answer in given.items() if isinstance(answer, EngineReply)
        }


class Rig:
    def __init__(self, engine: FakeEngine | None = None, **config: object) -> None:
        self.now_s, self.engine = 0.0, engine or Framed()
        made = ServerConfig(**{"name": "s1", "batch_size": 8, "batching": "continuous", "max_sessions": 16, **config})  # type: ignore[arg-type]
        self.server = ModelServer(made, self.engine)  # type: ignore[arg-type]

    def open(self, robot: str = "r1", pipelining: PipelineConfig | None = THREE, **changes: object) -> int:
        return self.server.open_session(session_request(robot, pipelining=pipelining, **changes)).session_epoch

    def frame(self, epoch: int, sequence: int, robot: str = "r1", rounds: int = 6, **changes: object) -> list[ActionChunk]:
        """An observation, and all that follows from it."""
        self.server.submit(observation(epoch, sequence, robot, **changes), self.clock())  # type: ignore[arg-type]
        return self.rounds(rounds)

    def rounds(self, number: int = 1) -> list[ActionChunk]:
        return [reply for _ in range(number) for reply in self.server.loop.step(self.clock) if isinstance(reply, ActionChunk)]

    def clock(self) -> float:
        self.now_s += 1e-3
        return self.now_s


def told(chunks: list[ActionChunk]) -> list[tuple[int, int | None]]:
    """(request, observation that it ended with)"""
    return [(chunk.id.sequence, chunk.ended_with) for chunk in chunks]


def test_as_many_requests_as_its_depth_are_in_flight_and_each_frame_answers_one() -> None:
    rig = Rig()
    epoch = rig.open()
    frames = [told(rig.frame(epoch, sequence)) for sequence in (1, 2, 3, 4, 5)]
    assert frames == [[], [], [(1, 3)], [(2, 4)], [(3, 5)]]
    assert rig.server.loop.num_in_flight() == 2 and rig.server.refused == {}, "nothing is superseded by what is newer"
    assert rig.server.stalled_s(rig.now_s + 60.0) == 0.0, "rows that wait for their robot are no engine that hangs"


def test_a_row_that_waits_for_its_frame_is_no_load() -> None:
    rig = Rig()
    epoch = rig.open()
    for sequence in range(1, 6):
        rig.frame(epoch, sequence)
        rig.now_s += 1.0
    assert rig.server.loop.num_in_flight() == 2 and rig.server.snapshot(rig.now_s).load < 0.05


def test_a_newer_observation_takes_the_place_of_one_that_has_not_entered() -> None:
    rig = Rig()
    epoch = rig.open()
    for sequence in (1, 2, 3):
        rig.server.submit(observation(epoch, sequence), rig.clock())
    assert rig.rounds(6) == [] and rig.server.loop.num_in_flight() == 1 and rig.server.snapshot(rig.now_s).superseded == 2
    assert told(rig.frame(epoch, 4)) == [] and told(rig.frame(epoch, 5)) == [(3, 5)]


def test_no_more_enter_than_the_session_has_agreed_upon() -> None:
    class Stuck(Framed):
        def iterate(self, rows: Collection[int]) -> Mapping[int, EngineReply | ModelError]:
            return {}

    rig = Rig(Stuck())
    epoch = rig.open(pipelining=TWO)
    for sequence in (1, 2, 3, 4):
        rig.frame(epoch, sequence)
    assert rig.server.loop.num_in_flight() == 2 and rig.server.num_waiting == 1


def test_a_row_that_waits_for_its_frame_keeps_no_other_robot_waiting() -> None:
    rig = Rig(batch_size=5)
    rig.engine.num_steps = 3  # type: ignore[attr-defined]
    epoch, other = rig.open(pipelining=PipelineConfig(pp_generation=2, pp_perception=2)), rig.open("r2", None)
    for sequence in (1, 2, 3):
        rig.frame(epoch, sequence)
    assert rig.server.loop.num_in_flight() == 3
    answered = rig.frame(other, 1, "r2")
    assert [(chunk.id.robot, chunk.ended_with) for chunk in answered] == [("r2", None)]


def test_what_was_held_is_the_prefix_of_the_observation_that_it_ended_with() -> None:
    rig = Rig()
    epoch = rig.open(conditioning=Conditioning.PREFIX)
    for sequence, delay in ((1, 1), (2, 2)):
        rig.frame(epoch, sequence, inference_delay_steps=delay, prefix_model=rows(length=3))
    (chunk,) = rig.frame(epoch, 3, inference_delay_steps=3, prefix_model=rows(length=3))
    assert told([chunk]) == [(1, 3)] and chunk.inference_delay_steps == 3


def test_a_new_episode_begins_without_rows_of_the_old_one() -> None:
    rig = Rig()
    epoch = rig.open()
    rig.frame(epoch, 1)
    rig.frame(epoch, 2)
    rig.server.reset_episode("r1", "system1", epoch, 2)
    frames = [told(rig.frame(epoch, sequence, episode=2)) for sequence in (3, 4, 5)]
    assert frames == [[], [], [(3, 5)]] and rig.server.refused == {"stale_episode": 2}


def test_a_server_that_ends_does_not_wait_for_frames() -> None:
    rig = Rig()
    epoch = rig.open()
    rig.frame(epoch, 1)
    rig.server.drain()
    rig.rounds(2)
    assert rig.server.is_idle


# --- who is refused ---


def refusal(rig: Rig, pipelining: PipelineConfig = THREE) -> str:
    with pytest.raises(ContractError) as told:
        rig.open(pipelining=pipelining)
    assert rig.server.session_names() == []
    return str(told.value)


def test_a_session_is_refused_where_model_or_server_cannot() -> None:
    whole = FakeStepping()
    assert "pipelining: the robot asks for it, this model answers one request of a robot after the other" in refusal(Rig(whole))
    assert "`batching: continuous`" in refusal(Rig(batching="fixed"))
    assert "pp_generation is 3; the model has 2 steps" in refusal(Rig(), PipelineConfig(pp_generation=3))
    assert "pp_perception + pp_generation is 3, this server keeps 2 rows" in refusal(Rig(Framed(max_rows=3)))


def test_no_robot_takes_the_rows_of_all() -> None:
    rig = Rig(Framed(max_rows=6))
    epoch = rig.open("r1")
    with pytest.raises(CapacityError, match="3 of 5 rows are taken by pipelined sessions"):
        rig.open("r2")
    assert rig.open("r1") > epoch, "its own are given back"
    assert rig.open("r2", TWO) and rig.open("r3", None)


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (PipelineConfig(pp_perception=0), "pp_perception is 0"),
        (PipelineConfig(pp_generation=200), "pp_generation is 200"),
        (PipelineConfig(alpha=float("nan")), "alpha is nan"),
        (PipelineConfig(fetch_offset=1), "fetch_offset is 1"),
    ],
)
def test_impossible_values_are_no_difference_of_contracts(spoilt: PipelineConfig, said: str) -> None:
    rig = Rig()
    with pytest.raises(BadMessageError, match=said):
        rig.open(pipelining=spoilt)


def test_batches_do_not_come_back_while_a_pipelined_session_is_open() -> None:
    rig = Rig()
    epoch = rig.open()
    with pytest.raises(ConfigurationError, match="pipelined sessions are open") as told:
        rig.server.reconfigure(replace(rig.server.config, batching="fixed"))
    assert told.value.key == "batching"
    rig.server.close_session("r1", "system1", epoch)
    rig.server.reconfigure(replace(rig.server.config, batching="fixed"))


def test_the_door_for_clients_without_ros_offers_none() -> None:
    door = OpenpiClient(Rig().server, "ws_1")
    assert door.metadata()["pipelines"] is False and Framed.contract.pipelines


# --- rows between two frames keep nobody waiting -------------------------------------------------------------------------------


class Spoilt(Framed):
    """Its next perception fails."""

    fails = False

    def require_pipelining(self, pipelining: PipelineConfig, num_steps: int = 0) -> None: ...

    def enter(self, rows: Mapping[int, InferenceRequest]) -> Mapping[int, ModelError]:
        if self.fails:
            self.fails = False
            raise RuntimeError("no memory")
        return super().enter(rows)


@pytest.mark.parametrize("silent", [False, True])
def test_after_a_failure_that_they_shared_all_are_answered_again(silent: bool) -> None:
    """Whoever was in a call that failed has the engine for itself, and a pipelined session has rows in flight all the time."""
    engine = Spoilt()
    rig = Rig(engine)
    epochs = {"r1": rig.open(), "r2": rig.open("r2", None), "r3": rig.open("r3", None)}
    for sequence in (1, 2):
        rig.frame(epochs["r1"], sequence)
    engine.fails = True
    asking = ["r2", "r3"] if silent else ["r2", "r1"]
    for robot in asking:
        rig.server.submit(observation(epochs[robot], 3, robot), rig.clock())
    rig.rounds(2)
    assert rig.server.refused == {"engine_error": 2} and rig.server.loop.num_in_flight() == 2
    asks = [(robot, sequence) for sequence in range(4, 9) for robot in asking]
    answered = [chunk.id.robot for robot, sequence in asks for chunk in rig.frame(epochs[robot], sequence, robot)]
    assert [answered.count(robot) for robot in asking] == [5, 5] and rig.server.num_waiting == 0


@pytest.mark.parametrize("pipelining", [None, TWO])
def test_an_engine_in_which_no_row_ever_goes_on_counts_as_hung_though_robots_ask_anew(pipelining: PipelineConfig | None) -> None:
    class Idle(Framed):
        def ready(self) -> Collection[int]:
            return []

    rig = Rig(Idle())
    epochs = {robot: rig.open(robot, pipelining) for robot in ("r1", "r2")}
    for sequence in range(1, 31):
        rig.now_s += 1.0
        for robot, epoch in epochs.items():
            rig.frame(epoch, sequence, robot, rounds=2)
    assert rig.server.stalled_s(rig.now_s) > 20.0


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_everybody_is_answered_who_asks_afterwards(seed: int) -> None:
    machine = FramesMachine(seed)
    for _ in range(400):
        machine.happen()
    machine.settle()


@pytest.mark.parametrize("batch_size", [1, 2])
def test_small_batches_are_those_of_the_others(batch_size: int) -> None:
    """Memory says how many rows pipelined sessions may have; a schedule's batch size is smaller where few robots ask."""
    rig = Rig(batch_size=batch_size)
    epoch, other = rig.open(), rig.open("r2", None)
    for sequence in (1, 2):
        rig.frame(epoch, sequence)
    assert told(rig.frame(epoch, 3)) == [(1, 3)] and len(rig.frame(other, 1, "r2")) == 1


def test_fewer_rows_than_a_pipelined_session_was_promised_keep_it_and_all_others_going() -> None:
    rig = Rig()
    epoch, other = rig.open(), rig.open("r2", None)
    for sequence in (1, 2):
        rig.frame(epoch, sequence)
    rig.server.resize(2, 0)
    assert told(rig.frame(epoch, 3)) == [(1, 3)] and len(rig.frame(other, 1, "r2")) == 1
    for robot, its_epoch in (("r1", epoch), ("r2", other)):
        rig.server.close_session(robot, "system1", its_epoch)
    assert rig.open() > epoch, "and takes another"
