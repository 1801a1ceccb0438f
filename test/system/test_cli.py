"""The `rfm` command as a user types it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ros2_rfm_serving.cli.main import app


def rfm(*arguments: str, cwd: Path, within_s: float = 240.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=within_s, check=False)


def test_check_names_file_line_key_and_fix(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text((repository / "config" / "factory_quickstart.yaml").read_text().replace("num_servers", "num_server", 1))
    done = rfm("check", str(file), cwd=repository)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"{file}:3: server_cluster.num_server: unknown key; did you mean `num_servers`?" in done.stderr


@pytest.mark.parametrize("command", ["check", "plan", "capacity", "up"])
def test_a_missing_factory_is_named_by_every_command(repository: Path, command: str) -> None:
    done = rfm(command, "no_such.yaml", cwd=repository)
    assert done.returncode == 2 and "no_such.yaml: cannot be read" in done.stderr and "Traceback" not in done.stderr


def test_plan_shows_the_schedule_and_says_when_profiles_are_missing(repository: Path) -> None:
    done = rfm("plan", "config/factory_quickstart.yaml", cwd=repository)
    assert done.returncode == 0 and "server_2" in done.stdout and "feasible with policy best; objective" in done.stdout
    done = rfm("plan", "config/rosa/p4.yaml", "--profiles", "no_such_folder", cwd=repository)
    assert done.returncode == 2 and "error: no_such_folder: holds no latency profiles" in done.stderr
    assert "Traceback" not in done.stderr


def test_plan_prints_nothing_but_json_on_stdout_whatever_it_finds(repository: Path) -> None:
    for robots, status in (("3", 0), ("400", 1)):
        done = rfm("plan", "config/factory_quickstart.yaml", "--robots", robots, "--policy", "best", "--json", cwd=repository)
        assert done.returncode == status and json.loads(done.stdout)["feasible"] == (status == 0)


def test_capacity_answers_both_questions(repository: Path) -> None:
    done = rfm("capacity", "config/rosa/p4.yaml", "--policy", "rosa", "--json", cwd=repository)
    figures = json.loads(done.stdout)
    assert done.returncode == 0 and figures["servers"]["answer"] > 0 and figures["robots"]["answer"] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "config/rosa/p4.yaml", "--policy", "rosa"], "feasible with policy rosa"),
        (["check", "config/rosa/p4.yaml"], "ROS is not installed here"),
    ],
)
def test_planning_needs_no_ros(repository: Path, arguments: list[str], said: str) -> None:
    without = f"import sys; sys.modules['rclpy'] = None; sys.argv[1:] = {arguments}"
    command = [sys.executable, "-c", f"{without}; from ros2_rfm_serving.cli.main import main; main()"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0 and said in done.stdout, done.stderr


def test_doctor_finds_nothing_missing_here(repository: Path) -> None:
    done = rfm("doctor", cwd=repository)
    assert done.returncode == 0, done.stdout
    assert "missing" not in done.stdout and "metaworld_flow" in done.stdout


COMMANDS = [
    "",
    "up",
    "demo",
    "check",
    "plan",
    "capacity",
    "doctor",
    "profile",
    "train",
    "bench",
    "bench path",
    "bench policy",
    "bench engine",
    "bench frames",
    "bench steps",
    "bench tasks",
    "bench scheduler",
    "robot",
    "deploy",
    "drain",
    "order",
    "status",
    "why",
    "metrics",
    "foxglove",
    "record",
    "export",
    "audit explain",
    "audit report",
    "simulate",
    "compile",
    "reproduce rosa",
    "reproduce auras",
    "security init",
    "tune",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command: str) -> None:
    done = CliRunner().invoke(app, [*command.split(), "--help"])
    assert done.exit_code == 0
    assert command in ("", "bench") or "Example" in done.stdout


def test_help_is_said_by_the_command_itself(repository: Path) -> None:
    done = rfm("up", "--help", cwd=repository)
    assert done.returncode == 0 and "Example" in done.stdout


@pytest.mark.timeout(1500)  # it computes all the time, and may take as long as others need the cores
@pytest.mark.thorough  # every policy and both worlds; each one's own training is tried in test/unit/engines
def test_train_makes_bundles_from_nothing(repository: Path, tmp_path: Path) -> None:
    few = (
        "--threads",
        "1",
        "--episodes",
        "2",
        "--stage-episodes",
        "10",
        "--steps",
        "5",
        "--judge-steps",
        "5",
        "--small-steps",
        "5",
    )
    few += ("--staged-steps", "5", "--staged-episodes", "2", "--diffusion-steps", "5", "--autoregressive-steps", "5")
    done = rfm("train", "all", "--out", str(tmp_path), *few, cwd=repository, within_s=1400.0)
    assert done.returncode == 0, done.stderr
    for name in ("flow", "judge", "safety", "stages", "planner", "staged_flow", "diffusion", "autoregressive"):
        found = {f.name for f in (tmp_path / f"metaworld_{name}").iterdir()}
        assert found >= {
            "config.json",
            "model.safetensors",
            "training_log.csv",
        }


@pytest.mark.parametrize(("command", "module"), [("metrics", "prometheus_client"), ("foxglove", "foxglove")])
def test_a_verb_says_which_extra_it_needs(repository: Path, command: str, module: str) -> None:
    without = f"import sys; sys.modules[{module!r}] = None; sys.argv[1:] = [{command!r}, '--port', '0']"
    line = [sys.executable, "-c", f"{without}; from ros2_rfm_serving.cli.main import main; main()"]
    done = subprocess.run(line, cwd=repository, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2 and f"pip install 'ros2-rfm-serving[{command}]'" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["metrics", "foxglove"])
def test_a_port_that_is_taken_is_named(repository: Path, command: str, ros_domain: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = rfm(command, "--port", str(port), cwd=repository)
    assert done.returncode == 2 and f"127.0.0.1:{port} cannot be listened on" in done.stderr and "Traceback" not in done.stderr
