"""Timers of a node: what they call, and how often they ask about it."""

from __future__ import annotations

import inspect

from ros2_rfm_serving.ros.node.timers import Tick


def test_what_a_timer_calls_is_known_to_take_nothing() -> None:
    """The executor asks before every call; also of what could take something."""
    calls: list[int] = []
    tick = Tick(lambda default=1: calls.append(default))
    assert inspect.signature(tick) is Tick.__signature__ and not inspect.signature(tick).parameters
    tick()
    assert calls == [1]
