"""What people look at shows the words of who has proven to say them: over DDS, forged messages beside the real ones."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
from prometheus_client import CollectorRegistry
from rclpy.node import Node
from rfm_serving import msg, srv

from ros2_rfm_serving.errors import BadMessageError, ConfigurationError
from ros2_rfm_serving.monitoring.board import AS_SAID, STALE_AFTER_S, UNCHECKED, UNDATED, Board, Proof
from ros2_rfm_serving.monitoring.metrics.families import BoardCollector
from ros2_rfm_serving.operate.running import observing
from ros2_rfm_serving.ros.monitor.looking import LookingNode
from ros2_rfm_serving.ros.node.doorkeeper import SCHEDULER as ASKER
from ros2_rfm_serving.ros.node.doorkeeper import sign_answer
from ros2_rfm_serving.ros.proven import Proven, Shown
from ros2_rfm_serving.ros.wire import bounded, qos
from ros2_rfm_serving.security.own import ENCLAVE
from ros2_rfm_serving.security.signing import Prover
from test.enclaves import Enclaves
from test.ros.herald import Herald, speaker
from test.ros.spinning import living
from test.ros.test_status import rfm
from test.waiting import eventually

NAMES = qos.Names()
SCHEDULER, OTHER = 7, 8
FORGED = "forged"
"""Whatever has this in it must be shown nowhere."""


@pytest.fixture
def enclaves(tmp_path: Path) -> Enclaves:
    return Enclaves(tmp_path / "enclaves")


def robot_status(robot: str = "arm_1", **fields: Any) -> Any:
    given = {"state": msg.RobotStatus.STREAMING, "scheduler": SCHEDULER, "held_ticks": 4, "task": "push", **fields}
    made = msg.RobotStatus(**given)
    made.header.frame_id = robot
    return made


def server_status(server: str = "s1", **fields: Any) -> Any:
    made = msg.ServerStatus(**{"state": msg.ServerStatus.READY, "model": "m", "served": 9, "hears": [SCHEDULER], **fields})
    made.header.frame_id = server
    return made


def plan(scheduler: int = SCHEDULER, **fields: Any) -> Any:
    made = msg.Schedule(**{"scheduler": scheduler, "epoch": 3, "factory": "hall", "policy": "best", **fields})
    made.placements = [
        msg.Placement(server="s1", model="m", components=["system1"], batching="fixed", batch_size=1, max_sessions=8)
    ]
    made.routes = [msg.Route(robot="arm_1", component="system1", server="s1", task="push", max_rate_hz=1.0)]
    return made


class Living(Node):
    """A server that is asked which schedule is in force."""

    def __init__(self, context: rclpy.Context, enclave: Path, scheduler: int = SCHEDULER, *, recorded: bool = False) -> None:
        """recorded: with a proof that was given to somebody else's question."""
        super().__init__("living", context=context)
        self._prover, self._scheduler, self._recorded = Prover(enclave), scheduler, recorded
        self.create_service(srv.GetSchedule, NAMES.server("s1", "get_schedule"), self._on_ask, qos_profile=qos.CONTROL)

    def _on_ask(self, request: Any, response: Any) -> Any:
        response.schedule = plan(self._scheduler)
        if self._recorded:
            request.proof.public_key = bytes(32)
        sign_answer(self._prover, request, ASKER, response)
        return response


