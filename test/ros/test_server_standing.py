"""What a server says of itself, when saying fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rfm_serving import msg

from ros2_rfm_serving.ros.server.standing import Standing
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.types import Schedule, ServerState
from test.ros.test_parameter_services import Services, make  # noqa: F401
from test.unit.fakes import FakeEngine


def go_on(rig: Services, until: Callable[[], Any], what: str) -> None:
    """As a node's process does, which logs what a callback raises."""
    for _ in range(1000):
        with contextlib.suppress(RuntimeError):
            rig.wait(until, what)
            return
    raise AssertionError(what)


def test_a_server_becomes_ready_while_nothing_can_be_published(
    make: Callable[..., Services],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = make("model_server")
    standing = rig.node._standing

    def full(*_: object) -> None:
        raise RuntimeError("cannot publish")

    with monkeypatch.context() as broken:
        broken.setattr(standing._status, "publish", full)
        broken.setattr(standing._diagnostics, "publish", full)
        broken.setattr(rig.node._topics, "unheard", full)
        go_on(rig, lambda: standing.state == ServerState.READY, "a server that serves")
        before = standing.refused["publish_failed"]
        go_on(rig, lambda: standing.refused["publish_failed"] >= before + 3, "a few tries")
        assert standing.state == ServerState.READY
    heard = rig.hear(msg.ServerStatus, "/rfm/servers/s1/status", qos.SERVER_STATUS)
    rig.wait(lambda: heard and heard[-1].state == msg.ServerStatus.READY, "its status")
    assert {count.name: count.count for count in heard[-1].refused}["publish_failed"] >= 3

    placed = replace(rig.node._params.placed(None), model="another")
    for placements, words in (((placed,), "the schedule places 'another' here"), ((), "")):
        rig.node._follow(Schedule(epoch=1, placements=placements, routes=(), predicted_actions_hz=0.0, policy=""))
        standing.publish()
        rig.wait(lambda words=words: heard[-1].detail.endswith(words) and bool(heard[-1].detail) == bool(words), words)
        assert standing._diagnosis().level == (DiagnosticStatus.WARN if words else DiagnosticStatus.OK)


def test_what_goes_wrong_while_problems_are_said_is_said_the_next_time() -> None:
    server, said = ModelServer(ServerConfig(name="s1"), FakeEngine()), list[str]()

    class Meanwhile(dict[str, float]):
        """Another thread counts something whenever this is looked at."""

        def get(self, *_: Any) -> Any:
            server.count_fault(f"kind_{len(server.problems)}", "x")
            return float("-inf")

    standing = Standing.__new__(Standing)
    standing._server, standing._said_s = lambda: server, Meanwhile()
    standing._node = SimpleNamespace(get_logger=lambda: SimpleNamespace(error=said.append))
    server.count_fault("engine_error", "y")
    standing._say_problems()
    assert said == ["engine_error: y"] and server.problems.keys() == {"kind_1"}
