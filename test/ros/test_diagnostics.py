"""Every status that a factory's processes publish has a place in the tree of config/diagnostics/aggregator.yaml, and only one."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
import yaml
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node

from ros2_rfm_serving.monitoring.board import Board, ProcessRow
from ros2_rfm_serving.monitoring.metrics.processes import processes
from ros2_rfm_serving.ros.model_server_node import ModelServerNode
from ros2_rfm_serving.ros.monitor.looking import LookingNode
from ros2_rfm_serving.ros.node.diagnostics import Diagnostics
from ros2_rfm_serving.ros.node.log_disk import LogDisk
from ros2_rfm_serving.ros.node.runtime import clock, executor
from ros2_rfm_serving.ros.node.said import Speaker
from ros2_rfm_serving.ros.observer_node import ObserverNode
from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.scheduler_node import SchedulerNode
from ros2_rfm_serving.ros.wire.proofs import signed_report
from ros2_rfm_serving.security.authority import load_certificate
from ros2_rfm_serving.security.folder import CERTIFICATE
from ros2_rfm_serving.security.own import ENCLAVE, WARNED_DAYS
from ros2_rfm_serving.security.signing import Prover
from ros2_rfm_serving.types.process_problems import ENDED, LOG_DISK_FULL, LOG_DISK_SILENT, without_process_problems
from test.enclaves import Enclaves

from .overhearing import overheard
from .test_scheduler_node import FACTORY

EXPECTED = {
    "scheduler: schedule",
    "scheduler: robots",
    "scheduler: servers",
    "server_1: server",
    "server_1: name",
    "arm_1: robot",
    "arm_1: name",
}
ROBOT = ("robot:=arm_1",)


@pytest.fixture
def statuses(ros_domain: int, tmp_path: Path) -> Iterator[dict[str, Any]]:
    (tmp_path / "factory.yaml").write_text(FACTORY)
    factory = f"scheduler:factory_file:={tmp_path / 'factory.yaml'}"
    parameters = [factory, "scheduler:look_around_s:=0.0", "model_server:server:=server_1"]
    parameters += [f"robot:{one}" for one in ROBOT]
    with overheard(lambda: [SchedulerNode(), ModelServerNode(), RobotNode()], parameters) as made:
        made.within(lambda: made.statuses.keys() >= EXPECTED)
        yield made.statuses


def matches(analyzer: dict[str, Any], name: str) -> bool:
    """GenericAnalyzer::match of ros/diagnostics."""
    return (
        any(re.fullmatch(pattern, name) for pattern in analyzer.get("regex", []))
        or name in analyzer.get("expected", [])
        or any(name.startswith(prefix) for prefix in analyzer.get("startswith", []))
        or any(part in name for part in analyzer.get("contains", []))
    )


def test_every_status_has_its_place_and_says_whose_it_is(repository: Path, statuses: dict[str, Any]) -> None:
    content = yaml.safe_load((repository / "config/diagnostics/aggregator.yaml").read_text())["analyzers"]["ros__parameters"]
    analyzers = {one["path"]: one for one in content.values() if isinstance(one, dict)}
    for one in analyzers.values():  # as rclcpp's as_double and as_string_array read them
        assert one["type"] == "diagnostic_aggregator/GenericAnalyzer" and isinstance(one["timeout"], float)
        assert isinstance(one["regex"], list) and one.keys() <= {"type", "path", "regex", "timeout"}
    assert isinstance(content["pub_rate"], float) and content["path"] == "Factory"
    assert statuses.keys() == EXPECTED
    places = {name: [path for path, one in analyzers.items() if matches(one, name)] for name in statuses}
    assert places == {
        "scheduler: schedule": ["Fleet"],
        "scheduler: robots": ["Fleet"],
        "scheduler: servers": ["Fleet"],
        "server_1: server": ["Servers"],
        "arm_1: robot": ["Robots"],
        "server_1: name": ["Names"],
        "arm_1: name": ["Names"],
    }
    for name, status in statuses.items():
        assert status.hardware_id and status.message, name
        assert [value.key for value in status.values] and all(value.key for value in status.values)
    robot = {value.key: value.value for value in statuses["arm_1: robot"].values}
    assert robot["image_age_s front"] == robot["state_age_s"] == "inf", "no reading ever came"
    assert (robot["image_topic front"], robot["state_topics"]) == ("/arm_1/camera/front/image/compressed", "/arm_1/state")


def test_a_full_log_disk_is_said_and_counted(ros_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc has no room for anything, as a full disk; the scheduler goes on."""
    (tmp_path / "factory.yaml").write_text(FACTORY)
    parameters = [f"scheduler:factory_file:={tmp_path / 'factory.yaml'}", "scheduler:look_around_s:=0.0"]

    def scheduler() -> list[Node]:
        monkeypatch.setenv("ROS_LOG_DIR", "/proc")
        return [SchedulerNode()]

    with overheard(scheduler, parameters) as made:
        full = lambda one: "no room for logs in /proc" in one.message  # noqa: E731
        said = made.within(lambda: [one for one in made.statuses.values() if full(one)])
        assert said and said[0].level == DiagnosticStatus.WARN
        values = {value.key: value.value for value in said[0].values}
        assert values["log disk full, times"] == "1"
        own = without_process_problems(ord(said[0].level), said[0].message, values)
        assert own.problems.keys() == {LOG_DISK_FULL} and own.message and "no room" not in own.message


