"""`rfm bench steps` on a shipped policy, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ros2_rfm_serving.cli.main import app


@pytest.mark.patient
def test_each_way_and_number_of_rows_is_timed_and_all_of_a_steps_operators_are_accounted_for(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    told = CliRunner().invoke(
        app, ["bench", "steps", "--model", "rfm/metaworld-flow", "--rows", "1,3", "--rounds", "2", "--json", str(found)]
    )
    assert told.exit_code == 0, told.output
    figures = json.loads(found.read_text())
    assert set(figures["ms"]) == {"as PyTorch runs it", "traced"}
    for by_size in figures["ms"].values():
        assert set(by_size) == {"1", "3"} and all(len(ms) == 2 and min(ms) > 0 for ms in by_size.values())
    shares = figures["shares"]
    assert sum(shares.values()) == pytest.approx(1.0) and shares["matrices"] > 0.1 and shares["attention"] > 0.0
