"""What `rfm bench network` makes of what a robot's stand-in has heard, and what it refuses."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lab.benchmarks.network import report as bench_network
from lab.benchmarks.network.run import Heard
from lab.benchmarks.network.switch import is_multicast
from ros2_rfm_serving.errors import ConfigurationError


def status(s: float, state: str, held: int = 0) -> dict[str, object]:
    return {"kind": "status", "s": s, "state": state, "reason": "", "phase": 2, "held": held, "refused": {"late": 1}}


def punctuality(s: float, ticks: int, late_p99_ms: float, missed: int) -> dict[str, object]:
    figures = {"ticks": float(ticks), "missed_periods": float(missed), "tick_late_p50_ms": 0.1, "tick_late_p99_ms": late_p99_ms}
    return {"kind": "punctuality", "s": s, **figures}


def heard() -> Heard:
    """At work from 10 s on, three chunks a second; cut from 12 to 15 s, the first fresh chunk at 15.5 s."""
    lines = [status(9.0, "CONNECTING"), punctuality(9.5, 10, 900.0, 50)]
    lines += [{"kind": "chunk", "s": 10 + i / 3, "round_trip_s": 0.1} for i in range(6)]
    lines += [
        status(10.1, "STREAMING"),
        status(10.5, "STREAMING"),
        status(13.0, "RECONNECTING"),
        status(15.6, "STREAMING", held=40),
    ]
    lines += [punctuality(10.2, 100, 500.0, 50), punctuality(14.0, 2200, 3.0, 51), punctuality(16.0, 2300, 2.0, 51)]
    lines += [{"kind": "chunk", "s": s, "round_trip_s": trip_s} for s, trip_s in ((15.1, 3.4), (15.5, 0.2))]
    lines += [{"kind": "commands", "s": s, "total": total} for s, total in ((11.0, 20), (16.0, 80))]
    return Heard(lines=sorted(lines, key=lambda line: float(line["s"])), cuts=[(12.0, 15.0)])  # type: ignore[arg-type]


def test_figures_are_of_the_time_at_work() -> None:
    figures = heard().figures()
    assert [(s, state) for s, state, _ in figures["states"]] == [
        (-1.0, "CONNECTING"),
        (0.1, "STREAMING"),
        (3.0, "RECONNECTING"),
        (5.6, "STREAMING"),
    ]
    assert figures["cuts"] == [(2.0, 5.0)] and figures["chunks_per_s"] == pytest.approx(3.0)
    assert figures["round_trip_p99_ms"] == pytest.approx(100.0)
    assert figures["recoveries_s"] == [0.5], "what was sent before the cut is no recovery"
    assert (figures["executed"], figures["held"], figures["ticks"], figures["missed_periods"]) == (80, 40, 2200, 1)
    assert figures["tick_late_p99_ms"] == 3.0, "windows that reach back into the start do not count"


def test_a_robot_that_never_came_back_is_shown_as_such() -> None:
    silent = Heard(lines=[line for line in heard().lines if line["s"] < 12.0], cuts=[(12.0, 15.0)])
    figures = silent.figures()
    assert math.isnan(figures["recoveries_s"][0]) and math.isnan(figures["ticks"])


def test_the_plot_has_a_level_per_state_and_the_cuts(tmp_path: Path) -> None:
    file = tmp_path / "network.svg"
    bench_network._draw({"30 Hz": heard().figures()}, file, "drop=0.05")
    text = file.read_text()
    assert text.startswith("<?xml") and len(text) > 5000


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rates": "30,x"}, "--rates: '30,x' is not numbers"),
        ({"cuts": "2,0"}, "--cuts: '2,0' holds what is not above 0"),
        ({"faults": "loss=0.1"}, "'loss=0.1' is no fault"),
        ({"profile": "lan.xml"}, "config/dds/lan.xml is not where rfm_serving is installed"),
    ],
)
def test_what_cannot_be_measured_is_refused(given: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.benchmarks.network.run.emulated_network", lambda *_: pytest.fail("it began to measure"))
    values = {"faults": "", "cuts": "2", "rates": "30", "profile": "", "best_effort": False, "image_size_px": 96, "seconds": 1.0}
    with pytest.raises(ConfigurationError, match=says):
        bench_network.network(**{**values, "max_offline_s": 1.0, "logs": None, "plot": None, "json_file": None, **given})  # type: ignore[arg-type]


def test_what_is_to_a_group_is_told_from_what_is_to_one_or_to_all() -> None:
    """A network without multicast still resolves addresses, by broadcast."""
    ends = bytes.fromhex("0242ac110002") + b"\x08\x00"
    assert is_multicast(bytes.fromhex("01005e7f0001") + ends) and is_multicast(bytes.fromhex("333300000001") + ends)
    assert not is_multicast(bytes.fromhex("0242ac110003") + ends) and not is_multicast(b"\xff" * 6 + ends)
