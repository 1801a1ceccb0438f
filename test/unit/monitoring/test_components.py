"""The summary's figures per component."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

from rich.console import Console

from ros2_rfm_serving.monitoring.board import Board, ComponentRow, Failover
from ros2_rfm_serving.monitoring.summary import as_json, render


def board() -> Board:
    made = Board(["arm_1", "arm_2"], ["server_1"])
    made.robots["arm_1"].components = {
        "system2": ComponentRow(slo_s=1.0, in_time=9, late=1, words={"reach": 4, "push": 5}),
        "safety": ComponentRow(slo_s=0.5, in_time=50, words={"safe": 48, "unsafe": 2}),
    }
    made.robots["arm_2"].components = {"system2": ComponentRow(slo_s=1.0, in_time=10, words={"push": 10}), "idle": ComponentRow()}
    return made


def test_components_are_added_up_over_robots() -> None:
    total = board().components()
    assert list(total) == ["idle", "safety", "system2"]
    assert total["system2"] == ComponentRow(slo_s=1.0, in_time=19, late=1, words={"reach": 4, "push": 15})
    assert total["system2"].attained == 0.95 and total["safety"].attained == 1.0 and math.isnan(total["idle"].attained)


def test_the_summary_shows_plans_verdicts_and_attainment() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(*render(board(), 60.0, Path("logs")))
    lines = {line.split("│")[1].strip(): line for line in console.export_text().splitlines() if line.startswith("│")}
    assert "95.0%" in lines["system2"] and "push 15, reach 4" in lines["system2"] and "1000 ms" in lines["system2"]
    assert "100.0%" in lines["safety"] and "safe 48, unsafe 2" in lines["safety"]
    told = json.loads(as_json(board()))["components"]
    assert (
        told["system2"]["slo_attained"] == 0.95 and told["safety"]["words"]["unsafe"] == 2 and told["idle"]["slo_attained"] is None
    )


def test_a_server_that_was_never_heard_has_no_time_of_its_loss() -> None:
    made = board()
    made.robots["arm_1"].failovers = [Failover("server_1", "server_2", math.inf), Failover("server_2", "server_1", 1.25)]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(*render(made, 60.0, Path("logs")))
    text = console.export_text()
    assert "server_1 was lost; streams from server_2\n" in text and "server_2 was lost; streams from server_1 after 1.2 s" in text
