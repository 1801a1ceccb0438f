"""Alerts of the shipped rules, raised in the real Prometheus by causes of the runbook that are made with real processes."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from domain_coordinator import domain_id

from test.ports import free_port

from .causes import MAKES
from .floor import Floor
from .test_prometheus import wait, watching

ALERTS = {
    "dead camera": "RfmRobotStands",
    "full disk": "RfmDiskFillsUp",
    "hung engine": "RfmServerHung",
    "incomplete recording": "RfmRecorderLost",
    "invalid certificate": "RfmCertificateInvalid",
    "certificate ends soon": "RfmCertificateEndsSoon",
    "robot gone": "RfmRobotLost",
    "scheduler gone": "RfmSchedulerGone",
    "server gone": "RfmServerLost",
}
"""Cause -> an alert that it raises within a minute, where no `for` delays it."""
ALSO = {"full disk": "RfmLogDiskFull"}
"""Cause -> an alert that it raises as well."""
Firing = Callable[[], set[str]]


@pytest.fixture(scope="module")
def watched(prometheus: str, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Floor, Firing]]:
    """A floor, its exporter, and the names of the alerts that Prometheus has for it now."""
    folder, port = tmp_path_factory.mktemp("floor"), free_port()
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setitem(os.environ, "ROS_DOMAIN_ID", str(stack.enter_context(domain_id())))
        floor = Floor(repository, folder)
        stack.callback(floor.close)
        floor.open()
        floor.start("metrics", "ros2_rfm_serving.cli", "metrics", "--port", str(port), "--disk", str(folder / "logs"))
        wait(lambda: _answers(port), "the exporter")
        api = stack.enter_context(watching(prometheus, repository / "config" / "prometheus", folder, port, delays=False))
        yield floor, lambda: {alert["labels"]["alertname"] for alert in api("alerts")["alerts"] if alert["state"] == "firing"}


def _answers(port: int) -> Any:
    try:
        return urllib.request.urlopen(f"http://localhost:{port}/readyz", timeout=10).status == 200
    except urllib.error.HTTPError:
        return False


@pytest.mark.timeout(600)
def test_a_healthy_factory_raises_no_alert(watched: tuple[Floor, Firing]) -> None:
    floor, firing = watched
    floor.watch(15.0)
    assert firing() == set()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cause", ALERTS)
def test_a_cause_raises_its_alert_which_ends_with_it(watched: tuple[Floor, Firing], cause: str) -> None:
    floor, firing = watched
    expected = {ALERTS[cause], *([ALSO[cause]] if cause in ALSO else [])}
    with MAKES[cause](floor):
        wait(lambda: expected <= firing(), f"{expected}: {firing()}")
    if cause != "incomplete recording":  # nobody knows of a killed recorder whether it will come back
        wait(lambda: ALERTS[cause] not in firing(), f"the end of {ALERTS[cause]}")
