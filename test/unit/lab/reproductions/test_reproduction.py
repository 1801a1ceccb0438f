"""`rfm reproduce rosa`: its runs, what they are measured against, and the published page."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from lab.reproductions.rosa import runs
from lab.reproductions.rosa.claims import Claim, Results, Rule, claims_of, worst_and_median
from lab.reproductions.rosa.runs import (
    ENOUGH,
    FLEETS,
    Inputs,
    Point,
    Setting,
    allocation_text,
    batching_decision,
    gpus_to_match,
    placement_text,
    points_of,
    run,
)
from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.inputs import load_inputs
from ros2_rfm_serving.shipped import shipped

SHORT = Setting(seconds=5.0, seed=0, work=1.0)
PAGE = Path(__file__).parents[4] / "docs" / "reproductions" / "rosa"


def inputs(workload: str) -> Inputs:
    read = load_inputs(shipped("config", "rosa", f"{workload}.yaml"))
    return Inputs(factory=read.factory, profile=read.profile, catalogue=read.catalogue)


def p4(policy: str, num_robots: int, capped: bool, allocation: str = "") -> Point:
    return Point(workload="p4", num_robots=num_robots, policy=policy, capped=capped, allocation=allocation)


class TestRuns:
    def test_the_sweep_of_all_policies_covers_the_figures_that_compare_them(self) -> None:
        swept = set(points_of("policies"))
        assert len(swept) == 6 * len(FLEETS) * 6 * 2
        for figure in ("6", "7", "8", "9", "10", "tables"):
            assert set(points_of(figure)) <= swept, figure
        assert not set(points_of("12")) & swept

    def test_uncapped_baselines_collapse_where_rosa_keeps_its_slos(self) -> None:
        equal, rosa = (
            run(p4(policy, 32, capped), inputs("p4"), SHORT) for policy, capped in (("baseline3", False), ("rosa", True))
        )
        assert equal.system1 and equal.system1.slo_attainment < 0.01
        assert equal.goodput < 0.01 * equal.raw
        assert rosa.lowest_attainment[0] >= 0.99
        assert rosa.goodput == pytest.approx(rosa.solution.expected, rel=0.1)
        assert abs(rosa.goodput_deviation) < 0.1

    def test_a_policy_without_a_schedule_gives_a_run_of_nothing(self) -> None:
        weighted = run(p4("baseline4", 64, True), inputs("p4"), SHORT)
        assert weighted.report is None
        assert weighted.goodput == 0.0
        assert math.isnan(weighted.lowest_attainment[0])


class TestAllocations:
    def test_only_the_allocation_is_the_baselines(self) -> None:
        equal = run(p4("rosa", 32, True, "baseline3"), inputs("p4"), SHORT)
        assert allocation_text(equal.solution) == "2:2:2:2"
        assert "2 system1 (batch 2)" in placement_text(equal.solution)  # a baseline would have batch size 1
        assert equal.lowest_attainment[0] >= 0.99  # and no rate control
        rosa = run(p4("rosa", 32, True, "rosa"), inputs("p4"), SHORT)
        assert allocation_text(rosa.solution) == "5:1:1:1"
        assert rosa.goodput > 1.2 * equal.goodput

    def test_the_weighted_allocation_cannot_carry_64_robots(self) -> None:
        weighted = run(p4("rosa", 64, True, "baseline4"), inputs("p4"), SHORT)
        assert weighted.report is None
        assert "1:3:1:3" in weighted.solution.problems[0]


class TestSizing:
    def test_it_is_the_smallest_number_of_gpus_that_reaches_rosa(self) -> None:
        p1 = inputs("p1")
        sizing = gpus_to_match("p1", 32, "baseline3", p1, SHORT)
        assert sizing.needed is not None and sizing.needed > sizing.declared == 8
        # with one robot per GPU nothing queues: no baseline needs more
        assert sizing.needed <= 32
        larger = replace(p1, factory=p1.factory.with_num_servers(sizing.needed))
        cautious = replace(larger, profile=larger.profile.under("poisson"))
        reached = run(Point(workload="p1", num_robots=32, policy="baseline3", capped=True), cautious, SHORT)
        assert reached.solution.objective >= ENOUGH * sizing.objective
        fewer = replace(cautious, factory=p1.factory.with_num_servers(sizing.needed - 1))
        short = run(Point(workload="p1", num_robots=32, policy="baseline3", capped=True), fewer, SHORT)
        assert short.solution.objective < ENOUGH * sizing.objective


class TestBatching:
    def test_batches_pay_under_pressure_only(self) -> None:
        pressed, idle = (batching_decision(n, period_ms, inputs("p1"), SHORT) for n, period_ms in ((16, 50.0), (1, 1000.0)))
        assert pressed.batch_size >= 4
        assert pressed.predicted_speedup > 2 and pressed.simulated_speedup > 2
        assert (idle.batch_size, idle.predicted_speedup, idle.simulated_speedup) == (1, 1.0, 1.0)

    def test_where_nothing_comes_one_by_one_there_is_no_speedup(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runs, "_simulated", lambda *_: SimpleNamespace(goodput=0.0))
        assert math.isnan(batching_decision(2, 1000.0, inputs("p1"), SHORT).simulated_speedup)


class TestClaims:
    @pytest.mark.parametrize(
        ("rule", "paper", "ours", "holds"),
        [
            (Rule.NEAR, 100.0, 114.0, True),
            (Rule.NEAR, 100.0, 116.0, False),
            (Rule.NEAR, 100.0, 84.0, False),
            (Rule.AT_LEAST, 99.0, 98.9, False),
            (Rule.AT_LEAST, 99.0, 99.0, True),
            (Rule.AT_MOST, 0.0, 0.1, False),
            (Rule.AT_MOST, 5.0, 4.0, True),
            (Rule.NEAR, 5.0, math.nan, False),
            (Rule.AT_MOST, 5.0, math.nan, False),
        ],
    )
    def test_rules(self, rule: Rule, paper: float, ours: float, holds: bool) -> None:
        assert Claim(figure="6", text="", unit="", rule=rule, paper=paper, ours=ours).holds is holds

    def test_what_was_not_run_is_not_claimed(self) -> None:
        assert claims_of(Results()) == []
        rosa = run(p4("rosa", 8, True), inputs("p4"), SHORT)
        claims = claims_of(Results(runs={rosa.point: rosa}))
        assert [(claim.figure, claim.text) for claim in claims] == [("6", "P4, 8 robots: ROSA")]
        assert claims[0].ours == rosa.goodput

    def test_deviations_count_in_both_directions(self) -> None:
        assert worst_and_median([0.01, -0.3, 0.02]) == (0.3, 0.02)


class TestCommand:
    @pytest.mark.patient
    def test_writes_data_plots_and_claims(self, tmp_path: Path) -> None:
        done = CliRunner().invoke(app, ["reproduce", "rosa", "--figure", "12", "--quick", "--jobs", "1", "--out", str(tmp_path)])
        assert done.exit_code == 0, done.output
        rows = list(csv.DictReader((tmp_path / "figure12.csv").open()))
        assert [(row["robots"], row["allocation_of"]) for row in rows] == [
            (n, of) for n in ("8", "32") for of in ("baseline3", "baseline4", "rosa")
        ]
        assert float(rows[-1]["goodput_hz"]) > 50
        assert (tmp_path / "figure12.png").read_bytes().startswith(b"\x89PNG")
        assert "32 robots: over the best static" in done.output

    def test_an_unknown_figure_is_refused_with_those_there_are(self, tmp_path: Path) -> None:
        done = CliRunner().invoke(app, ["reproduce", "rosa", "--figure", "13", "--out", str(tmp_path)])
        assert isinstance(done.exception, ConfigurationError)
        assert "--figure" in str(done.exception) and "12" in str(done.exception)


class TestPage:
    def test_the_table_is_that_of_the_data(self) -> None:
        page = (PAGE / "README.md").read_text(encoding="utf-8")
        rows = list(csv.DictReader((PAGE / "claims.csv").open(encoding="utf-8")))
        assert len(rows) > 40
        for row in rows:
            line = f"| {row['claim']} | {float(row['paper']):g} {row['unit']} | {float(row['ours']):.4g} {row['unit']} |"
            assert line.replace("  ", " ").replace(" |", "|") in page.replace(" |", "|"), line

    def test_every_figure_is_there_and_shown(self) -> None:
        page = (PAGE / "README.md").read_text(encoding="utf-8")
        for plot in PAGE.glob("*.png"):
            assert f"({plot.name})" in page, plot.name
            assert plot.stat().st_size < 120_000, plot.name
        assert len(list(PAGE.glob("*.png"))) == 9
