"""What a process of many robots says of itself comes in pieces that fit the middleware, each once in a period."""

from __future__ import annotations

from typing import Any

import pytest

from ros2_rfm_serving.ros.node.diagnostics import AT_ONCE, TURNS, turn_of


@pytest.mark.parametrize("count", [0, 1, AT_ONCE, AT_ONCE + 1, 79, 80, 81, 256, 1001])
def test_every_part_has_one_turn_in_a_period(count: int) -> None:
    parts: list[Any] = list(range(count))
    turns = [turn_of(parts, turn) for turn in range(TURNS)]
    assert [part for turn in turns for part in turn] == parts
    assert max(map(len, turns)) <= max(AT_ONCE, -(-count // TURNS))
