"""Servers of placements that were looked at, put together anew: what small moves do not reach."""

from __future__ import annotations

import pytest

from ros2_rfm_serving.scheduler import plan_factory
from test.optimum.exact import optimum
from test.optimum.factories import eight_gpus


@pytest.mark.parametrize("seed", [251])
def test_robots_that_share_servers_in_mixed_numbers(seed: int) -> None:
    """Their best schedule has four kinds of servers or more; a search of small moves ended at 98.3 % of them."""
    small = eight_gpus(seed)
    assert plan_factory(small.factory, small.profile, explained=False).objective >= 0.99 * optimum(small)
