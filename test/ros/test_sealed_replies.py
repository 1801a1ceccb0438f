"""An intruder on the network of a robot and a server that have certificates, over real DDS: it hears every observation, and answers
it before the server does. Nothing of that moves the robot, all of it is counted, and the robot goes on with its server."""

from __future__ import annotations

import array
import contextlib
import timeit
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rclpy
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.serialization import serialize_message
from rfm_serving import action, msg, srv
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import Float32MultiArray

from ros2_rfm_serving.errors import BadMessageError, UnprovenError
from ros2_rfm_serving.ros.node.doorkeeper import sign
from ros2_rfm_serving.ros.node.timers import OF_NODE
from ros2_rfm_serving.ros.robot.proofs import Proofs, _Opened
from ros2_rfm_serving.ros.robot.sessions import Sessions
from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.wire import bounded, cdr, convert, qos
from ros2_rfm_serving.ros.wire.proofs import sealed_reply
from ros2_rfm_serving.security.own import ENCLAVE
from ros2_rfm_serving.security.proof import SEAL_BYTES, Keys, Who, seal
from ros2_rfm_serving.security.signing import Prover
from ros2_rfm_serving.types import JudgeVerdict, ObservationRequest, ServingStats, SubgoalPlan
from test.enclaves import Enclaves
from test.unit.fakes import schedule, session_request

from .herald import Herald, speaker
from .robot_rig import FakeServer, Rig, RobotClient
from .server_fleet import JPEG, STARTS_S, Fleet, started
from .test_proof import Plant

SUCCESS = TransitionCallbackReturn.SUCCESS
PARAMETERS = [
    "robot:=arm_1",
    "state_size:=3",
    "cameras:=[front]",
    "control_rate_hz:=20.0",
    "max_action_age_s:=1.0",
    "conditioning:=none",
]
SENSED, FORGED = 0.25, 5.0
"""What the server makes of the robot's state is that state."""
Forge = Callable[[ObservationRequest, bytes], bytes]


class Hall:
    """A robot at work in this process, its server in another one, a second robot with a session of its own, and an intruder."""

    def __init__(self, fleet: Fleet, plant: Plant, node: RobotNode, operator: Path, scheduler: Path) -> None:
        """operator, scheduler: their enclaves."""
        self.fleet, self.plant, self.node, self.operator = fleet, plant, node, operator
        self.robot = RobotClient(fleet, "arm_1")
        self.heard: list[bytes] = []
        """Chunks of the server's, as they came."""
        self.forge: Forge | None = None
        self._chunk = fleet.create_publisher(msg.ActionChunk, "/arm_1/rfm/action_chunk", qos.REPLY)
        fleet.create_subscription(msg.ActionChunk, "/arm_1/rfm/action_chunk", self._on_chunk, qos.REPLY, raw=True)
        topic = "/rfm/servers/s1/observation"
        fleet.create_subscription(msg.Observation, topic, self._on_observation, qos.OBSERVATION_RECEIVED, raw=True)
        self._image = fleet.create_publisher(CompressedImage, "/arm_1/camera/front/image/compressed", qos.SENSOR)
        self._frame = CompressedImage(format="jpeg")
        convert.put(self._frame, "data", array.array("B", JPEG))
        fleet.create_timer(0.02, self._sense)
        self._plans = fleet.create_publisher(msg.Schedule, "/rfm/schedule", qos.SCHEDULE)
        self.herald = Herald(scheduler, fleet, convert.schedule_to(schedule("arm_1"), "hall"))
        self._plans.publish(self.herald.word())
        fleet.executor_.add_node(node)

    def _sense(self) -> None:
        self._image.publish(self._frame)
        self.robot.state.publish(Float32MultiArray(data=[SENSED, 0.0, 0.0]))

    def _on_chunk(self, data: bytes) -> None:
        with contextlib.suppress(BadMessageError):  # of the intruder's
            if np.all(cdr.chunk_from(data).chunk_robot < FORGED):
                self.heard.append(data)

    def _on_observation(self, data: bytes) -> None:
        request = cdr.observation_from(data)
        if self.forge and request.id.robot == "arm_1":
            self._chunk.publish(self.forge(request, data))

    def forged(self, request: ObservationRequest) -> bytes:
        """In all else as the server would say it."""
        rows = np.full((8, 3), FORGED, np.float32)
        genuine = cdr.chunk_from(self.heard[-1])
        return cdr.reply_to(
            replace(genuine, id=request.id, stamp_ns=request.stamp_ns, ended_with=None, chunk_model=rows, chunk_robot=rows)
        )

    def own_keys(self) -> Keys:
        assert self.node._servers is not None
        (opened,) = self.node._servers.proofs._opened.values()
        return opened.keys

    def goal(self) -> None:
        """Of an operator, who signs it over the challenge that a bare one is told."""
        self.fleet.wait(self.robot.task.server_is_ready, what="the action")
        wanted = action.ExecuteTask.Goal(time_budget_s=600.0)
        told = self._answered(self._answered(self.robot.send_goal()).get_result_async()).result
        sign(Prover(self.operator), wanted, "arm_1", bytes(told.challenge))
        self._answered(self.robot.send_goal(time_budget_s=600.0, proof=wanted.proof))
        self.goes_on()

    def _answered(self, asked: Any) -> Any:
        self.fleet.wait(asked.done, what="the goal's answer")
        return asked.result()

    def goes_on(self) -> None:
        """With actions of its server's, and no others ever."""
        before = len(self.robot.commands)
        self.fleet.wait(lambda: len(self.robot.commands) > before + 20 and self.robot.commands[-1][0] == SENSED, what="actions")
        assert max(np.abs(command).max() for command in self.robot.commands) <= SENSED + 1e-6

    def refused(self) -> dict[str, int]:
        status = self.robot.status
        return defaultdict(int, {c.name: c.count for c in status.refused} if status else {})

    def counts(self, forge: Forge, *kinds: str) -> None:
        """Some twenty observations are answered by the intruder first."""
        before = self.refused()
        self.forge = forge
        self.fleet.wait(lambda: sum(self.refused()[kind] - before[kind] for kind in kinds) >= 5, what=f"{kinds}: {self.refused()}")
        self.goes_on()
        self.forge = None


