"""What processes with certificates say to everybody: a status admits a robot, and a claim ends whoever bears a name, by that one's
own certificate alone, and not because it was true once."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import rclpy
from rclpy.node import Node
from rclpy.serialization import serialize_message
from rfm_serving import msg

from ros2_rfm_serving.errors import BadMessageError, ConfigurationError
from ros2_rfm_serving.ros.node.own_name import claim
from ros2_rfm_serving.ros.node.process import EXIT_CONFIGURATION
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.node.said import MOST_PROCESSES, STALE, UNPROVEN, Hearer, Speaker
from ros2_rfm_serving.ros.robot.proofs import Proofs
from ros2_rfm_serving.ros.wire import bounded, qos
from ros2_rfm_serving.ros.wire.proofs import signed
from ros2_rfm_serving.ros.zenoh.carriers import NOBODY, CarriedRobot
from ros2_rfm_serving.security.own import ENCLAVE
from ros2_rfm_serving.security.signing import Prover, Verifier
from ros2_rfm_serving.types.names import LAST_STAGE
from test.enclaves import Enclaves
from test.waiting import eventually

TOPIC = "/arm_1/rfm/name"
LAST = 2**64 - 1
"""A process that no other can be above."""


@pytest.fixture
def enclaves(tmp_path: Path) -> Enclaves:
    return Enclaves(tmp_path / "enclaves")


def status(robot: str = "arm_1", scheduler: int = 7) -> Any:
    made = msg.RobotStatus(scheduler=scheduler, admitted_by=6, admitted_task="arm", refused=[msg.Counter(name="late", count=3)])
    made.header.frame_id = robot
    return made


def server_status() -> Any:
    made = msg.ServerStatus(state=msg.ServerStatus.READY)
    made.header.frame_id = "s1"
    return made


def hear(hearer: Hearer, data: bytes, robot: str = "arm_1") -> Any:
    found, end = bounded.measured(data, msg.RobotStatus)
    hearer.check_status(robot, 7, found, memoryview(data)[:end])
    return found


def problem(hearer: Hearer, data: bytes, robot: str = "arm_1") -> str:
    with pytest.raises(BadMessageError) as refused:
        hear(hearer, data, robot)
    assert refused.value.kind == (STALE if "said before" in str(refused.value) else UNPROVEN)
    return str(refused.value)


def test_a_status_counts_once_and_by_the_robots_own_certificate(enclaves: Enclaves, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("arm_1")))
    speaker, again = Speaker(), Speaker()
    hearer = Hearer(Verifier(enclaves.make("scheduler")))
    first = speaker.numbered(status())
    assert hear(hearer, first).refused[0].count == 3 and "said before" in problem(hearer, first)
    second = speaker.numbered(status())
    assert "not what was signed" in problem(hearer, second.replace(b"\x07\0\0\0\0\0\0\0", b"\x08\0\0\0\0\0\0\0", 1)), (
        "of a scheduler of now"
    )
    assert "arm_1 tells how 'ghost' is" in problem(hearer, second, "ghost")
    hear(hearer, second)  # that it was said on another topic has not used it up
    hear(hearer, again.numbered(status()))  # it has begun anew
    for old in (first, second):
        assert "said before" in problem(hearer, old)
    hear(hearer, speaker.numbered(status()))
    elsewhere, now = hearer._numbers
    for _ in range(3):
        hear(hearer, other := Speaker().numbered(status(scheduler=6)))  # said to another: it crowds out none of those that count
        assert "said before" in problem(hearer, other)
    assert (len(elsewhere["arm_1"]), len(now["arm_1"])) == (3, 2)
    now["arm_1"] |= dict.fromkeys(range(1, MOST_PROCESSES - 1), 1)
    hear(hearer, Speaker().numbered(status()))
    assert len(now["arm_1"]) == MOST_PROCESSES

    assert "no certificate" in problem(hearer, serialize_message(status()))
    others = {"arm_2 tells how 'arm_1' is": enclaves, "another authority's": Enclaves(enclaves.root / "else")}
    for said, authority in others.items():
        monkeypatch.setenv(ENCLAVE, str(authority.make("arm_2" if authority is enclaves else "arm_1")))
        assert said in problem(hearer, Speaker().numbered(status()))
    assert not hearer.is_of_now(status(scheduler=6), 7) and not hearer.is_of_now(status(scheduler=0), 7)
    monkeypatch.delenv(ENCLAVE)
    bare = Speaker().numbered(status())
    Hearer.of_process().check_status("arm_1", 7, bare, memoryview(b""))
    assert bare.process and not bare.number and not len(bare.certificate)
    assert Hearer.of_process().is_of_now(bare, 1), "without a certificate nobody asks for one"


def test_what_was_said_before_is_refused_for_nothing(enclaves: Enclaves, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of recorded statuses costs no verification."""
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("arm_1")))
    hearer, recorded = Hearer(Verifier(enclaves.make("scheduler"))), Speaker().numbered(status())
    hear(hearer, recorded)
    monkeypatch.setattr(Hearer, "who", lambda *_: pytest.fail("verified"))
    for _ in range(100):
        assert "said before" in problem(hearer, recorded)


