"""What is measured for vla.cpp's replan study, kept, claimed and shown; and one point of it, run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.reproductions.vlacpp import run
from lab.reproductions.vlacpp.claims import claims_of
from lab.reproductions.vlacpp.page import page, write
from lab.reproductions.vlacpp.points import POINTS, STEPS, TIMED, Mode, Outcome, Point, Replanned, Timing, load, save
from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.errors import ConfigurationError

SHIPPED = Path(__file__).resolve().parents[4] / "docs" / "reproductions" / "vlacpp"
MODELS = Path(__file__).resolve().parents[4] / "models"


def outcome(steps: int, successes: int = 50) -> Outcome:
    return Outcome(
        episodes=52,
        successes=successes,
        steps=60.0,
        idle_steps=0.0,
        seam_jump=0.5,
        calls=100,
        executed_steps=100 * steps,
    )


def everything() -> Replanned:
    results = Replanned(episodes=52, machine={"processor": "one", "cores": "2", "load": "1"})
    results.outcomes = {str(point): outcome(point.steps) for point in POINTS}
    results.timing = Timing(machine={"load": "2"}, rounds=3, call_s={str(point): (0.01, 0.012) for point in TIMED})
    return results


def test_a_run_goes_on_from_what_was_kept(tmp_path: Path) -> None:
    results = everything()
    save(results, tmp_path / "measured.json")
    assert load(tmp_path / "measured.json") == results
    (tmp_path / "measured.json").write_text('{"outcomes": []}')
    with pytest.raises(ConfigurationError, match="--anew"):
        load(tmp_path / "measured.json")
    del results.outcomes[str(POINTS[3])]

    class Counting:
        def __init__(self) -> None:
            self.points: list[Point] = []

        def run(self, point: Point) -> Outcome:
            self.points.append(point)
            return outcome(point.steps)

        def time(self, points: Sequence[Point], rounds: int) -> dict[str, tuple[float, float]]:
            self.timed = points
            return {str(point): (0.01, 0.02) for point in points}

    run.measure(results, counting := Counting(), tmp_path / "measured.json")  # type: ignore[arg-type]
    assert counting.points == [POINTS[3]] and set(load(tmp_path / "measured.json").outcomes) == set(map(str, POINTS))
    assert not hasattr(counting, "timed"), "calls are timed together, or not at all"
    del results.timing.call_s[str(TIMED[0])]
    run.measure(results, counting, tmp_path / "measured.json")  # type: ignore[arg-type]
    kept = load(tmp_path / "measured.json").timing
    assert counting.timed == TIMED and kept == Timing(
        machine=kept.machine, rounds=run.ROUNDS, call_s={str(point): (0.01, 0.02) for point in TIMED}
    )


def test_claims_follow_what_was_measured() -> None:
    results = everything()
    linear, flat, apart, collapse, _ = claims_of(results)
    assert linear.holds and linear.ours == pytest.approx(1.0) and flat.holds and apart.holds and not collapse.holds
    results.outcomes[str(Point(mode=Mode.WAITS, steps=STEPS[-1]))] = outcome(24, successes=15)
    assert claims_of(results)[3].holds
    results.outcomes[str(Point(mode=Mode.WAITS, steps=STEPS[0]))] = outcome(1, successes=30)
    assert not claims_of(results)[2].holds
    assert claims_of(Replanned()) == []


def test_a_page_and_a_plot_of_whatever_is_there(tmp_path: Path) -> None:
    for results in (everything(), Replanned()):
        write(results, claims_of(results), tmp_path)
    assert "| 8 | 8.0 | 10.00, 12.00 | 800 | 96% (87% to 99%) | 96%" in page(everything(), [])


def test_the_shipped_page_is_that_of_its_measurements(tmp_path: Path) -> None:
    results = load(SHIPPED / "measured.json")
    assert set(results.outcomes) == set(map(str, POINTS))
    write(results, claims_of(results), tmp_path)
    for name in ("README.md", "replan.csv", "claims.csv"):
        assert (tmp_path / name).read_text() == (SHIPPED / name).read_text(), f"{name}: rfm reproduce vlacpp --out {SHIPPED}"


def test_measurements_are_not_mixed(tmp_path: Path) -> None:
    results = everything()
    save(results, tmp_path / "measured.json")
    refused = CliRunner().invoke(app, ["reproduce", "vlacpp", "--episodes", "4", "--out", str(tmp_path)])
    assert refused.exit_code and "52 episodes, not 4" in str(refused.exception or refused.output)
    del results.outcomes[str(POINTS[0])]
    with pytest.raises(ConfigurationError, match="measured on one"):
        run._require_alike(results, 52, tmp_path / "measured.json")


@pytest.mark.patient
def test_a_point_is_run_with_the_shipped_policy() -> None:
    from lab.reproductions.vlacpp.laboratory import Laboratory

    laboratory = Laboratory(MODELS, episodes=1)
    waits = laboratory.run(Point(steps=8, mode=Mode.WAITS))
    chunked = laboratory.run(Point(steps=1, mode=Mode.CHUNKED))
    assert waits.episodes == 1 and waits.idle_steps == 0 and 6 < waits.steps_per_call <= 8
    assert 3 < chunked.steps_per_call <= 5, "one request in flight, an answer every four steps"
    assert waits.executed_steps > 8


@pytest.mark.patient
def test_what_slows_the_machine_for_a_while_slows_all_points_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, the whole chunk's calls seemed 1.19 times as long as those of S = 1."""
    from lab.reproductions.vlacpp import laboratory as module

    laboratory, clock = module.Laboratory(MODELS, episodes=1), iter(range(10**6))
    points = [Point(steps=steps, mode=Mode.WAITS) for steps in (8, 24)]
    monkeypatch.setattr(module.time, "process_time", lambda: (tick := next(clock)) + (10 * tick if tick % 2 else 0))
    first, second = laboratory.time(points, rounds=30).values()
    assert first[0] == pytest.approx(second[0], rel=0.05) and first[1] == pytest.approx(second[1], rel=0.05)