@pytest.fixture
def hall(ros_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hall]:
    enclaves = Enclaves(tmp_path / "enclaves")
    server = enclaves.make("s1")
    monkeypatch.setenv(ENCLAVE, str(server))
    with started(tmp_path) as process:
        given = [*PARAMETERS, "action_names:=['x','y','z']"]
        rclpy.init(args=["--ros-args", *[part for each in given for part in ("-p", each)]])
        fleet = Fleet("arm_2")
        plant = Plant(fleet, enclaves, server)
        monkeypatch.setenv(ENCLAVE, str(enclaves.root / "arm_1"))
        node = RobotNode()
        made = Hall(fleet, plant, node, enclaves.make("operator"), enclaves.make("scheduler"))
        try:
            fleet.wait(lambda: fleet.status and fleet.status.state == msg.ServerStatus.READY, STARTS_S, "ready")
            yield made
            assert process.poll() is None
        finally:
            fleet.executor_.shutdown()
            made.robot.task.destroy()
            for each in (fleet, node):
                each.destroy_node()
            rclpy.try_shutdown()


def test_no_chunk_that_its_server_did_not_send_moves_a_robot(hall: Hall) -> None:
    hall.goal()
    hall.plant.open("arm_2")
    others = hall.plant.answers["arm_2"]
    hall.counts(lambda request, data: hall.forged(request), "unproven")
    hall.counts(lambda request, data: sealed_reply(hall.forged(request), b"k" * 32), "unproven")
    hall.counts(lambda request, data: sealed_reply(hall.forged(request), others), "unproven")
    hall.counts(lambda request, data: hall.forged(request)[:-SEAL_BYTES] + hall.heard[-1][-SEAL_BYTES:], "unproven")
    hall.counts(lambda request, data: hall.forged(request)[:-SEAL_BYTES] + data[-SEAL_BYTES:], "unproven")
    hall.counts(lambda request, data: sealed_reply(hall.forged(request), hall.own_keys().asks), "unproven")
    hall.counts(lambda request, data: data, "bad_message", "unproven", "stale_epoch")
    in_anothers_name = lambda request, data: cdr.reply_to(  # noqa: E731
        replace(cdr.chunk_from(hall.forged(request)), server="s2")
    )
    hall.counts(in_anothers_name, "stale_epoch")


def test_no_chunk_counts_twice(hall: Hall) -> None:
    """Of an earlier request, and of an earlier session: each was genuine once."""
    hall.goal()
    old = hall.heard[0]
    hall.counts(lambda request, data: old, "late_or_duplicate")
    assert hall.node.trigger_deactivate() == SUCCESS and hall.node.trigger_cleanup() == SUCCESS
    hall.fleet.spin(1.0)
    hall.robot.status = None
    assert hall.node.trigger_configure() == SUCCESS and hall.node.trigger_activate() == SUCCESS
    hall.goal()
    hall.counts(lambda request, data: old, "stale_epoch", "unproven")


