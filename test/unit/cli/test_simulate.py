"""`rfm simulate`: what cannot be heeded is refused, not left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.errors import ConfigurationError

P1 = str(Path(__file__).parents[3] / "config" / "rosa" / "p1.yaml")
GIVEN = {
    "--crash": "server_1@3",
    "--network": "latency=5",
    "--seconds": "10",
    "--warm-up": "5",
    "--rate-control": None,
    "--arrivals": "poisson",
}


def asked(*options: str, given: str) -> str:
    value = GIVEN[given]
    command = ["simulate", P1, "--robots", "4", *options, given, *([value] if value else [])]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, ConfigurationError) and done.output == ""
    return str(done.exception)


@pytest.mark.parametrize("given", GIVEN)
def test_what_means_nothing_beside_hours_is_refused(given: str) -> None:
    said = asked("--hours", "1", given=given)
    assert said.startswith(f"{given}: ") and said.endswith("leave it out, or --hours")


@pytest.mark.parametrize("given", ["--rate-control", "--arrivals"])
def test_what_means_nothing_beside_guests_is_refused(given: str) -> None:
    assert "the scheduler makes many" in asked("--guests", "per_hour=6,stay_min=60", given=given)


def test_what_means_something_is_heeded() -> None:
    guests = [
        "--guests",
        "per_hour=60,stay_min=1",
        "--crash",
        "server_1@1",
        "--network",
        "latency=5",
        "--seconds",
        "1",
        "--warm-up",
        "1",
    ]
    for options in (["--hours", "0.1", "--guests", "per_hour=60,stay_min=1"], guests):
        assert CliRunner().invoke(app, ["simulate", P1, "--robots", "4", *options]).exit_code == 0


def test_declared_links_need_no_excuse(tmp_path: Path) -> None:
    """Virtual time has them (`test/unit/simulation/test_roads.py`)."""
    factory = tmp_path / "factory.yaml"
    factory.write_text(
        """
hosts: {a: {address: 10.0.0.1, gpus: {NVIDIA H200: 1}, bandwidth_mbit_s: 1000}}
server_cluster: {num_servers: 1, gpu_type: NVIDIA H200}
robot_fleet: [{task: pick, num_robots: 1}]
pick: {pipeline: {action_period_ms: 200}, components: {system1: {model: nvidia/GR00T-N1.6-3B, slo_ms: 200}}}
"""
    )
    command = ["simulate", "--robots", "1", "--seconds", "1", "--warm-up", "1", "--budget", "0"]
    done = CliRunner().invoke(app, [*command, str(factory)])
    assert done.exit_code == 0, done.output
    assert "bandwidth_mbit_s" not in done.output + done.stderr
