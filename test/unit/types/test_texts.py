"""When two texts report the same thing."""

from __future__ import annotations

import pytest

from ros2_rfm_serving.types.texts import without_numbers


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("sensor readings are 9.0 s old", "sensor readings are 12.1 s old", True),
        ("offline for 3 s: no chunk", "offline for 4 s: no chunk", True),
        ("off by -3 mm", "off by 12.5 mm", True),
        ("84ms late", "1240ms late", True),
        ("the joint moved by 9e-05 rad", "the joint moved by 0.00012 rad", True),
        ("3 errors", "4 errors", True),
        ("server_1 is lost", "server_2 is lost", False),
        ("arm_1 is paused", "arm_12 is paused", False),
        ("no state in time", "no new state", False),
    ],
)
def test_a_number_that_grew_is_no_news(one: str, other: str, same: bool) -> None:
    assert (without_numbers(one) == without_numbers(other)) is same
