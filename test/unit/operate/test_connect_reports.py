"""What a step of the proof says of a robot, and what the verb refuses before it looks at a graph."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.nodes import NodeSpec
from ros2_rfm_serving.monitoring.board import RobotRow
from ros2_rfm_serving.monitoring.findings.look import Diagnosis, Look
from ros2_rfm_serving.operate.proving import report_of, stages, with_stage

DRY, SLOW, DECLARED = stages(0.2)
VALUES = {
    "state": "STREAMING",
    "state_age_s": "0.01",
    "image_age_s front": "0.05",
    "dry_run x": "-0.5 0.5 0.1",
    "refused bad_state": "3",
}


def look(chunk_rate_hz: float = 2.0, **values: str) -> Look:
    row = RobotRow(chunk_rate_hz=chunk_rate_hz, reason="waits for a server")
    found = Look(begun_s=0.0, ended_s=5.0)
    found.robots = {"r1": [row]}
    found.diagnoses = {"r1: robot": [Diagnosis.of("r1: robot", 0, "", {**VALUES, **values}, 1.0)]}
    return found


def test_the_steps_are_a_dry_run_a_reduced_speed_and_the_declared_one() -> None:
    assert [stage.parameters for stage in (DRY, SLOW, DECLARED)] == [{"dry_run": True}, {"speed_scale": 0.2}, {}]
    assert len(stages(1.0)) == 2


def test_a_step_reports_ranges_against_limits_ages_and_refusals() -> None:
    report = report_of(look(), "r1", DRY, {"x": (-1.0, 1.0)})
    (commanded,) = report.commanded
    assert (commanded.lowest, commanded.highest, commanded.largest_step, commanded.lower, commanded.upper) == (
        -0.5,
        0.5,
        0.1,
        -1.0,
        1.0,
    )
    assert report.ages_s == {"state": 0.01, "front": 0.05}
    assert report.refused == {"bad_state": 3}
    assert report.problems == ()


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (Look(begun_s=0.0, ended_s=1.0), "the robot's node does not report"),
        (look(chunk_rate_hz=0.0), "no chunk came: waits for a server"),
        (look(**{"dry_run x": "0.5 0.5 0"}), "the commands would not move the robot"),
        (look(state_problem="joint 'elbow' is missing"), "joint 'elbow' is missing"),
        (look(**{"image_problem front": "4 bytes"}), "image_problem front: 4 bytes"),
    ],
)
def test_why_a_step_did_not_succeed(seen: Look, says: str) -> None:
    assert any(says in problem for problem in report_of(seen, "r1", DRY, {}).problems)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--robot", "1arm"], "is no name"),
        (["--robot", "factory"], "means something else"),
        (["--robot", "server_cluster"], "means something else"),
        (["--robot", "on"], "means something else"),
        (["--max-velocity", "nan"], "above zero"),
        (["--dry-run"], "--prove FACTORY.yaml --dry-run"),
        (["--camera", "front"], "write name=/topic"),
        (["--max-velocity", "fast"], "write numbers"),
        (["--model", "m", "--server", "s"], "give one of --model, --bundle, --server"),
        (["--model", "no/such"], "not in the catalogue"),
        (["--check", "missing.yaml"], "cannot be read"),
        (["--prove", "missing.yaml"], "cannot be read"),
    ],
)
def test_wrong_options_are_refused_at_once(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["connect", *arguments])
    assert says in f"{result.exception}{result.output}"
    assert isinstance(result.exception, (ConfigurationError, Exception))


def test_presets_are_listed_with_their_sources() -> None:
    result = CliRunner().invoke(app, ["connect", "--preset", "list"])
    assert result.exit_code == 0
    assert "ur: Universal Robots" in result.output
    assert "frankarobotics/franka_ros2@43357d15" in result.output


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        ({"still_problem": "nothing moves"}, "nothing moves"),
        ({"start_problem": "shoulder is outside"}, "shoulder is outside"),
        ({"chunk_problem": "57.3 for x"}, "the newest chunk has 57.3 for x"),
        ({"command_rivals": "/teleop publishes, too"}, "two publishers of commands: /teleop publishes, too"),
    ],
)
def test_a_step_in_which_a_robot_does_not_move_as_it_should_fails(seen: dict[str, str], says: str) -> None:
    moving = look(**seen)
    moving.robots["r1"][0].action_rate_hz = 20.0
    assert report_of(moving, "r1", DECLARED, {}).problems == (says,)


def test_a_step_without_an_executed_action_fails() -> None:
    assert report_of(look(), "r1", SLOW, {}).problems == (
        "chunks came, and none of their actions was executed: waits for a server",
    )


def test_the_share_of_the_speed_counts_on_top_of_the_files_own(tmp_path: Path) -> None:
    file = tmp_path / "arm.yaml"
    file.write_text("/**:\n  ros__parameters:\n    speed_scale: 0.5\n")
    node = NodeSpec(name="r1", executable="robot_node", params_file=str(file))
    assert [with_stage(node, stage).parameters.get("speed_scale") for stage in (DRY, SLOW, DECLARED)] == [None, 0.1, None]
    assert with_stage(node, DRY).parameters == {"dry_run": True}


@pytest.mark.parametrize("file", ["arm.yaml", "factory.yaml", "profiles/models.yaml", "profiles/stand_in.csv"])
def test_no_file_that_exists_is_written_over(file: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("mine")
    result = CliRunner().invoke(app, ["connect", "--robot", "arm", "--out", str(tmp_path)])
    assert f"{tmp_path / file}: exists already" in str(result.exception)
    assert (tmp_path / file).read_text() == "mine"