class Plant(Node):
    """A robot, a server and a scheduler with certificates; and between every two words of theirs whatever is `forged`."""

    def __init__(self, context: rclpy.Context, enclaves: Enclaves, forged: bool = True, scheduler: int = SCHEDULER) -> None:
        super().__init__("plant", context=context)
        self._says = {
            "robot": self.create_publisher(msg.RobotStatus, NAMES.robot("arm_1", "rfm/status"), qos.ROBOT_STATUS),
            "server": self.create_publisher(msg.ServerStatus, NAMES.server("s1", "status"), qos.SERVER_STATUS),
            "schedule": self.create_publisher(msg.Schedule, NAMES.schedule, qos.SCHEDULE),
        }
        self._robot, self._server = speaker(enclaves.make("arm_1")), speaker(enclaves.make("s1"))
        self._scheduler = Herald(
            enclaves.make("scheduler"), self, plan(scheduler, factory="hall" if scheduler == SCHEDULER else "gone")
        )
        stranger, foreign = Enclaves(enclaves.root / "else"), enclaves.make("arm_2")
        bad_robot = robot_status(state=msg.RobotStatus.DEAD, reason=FORGED)
        bad_server = server_status(state=msg.ServerStatus.FAILED, detail=FORGED)
        self._forgers = {
            "robot": [lambda: bad_robot, *(self._as(speaker(e), bad_robot) for e in (foreign, stranger.make("arm_1")))],
            "server": [lambda: bad_server, *(self._as(speaker(e), bad_server) for e in (foreign, stranger.make("s1")))],
            "schedule": [
                lambda: plan(SCHEDULER, epoch=99, factory=FORGED),
                Herald(foreign, self, plan(OTHER, factory=FORGED)).word,
                Herald(stranger.make("scheduler"), self, plan(SCHEDULER, epoch=99, factory=FORGED)).word,
            ],
        }
        self._others = self._as(speaker(enclaves.make("arm_1")), robot_status("s1", reason=FORGED))  # of whom it may not tell
        self._recorded = [speaker(enclaves.root / "arm_1").numbered(robot_status(scheduler=OTHER, reason=FORGED)) for _ in range(3)]
        self._forged = forged
        self.create_timer(0.3, self._say)

    def _as(self, who: Any, status: Any) -> Any:
        return lambda: who.numbered(status)

    def _say(self) -> None:
        genuine = {
            "robot": self._robot.numbered(robot_status()),
            "server": self._server.numbered(server_status()),
            "schedule": self._scheduler.word(),
        }
        for kind, word in genuine.items():
            self._says[kind].publish(word)
            time.sleep(0.02)  # a queue of one
            for forge in self._forgers[kind] if self._forged else ():
                self._says[kind].publish(forge())
                time.sleep(0.02)
        if self._forged:
            for word in (*self._recorded, genuine["robot"], self._others()):
                self._says["robot"].publish(word)
                time.sleep(0.02)


def samples(board: Board) -> dict[tuple[str, ...], float]:
    registry = CollectorRegistry()
    registry.register(BoardCollector(board, time.monotonic))
    return {(s.name, *s.labels.values()): s.value for family in registry.collect() for s in family.samples}


def test_forged_messages_beside_the_real_ones_are_counted_and_not_shown(
    ros_domain: int, enclaves: Enclaves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("observer")))
    board, shown, s1 = Board([], []), list[str](), enclaves.make("s1")
    with (
        living(lambda context: Plant(context, enclaves), ros_domain),
        living(lambda context: Living(context, s1), ros_domain),
        observing(board, "", discover=True),
    ):

        def heard() -> bool:
            rows = [*board.robots.values(), *board.servers.values()]
            shown.extend([board.factory, *(vars(row).get("reason", vars(row).get("detail", "")) for row in rows)])
            counts = {name: board.unproven.get(name, 0) for name in ("arm_1", "s1", "schedule")}
            is_proven = board.proof is Proof.CHECKED and min(counts.values()) > 12
            return board.factory == "hall" and all(row.seen_s > 0 for row in rows) and is_proven

        assert eventually(heard, 60.0), (board.unproven, board.robots, board.factory)
        assert FORGED not in shown and UNDATED not in board.doubts
        assert (board.robots["arm_1"].state, board.servers["s1"].state, board.schedule_epoch) == ("STREAMING", "ready", 3)
        found = samples(board)
        assert found["rfm_proof", "checked"] == 1 and found["rfm_unproven_messages_total", "arm_1"] > 12
        told = rfm("status", "--json", "--wait", "60", cwd=Path.cwd())
        assert told.returncode == 0 and FORGED not in told.stdout, told.stderr
        proof = json.loads(told.stdout)["proof"]
        assert proof["statuses"] == "checked" and set(proof["unproven"]) <= {"arm_1", "s1", "schedule"} and proof["unproven"]
        table = rfm("status", "--wait", "60", cwd=Path.cwd()).stdout
        assert AS_SAID in table and "not shown: arm_1" in table and FORGED not in table


def test_signed_and_nobody_here_to_check_it_is_said_to_be_unproven(ros_domain: int, enclaves: Enclaves) -> None:
    board = Board([], [])
    with living(lambda context: Plant(context, enclaves, forged=False), ros_domain), observing(board, "", discover=True):
        assert eventually(lambda: board.factory and board.robots and board.proof is Proof.UNCHECKED, 60.0)
    assert board.doubts == [UNCHECKED] and not board.unproven and samples(board)["rfm_proof", "unchecked"] == 1


