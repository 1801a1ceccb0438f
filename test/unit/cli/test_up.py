"""How `rfm up` ends: what its exit code says of the processes and of the recording."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ros2_rfm_serving.cli import up
from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.monitoring.board import Board
from ros2_rfm_serving.operate.run import Outcome


@pytest.mark.parametrize(
    ("failed", "incomplete", "code"),
    [([], [], 0), (["arm_1"], [], 1), ([], ["the audit log of robot/arm_1 is incomplete"], 1), (["arm_1"], ["x"], 1)],
)
def test_what_kept_failing_or_was_not_recorded_is_not_all_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failed: list[str], incomplete: list[str], code: int
) -> None:
    outcome = Outcome(board=Board([], []), failed=failed, duration_s=1.0, incomplete=incomplete)
    monkeypatch.setattr(up, "run_factory", lambda factory, options: outcome)
    monkeypatch.setattr(up, "ignore_signals", lambda: None)
    assert CliRunner().invoke(app, ["up", "--record-to", str(tmp_path / "bag")]).exit_code == code
