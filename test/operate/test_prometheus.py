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


def test_dashboards_ask_in_promql(promtool: str, repository: Path, tmp_path: Path) -> None:
    asked = [
        target["expr"].replace("$robot", "arm_1")
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
        assert 0 < (value(api, "histogram_quantile(0.5, sum by (le) (rfm_robot_round_trip_seconds_bucket))") or 0) < 5
        assert 0 < (value(api, "histogram_quantile(0.5, sum by (le) (rfm_robot_tick_seconds_bucket))") or 0) < 0.2
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