def test_a_recording_of_everybody_is_said_to_be_undated(
    ros_domain: int, enclaves: Enclaves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Word by word it is proven, and to whoever begins after it all of it is new. An answer that is recorded, too, is none."""
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("observer")))
    board, s1 = Board([], []), enclaves.make("s1")
    with (
        living(lambda context: Plant(context, enclaves, forged=False), ros_domain),
        living(lambda context: Living(context, s1, recorded=True), ros_domain) as server,
        observing(board, "", discover=True) as looker,
    ):
        asked = looker._shown._dated._asked_s
        assert eventually(lambda: board.factory and board.robots and board.robots["arm_1"].seen_s > 0 and "s1" in asked, 60.0)
        first_s = asked["s1"]
        assert eventually(lambda: asked["s1"] > first_s + 1.5, 60.0), "it goes on asking"
        assert board.proof is Proof.UNDATED and UNDATED in board.doubts and samples(board)["rfm_proof", "undated"] == 1
        server._recorded = False
        assert eventually(lambda: board.proof is Proof.CHECKED, 60.0) and UNDATED not in board.doubts


def test_whom_a_server_follows_is_shown_beside_a_recording_that_was_heard_first(
    ros_domain: int, enclaves: Enclaves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("observer")))
    board, s1 = Board([], []), enclaves.make("s1")
    with (
        living(lambda context: Plant(context, enclaves, forged=False, scheduler=OTHER), ros_domain),
        observing(board, "", discover=True),
    ):
        assert eventually(lambda: board.factory == "gone", 60.0)
        with (
            living(lambda context: Plant(context, enclaves, forged=False), ros_domain),
            living(lambda context: Living(context, s1), ros_domain),
        ):
            assert eventually(lambda: board.factory == "hall" and board.proof is Proof.CHECKED, 60.0)
            assert not eventually(lambda: board.factory == "gone", 3.0), "as long as it goes on"


def test_an_enclave_that_is_given_checks_as_that_of_the_environment(ros_domain: int, enclaves: Enclaves) -> None:
    board = Board([], [])
    with living(lambda context: Plant(context, enclaves), ros_domain):
        with observing(board, "", discover=True, enclave=enclaves.make("dashboard")):
            assert eventually(lambda: "arm_1" in board.robots and board.robots["arm_1"].state == "STREAMING", 60.0)
            assert eventually(lambda: board.factory == "hall" and board.unproven.get("arm_1", 0) > 3, 60.0)
        assert board.proof is Proof.UNDATED, "nobody is asked who is there"
        with (
            pytest.raises(ConfigurationError, match=r"identity_ca.cert.pem"),
            observing(board, "", enclave=enclaves.root / "nobody"),
        ):
            pytest.fail("it would show what it cannot prove")


@pytest.fixture
def looker(ros_domain: int, enclaves: Enclaves, monkeypatch: pytest.MonkeyPatch) -> Iterator[LookingNode]:
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("observer")))
    rclpy.init()
    made = LookingNode(Board([], []))
    yield made
    made.destroy_node()
    rclpy.try_shutdown()


def test_what_is_looked_at_for_causes_says_what_has_no_proof(looker: LookingNode) -> None:
    looker._board.refuse("arm_1")
    assert looker.finish().doubts == [UNDATED, AS_SAID, "unproven messages, not shown: arm_1 1"]


def test_a_robot_tells_of_itself_alone(enclaves: Enclaves, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("observer")))
    board = Board([], [])
    board.scheduler = SCHEDULER
    proven, says = Proven(board), speaker(enclaves.make("arm_1"))

    def hear(status: Any) -> None:
        found, end = bounded.measured(data := says.numbered(status), msg.RobotStatus)
        proven.check_status("arm_1", found, memoryview(data)[:end])

    hear(robot_status())
    with pytest.raises(BadMessageError, match="'arm_1' tells how 'arm_2' is") as refused:
        hear(robot_status("arm_2"))
    assert refused.value.kind == "unproven"


def test_of_two_processes_of_one_name_one_is_shown() -> None:
    shown = Shown()

    def takes(name: str, process: int, is_of_now: bool, now_s: float) -> str:
        """Empty: it does; else why not."""
        try:
            shown.take(name, process, is_of_now, now_s)
        except BadMessageError as error:
            return error.kind
        return ""

    assert not takes("arm_1", 1, True, 0.0) and not takes("arm_2", 2, True, 0.0)
    assert takes("arm_1", 2, True, 0.5) == takes("arm_1", 2, False, 0.5) == "unproven"
    assert not takes("arm_1", 1, False, 1.0), "it follows another scheduler now"
    assert not takes("arm_1", 2, True, 1.5), "said to the scheduler that is shown, while the other was not"
    assert takes("arm_1", 1, True, 2.0) == "unproven"
    assert not takes("arm_1", 1, True, 1.5 + STALE_AFTER_S + 0.1), "it was started again"
    assert takes("arm_3", 1, False, 0.0) == takes("arm_3", 1, False, STALE_AFTER_S) == "untimely_status", "a recording, perhaps"
    assert not takes("arm_3", 1, False, STALE_AFTER_S + 0.1) and not takes("arm_3", 2, True, STALE_AFTER_S + 0.2)