@pytest.mark.parametrize(
    ("days", "level", "words"),
    [
        (WARNED_DAYS + 5, DiagnosticStatus.OK, ""),
        (5, DiagnosticStatus.WARN, "own certificate ends in 5 days: rfm security rotate"),
        (-1, DiagnosticStatus.ERROR, "own certificate has ended: rfm security rotate"),
        (None, DiagnosticStatus.WARN, "own certificate: "),
    ],
)
def test_a_certificate_that_ends_is_said_in_time(
    ros_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: float | None, level: bytes, words: str
) -> None:
    """days: that are left of it; None: it lies nowhere."""
    enclave = tmp_path / "gone" if days is None else Enclaves(tmp_path).make("arm_1", 10, days + 10.001)
    monkeypatch.setenv(ENCLAVE, str(enclave))
    told = lambda: DiagnosticStatus(level=DiagnosticStatus.OK, name="it", message="is well")  # noqa: E731

    def made_of(node: Node) -> list[Node]:
        Diagnostics(node, lambda: [told])
        return [node]

    with overheard(lambda: made_of(Node("diagnosed"))) as made:
        said = made.within(lambda: made.statuses.get("it"))
        assert (said.level, said.message[:7]) == (level, "is well") and words in said.message
        figures = {value.key: value.value for value in said.values}
        assert days is None or abs(float(figures["certificate ends in, days"]) - days) < 0.2