def test_a_status_that_a_middleware_repeats_is_nobodys_forgery(enclaves: Enclaves, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a robot, whose `unproven` says that somebody is at work."""
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("s1")))
    speaker = Speaker()
    said = [speaker.numbered(server_status()) for _ in range(2)]
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("arm_1")))
    proofs, kinds = Proofs(), list[str]()
    for data in (said[0], said[1], said[1], said[0]):  # repeated, and overtaken
        found, end = bounded.measured(data, msg.ServerStatus)
        try:
            proofs.check_status("s1", found, memoryview(data)[:end])
        except BadMessageError as error:
            kinds.append(error.kind)
    assert kinds == [STALE, STALE]


def test_a_key_that_cannot_be_read_stops_no_robot(enclaves: Enclaves, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = enclaves.make("arm_1")
    monkeypatch.setenv(ENCLAVE, str(folder))
    speaker = Speaker()
    (folder / "key.pem").unlink()
    assert isinstance(speaker.numbered(status()), msg.RobotStatus), "it is said as it is, and counts for nobody who asks"


def test_what_it_costs(enclaves: Enclaves, monkeypatch: pytest.MonkeyPatch) -> None:
    """No limit: a machine may be busy. With -s it says the figures of docs/measurements/security.md."""
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("arm_1")))
    speaker, verifier, n = Speaker(), Verifier(enclaves.make("scheduler")), 200
    said = [speaker.numbered(status()) for _ in range(n)]
    bare, checks = serialize_message(status()), iter(said)
    hearer = Hearer(verifier)
    takes: dict[str, Callable[[], object]] = {
        "to write a status": lambda: serialize_message(status()),
        "and to sign it": lambda: speaker.numbered(status()),
        "to read a status": lambda: bounded.measured(bare, msg.RobotStatus),
        "and to verify it": lambda: hear(hearer, next(checks)),
    }
    for what, does in takes.items():
        print(f"{what}: {1e6 * timeit.timeit(does, timer=time.process_time, number=n) / n:.0f} us")
    print(f"{len(said[0]) - len(bare)} bytes more")


class Bearer:
    """Of arm_1, with a certificate; and somebody else on the same topic."""

    def __init__(self) -> None:
        self.node, self.other = Node("bearer"), Node("other")
        (self.own,) = claim(self.node, "robot", [("arm_1", TOPIC)])
        self.executor = executor()
        for node in (self.node, self.other):
            self.executor.add_node(node)
        self.says = self.other.create_publisher(msg.NameClaim, TOPIC, qos.NAME_CLAIM)
        self.heard: list[Any] = []
        self.other.create_subscription(msg.NameClaim, TOPIC, self.heard.append, qos.NAME_CLAIM_HEARD)
        self.wait(lambda: self.says.get_subscription_count() > 1 and self.heard, "each other")

    @property
    def process(self) -> int:
        return self.own._claim.process

    def figure(self, name: str) -> int:
        return int(next(value.value for value in self.own.diagnosis().values if value.key == name))

    def wait(self, until: Callable[[], Any], what: str) -> None:
        def turned() -> Any:
            self.executor.spin_once(timeout_sec=0.05)
            return until()

        assert eventually(turned), what

    def close(self) -> None:
        self.executor.shutdown()
        self.own.destroy()
        for node in (self.node, self.other):
            node.destroy_node()


@pytest.fixture
def bearer(ros_domain: int, enclaves: Enclaves, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bearer]:
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("arm_1")))
    rclpy.init()
    made = Bearer()
    try:
        yield made
    finally:
        made.close()
        rclpy.try_shutdown()


def claimed(heard: int, by: Path | None, **changes: Any) -> Any:
    made = msg.NameClaim(stage=LAST_STAGE, process=LAST, heard=heard, **changes)
    made.header.frame_id = "arm_1"
    return signed(made, Prover(by)) if by else made


def test_a_claim_that_is_under_way_when_the_name_is_given_up_is_answered_by_nobody(bearer: Bearer) -> None:
    """A robot that is cleaned up, while somebody claims its name."""
    bearer.own.destroy()
    bearer.own._on_claim(msg.NameClaim(stage=LAST_STAGE, process=LAST, heard=5))
    assert not bearer.own.lost


def test_a_claim_that_is_forged_or_was_true_once_ends_nobody(
    bearer: Bearer, enclaves: Enclaves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ros2_rfm_serving.ros.node.own_name.CLAIM_S", 90.0)
    own, process = bearer.own, bearer.process
    foreign, mine = Enclaves(enclaves.root / "else").make("arm_1"), enclaves.root / "arm_1"
    changed = bytearray(claimed(process, mine))
    changed[changed.index(b"\xff" * 8)] ^= 1
    forged = [claimed(process, None), claimed(process, enclaves.make("arm_2")), claimed(process, foreign), bytes(changed)]
    for number, each in enumerate(forged, start=1):
        bearer.says.publish(each)
        bearer.wait(lambda number=number: bearer.figure("claims unproven") == number, "counted")
    for heard in (0, 5):  # genuine, of a process that bore the name some time
        bearer.heard.clear()
        bearer.says.publish(claimed(heard, mine))
        bearer.wait(lambda: any(c.process == process and c.heard == LAST for c in bearer.heard), "the bearer's answer")
    assert not own.lost and bearer.figure("processes refused") == 0

    second = Node("second")
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(claim, second, "robot", [("arm_1", TOPIC)])
        bearer.wait(refused.done, "the second's end")
    with pytest.raises(ConfigurationError, match="another process is robot 'arm_1' already"):
        refused.result()
    bearer.wait(lambda: bearer.figure("processes refused") == 1, "it is shown")
    second.destroy_node()
    assert not own.lost

    with pytest.raises(SystemExit) as ended:  # who has the key and answers may: of two that cannot be, one has to go
        own._on_claim(bounded.read(claimed(process, mine), msg.NameClaim))
    assert ended.value.code == EXIT_CONFIGURATION


def test_a_door_speaks_for_robots(bearer: Bearer, enclaves: Enclaves) -> None:
    data = claimed(bearer.process, enclaves.make("door", role="door"))
    bearer.own._check(bounded.read(data, msg.NameClaim), memoryview(data))
    bearer.own._hear(bounded.read(data, msg.NameClaim))
    assert bearer.own.lost


def test_a_door_answers_also_whoever_has_heard_it_before() -> None:
    """What is latched is one word: the door may hear the second of a process and never its first."""
    robot, told = CarriedRobot.__new__(CarriedRobot), list[int]()
    robot.is_elsewhere, robot._answered = False, NOBODY
    for heard in (NOBODY, NOBODY, 0):
        robot._on_claim(told.append, msg.NameClaim(process=7, heard=heard))
    assert told == [7, 7], "once to who has heard it, and to whoever has not"
