"""The contract of a model that a running server serves, asked for over DDS."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rfm_serving import srv

from ros2_rfm_serving.errors import ConfigurationError, ModelError
from ros2_rfm_serving.operate.model_contracts import server_contract
from ros2_rfm_serving.ros.wire import qos, session_messages
from ros2_rfm_serving.types import ModelContract, OutputKind
from test.unit.fakes import CONTRACT

NAMES = qos.Names()


@contextmanager
def server(contract: ModelContract | None) -> Iterator[None]:
    """A server, in a context and on a thread of its own, that describes this contract. None: it has loaded no model."""
    context, stop = rclpy.Context(), threading.Event()
    rclpy.init(context=context)
    node = Node("described", context=context)

    def on_describe(request: Any, response: Any) -> Any:
        return session_messages.contract_to(contract, response) if contract else response

    node.create_service(srv.DescribeServer, NAMES.server("s1", "describe"), on_describe, qos_profile=qos.CONTROL)
    spinner = SingleThreadedExecutor(context=context)
    spinner.add_node(node)

    def spin() -> None:
        while not stop.is_set():
            spinner.spin_once(timeout_sec=0.1)

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        node.destroy_node()
        rclpy.try_shutdown(context=context)


def test_a_servers_contract_is_what_it_describes(ros_domain: int) -> None:
    told = replace(CONTRACT, model="emulated fake", control_rate_hz=20.0)
    with server(told):
        found = server_contract("s1", NAMES, 60.0, threading.Event())
    assert found == replace(told, model="fake")


def test_a_server_without_a_model_or_without_actions_or_that_is_silent_is_refused(ros_domain: int) -> None:
    with server(None), pytest.raises(ConfigurationError, match="'s1' has loaded no model yet"):
        server_contract("s1", NAMES, 60.0, threading.Event())
    judge = replace(CONTRACT, output=OutputKind.JUDGEMENT, action_names=(), chunk_length=0)
    with server(judge), pytest.raises(ModelError, match="gives no actions but a judgement"):
        server_contract("s1", NAMES, 60.0, threading.Event())
    with pytest.raises(ConfigurationError, match="'s2' does not answer"):
        server_contract("s2", NAMES, 0.5, threading.Event())
