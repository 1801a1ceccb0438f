"""What people order through the web page, as it arrives."""

from __future__ import annotations

import json

from ros2_rfm_serving.monitoring.dashboard.control import ACTIONS, NAME, read_order

GOOD = json.dumps({"action": "pause", "target": "arm_1", "confirmed": True}).encode()


def seeds() -> list[bytes]:
    return [json.dumps({"action": action, "target": "arm_1", "task": "push", "confirmed": True}).encode() for action in ACTIONS]


def check(data: bytes) -> None:
    try:
        order = read_order(data)
        assert order.action in ACTIONS and NAME.fullmatch(order.target)
        assert order.action != "admit" or NAME.fullmatch(order.task)
    except ValueError as error:
        assert str(error)
    assert read_order(GOOD).target == "arm_1"
