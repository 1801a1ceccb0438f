"""AURAS' hierarchy over its configurations, on a bench of formulae."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ros2_rfm_serving.profiles.tuner import SuccessRate, TuningGoal, TuningVerdict, best_of, frontier_of, grid, staleness_s, tune
from ros2_rfm_serving.types import PipelineConfig


@dataclass
class Formulae:
    """Throughput grows with the stages of generation and falls with the skew; staleness costs success, skew gives it."""

    cost: float = 0.04
    """Of success, per request in flight."""
    run: list[PipelineConfig] = field(default_factory=list)

    def rate_hz(self, own: PipelineConfig) -> float:
        return 10.0 * own.pp_generation / (1 + own.alpha)

    def success(self, own: PipelineConfig, rate_hz: float) -> SuccessRate:
        assert rate_hz == self.rate_hz(own)
        self.run.append(own)
        share = 1.0 - self.cost * own.depth + 0.12 * own.alpha - 0.5 * (own.fetch_offset < 0)
        return SuccessRate(episodes=1000, successes=round(1000 * share))


def test_the_grid_is_bounded() -> None:
    assert len(grid(4)) == 6
    assert all(own.depth <= 4 for own in grid(4))


def test_the_fastest_that_meets_both_is_found() -> None:
    bench = Formulae()
    tried = list(tune(TuningGoal(min_rate_hz=20, min_success=0.8, max_depth=8), bench))
    best = best_of(tried)
    # uniform, L = 5 is as deep as success allows; skewed by 0.5, 6 stages have 40/s as well and succeed less
    assert best is not None
    assert best.pipelining == PipelineConfig(pp_perception=1, pp_generation=4)
    assert best.rate_hz == 40
    assert best.success is not None
    assert best.success.share == pytest.approx(0.8)


def test_skew_wins_where_it_pays() -> None:
    bench = Formulae(cost=0.068)
    tried = list(tune(TuningGoal(min_rate_hz=5, min_success=0.8, max_depth=6), bench))
    best = best_of(tried)
    assert best is not None
    assert best.pipelining == PipelineConfig(
        pp_generation=3, alpha=1.0
    )  # 15/s; of the uniform ones 1 stage alone succeeds, at 10/s
    assert best.success is not None
    assert best.success.share >= 0.8


def test_what_cannot_win_is_not_run() -> None:
    bench = Formulae()
    goal = TuningGoal(min_rate_hz=25, min_success=0.8, max_depth=8)
    tried = list(tune(goal, bench))
    best = best_of(tried)
    assert best is not None
    assert all(bench.rate_hz(own) >= goal.min_rate_hz for own in bench.run)
    slower = [own for own in tried if own.verdict in (TuningVerdict.SLOW, TuningVerdict.BEATEN)]
    assert slower
    assert all(own.success is None and own.pipelining not in bench.run for own in slower)
    assert all(own.rate_hz <= best.rate_hz for own in slower if own.verdict is TuningVerdict.BEATEN)


def test_nothing_meets_an_impossible_goal() -> None:
    tried = list(tune(TuningGoal(min_rate_hz=1000, min_success=0.5), Formulae()))
    assert best_of(tried) is None
    assert {own.verdict for own in tried} == {TuningVerdict.SLOW}


def test_the_frontier() -> None:
    tried = list(tune(TuningGoal(min_rate_hz=1, min_success=0.99, max_depth=6), Formulae()))
    frontier = frontier_of(tried)
    rates, shares = [own.rate_hz for own in frontier], [own.success.share for own in frontier if own.success]
    assert rates == sorted(rates, reverse=True)
    assert shares == sorted(set(shares))
    assert not any(
        other.success and own.success and other.rate_hz >= own.rate_hz and other.success.share > own.success.share
        for own in frontier
        for other in tried
    )


def test_staleness_counts_from_the_observation_of_the_last_steps() -> None:
    assert staleness_s(PipelineConfig(pp_generation=7), 10.0) == pytest.approx(0.1)
    assert staleness_s(PipelineConfig(pp_perception=2, fetch_offset=-1), 10.0) == pytest.approx(0.3)


def test_a_staler_one_is_not_chosen_by_chance() -> None:
    """Both offsets cost the same: what one is measured to be faster is noise, and what it is staler is not."""

    @dataclass
    class Noisy(Formulae):
        gain: float = 1.0

        def rate_hz(self, own: PipelineConfig) -> float:
            return super().rate_hz(own) * (self.gain if own.fetch_offset else 1.0)

    for gain, offset in ((1.03, 0), (1.2, -1)):
        best = best_of(list(tune(TuningGoal(min_rate_hz=1, min_success=0.1, max_depth=4), Noisy(gain=gain))))
        assert best is not None and best.pipelining.fetch_offset == offset
