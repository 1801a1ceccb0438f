"""Values in ranges."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ros2_rfm_serving.types.histogram import Histogram


@given(st.lists(st.floats(-10, 10)))
def test_every_value_is_counted_once_in_the_range_that_it_is_in(values: list[float]) -> None:
    histogram = Histogram((-1.0, 0.0, 2.5))
    for value in values:
        histogram.add(value)
    low = [sum(value <= bound for value in values) for bound in histogram.bounds]
    assert [sum(histogram.counts[: i + 1]) for i in range(3)] == low and sum(histogram.counts) == len(values)
    assert abs(histogram.sum - sum(values)) < 1e-9
