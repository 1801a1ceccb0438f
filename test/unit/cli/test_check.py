"""What `rfm check` says of the network: by the nearest host, for a plan may put whatever needs it there."""

from __future__ import annotations

import pytest

from ros2_rfm_serving.cli.check import report
from ros2_rfm_serving.factory import Catalogue, Factory
from ros2_rfm_serving.operate.inputs import Inputs
from test.unit.scheduler.test_adaptation import PROFILE
from test.unit.scheduler.test_distances import at

GPUS = {"a": 2, "b": 2}


def said(declared: Factory) -> str:
    return "\n".join(report(Inputs(factory=declared, profile=PROFILE, catalogue=Catalogue(models={}))))


@pytest.mark.parametrize(("a_ms", "b_ms"), [(5.0, 20.0), (20.0, 5.0), (5.0, 500.0)])
def test_what_the_network_takes_is_that_of_the_nearest_host(a_ms: float, b_ms: float) -> None:
    """7 of 60 ms, however far the others are: the longest round trip left nothing, and check said that no server could keep it."""
    words = said(at({"a": a_ms, "b": b_ms}, GPUS, own_ms=2.0))
    assert "p99 within 60 ms; 53 ms of it for the server (p99 of a round trip to the nearest host is 7 ms)" in words
    assert "p99 within 50 ms; 43 ms of it for the server (p99 of a round trip to the nearest host is 7 ms)" in words
    assert "takes" not in words


def test_hosts_that_are_equally_far_are_all_the_nearest() -> None:
    words = said(at({"a": 5.0, "b": 5.0}, GPUS, own_ms=2.0))
    assert "53 ms of it for the server (p99 of a round trip is 7 ms)" in words and "nearest" not in words


def test_where_the_nearest_host_is_too_far_no_server_can_keep_it() -> None:
    words = said(at({"a": 58.0, "b": 70.0}, GPUS, own_ms=2.0))
    assert "warning: the network of 'carry' takes 60 ms of the SLO of 60 ms: no server can keep it" in words