@pytest.mark.parametrize("kind", [msg.ActionChunk, msg.Judgement, msg.Plan])
def test_every_byte_of_every_answer_is_sealed(kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENCLAVE, str(Enclaves(tmp_path).make("arm_1")))
    proofs, keys = Proofs(), Keys(b"a" * 32, b"b" * 32)
    proofs._opened["s1", "arm_1", "system1", 4] = _Opened(keys, Who("s1", 0, 0.0))
    said = reply(kind)
    data = sealed_reply(said, keys.answers)
    assert bounded.check(data, kind) == len(data) and data[:-SEAL_BYTES] == said[:-SEAL_BYTES]

    def heard(octets: bytes) -> str:
        try:
            found, end = bounded.measured(octets, kind)
            proofs.check(found, memoryview(octets)[:end])
        except BadMessageError as error:
            return error.kind
        return ""

    assert not heard(data) and not heard(data + bytes(3)), "DDS pads what it carries"
    for at in range(bounded.HEADER_BYTES, len(data)):
        spoilt = bytearray(data)
        spoilt[at] ^= 1
        assert heard(bytes(spoilt)), at
    assert heard(said) == heard(sealed_reply(said, keys.asks)) == "unproven"
    assert heard(said[:-SEAL_BYTES] + seal(keys.answers, said)) == "unproven"
    proofs.ended("s1", "arm_1", "system1", 4)
    assert heard(data) == "stale_epoch"
    proofs._opened["s1", "arm_1", "system1", 4] = _Opened(Keys(b"c" * 32, b"d" * 32), Who("s1", 0, 0.0))
    assert heard(data) == "unproven", "of a session of the same number, before the server was started again"


def reply(kind: type) -> bytes:
    """Of s1 to arm_1, without a seal."""
    request = msg.RequestId(robot="arm_1", component="system1", session_epoch=4, episode=1, sequence=9)
    if kind is msg.ActionChunk:
        message = msg.ActionChunk(id=request, action_names=["x"], chunk_robot=msg.Tensor(rows=1, columns=1, data=[0.5]))
        message.header.frame_id = "s1"
        return cdr.reply_to(convert.chunk_from(message))
    identity = convert.id_from(request)
    served = ServingStats(queue_wait_s=0.1, inference_s=0.2, batch_size=1, superseded=0, server_load=0.5)
    common: dict[str, Any] = {"id": identity, "stamp_ns": 5, "server": "s1", "model_hash": "h", "served": served}
    if kind is msg.Plan:
        return cdr.reply_to(SubgoalPlan(subgoals=("one",), text="because", **common))
    return cdr.reply_to(JudgeVerdict(verdict="done", score=0.5, text="because", **common))


def test_a_robot_without_a_certificate_hears_whoever_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENCLAVE, raising=False)
    data = reply(msg.ActionChunk)
    assert data[-SEAL_BYTES:] == bytes(SEAL_BYTES)
    Proofs().check(bounded.read(data, msg.ActionChunk), memoryview(data))


class Pretender(FakeServer):
    """Tells a challenge, and grants every session with a proof of its own choice. The server's own status is heard, where it has
    its enclave: it is there, and slower to answer."""

    def __init__(self, challenge: bytes, proof: Any, enclave: Path | None) -> None:
        self._challenge, self._proof, self.asked = challenge, proof, 0
        self._speaker = speaker(enclave) if enclave else None
        super().__init__()

    def _tell(self) -> None:
        status = msg.ServerStatus(state=msg.ServerStatus.READY, challenge=self._challenge)
        status.header.frame_id = "s1"
        self._status.publish(self._speaker.numbered(status) if self._speaker else status)

    def _on_open(self, request: Any, response: Any) -> Any:
        self.asked += 1
        response = super()._on_open(request, response)
        response.proof = self._proof or request.proof
        return response


