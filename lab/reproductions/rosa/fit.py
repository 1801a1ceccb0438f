"""Fit of the laws with the least worst deviation from ROSA's published figures, by successive linear programs.

There are three steps, each of which determines its own coefficients. Safety's two follow from its bounds, at the greatest distance
from all of them. The time that a request adds in the other text model follows from the model sizes: both are of one family and see
the same images. The other four (System 1's line and its step, System 2 alone) follow from every figure that is a function of them:
figures are taken as linear within a few percent of the present laws, the program's laws are evaluated, and the steps become shorter
where they are no better.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from lab.reproductions.rosa.bindings import BOUNDS, FITTED, LARGER, larger
from lab.reproductions.rosa.laws import Laws, laws_of
from ros2_rfm_serving.profiles.service import ContinuousService
from ros2_rfm_serving.scheduler.programs import linear

BILLIONS = (8.3, 3.75)
"""Parameters of the text models in billions."""
ALONE_MS, ADDED_MS = np.arange(100.0, 261.0, 10.0), np.arange(3.0, 7.6, 0.5)
"""Candidates for safety: time of a request alone, and time that each concurrent one adds."""
STARTS = tuple((47.5 - row, row, 0.8, alone) for row, alone in product((9.0, 11.0, 13.0), (320.0, 410.0, 500.0)))
"""Starting points: System 1's base and row in ms, rows that its step is worth, System 2 alone in ms."""
STEP, SHORTEST, ROUNDS = 0.08, 0.005, 14
"""Relative change of a coefficient at first and at last, and number of rounds."""
DIFFERENCE = 0.02
OTHERS = 0.05
"""Weight of the mean deviation beside the worst one, so that the other figures are near too."""
FIRM = 10.0
"""Weight of the capacity of batches of 4 beyond their bound, as a deviation."""
CORRECTIONS = 2
Vector = npt.NDArray[np.float64]
Crowd = Callable[[Laws], float]
"""Function that returns the simulated share within the SLO minus the closed queue's, for 64 uncapped robots."""


@dataclass(frozen=True)
class Fit:
    laws: Laws
    worst: float
    """Largest relative deviation."""
    cost: float


def deviations(laws: Laws, without: Collection[str] = ()) -> Vector:
    """Return the relative deviation of each fitted figure."""
    return np.array([of(laws) / paper - 1.0 for _, text, _, _, paper, of in FITTED if text not in without])


def _errors(laws: Laws, without: Collection[str]) -> Vector:
    """Return the deviations, followed by the bound's excess, which counts above zero only."""
    return np.append(deviations(laws, without), FIRM * (larger(laws) / LARGER - 1.0))


def checking_ms() -> tuple[float, float]:
    """Return base and added time of safety's law."""

    def margin(pair: tuple[float, float]) -> float:
        (carried, beyond, sliced), laws = BOUNDS[:3], laws_of((40.0, 10.0), 1.0, pair, pair)
        least = sliced[-1](laws) / sliced[-2]
        return min(least, beyond[-1](laws) / beyond[-2], carried[-2] / carried[-1](laws)) if least > 1.0 else least

    return max(((float(alone - added), float(added)) for alone, added in product(ALONE_MS, ADDED_MS)), key=margin)


def fitted(crowd: Crowd, starts: Iterable[tuple[float, ...]] = STARTS) -> Fit:
    checking = checking_ms()
    found = min((improved(start, checking) for start in starts), key=lambda fit: fit.cost)
    for _ in range(CORRECTIONS):
        found = improved(coefficients(found.laws), checking, crowd(found.laws))
    return found


def left_out(found: Fit, starts: Iterable[tuple[float, ...]] = STARTS[::4], num: int = 2) -> dict[str, float]:
    """Return each of the worst figures -> the worst deviation of laws that need not satisfy it."""
    laws, starts = found.laws, (coefficients(found.laws), *starts)
    texts = [FITTED[i][1] for i in np.argsort(-np.abs(deviations(laws)))[:num]]
    checking = _pair_ms(laws.checking)
    return {text: min(improved(start, checking, laws.crowd, (text,)).worst for start in starts) for text in texts}


def _pair_ms(law: ContinuousService) -> tuple[float, float]:
    return 1e3 * law.base_s, 1e3 * law.per_request_s


def coefficients(laws: Laws) -> tuple[float, float, float, float]:
    """Return the coefficients in the order of `STARTS`."""
    of = laws.system1
    return 1e3 * of.base_s, 1e3 * of.per_row_s, of.wave.extra_rows, 1e3 * laws.reasoning.mean_s(1)


def rounded(laws: Laws) -> Laws:
    """Return the laws rounded as in a catalogue."""
    base, row, extra, _ = coefficients(laws)
    reasoning, checking = (
        (round(base_ms), round(added_ms, 1)) for base_ms, added_ms in map(_pair_ms, (laws.reasoning, laws.checking))
    )
    return laws_of((round(base, 1), round(row, 1)), round(extra, 2), reasoning, checking, laws.crowd)


def improved(start: tuple[float, ...], checking: tuple[float, float], crowd: float = 0.0, without: Collection[str] = ()) -> Fit:
    """Return the laws that the programs lead to. without: figures that need not be satisfied."""
    added_ms = checking[1] * BILLIONS[0] / BILLIONS[1]

    def laws(x: Vector) -> Laws:
        base, row, extra, alone = (float(value) for value in x)
        return laws_of((base, row), extra, (alone - added_ms, added_ms), checking, crowd)

    x, step = np.array(start), STEP
    found = _errors(laws(x), without)
    for _ in range(ROUNDS):
        moved = (x * (1.0 + DIFFERENCE * unit) for unit in np.eye(len(x)))
        slopes = np.array([(_errors(laws(other), without) - found) / DIFFERENCE for other in moved]).T
        while step >= SHORTEST:
            tried = x * (1.0 + _best_step(found, slopes, step))
            there = _errors(laws(tried), without)
            if _cost(there) < _cost(found):
                x, found = tried, there
                break
            step /= 2
        if step < SHORTEST:
            break
    return Fit(laws(x), float(np.max(np.abs(found[:-1]))), _cost(found))


def _sizes(errors: Vector) -> Vector:
    return np.append(np.abs(errors[:-1]), max(errors[-1], 0.0))


def _cost(errors: Vector) -> float:
    return float(np.max(_sizes(errors)) + OTHERS * np.mean(_sizes(errors)))


def _best_step(errors: Vector, slopes: Vector, step: float) -> Vector:
    """Return the relative change of each coefficient."""
    solver = linear()
    steps = [solver.NumVar(-step, step, f"d{j}") for j in range(slopes.shape[1])]
    worst = solver.NumVar(0.0, solver.infinity(), "worst")
    each = [solver.NumVar(0.0, solver.infinity(), f"e{i}") for i in range(len(errors))]
    for at, slope, size in zip(errors, slopes, each, strict=True):
        then = float(at) + sum(float(s) * d for s, d in zip(slope, steps, strict=True))
        solver.Add(then <= size)
        if size is not each[-1]:
            solver.Add(-then <= size)
        solver.Add(size <= worst)
    solver.Minimize(worst + (OTHERS / len(each)) * sum(each))
    solver.Solve()
    return np.array([d.solution_value() for d in steps])
