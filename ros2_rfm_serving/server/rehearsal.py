"""Measurement of a model's perceptions, solver steps and whole batches before a server is ready. With its results, a continuous
server decides from its first request on whether other rows should join."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from ros2_rfm_serving.dispatch import ServiceTimes, StepCosts
from ros2_rfm_serving.engines.answers import Answer, answers_of, checked
from ros2_rfm_serving.engines.base import Engine, Stepping, stepping
from ros2_rfm_serving.errors import EngineError, ModelError
from ros2_rfm_serving.types import InferenceRequest

REPEATS = 3
"""Number of runs of each size, as long as there is time; the median counts."""
BUDGET_S = 2.0
"""Time limit that begins after the first run. When it has passed, no run begins except one of one row and one of the largest batch,
which are made in any case."""

MOST_TURNS = 20
"""Maximum number of turns of a measured row. A model that takes more is limited to it where requests may choose the number: steps
are alike."""

Clock = Callable[[], float]
"""Function that returns seconds."""


class _Run(NamedTuple):
    perceive_s: float
    step_s: float
    whole_s: float


def step_costs(engine: Engine, batch_size: int, request: InferenceRequest, clock: Clock) -> StepCosts:
    """Return the costs by number of rows, measured with copies of `request` and interpolated linearly between the sizes for which
    there was time. Nothing else may run meanwhile.

    Raises: `ModelError`, and any error of a foreign engine; nothing is left in flight.
    """
    steps = stepping(engine)
    asked_turns = _num_turns(steps, request)
    request = _shortened(steps, request)
    times = asked_turns / _num_turns(steps, request)
    most = min(batch_size, steps.max_rows, engine.max_batch_size)
    _advance(engine, steps, [request] * most, clock)  # otherwise compilation would count, and rows would run one by one for ever
    runs: dict[int, list[_Run]] = {}
    ends_s = clock() + BUDGET_S
    for rows in _sizes(most):
        if len(runs) >= 2 and clock() > ends_s:
            break
        runs[rows] = _runs(engine, steps, [request] * rows, clock, ends_s)
    return StepCosts(
        perceive_s=_table(runs, lambda run: run.perceive_s),
        step_s=_table(runs, lambda run: run.step_s),
        whole_s=_table(runs, lambda run: run.whole_s + (times - 1.0) * max(0.0, run.whole_s - run.perceive_s)),
        num_iterations=asked_turns,
        scatter=median(_scatter([run.whole_s for run in same]) for same in runs.values()),
    )


def _sizes(most: int) -> Iterator[int]:
    """Yield the numbers of rows to measure, the most important ones first."""
    powers = itertools.takewhile(lambda rows: rows < most, (2**i for i in itertools.count(1)))
    yield from dict.fromkeys([most, 1, *powers, *range(1, most)])


def _num_turns(steps: Stepping, request: InferenceRequest) -> int:
    return max(1, int(steps.num_iterations(request)))


def _shortened(steps: Stepping, request: InferenceRequest) -> InferenceRequest:
    shorter = replace(request, num_steps=MOST_TURNS)
    return shorter if _num_turns(steps, request) > MOST_TURNS == _num_turns(steps, shorter) else request


def _runs(engine: Engine, steps: Stepping, requests: Sequence[InferenceRequest], clock: Clock, ends_s: float) -> list[_Run]:
    """Return at least one run of these requests. Raises: as `step_costs`."""
    runs = [_run(engine, steps, requests, clock)]
    while len(runs) < REPEATS and clock() < ends_s:
        runs.append(_run(engine, steps, requests, clock))
    return runs


def _run(engine: Engine, steps: Stepping, requests: Sequence[InferenceRequest], clock: Clock) -> _Run:
    """Return the times of one run of these requests. Raises: as `step_costs`."""
    began_s = clock()
    answers_of(engine, requests)
    whole_s = clock() - began_s
    return _Run(*_advance(engine, steps, requests, clock), whole_s)


def _advance(engine: Engine, steps: Stepping, requests: Sequence[InferenceRequest], clock: Clock) -> tuple[float, float]:
    """Return the times of a perception and of a step. Raises: as `step_costs`, and the error of an invalid answer."""
    rows = dict(enumerate(requests, start=-len(requests)))  # no other request has a number below 0
    try:
        perceive_s, step_s, answers = _stepped(steps, rows, clock)
    finally:
        steps.leave(list(rows))
    for answer in answers:
        if isinstance(known := checked(engine.contract, answer), ModelError):
            raise known
    return perceive_s, step_s


def _stepped(steps: Stepping, rows: Mapping[int, InferenceRequest], clock: Clock) -> tuple[float, float, list[Answer]]:
    """Return the times of a perception and of a step, and the answers after all turns: finished rows are worth more than unfinished
    ones. Raises: as `step_costs`."""
    most_turns, num_turns = _num_turns(steps, next(iter(rows.values()))), 0
    began_s = clock()
    for error in steps.enter(rows).values():
        raise error
    entered_s, answers = clock(), dict[int, Answer]()
    while num_turns < most_turns and (left := [row for row in rows if row not in answers]):
        answers.update(steps.iterate(left))
        num_turns += 1
    step_s = (clock() - entered_s) / num_turns
    if answers.keys() != rows.keys():
        raise EngineError(f"rows {[*answers]} of {[*rows]} are done after the {num_turns} turns that they take")
    return entered_s - began_s, step_s, list(answers.values())


def _table(runs: Mapping[int, Sequence[_Run]], part_s: Callable[[_Run], float]) -> tuple[float, ...]:
    """Return the times of 1, 2, ... rows."""
    times = ServiceTimes()
    for rows, same in runs.items():
        times.observe(rows, median(map(part_s, same)))
    return tuple(times.seconds(rows) for rows in range(1, max(runs) + 1))


def _scatter(same_s: Sequence[float]) -> float:
    """Return half the relative difference of the two quickest runs: the first run of a size may include one-time work."""
    if len(same_s) < 2:
        return 0.0
    first_s, second_s = sorted(same_s)[:2]
    return 0.5 * (second_s - first_s) / max(first_s, 1e-9)
