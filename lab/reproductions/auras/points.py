"""Points of AURAS' figures: each is timed here and, where success matters, run in worlds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from lab.benchmarks.pipelines.modes import DEC, SEQ, Kind, Mode, auras, par

PERIOD_STEPS = 4
"""Control steps of one sequential inference: the period at which SEQ just keeps up with the robot."""
WORKERS = (1, 2, 4, 8)
DEGREES = (1, 2, 4, 8, 16)
"""Degrees of generation in Figures 11 and 12."""
STALE_DEGREES = (1, 2, 3, 4, 6)
"""Degrees in Figure 5."""
PERCEPTION_DEGREES = (1, 2, 4)
ALPHAS = (0.0, 0.5, 1.0)
SKEWED = 5
"""Stages of generation in Figure 13."""
SCALES = (0.5, 1.0, 2.0, 4.0)
ITERATIONS = (5, 10, 20, 40, 70, 100)
OFFSETS = (0, -1)
PERIODS = (8.0,)
"""Periods of the figure that is not in the paper; `PERIOD_STEPS` is in Figure 10."""
GRID = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (2, 4), (2, 8))
"""Degrees of perception and generation in Figure 16."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    bundle: str
    num_steps: int
    perception_scale: float = 1.0
    """Relative depth of the context's network; values other than 1 have random weights, which are as fast."""
    generation_scale: float = 1.0
    """Relative depth of the head."""
    traced: bool = False
    """Whether its networks run as traced graphs, as they are served; otherwise they run as plain PyTorch."""

    def __str__(self) -> str:
        name = self.bundle.removeprefix("metaworld_")
        scales = "".join(
            f" {what} x{scale:g}"
            for what, scale in (("perception", self.perception_scale), ("generation", self.generation_scale))
            if scale != 1.0
        )
        return f"{name} {self.num_steps}{scales}{' traced' if self.traced else ''}"


FLOW5, FLOW10 = Policy(bundle="metaworld_flow", num_steps=5), Policy(bundle="metaworld_flow", num_steps=10)
DIFFUSION40 = Policy(bundle="metaworld_diffusion", num_steps=40)
DIFFUSION100 = Policy(bundle="metaworld_diffusion", num_steps=100)
POLICIES = (FLOW5, FLOW10, DIFFUSION40, DIFFUSION100)
DEPTH = 8
"""Most stages of generation of AURAS in Figure 10: 40 steps allow that many without a loss of success (Figure 12)."""
PARALLEL = 4
"""Workers of PAR in Figure 10."""


@dataclass(frozen=True, kw_only=True)
class Point:
    policy: Policy
    mode: Mode
    stale: int = 0
    """Figure 5: age of the observation in sequential inferences, with one answer per inference; 0: as it is."""
    period_steps: float = PERIOD_STEPS
    succeeds: bool = False
    """Whether it is run in worlds, too."""

    def __str__(self) -> str:
        stale = f", {self.stale} old" if self.stale else ""
        period = f", {self.period_steps:g} steps a SEQ" if self.period_steps != PERIOD_STEPS else ""
        return f"{self.policy}, {self.mode}{stale}{period}"

    @property
    def timed(self) -> Point:
        """Return the point whose timing is used, which several points share."""
        return Point(policy=self.policy, mode=SEQ if self.stale else self.mode)

    @property
    def base(self) -> Point:
        """Return the same policy in mode SEQ: the reference, and the clock of the robot."""
        return Point(policy=self.policy, mode=SEQ)


def best(policy: Policy) -> Mode:
    """Return the mode of AURAS in Figure 10."""
    return auras(min(DEPTH, policy.num_steps))


def scaled(scale: float, *, perception: bool) -> Policy:
    """Return the policy of Figure 14 with one of the two networks scaled in depth."""
    return replace(DIFFUSION40, perception_scale=scale) if perception else replace(DIFFUSION40, generation_scale=scale)


def points_of(figure: str) -> list[Point]:
    return list(_POINTS[figure]())


def _figure5() -> Iterator[Point]:
    yield from (Point(policy=DIFFUSION40, mode=SEQ, stale=degree, succeeds=True) for degree in STALE_DEGREES)


def _figure10() -> Iterator[Point]:
    for policy in POLICIES:
        yield from (Point(policy=policy, mode=mode, succeeds=True) for mode in (SEQ, DEC, par(PARALLEL), best(policy)))


def _figure11() -> Iterator[Point]:
    for policy in (FLOW10, DIFFUSION40):
        yield from (Point(policy=policy, mode=par(workers)) for workers in WORKERS)
        yield from (Point(policy=policy, mode=auras(degree)) for degree in DEGREES if degree <= policy.num_steps)


def _figure12() -> Iterator[Point]:
    yield from (Point(policy=DIFFUSION40, mode=auras(degree), succeeds=True) for degree in DEGREES)
    yield from (Point(policy=DIFFUSION40, mode=auras(1, degree), succeeds=True) for degree in PERCEPTION_DEGREES[1:])


def _figure13() -> Iterator[Point]:
    yield from (Point(policy=DIFFUSION100, mode=auras(SKEWED, alpha=alpha), succeeds=True) for alpha in ALPHAS)


def _figure14() -> Iterator[Point]:
    for policy in (scaled(scale, perception=perception) for perception in (True, False) for scale in SCALES):
        yield from (Point(policy=policy, mode=mode) for mode in (SEQ, best(policy)))


def _figure15() -> Iterator[Point]:
    for policy in (replace(DIFFUSION100, num_steps=steps) for steps in ITERATIONS):
        yield from (Point(policy=policy, mode=mode) for mode in (SEQ, best(policy)))


def _figure16() -> Iterator[Point]:
    yield from (Point(policy=DIFFUSION40, mode=auras(g, p, fetch_offset=offset)) for offset in OFFSETS for p, g in GRID)


def _periods() -> Iterator[Point]:
    for period in PERIODS:
        for mode in (SEQ, par(PARALLEL), best(DIFFUSION40)):
            yield Point(policy=DIFFUSION40, mode=mode, period_steps=period, succeeds=True)


def _traced() -> Iterator[Point]:
    for policy in (replace(policy, traced=True) for policy in POLICIES):
        yield from (Point(policy=policy, mode=mode) for mode in (SEQ, best(policy)))


_POINTS: dict[str, Callable[[], Iterator[Point]]] = {
    "5": _figure5,
    "10": _figure10,
    "11": _figure11,
    "12": _figure12,
    "13": _figure13,
    "14": _figure14,
    "15": _figure15,
    "16": _figure16,
    "periods": _periods,
    "traced": _traced,
}
FIGURES = tuple(_POINTS)


def in_order(points: Iterable[Point]) -> list[Point]:
    """Sort points so that PAR comes after the point that it is aligned with."""
    return sorted(points, key=lambda point: (point.mode != SEQ, point.mode.kind is Kind.PAR))


def aligned(point: Point) -> Point | None:
    """Return the point whose frame is the interval of observations (§6.1): AURAS' for PAR."""
    return Point(policy=point.policy, mode=best(point.policy)) if point.mode.kind is Kind.PAR else None
