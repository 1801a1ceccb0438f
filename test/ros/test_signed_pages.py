"""With certificates: a real recorder beside a writer of audit pages and beside somebody who forges and repeats them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import rclpy
from rclpy.node import Node
from rfm_serving import msg
from typer.testing import CliRunner

from ros2_rfm_serving.audit.bag import Bag
from ros2_rfm_serving.audit.chain import Chain
from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.factory.nodes import parameter_file
from ros2_rfm_serving.ros.node.audit import AuditTopic, page_to
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.security.own import ENCLAVE
from test.enclaves import Enclaves
from test.ros.spinning import living
from test.waiting import eventually

TOPIC = "/arm_1/rfm/audit"


class Writer(Node):
    """The audit log of a robot that has a certificate, and what it hears of it, to be said again."""

    def __init__(self, context: rclpy.Context) -> None:
        super().__init__("writer", context=context)
        self.audit = AuditTopic(self, "robot/arm_1", TOPIC).open()
        self.count = 0
        self.create_timer(0.05, self._note)

    def _note(self) -> None:
        self.count += self.audit.journal.on
        self.audit.journal.note("transition", time.monotonic(), lambda: {"from": {}, "to": {}, "reason": str(self.count)})
        self.audit.journal.tend(time.monotonic())


class Intruder(Node):
    """It repeats every page that it hears, and puts one of its own into the chain."""

    def __init__(self, context: rclpy.Context) -> None:
        super().__init__("intruder", context=context)
        self.repeated = self.forged = 0
        self._said: set[tuple[int, str]] = set()
        self._publisher = self.create_publisher(msg.AuditPage, TOPIC, qos.AUDIT)
        self.create_subscription(msg.AuditPage, TOPIC, self._hear, qos.AUDIT)

    def _hear(self, page: msg.AuditPage) -> None:
        if (page.first, page.records) in self._said:
            return
        self._said.add((page.first, page.records))
        self._publisher.publish(page)
        self.repeated += 1
        chain = Chain("robot/arm_1", page.run)
        chain.number, chain.hash = page.first + 1000, page.previous
        chain._first, chain._previous = chain.number, chain.hash
        chain.note("tick", 1.0, {"command": [9.0]})
        forged = chain.page()
        assert forged is not None
        message = page_to(forged)
        self._said.add((message.first, message.records))
        self._publisher.publish(message)
        self.forged += 1


def until(condition: Callable[[], bool], what: str) -> None:
    assert eventually(condition, 60.0, lambda: time.sleep(0.1)), what


def pages(folder: Path, writer: str = "robot/arm_1") -> int:
    try:
        return sum(1 for page in Bag(folder).pages() if page.writer == writer)
    except RfmError:
        return 0


@pytest.mark.timeout(150)
def test_forged_and_repeated_pages_are_set_aside_and_counted(
    repository: Path, tmp_path: Path, ros_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    enclaves, folder = Enclaves(tmp_path / "enclaves"), tmp_path / "bag"
    recorder, observer = enclaves.make("recorder"), enclaves.make("observer")
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("arm_1")))
    with living(Intruder) as intruder, living(partial(Writer)) as writer:
        monkeypatch.delenv(ENCLAVE)
        command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "record", str(folder)]
        process = subprocess.Popen(
            command, cwd=repository, env={**os.environ, ENCLAVE: str(recorder)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            until(lambda: pages(folder) > 12 and intruder.repeated > 5, "nothing is recorded")
            writer.audit.close()
            time.sleep(1.0)
            process.send_signal(signal.SIGINT)
            told, _ = process.communicate(timeout=30)
            assert process.returncode == 0, told
        finally:
            process.kill()
    done = CliRunner().invoke(app, ["audit", "verify", str(folder), "--enclave", str(observer), "--json"])
    found = json.loads(done.output)
    assert done.exit_code == 0 and not found["flaws"] and not found["findings"], (found["flaws"], found["findings"])
    assert found["repeats"] > 3 and any("nobody has signed it" in note for note in found["notes"]), found["notes"]
    done = CliRunner().invoke(app, ["audit", "verify", str(folder)])
    assert done.exit_code == 0 and "they are not their writers'" in done.output, done.output


@pytest.mark.timeout(150)
@pytest.mark.parametrize("own", [True, False], ids=["an enclave each", "one for both"])
def test_robots_of_one_process_sign_with_an_enclave_of_their_own(
    repository: Path, tmp_path: Path, ros_domain: int, own: bool
) -> None:
    enclaves, folder = Enclaves(tmp_path / "enclaves"), tmp_path / "bag"
    recorder, observer, first = (enclaves.make(name) for name in ("recorder", "observer", "arm_1"))
    if own:
        enclaves.make("arm_2")
    shared = {"robots": ["arm_1", "arm_2"], "state_size": 3, "cameras": [""], "action_names": ["x", "y"], "control_rate_hz": 20.0}
    (tmp_path / "robots.yaml").write_text(parameter_file({**shared, "tick": "timer"}))
    python = [sys.executable, "-W", "ignore", "-m"]
    node = [
        *python,
        "ros2_rfm_serving.ros.executables",
        "robots_node",
        "--ros-args",
        "--params-file",
        str(tmp_path / "robots.yaml"),
    ]
    record = [*python, "ros2_rfm_serving.cli", "record", str(folder)]
    writers = {"robot/arm_1", "robot/arm_2"} if own else {"robot/arm_1"}  # of the other one none counts
    with started(record, repository, recorder) as recording, started(node, repository, first) as robots:
        until(lambda: all(pages(folder, writer) > 8 for writer in writers), "nothing is recorded")
        for process in (robots, recording):
            process.send_signal(signal.SIGINT)
            told, _ = process.communicate(timeout=30)
            assert process.returncode == 0, told
    done = CliRunner().invoke(app, ["audit", "verify", str(folder), "--enclave", str(observer), "--json"])
    found = json.loads(done.output)
    assert {chain["writer"] for chain in found["chains"]} >= writers
    assert found["proofs"]["proven"] > 0 and not found["findings"] and not found["flaws"]
    if own:
        assert done.exit_code == 0 and not found["proofs"]["unproven"] and not found["unproven_pages"], found
    else:  # the second one signs as the first, which counts for nobody
        assert done.exit_code == 1 and set(found["proofs"]["unproven"]) == {"/arm_2/rfm/status"}
        assert any("arm_1 has signed it, and not arm_2" in note for note in found["notes"]), found["notes"]


@contextmanager
def started(command: list[str], folder: Path, enclave: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, ENCLAVE: str(enclave)}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
