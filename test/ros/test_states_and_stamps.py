"""States have one source, and every counter and stamp leaves its process."""

from __future__ import annotations

import enum
from collections import Counter
from typing import Any

import pytest
from rclpy.serialization import deserialize_message
from rfm_serving import action, msg

from ros2_rfm_serving.monitoring.board import Board, RobotRow, ServerRow
from ros2_rfm_serving.ros.node.diagnostics import key_values
from ros2_rfm_serving.ros.observer_node import ObserverNode
from ros2_rfm_serving.ros.robot import status as robot_status
from ros2_rfm_serving.ros.server import status as server_status
from ros2_rfm_serving.ros.wire import cdr
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.types import (
    ClaimStage,
    JudgeVerdict,
    RobotState,
    ScheduleFollower,
    ServerState,
    SubgoalPlan,
    TaskOutcome,
    TaskPhase,
)
from test.unit.fakes import FakeEngine, chunk, observation

SENT_NS = 1_234_567_890_987_654_321
CHUNK = chunk(observation(1))
SAID = {"id": CHUNK.id, "stamp_ns": 5, "server": "s", "model_hash": "", "text": "", "served": CHUNK.served}
VERDICT, PLAN = JudgeVerdict(**SAID, verdict="done", score=1.0), SubgoalPlan(**SAID, subgoals=("reach",))


class Words:
    """Of a row that others read while it is written."""

    def __setattr__(self, name: str, value: object) -> None:
        assert name not in ("state", "phase") or isinstance(value, str), f"{name} is {value!r} for a while"
        super().__setattr__(name, value)


class WatchedRobot(Words, RobotRow): ...


class WatchedServer(Words, ServerRow): ...


def test_whoever_looks_at_a_row_meanwhile_finds_its_state_in_words() -> None:
    """`rfm up` and the page read it on threads of their own."""
    observer = ObserverNode.__new__(ObserverNode)
    board = observer._board = Board(["arm_1"], ["server_1"])
    board.robots["arm_1"], board.servers["server_1"] = WatchedRobot(), WatchedServer()
    robot, server = (
        msg.RobotStatus(state=RobotState.STREAMING, phase=TaskPhase.EXECUTING),
        msg.ServerStatus(state=ServerState.READY),
    )
    robot.header.frame_id, server.header.frame_id = "arm_1", "server_1"
    observer._on_robot(robot)
    observer._on_server(server)
    assert (board.robots["arm_1"].state, board.robots["arm_1"].phase) == ("STREAMING", "executing")
    assert board.servers["server_1"].state == "ready"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (msg.ServerStatus, [*ServerState]),
        (msg.RobotStatus, [*RobotState, *TaskPhase]),
        (msg.NameClaim, [*ClaimStage]),
        (action.ExecuteTask.Result, [*TaskOutcome]),
    ],
)
def test_the_constants_of_the_wire_are_the_states_of_the_brain(message: Any, words: list[enum.IntEnum]) -> None:
    names = [name for name in dir(type(message)) if name.isupper() and not name.startswith("_") and not name.endswith("__DEFAULT")]
    constants = {name: getattr(message, name) for name in names}
    assert constants == {word.name: int(word) for word in words}


def test_diagnostics_know_every_state() -> None:
    assert set(server_status.LEVELS) == set(ServerState) and set(robot_status.LEVELS) == set(RobotState)


@pytest.mark.parametrize("state", list(ServerState))
def test_people_see_every_state_of_a_server_by_its_name(state: ServerState) -> None:
    board = Board([], ["s1"])
    message = msg.ServerStatus(state=int(state), refetched=3)
    message.header.frame_id = "s1"
    observer = ObserverNode.__new__(ObserverNode)
    observer._board = board
    observer._on_server(message)
    assert board.servers["s1"].state == state.name.lower() and board.servers["s1"].refetched == 3


def test_what_a_server_counts_leaves_its_process() -> None:
    """Every figure of the snapshot is in the status, and so in the diagnostics."""
    server = ModelServer(ServerConfig(name="s1"), FakeEngine())
    server.core._refetched = 7
    given = "s1", ServerState.READY, "", ScheduleFollower(), Counter(bad_schedule=2), server, 1.0
    status = server_status.status_message(*given, former={})
    assert vars(server.snapshot(1.0)).keys() <= status.get_fields_and_field_types().keys()
    assert status.refetched == 7 and [(c.name, c.count) for c in status.refused] == [("bad_schedule", 2)]
    told = {value.key: value.value for value in server_status.diagnosis(status, ScheduleFollower(), 1.0).values}
    assert told["refetched"] == "7" and told["refused bad_schedule"] == "2" and key_values({"served": 0})[0].key in told


@pytest.mark.parametrize(("reply", "kind"), [(CHUNK, msg.ActionChunk), (VERDICT, msg.Judgement), (PLAN, msg.Plan)])
def test_replies_are_stamped(reply: Any, kind: type) -> None:
    stamp = deserialize_message(cdr.reply_to(reply, SENT_NS), kind).header.stamp
    assert (stamp.sec, stamp.nanosec) == divmod(SENT_NS, 1_000_000_000)