def test_a_process_reports_of_itself_to_metrics_alone(ros_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its certificate, its log disk and what it counts; `/diagnostics`, which nobody reads here, is not made up."""
    enclave = Enclaves(tmp_path).make("arm_1", 10, 15.001)
    board, asked = Board([], []), list[int]()
    rclpy.init(args=[])
    node, spinner = Node("recorder", namespace="rfm"), executor()

    def told() -> DiagnosticStatus:
        asked.append(1)
        return DiagnosticStatus(name="it")

    try:
        monkeypatch.setenv(ENCLAVE, str(enclave))
        monkeypatch.setenv("ROS_LOG_DIR", "/proc")
        Diagnostics(node, lambda: [told], lambda: {"recorder_messages": 7})
        monkeypatch.delenv(ENCLAVE)
        observer = ObserverNode(board)
        for one in (node, observer):
            spinner.add_node(one)
        end_s, recorder = time.monotonic() + 60.0, ("/rfm/recorder", socket.gethostname())
        while not (row := board.processes.get(recorder)) and time.monotonic() < end_s:
            spinner.spin_once(timeout_sec=0.1)
        assert row is not None and not asked
        assert row.numbers["recorder_messages"] == 7 and row.numbers["certificate_invalid"] == 0
        assert 4.9 * 86_400 < row.numbers["certificate_left_s"] < 5.1 * 86_400
        while not (board.processes[recorder].numbers["log_disk_full"]) and time.monotonic() < end_s:
            spinner.spin_once(timeout_sec=0.1)
        assert board.processes[recorder].numbers["log_disk_full"] == 1
        publisher = node.create_publisher(DiagnosticArray, "/rfm/processes", 10)
        others = [
            ("/a: other", "h", "1"),
            ("/b: process", "h" * 999, "1"),
            ("/c: process", "h", "much"),
            ("/rfm/recorder: process", "h", "0"),
            ("/d: process", "h", "2"),
        ]
        values = [(name, host, [KeyValue(key="log_disk_full", value=value)]) for name, host, value in others]
        array = DiagnosticArray(status=[DiagnosticStatus(name=n, hardware_id=h, values=v) for n, h, v in values])
        while ("/d", "h") not in board.processes and time.monotonic() < end_s:
            publisher.publish(array)
            spinner.spin_once(timeout_sec=0.1)
        assert board.processes.keys() == {recorder, ("/rfm/recorder", "h"), ("/c", "h"), ("/d", "h")}, "each host has its own"
        assert board.processes["/c", "h"].numbers == {} and board.processes[recorder].numbers["recorder_messages"] == 7
        assert observer.refused["bad_process"] >= 2
    finally:
        spinner.shutdown()
        rclpy.try_shutdown()


def test_where_there_are_certificates_a_process_reports_of_itself_alone(
    ros_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports without a signature, of another member, changed, or received before are counted, and shown nowhere."""
    enclaves, board = Enclaves(tmp_path / "plant"), Board([], [])
    enclaves.make("observer", role="observer")
    rclpy.init(args=[])
    spinner = executor()
    try:
        observer, node = ObserverNode(board, "plant", enclave=enclaves.root / "observer"), Node("stranger")
        publisher = node.create_publisher(DiagnosticArray, "/plant/rfm/processes", 10)
        for one in (observer, node):
            spinner.add_node(one)

        def until(is_so: Callable[[], object], *reports: DiagnosticStatus) -> None:
            end_s = time.monotonic() + 60.0
            while not is_so() and time.monotonic() < end_s:
                publisher.publish(DiagnosticArray(status=list(reports)))
                spinner.spin_once(timeout_sec=0.1)
            assert is_so(), (board.processes, observer.refused)

        def report(name: str, member: str, **options: object) -> DiagnosticStatus:
            monkeypatch.setenv(ENCLAVE, str(enclaves.make(member, **options)))  # type: ignore[arg-type]
            status = DiagnosticStatus(name=f"/plant/{name}: process", hardware_id="a")
            status.values = [KeyValue(key="log_disk_full", value="1")]
            return Speaker().report(status)

        for name, member, role in (
            ("rfm/recorder", "recorder", "recorder"),
            ("rfm/scheduler", "scheduler", "scheduler"),
            ("rfm/servers/s1/model_server", "s1", "server"),
            ("arm_1/robot", "arm_1", "robot"),
        ):
            until(lambda: (f"/plant/{name}", "a") in board.processes, report(name, member, role=role))  # noqa: B023
            assert board.processes[f"/plant/{name}", "a"].numbers == {"log_disk_full": 1.0}
        known = set(board.processes)
        others = [
            DiagnosticStatus(name="/plant/arm_2/robot: process"),
            report("arm_2/robot", "arm_1"),
            report("rfm/scheduler2", "scheduler"),
            report("rfm/recorder", "arm_1"),
            report("arm_2/robot", "arm_2"),
            report("arm_2/robot", "arm_2"),
        ]
        others[-2].values[0].value = "0"
        others[-1].values[-1].value = "no signature"
        for other in others:
            refused = observer.refused["unproven"]
            until(lambda: observer.refused["unproven"] > refused, other)  # noqa: B023
        bare = DiagnosticStatus(name="/plant/arm_1/robot: process")
        signed_report(bare, {}, Prover(enclaves.make("arm_1")))
        others.append(bare)
        until(lambda: board.unproven["processes"] >= len(others), bare)
        assert set(board.processes) == known and board.unproven["processes"] >= len(others)
        once = report("arm_3/robot", "arm_3")
        until(lambda: ("/plant/arm_3/robot", "a") in board.processes, once)
        seen_s = board.processes["/plant/arm_3/robot", "a"].seen_s
        until(lambda: observer.refused["stale_status"], once)
        assert board.processes["/plant/arm_3/robot", "a"].seen_s == seen_s
    finally:
        spinner.shutdown()
        rclpy.try_shutdown()


def test_a_certificate_that_is_not_valid_is_found_where_reports_have_to_be_proven(
    ros_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else in such a report counts, and neither does the report of another member or of a revoked one."""
    enclaves, board = Enclaves(tmp_path / "plant"), Board([], [])
    watching = enclaves.make("observer", role="observer")
    rclpy.init(args=[])
    spinner = executor()
    try:
        observer, node = ObserverNode(board, "plant", enclave=watching), Node("reporting")
        publisher = node.create_publisher(DiagnosticArray, "/plant/rfm/processes", 10)
        for one in (observer, node):
            spinner.add_node(one)

        def send(is_so: Callable[[], object], name: str, enclave: Path) -> None:
            monkeypatch.setenv(ENCLAVE, str(enclave))
            speaker, end_s = Speaker(), time.monotonic() + 60.0
            while not is_so() and time.monotonic() < end_s:
                status = DiagnosticStatus(name=f"/plant/{name}/robot: process", hardware_id="a")
                status.values = [KeyValue(key="log_disk_full", value="1"), KeyValue(key="certificate_invalid", value="0")]
                publisher.publish(DiagnosticArray(status=[speaker.report(status)]))
                spinner.spin_once(timeout_sec=0.1)
            assert is_so(), (board.processes, observer.refused)

        def is_refused() -> Callable[[], bool]:
            before = observer.refused["unproven"]
            return lambda: observer.refused["unproven"] > before + 2

        def figures(name: str, later_s: float = 0.0) -> dict[str, float]:
            found = processes(board.processes, clock() + later_s)
            samples = [sample for family in found for sample in family.samples]
            return {one.name: one.value for one in samples if one.labels["process"] == f"/plant/{name}/robot"}

        ended = enclaves.make("arm_1", begun_days=10.0, days=9.0)
        send(lambda: figures("arm_1"), "arm_1", ended)
        assert figures("arm_1").keys() == {"rfm_certificate_invalid", "rfm_certificate_left_seconds"}
        assert figures("arm_1")["rfm_certificate_invalid"] == 1
        assert figures("arm_1")["rfm_certificate_left_seconds"] == pytest.approx(-86_400, abs=600)
        assert not figures("arm_1", later_s=20.0) and board.unproven["processes"]
        send(is_refused(), "arm_9", ended)
        assert not figures("arm_9"), "another member's"
        send(lambda: figures("arm_2"), "arm_2", enclaves.make("arm_2", begun_days=-3.0))
        assert figures("arm_2")["rfm_certificate_invalid"] == 1 and figures("arm_2")["rfm_certificate_left_seconds"] > 0

        kept = ended.rename(tmp_path / "kept")
        send(lambda: "rfm_log_disk_full" in figures("arm_1"), "arm_1", enclaves.make("arm_1"))
        assert figures("arm_1")["rfm_certificate_invalid"] == 0, "it was replaced"
        send(is_refused(), "arm_1", kept)
        assert figures("arm_1")["rfm_certificate_invalid"] == 0, "the certificate of before does not count beside that"

        revoked = enclaves.make("arm_3", begun_days=10.0, days=9.0)
        enclaves.revoke(watching, load_certificate((revoked / CERTIFICATE).read_bytes(), "arm_3").serial_number)
        send(is_refused(), "arm_3", revoked)
        assert not figures("arm_3")
    finally:
        spinner.shutdown()
        rclpy.try_shutdown()


def test_a_recorder_that_ended_in_order_is_not_missed(ros_domain: int, tmp_path: Path) -> None:
    """One that was killed is."""
    board = Board([], [])
    rclpy.init(args=[])
    spinner, observer = executor(), ObserverNode(board)
    spinner.add_node(observer)

    def until(is_so: Callable[[ProcessRow], object]) -> None:
        end_s = time.monotonic() + 60.0
        while not any(is_so(row) for row in board.processes.values()) and time.monotonic() < end_s:
            spinner.spin_once(timeout_sec=0.1)
        assert any(is_so(row) for row in board.processes.values()), board.processes

    def up_later() -> list[float]:
        found = list(processes(board.processes, clock() + 20.0))
        return [sample.value for family in found if family.name == "rfm_recorder_up" for sample in family.samples]

    try:
        for number, ends in ((signal.SIGKILL, [0.0]), (signal.SIGTERM, [])):
            command = [sys.executable, "-m", "ros2_rfm_serving.ros.executables", "recorder_node", "--ros-args"]
            process = subprocess.Popen(
                [
                    *command,
                    "-p",
                    f"folder:={tmp_path / str(number)}",
                ]
            )
            before_s = clock()
            try:
                until(lambda row: row.seen_s > before_s)  # noqa: B023
                process.send_signal(number)
                if number == signal.SIGTERM:
                    until(lambda row: row.numbers.get(ENDED))
                process.wait(60.0)
            finally:
                process.kill()
                process.wait()
            assert up_later() == ends
    finally:
        spinner.shutdown()
        rclpy.try_shutdown()


@pytest.mark.parametrize("namespace", ["", "cell_a", "plant/cell_a"])
def test_robots_of_one_name_in_two_cells_are_not_confused(ros_domain: int, namespace: str) -> None:
    """All cells of a domain share `/diagnostics`; whose a status is stands in it."""
    rclpy.init(args=[])
    spinner, nodes = executor(), list[Node]()
    try:
        for cell in (namespace, "cell_b", "plant"):
            node = Node(f"of_{cell.replace('/', '_')}")
            node.declare_parameter("fleet_namespace", cell)
            Diagnostics(node, lambda cell=cell: [lambda: DiagnosticStatus(name="arm_1: robot", message=cell)])  # type: ignore[misc]
            nodes.append(node)
        nodes.append(looking := LookingNode(Board(["arm_1"], []), namespace))
        everybody = set[str]()
        hears = lambda array: everybody.update(status.message for status in array.status)  # noqa: E731
        nodes[0].create_subscription(DiagnosticArray, "/diagnostics", hears, 10)
        for node in nodes:
            spinner.add_node(node)
        end_s = time.monotonic() + 60.0
        while not (len(everybody) == 3 and looking.heard.diagnoses) and time.monotonic() < end_s:
            spinner.spin_once(timeout_sec=0.1)
        assert everybody == {namespace, "cell_b", "plant"}
        assert {one.message for one in looking.finish().diagnoses["arm_1: robot"]} == {namespace}
    finally:
        spinner.shutdown()
        rclpy.try_shutdown()


def test_a_turn_that_an_executor_had_in_hand_at_the_end_is_none(ros_domain: int) -> None:
    """It may have taken the timer's callback before the timer was destroyed."""
    rclpy.init(args=[])
    node = Node("diagnosed")
    try:
        diagnostics = Diagnostics(node, lambda: ())
        diagnostics.destroy()
        diagnostics._take_turn()
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


def test_a_log_disk_that_hangs_is_said_and_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a folder of a file server that does not answer: who looks goes on, and nobody asks it twice."""
    answers, statvfs = threading.Event(), os.statvfs
    asked: list[Path] = []

    def hangs(folder: Path) -> os.statvfs_result:
        asked.append(folder)
        assert answers.wait(60.0)
        return statvfs(folder)

    monkeypatch.setattr(os, "statvfs", hangs)
    disk = LogDisk(tmp_path)
    for _ in range(10):
        disk.look()
    assert len(asked) <= 1 and "no answer from the disk" in disk.problems[LOG_DISK_SILENT]
    answers.set()
    end_s = time.monotonic() + 60.0
    while disk.problems and time.monotonic() < end_s:
        disk.look()
    assert not disk.problems and not disk.figures()
