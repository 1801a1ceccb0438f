"""A running factory as the real Prometheus sees it: its metrics, its rules, and an alert when a server is killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import rclpy
import yaml
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from visualization_msgs.msg import Marker, MarkerArray

from test.ports import free_port
from test.system.test_factory import EMULATED, pids, rfm_up


def wait(true: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError):
            if found := true():
                return found
        time.sleep(0.2)
    raise AssertionError(f"waited in vain: {what}")


SECONDS_OF = {"s": 1, "m": 60, "h": 3600}


def hastened(expr: str, times: int) -> str:
    """Return a rule with shorter windows: at a scrape interval of 1 s they hold at least as many samples as at 60 s."""
    return re.sub(r"\[(\d+)([smh])\]", lambda found: f"[{int(found[1]) * SECONDS_OF[found[2]] // times}s]", expr)


@contextmanager
def watching(
    prometheus: str, config: Path, folder: Path, metrics_port: int, *, delays: bool = True, times: int = 1
) -> Iterator[Callable[[str], Any]]:
    """Run Prometheus with the shipped rules and a scrape interval of 1 s, and yield its HTTP API.

    delays: False: without the `for` of alerts. times: by how much the windows of rules are shorter.
    """
    folder.mkdir(exist_ok=True)
    settings = yaml.safe_load((config / "prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings["scrape_configs"][0]["static_configs"] = [{"targets": [f"localhost:{metrics_port}"]}]
    rules = yaml.safe_load((config / "rules.yml").read_text())
    for rule in [rule for group in rules["groups"] for rule in group["rules"]]:
        rule["expr"] = hastened(rule["expr"], times)
        if not delays:
            rule.pop("for", None)
    (folder / "rules.yml").write_text(yaml.safe_dump(rules))
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    port = free_port()
    command = [prometheus, "--config.file", str(folder / "prometheus.yml"), "--storage.tsdb.path", str(folder / "data")]
    command += ["--web.listen-address", f"127.0.0.1:{port}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:

            def api(path: str) -> Any:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=10) as answer:
                    return json.load(answer)["data"]

            wait(lambda: api("status/buildinfo"), "Prometheus")
            yield api
        finally:
            process.terminate()
            process.wait(timeout=30)


def value(api: Callable[[str], Any], query: str) -> float | None:
    found = api("query?" + urllib.parse.urlencode({"query": query}))["result"]
    return float(found[0]["value"][1]) if found else None


def drawn(topic: str) -> set[str]:
    """Parts of the markers, when all are there."""
    rclpy.init()
    node, spinner, heard = Node("eyes"), SingleThreadedExecutor(), dict[str, Any]()
    try:
        node.create_subscription(MarkerArray, topic, lambda array: heard.update({m.ns: m for m in array.markers}), 1)
        spinner.add_node(node)
        end_s = time.monotonic() + 60.0
        parts: set[str] = set()
        while not parts >= {"executed", "arrived", "state"} and time.monotonic() < end_s:
            spinner.spin_once(timeout_sec=0.1)
            parts = {part for part, marker in heard.items() if marker.action == Marker.ADD}
        return parts
    finally:
        spinner.shutdown()
        node.destroy_node()
        rclpy.try_shutdown()


def there(repository: Path, domain: int) -> dict[str, Any]:
    """The server, as `rfm status` has it."""
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "status", "--json", "--domain", str(domain)]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, Any] = json.loads(done.stdout)["servers"]["server_1"]
    return found


def test_rules_hold_and_do_what_they_say(promtool: str, repository: Path) -> None:
    for arguments in (("check", "config", "prometheus.yml"), ("test", "rules", "rules_test.yml")):
        command = [promtool, *arguments]
        done = subprocess.run(
            command, cwd=repository / "config/prometheus", capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test(repository: Path) -> None:
    folder = repository / "config" / "prometheus"
    rules, tests = (yaml.safe_load((folder / name).read_text()) for name in ("rules.yml", "rules_test.yml"))
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    fired = {one["alertname"] for test in tests["tests"] for one in test["alert_rule_test"] if one["exp_alerts"]}
    assert alerts == fired


FAILS_S, WITHIN_S = 1800, 1200
"""When a healthy factory begins to fail; when the alert has to fire, after that."""
MOMENT_S = 4.0
"""How long something is wrong for which no alert may fire."""
ENDS_S = 240
ENDING = ("RfmServerRestarted", "RfmServerHung", "RfmRecordingIncomplete, from its start")
"""Failures that happen once: their alert fires for some minutes, and has to fire after `ENDS_S`."""
EVENTS = ("RfmServerRestarted", "RfmServerHung", "RfmRecordingIncomplete", "RfmRecorderLost")
"""Failures that are events and do not last. A recorder counts as silent after 16 s."""
SERVER, ROBOT, PROCESS = 'instance="a",server="s"', 'instance="a",robot="r"', 'instance="a",process="p",host="h"'
Series = Callable[[float], float | None]
"""Value at a time, s; None: there is no such series yet."""


def becomes(before: float | None, after: float) -> Series:
    return lambda t: before if t < FAILS_S else after


def grows(before_hz: float, after_hz: float) -> Series:
    return lambda t: before_hz * min(t, FAILS_S) + after_hz * max(0.0, t - FAILS_S)


def lasts(t: float) -> float:
    """Return how long the failure has lasted."""
    return max(0.0, t - FAILS_S)


ANSWERS = 'instance="a",robot="r",component="system1"'
LATE_ANSWERS = {
    f'rfm_robot_answers_total{{{ANSWERS},slo="met"}}': grows(5.0, 0.0),
    f'rfm_robot_answers_total{{{ANSWERS},slo="missed"}}': grows(0.0, 5.0),
}
FAILURES: dict[str, dict[str, Series]] = {
    "RfmExporterLost": {'up{instance="a",job="rfm_factory"}': becomes(1, 0)},
    "RfmServerLost": {f"rfm_server_silent_seconds{{{SERVER}}}": lasts},
    "RfmServerRestarted": {f"rfm_server_process_number{{{SERVER}}}": becomes(7.1e18, 4.2e18)},
    "RfmServerHung": {f"rfm_server_hangs_total{{{SERVER}}}": becomes(0, 1)},
    "RfmServerHung, by requests": {f"rfm_server_unanswered_seconds{{{SERVER}}}": lambda t: 0.5 if t < FAILS_S else t - FAILS_S},
    "RfmServerHung, by its state": {
        f'rfm_server_state{{{SERVER},state="hung"}}': becomes(0, 1),
        f"rfm_server_state_seconds{{{SERVER}}}": lasts,
    },
    "RfmServerFailed": {f"rfm_server_failing_seconds{{{SERVER}}}": lasts},
    "RfmServerOverloaded": {f"rfm_server_load_ratio{{{SERVER}}}": becomes(0.5, 1.0)},
    "RfmSloBurnsFast": LATE_ANSWERS,
    "RfmSloBurnsSlowly": LATE_ANSWERS,
    "RfmRobotLost": {f"rfm_robot_silent_seconds{{{ROBOT}}}": lasts},
    "RfmRobotStands": {f"rfm_robot_standing_seconds{{{ROBOT}}}": lasts},
    "RfmActionsStale": {
        f'rfm_robot_staleness_seconds_bucket{{{ROBOT},le="0.75"}}': grows(20, 0),
        f"rfm_robot_staleness_seconds_count{{{ROBOT}}}": grows(20, 20),
    },
    "RfmControlLate": {
        f'rfm_robot_tick_late_seconds_bucket{{{ROBOT},le="0.05"}}': grows(20, 0),
        f"rfm_robot_tick_late_seconds_count{{{ROBOT}}}": grows(20, 20),
    },
    "RfmSchedulerGone": {'rfm_schedule_age_seconds{instance="a"}': lambda t: 1.0 if t < FAILS_S else t - FAILS_S},
    "RfmScheduleNotFollowed": {f"rfm_server_behind_schedule_seconds{{{SERVER}}}": lasts},
    "RfmDiskFillsUp": {
        'rfm_disk_free_bytes{instance="a",path="logs"}': becomes(5e10, 1e9),
        'rfm_disk_size_bytes{instance="a",path="logs"}': becomes(1e11, 1e11),
    },
    "RfmLogDiskFull": {f"rfm_log_disk_full{{{PROCESS}}}": becomes(0, 1)},
    "RfmRecorderLost": {f"rfm_recorder_up{{{PROCESS}}}": becomes(1, 0)},
    "RfmRecordingIncomplete": {f"rfm_recorder_lost_messages_total{{{PROCESS}}}": grows(0, 3)},
    "RfmRecordingIncomplete, from its start": {f"rfm_recorder_lost_messages_total{{{PROCESS}}}": becomes(None, 12)},
    "RfmCertificateEndsSoon": {
        f"rfm_certificate_left_seconds{{{PROCESS}}}": lambda t: 30 * 86_400.0 + FAILS_S - t,
        f"rfm_certificate_invalid{{{PROCESS}}}": becomes(0, 0),
    },
    "RfmRevocationsUnusable": {f"rfm_revocations_unusable{{{PROCESS}}}": becomes(None, 1)},
    "RfmCertificateInvalid": {f"rfm_certificate_invalid{{{PROCESS}}}": becomes(0, 1)},
}
"""Alert, and how it is reached where there are several ways -> series of a factory that begins to fail."""


def alert_of(failure: str) -> str:
    return failure.partition(",")[0]


def scraped(series: dict[str, Series], interval_s: int) -> list[dict[str, str]]:
    """Return what Prometheus would scrape."""
    times = [float(t) for t in range(0, FAILS_S + WITHIN_S + 1, interval_s)]
    return [{"series": name, "values": " ".join(map(written, map(value, times)))} for name, value in series.items()]


def written(value: float | None) -> str:
    """Return a sample as promtool reads it; `stale` is none, as where a scrape has no such series any more."""
    return "stale" if value is None else f"{value:.6g}"


def begun(series: dict[str, Series], earlier_s: float) -> dict[str, Series]:
    """Return what is measured where everything happens so much earlier."""
    return {name: (lambda t, value=value: value(t + earlier_s)) for name, value in series.items()}


def firing(alert: str, at_s: float, fires: bool) -> dict[str, Any]:
    return {
        "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
        "eval_time": f"{at_s:.0f}s",
        "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
    }


def evaluate(promtool: str, repository: Path, folder: Path, tests: list[dict[str, Any]], every_s: int) -> None:
    """Let Prometheus' own evaluation judge the shipped rules."""
    shutil.copy(repository / "config" / "prometheus" / "rules.yml", folder)
    content = {"rule_files": ["rules.yml"], "evaluation_interval": f"{every_s}s", "tests": tests}
    (folder / "intervals.yml").write_text(yaml.safe_dump(content))
    command = [promtool, "test", "rules", str(folder / "intervals.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_failure(repository: Path) -> None:
    rules = yaml.safe_load((repository / "config" / "prometheus" / "rules.yml").read_text())
    assert {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule} == {
        alert_of(one) for one in FAILURES
    }


@pytest.mark.timeout(1300)
@pytest.mark.parametrize(("interval_s", "phase_s"), [(5, 0), (15, 0), (30, 0), (60, 0), (60, 59), (37, 18)])
def test_every_alert_fires_at_every_scrape_interval(
    promtool: str, repository: Path, tmp_path: Path, interval_s: int, phase_s: int
) -> None:
    """Prometheus' default interval is one minute. Before the failure no alert is there.

    phase_s: how long before the first scrape that sees the failure it began.
    """
    after_s = {failure: ENDS_S if failure in ENDING else WITHIN_S for failure in FAILURES}
    tests = [
        {
            "name": failure,
            "interval": f"{interval_s}s",
            "input_series": scraped(begun(series, phase_s), interval_s),
            "promql_expr_test": [
                firing(alert_of(failure), FAILS_S - interval_s - phase_s, False),
                firing(alert_of(failure), FAILS_S + after_s[failure], True),
            ],
        }
        for failure, series in FAILURES.items()
    ]
    evaluate(promtool, repository, tmp_path, tests, interval_s)


@pytest.mark.parametrize("interval_s", [15, 60])
def test_a_bad_moment_that_one_scrape_sees_wakes_nobody(promtool: str, repository: Path, tmp_path: Path, interval_s: int) -> None:
    """What is wrong for 4 s is in one sample, which Prometheus goes on to use until the next one, a minute later at the slowest."""

    def moment(series: Series) -> Series:
        """Of a counter, what it has counted stays."""
        counts = series(0.0) != series(FAILS_S - 1.0)
        end_s = FAILS_S + MOMENT_S
        return lambda t: series(min(t, end_s)) if counts else series(t if t < end_s else 0.0)

    def of(series: dict[str, Series]) -> dict[str, Series]:
        return begun({name: moment(value) for name, value in series.items()}, 1.0)

    tests = [
        {
            "name": failure,
            "interval": f"{interval_s}s",
            "input_series": scraped(of(series), interval_s),
            "promql_expr_test": [
                firing(alert_of(failure), at_s, False) for at_s in range(FAILS_S, FAILS_S + 2 * interval_s + 121, 15)
            ],
        }
        for failure, series in FAILURES.items()
        if failure not in (*EVENTS, *ENDING)
        and not failure.startswith(("RfmSloBurns", "RfmActionsStale", "RfmControlLate", "RfmCertificateEnds"))
    ]
    assert len(tests) > 10
    evaluate(promtool, repository, tmp_path, tests, 15)


def test_dashboards_ask_in_promql(promtool: str, repository: Path, tmp_path: Path) -> None:
    asked = [
        target["expr"].replace("$robot", "arm_1").replace("$factory", ".*").replace("$__rate_interval", "5m")
        for file in (repository / "config" / "grafana").glob("*.json")
        for panel in json.loads(file.read_text())["panels"]
        for target in panel["targets"]
    ]
    rules = [{"record": f"panel:{i}:expr", "expr": expr} for i, expr in enumerate(asked)]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    command = [promtool, "check", "rules", str(tmp_path / "panels.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0 and f"{len(asked)} rules found" in done.stdout, done.stdout + done.stderr


def test_prometheus_sees_a_factory_and_a_killed_server(
    prometheus: str, promtool: str, repository: Path, tmp_path: Path, ros_domain: int
) -> None:
    port, logs = free_port(), tmp_path / "logs"
    with (
        rfm_up(repository, logs, EMULATED, "--metrics", str(port), "--markers", domain=ros_domain),
        watching(prometheus, repository / "config" / "prometheus", tmp_path, port) as api,
    ):
        wait(lambda: (value(api, "sum(rate(rfm_robot_round_trip_seconds_count[10s]))") or 0) > 0, "chunks of a working robot")
        page = urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=10).read()
        done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr.decode()
        assert value(api, 'up{job="rfm_factory"}') == 1 and value(api, 'rfm_server_state{state="ready"}') == 1
        served = value(api, "sum(rfm_server_queue_wait_seconds_count)")
        assert served and served == value(api, "sum(rfm_server_inference_seconds_count)")
        wait(lambda: value(api, "sum(rfm_fleet_round_trip_seconds_count)"), "round trips of the fleet")
        assert 0 < (value(api, "histogram_quantile(0.5, sum by (le) (rfm_fleet_round_trip_seconds_bucket))") or 0) < 5
        assert 0 < (value(api, "histogram_quantile(0.5, sum by (le) (rfm_fleet_tick_seconds_bucket))") or 0) < 0.2
        wait(lambda: value(api, "count(rfm_log_disk_full)"), "what processes report of themselves")
        assert urllib.request.urlopen(f"http://localhost:{port}/readyz", timeout=10).status == 200

        assert {"executed", "arrived", "state"} <= drawn("/idle_arm_1/rfm/markers")
        wait(lambda: there(repository, ros_domain)["sessions"] == 1, "the robot's session in `rfm status`")

        def lost() -> Any:
            """Killed again whenever it is started again."""
            for pid in pids(f"{logs}/server_1."):
                os.kill(pid, signal.SIGKILL)
            firing = {a["labels"]["alertname"]: a for a in api("alerts")["alerts"] if a["state"] == "firing"}
            return firing.get("RfmServerLost")

        alert = wait(lost, "the alert of a killed server")
        assert alert["labels"]["server"] == "server_1" and "no status of server_1 arrives" in alert["annotations"]["summary"]
        again = "max(changes(rfm_server_process_number[10m]))"
        wait(lambda: value(api, again), "a server that was started again, which is another process")
        restarted = lambda: [a for a in api("alerts")["alerts"] if a["labels"]["alertname"] == "RfmServerRestarted"]  # noqa: E731
        wait(restarted, "the alert of a server that was started again")
