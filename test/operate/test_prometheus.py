"""A running factory as the real Prometheus sees it: its metrics, its rules, and an alert when a server is killed."""

from __future__ import annotations

import contextlib
import json
import os
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


@contextmanager
def watching(prometheus: str, config: Path, folder: Path, metrics_port: int) -> Iterator[Callable[[str], Any]]:
    """Prometheus with the shipped rules, every second; gives its HTTP API."""
    settings = yaml.safe_load((config / "prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings["scrape_configs"][0]["static_configs"] = [{"targets": [f"localhost:{metrics_port}"]}]
    shutil.copy(config / "rules.yml", folder)
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
            command, cwd=repository / "config/prometheus", capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test(repository: Path) -> None:
    folder = repository / "config" / "prometheus"
    rules, tests = (yaml.safe_load((folder / name).read_text()) for name in ("rules.yml", "rules_test.yml"))
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    fired = {one["alertname"] for test in tests["tests"] for one in test["alert_rule_test"] if one["exp_alerts"]}
    assert alerts == fired


FAILS_S, WITHIN_S = 1800, 1200
"""When a factory that was well begins to fail; when the alert has to be there."""
SERVER, ROBOT, PROCESS = 'instance="a",server="s"', 'instance="a",robot="r"', 'instance="a",process="p",host="h"'
Series = Callable[[float], float]


def becomes(before: float, after: float) -> Series:
    return lambda t: before if t < FAILS_S else after


def grows(before_hz: float, after_hz: float) -> Series:
    return lambda t: before_hz * min(t, FAILS_S) + after_hz * max(0.0, t - FAILS_S)


ANSWERS = 'instance="a",robot="r",component="system1"'
LATE_ANSWERS = {
    f'rfm_robot_answers_total{{{ANSWERS},slo="met"}}': grows(5.0, 0.0),
    f'rfm_robot_answers_total{{{ANSWERS},slo="missed"}}': grows(0.0, 5.0),
}
FAILURES: dict[str, dict[str, Series]] = {
    "RfmExporterLost": {'up{instance="a",job="rfm_factory"}': becomes(1, 0)},
    "RfmServerLost": {f"rfm_server_up{{{SERVER}}}": becomes(1, 0)},
    "RfmServerRestarted": {f"rfm_server_replies_total{{{SERVER}}}": lambda t: 5.0 * (t if t < FAILS_S else t - FAILS_S)},
    "RfmServerHung": {f"rfm_server_unanswered_seconds{{{SERVER}}}": lambda t: 0.5 if t < FAILS_S else t - FAILS_S},
    "RfmServerFailed": {f'rfm_server_state{{{SERVER},state="failed"}}': becomes(0, 1)},
    "RfmServerOverloaded": {f"rfm_server_load_ratio{{{SERVER}}}": becomes(0.5, 1.0)},
    "RfmSloBurnsFast": LATE_ANSWERS,
    "RfmSloBurnsSlowly": LATE_ANSWERS,
    "RfmRobotLost": {f"rfm_robot_up{{{ROBOT}}}": becomes(1, 0)},
    "RfmRobotStands": {f'rfm_robot_state{{{ROBOT},state="stalled"}}': becomes(0, 1)},
    "RfmActionsStale": {
        f'rfm_robot_staleness_seconds_bucket{{{ROBOT},le="0.75"}}': grows(20, 0),
        f"rfm_robot_staleness_seconds_count{{{ROBOT}}}": grows(20, 20),
    },
    "RfmControlLate": {
        f'rfm_robot_tick_late_seconds_bucket{{{ROBOT},le="0.05"}}': grows(20, 0),
        f"rfm_robot_tick_late_seconds_count{{{ROBOT}}}": grows(20, 20),
    },
    "RfmSchedulerGone": {'rfm_schedule_age_seconds{instance="a"}': lambda t: 1.0 if t < FAILS_S else t - FAILS_S},
    "RfmScheduleNotFollowed": {
        'rfm_schedule_epoch{instance="a"}': becomes(6, 7),
        f"rfm_server_schedule_epoch{{{SERVER}}}": becomes(6, 6),
    },
    "RfmDiskFillsUp": {
        'rfm_disk_free_bytes{instance="a",path="logs"}': becomes(5e10, 1e9),
        'rfm_disk_size_bytes{instance="a",path="logs"}': becomes(1e11, 1e11),
    },
    "RfmLogDiskFull": {f"rfm_log_disk_full{{{PROCESS}}}": becomes(0, 1)},
    "RfmRecorderLost": {f"rfm_recorder_up{{{PROCESS}}}": becomes(1, 0)},
    "RfmRecordingIncomplete": {f"rfm_recorder_lost_messages_total{{{PROCESS}}}": grows(0, 3)},
    "RfmCertificateEndsSoon": {
        f"rfm_certificate_left_seconds{{{PROCESS}}}": lambda t: 30 * 86_400.0 + FAILS_S - t,
        f"rfm_certificate_invalid{{{PROCESS}}}": becomes(0, 0),
    },
    "RfmCertificateInvalid": {f"rfm_certificate_invalid{{{PROCESS}}}": becomes(0, 1)},
}
"""Alert -> series of a factory that begins to fail."""


@pytest.mark.parametrize("interval_s", [5, 15, 30, 60])
def test_every_alert_fires_at_every_scrape_interval(promtool: str, repository: Path, tmp_path: Path, interval_s: int) -> None:
    """Prometheus' own evaluation, of what it would scrape; its default is one minute. Before the failure no alert is there."""
    shutil.copy(repository / "config" / "prometheus" / "rules.yml", tmp_path)
    rules = yaml.safe_load((tmp_path / "rules.yml").read_text())
    alerts = {rule["alert"]: rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    assert alerts.keys() == FAILURES.keys()
    times = range(0, FAILS_S + WITHIN_S + 1, interval_s)
    tests = [
        {
            "name": alert,
            "interval": f"{interval_s}s",
            "input_series": [
                {"series": name, "values": " ".join(f"{value(float(t)):.6g}" for t in times)} for name, value in series.items()
            ],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                    "eval_time": f"{at_s}s",
                    "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
                }
                for at_s, fires in ((FAILS_S - interval_s, False), (FAILS_S + WITHIN_S, alert != "RfmServerRestarted"))
            ],
        }
        for alert, series in FAILURES.items()
    ]
    restarted = next(one for one in tests if one["name"] == "RfmServerRestarted")
    restarted["promql_expr_test"][1] |= {"eval_time": f"{FAILS_S + 300}s", "exp_samples": [{"labels": "{}", "value": 1}]}
    content = {"rule_files": ["rules.yml"], "evaluation_interval": f"{interval_s}s", "tests": tests}
    (tmp_path / "intervals.yml").write_text(yaml.safe_dump(content))
    command = [promtool, "test", "rules", str(tmp_path / "intervals.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
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
        assert alert["labels"]["server"] == "server_1" and "server_1 is silent" in alert["annotations"]["summary"]
