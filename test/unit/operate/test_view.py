"""The live table: no figure that is older than its period."""

from __future__ import annotations

import io
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from ros2_rfm_serving.monitoring.board import AS_SAID, STALE_AFTER_S, UNCHECKED, Board, Proof, Score
from ros2_rfm_serving.monitoring.plain import counted
from ros2_rfm_serving.monitoring.summary import render
from ros2_rfm_serving.operate import view
from ros2_rfm_serving.operate.view import picture


def text(*shown: object, width: int = 220) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(*shown)
    return console.export_text()


def lines(*shown: object) -> dict[str, str]:
    """By their first column."""
    return {line.split("│")[1].strip(): line for line in text(*shown).splitlines() if line.startswith("│")}


def board(seen_s: float) -> Board:
    made = Board(["arm_1", "arm_2"], ["server_1"])
    for row in (made.robots["arm_1"], made.servers["server_1"]):
        row.seen_s = seen_s
    made.robots["arm_1"].action_rate_hz, made.robots["arm_1"].round_trip_p50_s = 19.4, 0.023
    made.servers["server_1"].request_rate_hz, made.servers["server_1"].latency_p99_s, made.servers["server_1"].served = (
        47.0,
        0.061,
        9,
    )
    return made


def test_figures_are_shown_while_they_count() -> None:
    made = board(time.monotonic())
    made.servers["server_1"].dispatch = "swift"
    shown = lines(picture("f", made, []))
    assert "swift" in shown["server_1"]
    assert "19.4" in shown["arm_1"] and "23 ms" in shown["arm_1"] and "47.0" in shown["server_1"]


def test_what_is_older_than_its_period_is_stale_and_no_figure() -> None:
    shown = lines(picture("f", board(time.monotonic() - STALE_AFTER_S - 1.0), []))
    assert "stale" in shown["arm_1"] and "stale" in shown["server_1"] and "not heard yet" in shown["arm_2"]
    assert "19.4" not in shown["arm_1"] and "23 ms" not in shown["arm_1"]
    assert "47.0" not in shown["server_1"] and "61 ms" not in shown["server_1"]


def test_a_robot_that_was_released_has_left_and_one_that_is_planned_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.monotonic()
    monkeypatch.setattr(view, "time", SimpleNamespace(monotonic=lambda: now_s))  # a busy machine may need a second for it
    made = board(now_s - 24.0)
    made.schedule_seen_s = now_s
    assert "left: in no schedule, silent for 24 s" in lines(picture("f", made, []))["arm_1"]
    assert "not heard yet" in lines(picture("f", made, []))["arm_2"], "who was never heard cannot have left"
    made.planned_robots = frozenset(["arm_1"])
    assert "stale: silent for 24 s" in lines(picture("f", made, []))["arm_1"]
    made.planned_robots, made.schedule_seen_s = frozenset(), now_s - 60.0
    assert "stale: silent for 24 s" in lines(picture("f", made, []))["arm_1"], "nobody says who is expected"


def test_the_summary_shows_no_figure_of_a_server_that_was_silent_at_the_end() -> None:
    made = board(100.0)
    made.servers["server_1"].lost = True  # as every one is by the end
    assert "61 ms" in lines(*render(made, 60.0, Path("logs"), ended_s=101.0))["server_1"]
    silent = lines(*render(board(100.0), 60.0, Path("logs"), ended_s=110.0))["server_1"]
    assert "61 ms" not in silent and "stale" in silent


@pytest.mark.parametrize("width", [80, 100, 120, 220])
def test_a_narrow_terminal_has_fewer_columns_and_each_of_them_whole(width: int) -> None:
    made = board(time.monotonic())
    made.robots["pick_place_1"] = made.robots.pop("arm_1")
    row, server = made.robots["pick_place_1"], made.servers["server_1"]
    row.state, row.task, row.phase, row.refused = "STREAMING", "pick_place", "executing", {"stale_episode": 12}
    server.state, server.model = "ready", "rfm/metaworld-flow"
    live, end = text(picture("f", made, []), width=width), text(*render(made, 60.0, Path("logs")), width=width)
    assert "…" not in live + end and max(map(len, (live + end).splitlines())) <= width
    assert all(word in live for word in ("pick_place_1", "STREAMING", "19.4", "rfm/metaworld-flow", "47.0", "61 ms"))
    assert ("a wider terminal shows" in live) == (width < 220) and "stale_episode" in end


def test_one_is_no_plural() -> None:
    assert [counted(number, "robot") for number in (0, 1, 2)] == ["0 robots", "1 robot", "2 robots"]


def test_words_from_the_graph_are_no_markup_and_reach_no_terminal() -> None:
    """A reason such as `[/x]` ended `rfm up` and `rfm status`, and one such as `[delta_x]` was not seen."""
    made = board(time.monotonic())
    made.robots["arm_1"].reason = "wants [delta_x, gripper], not [/x]"
    made.robots["arm_1"].refused = {"[/bold]": 3}
    made.servers["server_1"].model = "a [red]model\x1b[31m"
    shown = lines(picture("[/factory]", made, ["[/x] ended"]))
    assert (
        "wants [delta_x, gripper], not [/x]" in shown["arm_1"] and "a [red]model\N{REPLACEMENT CHARACTER}[31m" in shown["server_1"]
    )
    assert "[/bold] 3" in lines(*render(made, 60.0, Path("[/logs]")))["arm_1"]


def test_scores_may_come_while_others_read_them() -> None:
    """The graph is heard on one thread, the table is drawn on another."""
    made = board(100.0)

    class Late(Score):
        def __getattribute__(self, name: str) -> object:
            if name == "success":  # meanwhile
                made.score("arm_1", 2, Score("push", 2, True, 5, True))
                made.score("arm_2", 1, Score("push", 3, True, 5, True))
            return super().__getattribute__(name)

    made.score("arm_1", 1, Late("push", 1, True, 5, True))
    assert len(made.episodes("arm_1")) == 1 and len(made.by_task()["push"]) >= 2


def test_what_is_shown_without_a_proof_is_said_to_be_so() -> None:
    made = board(time.monotonic())
    assert not made.doubts, "nobody signs anything"
    made.proof = Proof.UNCHECKED
    for shown in (picture("f", made, []), *render(made, 1.0, Path("logs"))[-2:-1]):
        assert UNCHECKED in text(shown)
    made.proof = Proof.CHECKED
    made.refuse("arm_1")
    shown = text(picture("f", made, []))
    assert AS_SAID in shown and "not shown: arm_1 1" in shown and "19.4" in shown


def test_a_state_that_begins_its_own_detail_is_shown_once() -> None:
    made = board(time.monotonic())
    made.servers["server_1"].state, made.servers["server_1"].detail = "loading", "loading rfm/metaworld_flow"
    shown = lines(picture("f", made, []))["server_1"]
    assert "loading rfm/metaworld_flow" in shown and "loading loading" not in shown
    made.servers["server_1"].state, made.servers["server_1"].detail = "ready", "warm-up took 3 s"
    assert "ready warm-up took 3 s" in lines(picture("f", made, []))["server_1"]
