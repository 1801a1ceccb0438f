"""Orders to servers that the graph does not name yet."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import rclpy
from lifecycle_msgs.srv import ChangeState
from rclpy.node import Node
from rfm_serving import srv

from ros2_rfm_serving.monitoring.board import Board
from ros2_rfm_serving.operate.running import observing
from ros2_rfm_serving.ros.monitor import hands
from ros2_rfm_serving.security.own import ENCLAVE
from test.enclaves import Enclaves
from test.ros.spinning import living
from test.ros.test_dashboard import NAMES


class Server(Node):
    """Its node has a name of its own."""

    def __init__(self, context: rclpy.Context) -> None:
        super().__init__("another_name", context=context)
        self.create_service(ChangeState, NAMES.server("s2", "another_name/change_state"), self._change)

    def _change(self, request: Any, response: Any) -> Any:
        response.success = True
        return response


def test_a_server_that_is_discovered_after_the_order_carries_it_out(ros_domain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hands, "FOUND_WITHIN_S", 60.0)
    with observing(Board([], []), "plant") as node:
        answer = hands.Hands(node, NAMES).order("drain", "s2", "")
        time.sleep(1.0)  # it has been looked for
        with living(Server, ros_domain):
            assert answer.result(timeout=90.0).done


class Asking(Node):
    """Wants a proof."""

    def __init__(self, context: rclpy.Context) -> None:
        super().__init__("asking", context=context)
        self.create_service(srv.Order, NAMES.server("s3", "order"), self._order)

    def _order(self, request: Any, response: Any) -> Any:
        response.challenge = b"c" * 16
        return response


def test_an_order_that_cannot_be_signed_is_answered_and_holds_up_no_other(
    ros_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hands, "FOUND_WITHIN_S", 60.0)
    enclave = Enclaves(tmp_path).make("dashboard")
    (enclave / "cert.pem").unlink()  # half copied
    monkeypatch.setenv(ENCLAVE, str(enclave))
    with observing(Board([], []), "plant") as node, living(Asking, ros_domain):
        ordering = hands.Hands(node, NAMES)
        for _ in range(2):
            answer = ordering.order("drain", "s3", "").result(timeout=90.0)
            assert not answer.done and "cert.pem" in answer.message