@pytest.mark.parametrize(("is_heard", "proof"), [(False, msg.Proof()), (True, msg.Proof()), (True, None)])
def test_who_poses_as_a_server_has_no_session(
    is_heard: bool, proof: Any, ros_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a status of its own, with no proof, with the robot's own: whoever could would be told what it sees, and move it."""
    enclaves = Enclaves(tmp_path)
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("r1")))
    given = ["robot:=r1", "state_size:=3", "action_names:=['x','y']", "control_rate_hz:=20.0", "cameras:=['']"]
    rclpy.init(args=["--ros-args", *[part for each in given for part in ("-p", each)]])
    monkeypatch.setattr(
        "test.ros.robot_rig.Rig.make_server", lambda _: Pretender(b"c" * 16, proof, enclaves.make("s1") if is_heard else None)
    )
    rig = Rig(RobotNode(), "r1")
    try:
        pretender: Any = rig.server
        rig.peer.create_timer(0.02, lambda: rig.robots["r1"].sense(3))
        rig.schedule.publish(Herald(enclaves.make("scheduler"), rig.peer, convert.schedule_to(schedule("r1"), "f")).word())
        rig.goal("r1", time_budget_s=600.0)
        robot = rig.robots["r1"]
        rig.wait(lambda: not is_heard or pretender.asked > 1, "attempts")
        rig.wait(lambda: any(c.name == "unproven" and c.count > 1 for c in robot.status.refused), "counted")
        assert is_heard or not pretender.asked
        assert not pretender.observations and not any(np.any(command) for command in robot.commands)
    finally:
        rig.close()
        rclpy.try_shutdown()


def test_a_robot_turns_to_the_standby_of_a_server_that_proves_nothing() -> None:
    """As of one that was revoked, or whose clock is a year off: it is there for good, and so is the standby."""
    refused: list[dict[str, Any]] = []
    brain = SimpleNamespace(on_session_refused=lambda *_, **how: refused.append(how), refused=Counter())
    robot: Any = SimpleNamespace(name="r1", brain=brain, safely=lambda callback, *given: callback(*given))
    asked: Any = Future()
    proofs = SimpleNamespace(sign=lambda server, request: None, answered=raising(UnprovenError("no server's")))
    servers: Any = SimpleNamespace(proofs=proofs, call=lambda *_: asked)
    node: Any = SimpleNamespace(get_logger=lambda: SimpleNamespace(warning=lambda *_, **how: None))
    turns = SimpleNamespace(once=lambda seconds, callback: later.append(callback))
    setattr(node, OF_NODE, turns)
    later: list[Callable[[], object]] = []
    Sessions(node, servers, robot).open("s1", session_request())
    asked.set_result(srv.OpenSession.Response(success=True))
    assert not asked.done() and not refused, "the server itself may still answer"
    for callback in later:
        callback()
    proofs.sign, proofs.answered = raising(UnprovenError("shows no certificate")), lambda *_: None
    Sessions(node, servers, robot).open("s1", session_request())
    proofs.sign, asked = lambda server, request: None, Future()
    Sessions(node, servers, robot).open("s1", session_request())
    asked.set_result(srv.OpenSession.Response(success=False, error_code=UnprovenError.code))
    assert [how["is_server_full"] for how in refused] == [True] * 3


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise error

    return call


def test_generated_bytes_have_nothing_behind_the_seal() -> None:
    """rclpy serializes to as many bytes as it estimates."""
    for kind in (msg.Judgement, msg.Plan):
        assert len(reply(kind)) <= len(serialize_message(bounded.read(reply(kind), kind)))
        assert bounded.check(reply(kind), kind) == len(reply(kind))


def test_what_a_seal_of_a_chunk_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 50 rows of 7 actions, both spaces: what a server does for it, and what a robot does."""
    monkeypatch.setenv(ENCLAVE, str(Enclaves(tmp_path).make("arm_1")))
    proofs, keys, rows = Proofs(), Keys(b"a" * 32, b"b" * 32), np.zeros((50, 7), np.float32)
    proofs._opened["s1", "arm_1", "system1", 4] = _Opened(keys, Who("s1", 0, 0.0))
    chunk = replace(cdr.chunk_from(reply(msg.ActionChunk)), chunk_model=rows, chunk_robot=rows)
    data = cdr.reply_to(chunk)
    sealed = sealed_reply(data, keys.answers)
    found, end = bounded.measured(sealed, msg.ActionChunk)
    measured: dict[str, Callable[[], object]] = {
        "written": lambda: cdr.reply_to(chunk),
        "sealed": lambda: sealed_reply(data, keys.answers),
        "read": lambda: bounded.measured(sealed, msg.ActionChunk),
        "checked": lambda: proofs.check(found, memoryview(sealed)[:end]),
    }
    took_s = {what: min(timeit.repeat(does, number=200, repeat=7)) / 200 for what, does in measured.items()}
    print(f"{len(sealed)} bytes, us: ", {what: round(each_s * 1e6, 1) for what, each_s in took_s.items()})
