"""`rfm tune` on a real policy, in real worlds, few of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.errors import ConfigurationError, ModelError
from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.operate.pipeline_tuning import MeasuredBench, Place
from ros2_rfm_serving.profiles.tuner import grid
from ros2_rfm_serving.shipped import shipped

FACTORY = """# mine
server_cluster: {num_servers: 1, gpu_type: CPU, batching: continuous}
robot_fleet:
  - {task: reach, num_robots: 1}
reach:
  pipeline: {action_period_ms: 200}
  execution: {mode: async}   # the next chunk meanwhile
  components:
    system1: {model: rfm/metaworld-flow, prompt: "reach the red goal", slo_ms: 400}
  world: {simulator: metaworld, task: reach, control_rate_hz: 20}
"""
NUM_BLOCKS = 4
"""Of the shipped policy's perception."""
FEW = ("--max-depth", "3", "--episodes", "2")


@pytest.fixture
def factory(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(FACTORY)
    return file


@pytest.mark.patient
def test_writes_what_it_found_and_nothing_else(factory: Path, tmp_path: Path) -> None:
    chart = tmp_path / "frontier.png"
    result = CliRunner().invoke(
        app, ["tune", str(factory), "--min-rate", "0.5", "--min-success", "0.5", *FEW, "--chart", str(chart), "--json"]
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    written = load_factory(factory).tasks["reach"].execution.pipelining
    assert written is not None
    assert written.model_dump() == report["chosen"]
    chosen = [own for own in report["tried"] if all(own[key] == value for key, value in report["chosen"].items())]
    assert chosen[0]["rate_hz"] == max(own["rate_hz"] for own in report["tried"] if own["verdict"] == "meets both")
    assert chosen[0]["successes"] >= 1
    text = factory.read_text()
    assert text.replace(text[text.index(", pipelining") : text.index("}}") + 1], "") == FACTORY
    assert chart.stat().st_size > 1000


def test_too_slow_is_said_without_a_single_episode(factory: Path) -> None:
    result = CliRunner().invoke(app, ["tune", str(factory), "--min-rate", "1e6", *FEW, "--json"])
    assert result.exit_code == 1
    assert all(own["episodes"] == 0 and own["verdict"] == "too slow" for own in json.loads(result.stdout)["tried"])
    assert factory.read_text() == FACTORY


def test_pipelines_that_the_model_cannot_have_are_not_among_them() -> None:
    place = Place(
        model="rfm/metaworld-flow",
        folder=shipped("models") / "metaworld_flow",
        options=BundleOptions(device="cpu"),
        world_task="reach",
        control_rate_hz=20.0,
    )
    bench = MeasuredBench(place, episodes=1, seed=0)
    degrees = grid(12)
    possible = [own for own in degrees if bench.can(own)]
    assert max(own.pp_perception for own in possible) == NUM_BLOCKS < max(own.pp_perception for own in degrees)
    assert max(own.pp_generation for own in possible) == bench.num_steps < max(own.pp_generation for own in degrees)
    deepest = max(possible, key=lambda own: own.pp_perception)
    assert bench.rate_hz(deepest) > 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("task: reach, num_robots", "task: reech, num_robots"), "reech"),
        (("rfm/metaworld-flow", "openvla/openvla-7b"), "no embedded policy"),
        (("  world: {simulator: metaworld, task: reach, control_rate_hz: 20}\n", ""), "reach.world"),
    ],
)
def test_what_cannot_be_tuned_is_said(factory: Path, change: tuple[str, str], said: str) -> None:
    factory.write_text(FACTORY.replace(*change))
    result = CliRunner().invoke(app, ["tune", str(factory), "--min-rate", "1", *FEW])
    assert isinstance(result.exception, ConfigurationError)
    assert said in str(result.exception)


def test_a_policy_of_tokens_is_refused_with_what_compares_its_frames(factory: Path) -> None:
    factory.write_text(FACTORY.replace("rfm/metaworld-flow", "rfm/metaworld-autoregressive"))
    result = CliRunner().invoke(app, ["tune", str(factory), "--min-rate", "1", *FEW])
    assert isinstance(result.exception, ModelError) and "rfm bench frames" in str(result.exception)


def test_no_service_law_is_said(factory: Path) -> None:
    result = CliRunner().invoke(app, ["tune", str(factory), "--min-rate", "1", "--gpu", "H200", *FEW])
    assert isinstance(result.exception, ConfigurationError)
    assert "--gpu" in str(result.exception)


def refused(factory: Path, *options: str, text: str = FACTORY) -> str:
    """What is said before anything is run, of a goal that nothing would reach."""
    factory.write_bytes(text.encode())
    result = CliRunner().invoke(app, ["tune", str(factory), "--min-rate", "1e6", *FEW, *options])
    assert factory.read_bytes() == text.encode()
    return str(result.exception) if isinstance(result.exception, ConfigurationError) else f"ran: {result.output}"


def test_what_would_spoil_the_end_of_the_run_is_said_at_its_beginning(factory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, listed = FACTORY.splitlines()[1], "server_cluster: [{num_servers: 1, gpu_type: CPU}]"
    for told, line, key in ((listed, 2, "server_cluster"), (cluster.replace("continuous", "fixed"), 2, "server_cluster.batching")):
        said = refused(factory, text=FACTORY.replace(cluster, told))
        assert f":{line}: {key}: no server would take" in said and "write `batching: continuous` there" in said, (
            "keys that are there"
        )
    assert "mode: async" in refused(factory, text=FACTORY.replace("mode: async", "mode: sync"))
    assert "--chart" in refused(factory, "--chart", str(factory.parent / "nowhere" / "a.png"))
    shared = FACTORY.replace("execution: {mode: async}", "execution: &own {mode: async}") + "other: *own\n"
    assert not refused(factory, text=shared).startswith("ran")
    assert "too slow" in refused(factory, "--dry-run", text=FACTORY.replace(", batching: continuous", ""))
    plain = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **how: mode != os.W_OK and plain(path, mode, **how))
    assert "cannot be written" in refused(factory)


@pytest.mark.parametrize("option", [("--slower", "inf"), ("--slower", "nan"), ("--min-success", "nan"), ("--min-success", "1.1")])
def test_numbers_that_mean_nothing_are_refused(factory: Path, option: tuple[str, str]) -> None:
    assert CliRunner().invoke(app, ["tune", str(factory), "--min-rate", "1", *FEW, *option]).exit_code == 2


def test_line_ends_stay(factory: Path) -> None:
    factory.write_bytes(FACTORY.replace("\n", "\r\n").encode())
    asked = ("--min-rate", "0.1", "--min-success", "0", "--max-depth", "2", "--episodes", "1")
    assert CliRunner().invoke(app, ["tune", str(factory), *asked]).exit_code == 0
    text = factory.read_bytes().decode()
    assert "pipelining: {" in text and text.count("\r\n") == text.count("\n") == FACTORY.count("\n")
