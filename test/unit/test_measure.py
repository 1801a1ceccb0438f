from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ros2_rfm_serving.profiles import measure


def test_a_queue_builds_up_only_beyond_the_engines_speed() -> None:
    slow = measure.serve(list(measure.arrivals(5, 10)), 1, lambda count: 0.1)
    assert slow == pytest.approx([0.1] * 50)
    fast = measure.serve(list(measure.arrivals(20, 10)), 1, lambda count: 0.1)
    assert fast[-1] == pytest.approx(0.1 + 199 * 0.05)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50).map(sorted), st.integers(1, 8))
def test_every_request_is_served_once_in_batches_that_fit(due_s: list[float], batch_size: int) -> None:
    counts: list[int] = []
    latencies = measure.serve(due_s, batch_size, lambda count: (counts.append(count), 0.01)[1])
    assert len(latencies) == len(due_s) == sum(counts) and max(counts) <= batch_size
    assert min(latencies) >= 0.0099
