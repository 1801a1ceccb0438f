"""What is measured for AURAS' figures, kept, claimed and shown; the measuring itself is tested beside it (test_pipelines.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.benchmarks.pipelines.modes import SEQ, Kind, auras, par
from lab.reproductions.auras import data, plots, run
from lab.reproductions.auras.claims import claims_of
from lab.reproductions.auras.measured import Measured, Success, load, load_framed, missing, save
from lab.reproductions.auras.page import page
from lab.reproductions.auras.points import DIFFUSION40, FIGURES, PERIOD_STEPS, Point, best, points_of
from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.profiles.tuner import Timing

POINTS = [point for figure in FIGURES for point in points_of(figure)]
SPEEDUPS = {Kind.SEQ: 1.0, Kind.DEC: 0.6, Kind.PAR: 1.1, Kind.AURAS: 2.5}


def timing(kind: Kind) -> Timing:
    ratio = SPEEDUPS[kind]
    return Timing(
        interval_s=0.05 / ratio,
        interval_cv=0.05 if kind is not Kind.PAR else 0.9,
        latency_s=0.2,
        perception_s=0.001,
        first_s=0.1,
        cpu_share=1.0,
        memory_mb=1.0,
        answers=24,
        speedups=(ratio, ratio - 0.1, ratio + 0.1),
    )


def everything() -> Measured:
    timed, run = missing(Measured(), POINTS)
    results = Measured(parameters={"episodes": "52", "noise": "0"})
    results.timings = {str(p): timing(p.mode.kind) for p in timed}
    results.successes = {
        str(p): Success(episodes=52, successes=10 if p.mode.kind is Kind.PAR else 50, steps=70.0, idle_steps=0.0) for p in run
    }
    return results


def test_what_is_compared_with_is_timed_first() -> None:
    timed, run = missing(Measured(), POINTS)
    assert len(set(map(str, timed))) == len(timed)
    order = [str(p) for p in timed]
    for point in timed:
        assert order.index(str(point.base)) <= order.index(str(point))
        if point.mode.kind is Kind.PAR:
            assert order.index(str(Point(policy=point.policy, mode=best(point.policy)))) < order.index(str(point))
    assert {p for p in POINTS if p.succeeds} == set(run)


def test_a_run_goes_on_from_what_was_kept(tmp_path: Path) -> None:
    results = everything()
    save(results, tmp_path / "measured.json")
    again = load(tmp_path / "measured.json")
    assert again == results
    assert missing(again, POINTS) == ([], [])
    del again.timings[str(Point(policy=DIFFUSION40, mode=par(2)))]
    assert [str(p.mode) for p in missing(again, POINTS)[0]] == ["PAR 2"]


def test_claims_are_of_what_was_measured() -> None:
    results = everything()
    claims = claims_of(results)
    held = {claim.text: claim.holds for claim in claims}
    assert held["the same, diffusion 40 (promised)"]
    assert not held["success that PAR loses with 4 workers, mean of the policies"]  # 80 % of 50, of 80.22
    results.timings[str(Point(policy=DIFFUSION40, mode=best(DIFFUSION40)))] = timing(Kind.PAR)
    assert not {claim.text: claim.holds for claim in claims_of(results)}["the same, diffusion 40 (promised)"]


def test_claims_without_measurements_are_left_out() -> None:
    assert claims_of(Measured()) == []
    results = everything()
    results.successes.clear()
    assert claims_of(results)
    assert not any("success" in claim.text for claim in claims_of(results))


def test_a_page_and_plots_of_whatever_is_there(tmp_path: Path) -> None:
    for results in (everything(), Measured()):
        for figure in FIGURES:
            data.write(figure, results, tmp_path)
            plots.draw(figure, results, tmp_path)
        data.write_page(results, claims_of(results), tmp_path)
    assert f"| diffusion 40 | {best(DIFFUSION40)} |" in page(everything(), claims_of(everything()))


def test_control_steps_are_scaled_to_one_sequential_inference() -> None:
    results = everything()
    point = Point(policy=DIFFUSION40, mode=auras(20))
    assert results.step_s(point) * PERIOD_STEPS == pytest.approx(results.timing(Point(policy=DIFFUSION40, mode=SEQ)).interval_s)


def test_frames_of_the_autoregressive_policy_are_read(tmp_path: Path) -> None:
    file = tmp_path / "frames.json"
    assert len(load_framed(file)) == 0
    ways = {
        "one after the other": {"throughput_ratio": [1.0], "episodes": 60, "successes": 54},
        "frames": {"throughput_ratio": [3.0, 3.2, 3.1], "episodes": 60, "successes": 53},
    }
    file.write_text(json.dumps(ways))
    results = Measured(framed=load_framed(file))
    assert [(c.figure, round(c.ours, 2), c.holds) for c in claims_of(results)] == [
        ("autoregressive", 3.1, True),
        ("autoregressive", 3.1, True),
        ("autoregressive", -1.67, True),
    ]
    file.write_text("[]")
    with pytest.raises(ConfigurationError, match="rfm bench frames"):
        load_framed(file)


def test_figures_and_measurements_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["reproduce", "auras", "--figure", "9", "--out", str(tmp_path)])
    assert isinstance(said.exception, ConfigurationError)
    save(everything(), tmp_path / "measured.json")
    said = CliRunner().invoke(app, ["reproduce", "auras", "--episodes", "4", "--out", str(tmp_path)])
    assert isinstance(said.exception, ConfigurationError)
    assert "--anew" in str(said.exception)


SHIPPED = Path(__file__).parents[4] / "docs" / "reproductions" / "auras"


def test_the_page_and_its_claims_are_of_the_measurements_beside_them(tmp_path: Path) -> None:
    results = load(SHIPPED / "measured.json")
    results.framed = load_framed(SHIPPED / "frames.json")
    data.write_page(results, claims_of(results), tmp_path)
    for figure in FIGURES:
        data.write(figure, results, tmp_path)
    for file in tmp_path.iterdir():
        assert file.read_text() == (SHIPPED / file.name).read_text(), f"{file.name}: rfm reproduce auras --out {SHIPPED}"


def test_the_machine_is_that_of_the_times(tmp_path: Path) -> None:
    """Who draws the page anew, or runs episodes, on another machine, has timed nothing there; nor are times of two mixed."""
    results = everything()
    results.machine = {"processor": "a fast one", "load": "0"}
    file = tmp_path / "measured.json"
    run._measure([], results, None, file)  # type: ignore[arg-type]
    assert results.machine == {"processor": "a fast one", "load": "0"}
    del results.timings[str(Point(policy=DIFFUSION40, mode=par(2)))]
    with pytest.raises(ConfigurationError, match="timed on a fast one"):
        run._measure(POINTS, results, None, file)  # type: ignore[arg-type]
