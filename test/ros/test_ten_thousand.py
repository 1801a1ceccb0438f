"""Ten thousand sessions that are asked for at a server's door: what they take, and what a robot that is there notices of them."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rfm_serving import srv

from ros2_rfm_serving.errors import CapacityError, UnprovenError
from ros2_rfm_serving.ros.node.doorkeeper import sign
from ros2_rfm_serving.ros.server.openings import Openings
from ros2_rfm_serving.ros.server.services import OPENINGS_AT_ONCE, Services
from ros2_rfm_serving.ros.wire.session_messages import session_request_to
from ros2_rfm_serving.security.own import ENCLAVE
from ros2_rfm_serving.security.signing import Prover
from ros2_rfm_serving.server import ModelServer
from ros2_rfm_serving.server.quota import MAX_KEYS
from ros2_rfm_serving.types import ScheduleFollower
from test.enclaves import Enclaves
from test.unit.fakes import observation, session_request
from test.unit.server.test_sessions import server, submit

MANY, PLACES = 10_000, 8


class Door:
    """A server's services, without the graph around them."""

    def __init__(self, openings: Openings | None = None) -> None:
        self.server: ModelServer = server(max_sessions=PLACES)
        log = SimpleNamespace(warning=lambda *said, **options: None)
        node: Any = SimpleNamespace(create_service=lambda *made, **options: None, get_logger=lambda: log)
        topics: Any = SimpleNamespace(expect=lambda robot, kind: None)
        serving: Any = SimpleNamespace(server=self.server)
        self.services = Services(node, str, lambda: serving, lambda: None, ScheduleFollower(), topics, openings)

    def open(self, robot: str, component: str = "system1", request: Any = None) -> Any:
        request = request or session_request_to(session_request(robot, component=component))
        return self.services._on_open(request, srv.OpenSession.Response())

    def is_served(self, epoch: int, sequence: int) -> bool:
        submit(self.server, observation(epoch, sequence, robot="arm_1"))
        return bool(self.server.loop.step(lambda: 0.0))

    def asked_by_many(self, names: list[tuple[str, str]]) -> list[int]:
        """Error codes of what was refused."""
        begin_s = time.process_time()
        answers = [self.open(*name) for name in names]
        print(f"{1e6 * (time.process_time() - begin_s) / len(names):.0f} us of a core each")
        return [answer.error_code for answer in answers if not answer.success]


def test_of_one_robot_a_few_and_of_ten_thousand_as_many_as_there_are_places() -> None:
    door = Door()
    epoch = door.open("arm_1").session_epoch
    by_one = door.asked_by_many([("greedy", f"part_{i}") for i in range(MANY)])
    assert len(by_one) >= MANY - 2 * OPENINGS_AT_ONCE and set(by_one) == {CapacityError.code}
    by_many = door.asked_by_many([(f"arm_1{i}", "system1") for i in range(MANY)])
    assert len(by_many) >= MANY - PLACES and set(by_many) == {CapacityError.code}
    assert door.server.occupancy[0] <= PLACES and len(door.services._quotas._of) <= MAX_KEYS
    assert door.is_served(epoch, 1), "whoever was there has its place"


def test_ten_thousand_that_prove_nothing_take_neither_places_nor_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enclaves = Enclaves(tmp_path)
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("s1")))
    openings = Openings.of_process("s1")
    assert openings
    door, arm = Door(openings), Prover(enclaves.make("arm_1"))

    def opened() -> Any:
        request = session_request_to(session_request("arm_1"))
        sign(arm, request, "s1", openings.challenge(time.monotonic()))
        return door.open("arm_1", request=request)

    epoch = opened().session_epoch
    refused = door.asked_by_many([(f"arm_{i}", f"part_{i}") for i in range(MANY)])
    assert refused == [UnprovenError.code] * MANY and door.server.snapshot(0.0).refused["unproven"] == MANY
    assert door.server.occupancy[0] == 1 and not door.services._quotas._of.keys() - {"arm_1"} and len(openings._opened) == 1
    assert door.is_served(epoch, 1)
    assert opened().success, "nor has it used up its right to ask"
