"""Alerts of the shipped rules, raised in the real Prometheus by causes that are made with real processes."""

from __future__ import annotations

import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from domain_coordinator import domain_id

from test.ports import free_port

from .causes import MAKES
from .floor import MODEL, PROFILED_S, Floor
from .test_prometheus import wait, watching

TIMES = 15
"""A window of 5 minutes is one of 20 s, scraped every second: 20 samples, where a scrape interval of 60 s has 5."""
HEALTHY_S = 200.0
WITHIN_S = 400.0
Firing = Callable[[], set[str]]


@dataclass
class Watched:
    """A floor, its exporter, and what Prometheus makes of it."""

    floor: Floor
    port: int
    shipped: Firing
    """Names of the alerts that fire by the rules as they are shipped."""
    firing: Firing
    """The same with shorter windows and without the `for` of alerts."""

    def export(self) -> None:
        disk = str(self.floor.folder / "logs")
        self.floor.start("metrics", "ros2_rfm_serving.cli", "metrics", "--port", str(self.port), "--disk", disk)
        wait(self._answers, "the exporter", WITHIN_S)

    def _answers(self) -> bool:
        try:
            return bool(urllib.request.urlopen(f"http://localhost:{self.port}/readyz", timeout=10).status == 200)
        except urllib.error.HTTPError:
            return False


@pytest.fixture(scope="module")
def watched(prometheus: str, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder, port = tmp_path_factory.mktemp("floor"), free_port()
    config = repository / "config" / "prometheus"

    def names(api: Callable[[str], Any]) -> Firing:
        return lambda: {alert["labels"]["alertname"] for alert in api("alerts")["alerts"] if alert["state"] == "firing"}

    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setitem(os.environ, "ROS_DOMAIN_ID", str(stack.enter_context(domain_id())))
        floor = Floor(repository, folder)
        stack.callback(floor.close)
        floor.open()
        made = Watched(floor, port, set, set)
        made.export()
        made.shipped = names(stack.enter_context(watching(prometheus, config, folder / "shipped", port)))
        fast = stack.enter_context(watching(prometheus, config, folder / "fast", port, delays=False, times=TIMES))
        made.firing = names(fast)
        yield made


@pytest.mark.timeout(900)
def test_a_healthy_factory_raises_no_alert(watched: Watched) -> None:
    """Not even one that would have to last. `RfmControlLate` without its `for` is about the machine of this test."""
    seen: set[str] = set()
    for _ in range(round(HEALTHY_S / 5.0)):
        watched.floor.watch(5.0)
        seen |= watched.shipped() | (watched.firing() - {"RfmControlLate"})
    assert seen == set()


# --- causes beside those of the runbook -------------------------------------------------------------------------------------


@contextmanager
def exporter_gone(watched: Watched) -> Iterator[None]:
    watched.floor.kill("metrics")
    yield
    watched.export()


@contextmanager
def slow_engine(watched: Watched) -> Iterator[None]:
    """Every answer comes after its SLO of 400 ms, and actions are computed from old observations."""
    watched.floor.pace(0.6)
    yield
    watched.floor.pace(PROFILED_S)


@contextmanager
def engine_that_ends_itself(watched: Watched) -> Iterator[None]:
    """With the default `hung_after_s`, and a supervisor that starts the server again."""
    floor = watched.floor
    floor.kill("model_server_node")
    floor.node("model_server_node", hung_after_s=10.0)
    floor.work_again()
    floor.pace(3600.0)
    floor.wait(lambda: floor.ended("model_server_node"))
    floor.pace(PROFILED_S)
    floor.node("model_server_node")
    yield
    floor.work_again()


@contextmanager
def busy_machine(watched: Watched) -> Iterator[None]:
    """A robot's process that gets no core for 0.2 s of every second."""
    floor, ending = watched.floor, threading.Event()

    def starve() -> None:
        while not ending.wait(0.8):
            floor.send("robot_node", signal.SIGSTOP)
            ending.wait(0.2)
            floor.send("robot_node", signal.SIGCONT)

    thread = threading.Thread(target=starve)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


@contextmanager
def server_without_schedules(watched: Watched) -> Iterator[None]:
    """It serves the model that its file names, and its subscription to the schedule is remapped to another topic."""
    floor = watched.floor
    floor.kill("model_server_node")
    floor.node("model_server_node", remapped=("/rfm/schedule:=/elsewhere/schedule",), model=MODEL, gpu_type="TEST")
    yield
    floor.kill("model_server_node")
    floor.node("model_server_node")
    floor.work_again()


def _of_the_runbook(cause: str) -> Callable[[Watched], AbstractContextManager[None]]:
    return lambda watched: MAKES[cause](watched.floor)


OWN = {
    "exporter gone": exporter_gone,
    "slow engine": slow_engine,
    "engine that ends itself": engine_that_ends_itself,
    "busy machine": busy_machine,
    "server without schedules": server_without_schedules,
}
CAUSES = {**{cause: _of_the_runbook(cause) for cause in MAKES}, **OWN}
ALERTS: dict[str, tuple[str, ...]] = {
    "overloaded server": ("RfmServerOverloaded",),
    "slow engine": ("RfmSloBurnsFast", "RfmSloBurnsSlowly", "RfmActionsStale"),
    "busy machine": ("RfmControlLate",),
    "exporter gone": ("RfmExporterLost",),
    "server without schedules": ("RfmScheduleNotFollowed",),
    "engine that ends itself": ("RfmServerHung", "RfmServerRestarted"),
    "hung engine": ("RfmServerHung",),
    "model not loaded": ("RfmServerFailed", "RfmServerRestarted"),
    "server gone": ("RfmServerLost",),
    "scheduler gone": ("RfmSchedulerGone",),
    "dead camera": ("RfmRobotStands",),
    "robot gone": ("RfmRobotLost",),
    "full disk": ("RfmDiskFillsUp", "RfmLogDiskFull"),
    "invalid certificate": ("RfmCertificateInvalid",),
    "certificate ends soon": ("RfmCertificateEndsSoon",),
    "incomplete recording": ("RfmRecorderLost",),
}
"""Cause -> alerts that it raises."""
REMAINS = {"incomplete recording"}
"""Causes after which the exporter cannot know whether a killed recorder will come back."""


RULE_TESTED = {"RfmRecordingIncomplete", "RfmRevocationsUnusable"}
"""Alerts that rules_test.yml raises from series alone: no cause here makes a recorder lose messages or spoils a list."""


def test_every_shipped_alert_is_raised(repository: Path) -> None:
    rules = yaml.safe_load((repository / "config" / "prometheus" / "rules.yml").read_text())
    shipped = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    assert shipped - RULE_TESTED == {alert for alerts in ALERTS.values() for alert in alerts}


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("cause", ALERTS)
def test_a_cause_raises_its_alerts_which_end_with_it(watched: Watched, cause: str) -> None:
    expected, seen = set(ALERTS[cause]), set[str]()

    def fired() -> bool:
        seen.update(watched.firing())
        return expected <= seen

    with CAUSES[cause](watched):
        wait(fired, f"{expected} of {seen}", WITHIN_S)
    if cause not in REMAINS:
        wait(lambda: not expected & watched.firing(), f"the end of {expected}", WITHIN_S)
