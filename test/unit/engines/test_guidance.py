"""Guidance against its formulae (docs/rtc.md), written again below as loops over numpy's float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ros2_rfm_serving.engines.base import SamplingConfig
from ros2_rfm_serving.engines.flow.engine import FlowEngine
from ros2_rfm_serving.engines.flow.guidance import guidance_weight, guided_velocity, prefix_weights, previous_chunk, target_of
from ros2_rfm_serving.engines.flow.sampling import Held, denoise, sample
from ros2_rfm_serving.engines.flow.solvers import Euler
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import Array, Conditioning, Guidance, InferenceRequest, ModelContract, OutputKind, PrefixSchedule

from .test_engines import request as embedded_request
from .test_engines import small_policy

Matrix = npt.NDArray[np.float64]
NONE, PREFIX, GUIDED = Conditioning
ZEROS, ONES, LINEAR, EXP = PrefixSchedule
T, A, S = 8, 2, 3


class Curved:
    """v = Q tanh(R x + U time + state), over all T x A values of a row: nonlinear, with a Jacobian in closed form."""

    def __init__(self, max_delay: int = 4) -> None:
        rng = np.random.default_rng(0)
        self.q, self.r = (rng.normal(size=(T * A, T * A)) / 4 for _ in range(2))
        self.u, self.s = rng.normal(size=(T * A, T)) / 3, rng.normal(size=(T * A, S))
        self.calls: list[tuple[bool, bool]] = []
        """Of each velocity asked for: with gradients? in inference mode?"""
        self.contract = ModelContract(
            model="curved",
            model_hash="",
            output=OutputKind.ACTION_CHUNK,
            action_names=("x", "y"),
            state_size=S,
            chunk_length=T,
            max_inference_delay_steps=max_delay,
        )

    max_batch_size = 8

    def perceive(self, requests: Sequence[InferenceRequest]) -> Tensor:
        return torch.from_numpy(np.stack([self.s @ request.state for request in requests]))

    def velocity(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        self.calls.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        q, r, u = (torch.from_numpy(each).to(x) for each in (self.q, self.r, self.u))
        return (torch.tanh(x.flatten(1) @ r.T + time @ u.T + context.to(x)) @ q.T).view_as(x)

    def denormalize(self, actions: Array) -> Array:
        return 2 * actions

    def exactly(self, x: Matrix, time: Matrix, request: InferenceRequest) -> tuple[Matrix, Matrix]:
        """v [T, A] and dv/dx [TA, TA] of one row, in numpy. time: [T]"""
        inner = np.tanh(self.r @ x.ravel() + self.u @ time + self.s @ request.state)
        return (self.q @ inner).reshape(T, A), self.q @ np.diag(1 - inner**2) @ self.r


# --- the formulae, once more -------------------------------------------------------------------------------------------------


def expected_weights(start: int, end: int, total: int, schedule: PrefixSchedule) -> list[float]:
    start = min(start, end)
    ramp = [1 - (j + 1) / (min(end, total) - start + 1) for j in range(min(end, total) - start)]
    if schedule is EXP:
        ramp = [value * math.expm1(value) / (math.e - 1) for value in ramp]
    ramp = {ZEROS: [0.0] * len(ramp), ONES: [1.0] * len(ramp)}.get(schedule, ramp)
    return ([1.0] * start + ramp + [0.0] * total)[:total]


def expected_strength(tau: float, largest: float) -> float:
    if tau == 0:
        return largest
    return min((1 - tau) / tau * ((1 - tau) ** 2 + tau**2) / (1 - tau) ** 2, largest)


def expected_chunk(model: Curved, noise: Matrix, request: InferenceRequest, num_steps: int) -> Matrix:
    """One row: the Euler loop with everything that a request may ask for."""
    x, g = noise.copy(), request.guidance
    fixed = min(request.inference_delay_steps, len(request.prefix_model)) if request.conditioning is PREFIX else 0
    guided = request.conditioning is GUIDED and len(request.prefix_model) > 0
    previous = [list(map(float, row)) for row in request.prefix_model]
    while guided and len(previous) < max(T, g.execution_horizon):
        previous.append([0.0] * A if g.zero_padded else previous[len(request.prefix_model) - 1])
    weights = expected_weights(request.inference_delay_steps, min(g.execution_horizon, len(previous)), T, g.schedule)
    for k in range(num_steps):
        x[:fixed] = request.prefix_model[:fixed]
        time = 1 - k / num_steps
        v, jacobian = model.exactly(x, np.array([0.0] * fixed + [time] * (T - fixed)), request)
        if guided:
            error = (np.array(previous[:T]) - (x - time * v)) * np.array(weights)[:, None]
            if g.true_jacobian:
                error = ((np.eye(T * A) - time * jacobian).T @ error.ravel()).reshape(T, A)
            v = v - expected_strength(k / num_steps, g.max_weight) * error
        x = x - v / num_steps
    x[:fixed] = request.prefix_model[:fixed]
    return x


# --- weights -----------------------------------------------------------------------------------------------------------------


def weights_of(start: int, end: int, total: int, schedule: PrefixSchedule) -> Matrix:
    return prefix_weights(np.array([start]), np.array([end]), total, [schedule])[0]


@pytest.mark.parametrize(
    ("start", "end", "total", "schedule", "expected"),
    [
        (2, 6, 10, LINEAR, [1, 1, 0.8, 0.6, 0.4, 0.2, 0, 0, 0, 0]),
        (2, 6, 10, EXP, [1, 1, 0.57059, 0.28707, 0.11449, 0.02577, 0, 0, 0, 0]),
        (2, 6, 10, ZEROS, [1, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
        (2, 6, 10, ONES, [1, 1, 1, 1, 1, 1, 0, 0, 0, 0]),
        (10, 10, 5, LINEAR, [1] * 5),
        (12, 20, 10, LINEAR, [1] * 10),
        (5, 0, 8, LINEAR, [0] * 8),
        (0, 4, 4, LINEAR, [0.8, 0.6, 0.4, 0.2]),
        (1, 9, 4, LINEAR, [1, 0.75, 0.5, 0.25]),
    ],
)
def test_prefix_weights_of_published_examples(
    start: int, end: int, total: int, schedule: PrefixSchedule, expected: list[float]
) -> None:
    np.testing.assert_allclose(weights_of(start, end, total, schedule), expected, atol=5e-6)


ROW = st.tuples(st.integers(0, 12), st.integers(0, 12), st.sampled_from(PrefixSchedule))


@given(st.lists(ROW, min_size=1, max_size=6), st.integers(1, 12))
def test_prefix_weights_are_the_formulas_row_by_row(rows: list[tuple[int, int, PrefixSchedule]], total: int) -> None:
    starts, ends, schedules = zip(*rows, strict=True)
    weights = prefix_weights(np.array(starts), np.array(ends), total, schedules)
    np.testing.assert_allclose(weights, [expected_weights(start, end, total, how) for start, end, how in rows], atol=1e-12)


def test_a_negative_start_is_an_error() -> None:
    with pytest.raises(ModelError, match="cannot start at row -1"):
        prefix_weights(np.array([2, -1]), np.array([4, 4]), 8, [LINEAR, EXP])


@pytest.mark.parametrize(
    ("num_steps", "expected"),
    [(4, [10, 3.3333, 2, 3.3333]), (10, [10, 9.1111, 4.25, 2.7619, 2.1667, 2.0, 2.1667, 2.7619, 4.25, 9.1111])],
)
def test_guidance_weights_of_published_tables(num_steps: int, expected: list[float]) -> None:
    found = [guidance_weight(k / num_steps, np.array(10.0)) for k in range(num_steps)]
    np.testing.assert_allclose(found, expected, atol=5e-5)


def test_guidance_weights_at_the_ends_of_time_and_with_a_limit_per_row() -> None:
    largest = np.array([1.0, 1.9, 10.0])
    for tau, expected in [(0.0, largest), (1e-320, largest), (0.5, [1.0, 1.9, 2.0]), (1 - 1e-16, largest), (1.0, [0.0, 0.0, 0.0])]:
        np.testing.assert_allclose(guidance_weight(tau, largest), expected)


def test_a_prefix_is_cut_or_continued_by_its_last_action_or_by_zeros() -> None:
    prefix = np.array([[1, 2], [3, 4]], np.float32)
    assert previous_chunk(prefix, 3, 2, zero_padded=False).tolist() == [[1, 2], [3, 4], [3, 4]]
    assert previous_chunk(prefix, 3, 2, zero_padded=True).tolist() == [[1, 2], [3, 4], [0, 0]]
    assert previous_chunk(prefix, 1, 2, zero_padded=False).tolist() == [[1, 2]]
    assert previous_chunk(prefix, 2, 3, zero_padded=False).tolist() == [[1, 2, 0], [3, 4, 0]]


# --- whole loops ---------------------------------------------------------------------------------------------------------------


def ask(i: int, conditioning: Conditioning = GUIDED, delay: int = 0, prefix: int = 0, **guidance: object) -> InferenceRequest:
    rng = np.random.default_rng(100 + i)
    blank = warmup_request(Curved().contract)
    return replace(
        blank,
        id=replace(blank.id, robot=f"r{i}", sequence=i),
        state=rng.normal(size=S).astype(np.float32),
        inference_delay_steps=delay,
        prefix_model=rng.normal(size=(prefix, A)).astype(np.float32),
        conditioning=conditioning,
        guidance=Guidance(**guidance),  # type: ignore[arg-type]
    )


def denoised(model: Curved, requests: Sequence[InferenceRequest], noise: Matrix, num_steps: int) -> Matrix:
    """Our loop in double precision, with the prefixes that `sample` would give it."""
    x = torch.from_numpy(noise)
    fixed, prefix = torch.zeros(x.shape[:2], dtype=torch.bool), torch.zeros_like(x)
    for i, request in enumerate(requests):
        d = min(request.inference_delay_steps, len(request.prefix_model)) if request.conditioning is PREFIX else 0
        fixed[i, :d], prefix[i, :d] = True, torch.from_numpy(request.prefix_model[:d]).double()
    context = model.perceive(requests)
    with torch.no_grad():
        held = Held(prefix=prefix, fixed=fixed[..., None], free=(~fixed).to(x), target=target_of(requests, x))
        return denoise(lambda time, x: model.velocity(x, time, context), x, held, Euler(num_steps=num_steps))[0].numpy()


DELAYS_AND_PREFIXES = [(0, 0), (3, 0), (0, 3), (3, 3), (2, 3), (5, 3), (0, 6), (2, 6), (6, 6), (2, 8), (2, 11), (7, 11), (8, 8)]
"""Without a prefix; shorter and longer than the horizons (4, 10) and the chunk (8); delay 0, at its end, beyond it"""


@pytest.mark.parametrize("true_jacobian", [False, True], ids=["identity", "jacobian"])
@pytest.mark.parametrize("num_steps", [4, 5, 10])
def test_whole_loops_are_the_formulas(num_steps: int, true_jacobian: bool) -> None:
    model = Curved()
    requests = [
        ask(i, delay=d, prefix=p, schedule=how, execution_horizon=h, max_weight=m, zero_padded=z, true_jacobian=true_jacobian)
        for i, ((d, p), how, (h, m, z)) in enumerate(
            itertools.product(DELAYS_AND_PREFIXES, PrefixSchedule, [(4, 10.0, False), (10, 5.0, False), (10, 10.0, True)])
        )
    ]
    noise = np.random.default_rng(1).normal(size=(len(requests), T, A))
    expected = [expected_chunk(model, row, request, num_steps) for row, request in zip(noise, requests, strict=True)]
    np.testing.assert_allclose(denoised(model, requests, noise, num_steps), expected, atol=1e-6)


MIXED = [
    ask(0, NONE, delay=2, prefix=5),
    ask(1, PREFIX, delay=3, prefix=5),
    ask(2, GUIDED, delay=3, prefix=5, schedule=EXP),
    ask(3, GUIDED, delay=1, prefix=7, true_jacobian=True, max_weight=4.0),
    ask(4, GUIDED),
    ask(5, PREFIX),
    ask(6, GUIDED, delay=2, prefix=4, execution_horizon=7, zero_padded=True),
]


def test_a_batch_may_mix_everything_and_every_row_is_as_its_formulas_say() -> None:
    model, noise = Curved(), np.random.default_rng(2).normal(size=(len(MIXED), T, A))
    expected = [expected_chunk(model, row, request, 5) for row, request in zip(noise, MIXED, strict=True)]
    np.testing.assert_allclose(denoised(model, MIXED, noise, 5), expected, atol=1e-6)


def test_batched_rows_equal_rows_run_alone() -> None:
    config = SamplingConfig(num_steps=5)
    for row, request in zip(sample(Curved(), MIXED, config).chunks, MIXED, strict=True):
        np.testing.assert_allclose(row, sample(Curved(), [request], config).chunks[0], atol=1e-6)


def test_batched_rows_of_the_embedded_policy_equal_rows_run_alone() -> None:
    policy, config = small_policy(), SamplingConfig(num_steps=5)
    requests = [
        embedded_request(0, 2, 5, NONE),
        embedded_request(1, 3, 5, PREFIX),
        embedded_request(2, 3, 5, GUIDED),
        replace(embedded_request(3, 0, 8, GUIDED), guidance=Guidance(true_jacobian=True, execution_horizon=6)),
        replace(embedded_request(4, 2, 2, GUIDED), guidance=Guidance(schedule=EXP, zero_padded=True)),
    ]
    together = sample(policy, requests, config).chunks
    for row, request in zip(together, requests, strict=True):
        np.testing.assert_allclose(row, sample(policy, [request], config).chunks[0], atol=1e-6)


@settings(max_examples=25)
@given(st.lists(st.sampled_from(range(len(MIXED))), min_size=1, max_size=6))
def test_neighbours_change_nothing(order: list[int]) -> None:
    model = Curved()
    noise = np.random.default_rng(3).normal(size=(len(MIXED), T, A))
    whole = denoised(model, MIXED, noise, 4)
    np.testing.assert_allclose(denoised(model, [MIXED[i] for i in order], noise[order], 4), whole[order], atol=1e-6)


def test_without_a_prefix_a_guided_request_is_a_plain_one_bit_by_bit() -> None:
    plain, guided = [ask(0, NONE), ask(1, NONE)], [ask(0, GUIDED), ask(1, GUIDED, delay=2, prefix=4)]
    config = SamplingConfig()
    np.testing.assert_array_equal(sample(Curved(), plain, config).chunks, sample(Curved(), [ask(0), ask(1)], config).chunks)
    np.testing.assert_array_equal(sample(Curved(), plain, config).chunks[0], sample(Curved(), guided, config).chunks[0])


def test_the_two_ways_to_continue_a_prefix_differ_only_where_it_ends_before_the_horizon() -> None:
    for prefix, differs in [(3, True), (6, False), (9, False)]:
        newer, older = (
            sample(Curved(), [ask(0, delay=2, prefix=prefix, execution_horizon=6, zero_padded=zeros)], SamplingConfig()).chunks
            for zeros in (False, True)
        )
        assert (np.abs(newer - older).max() > 1e-2) == differs


def test_guidance_pulls_the_rows_of_the_delay_to_the_prefix_and_leaves_the_end_free() -> None:
    request = ask(1, delay=3, prefix=6, execution_horizon=6)
    guided = sample(Curved(), [request], SamplingConfig(num_steps=10)).chunks[0]
    plain = sample(Curved(), [replace(request, conditioning=NONE)], SamplingConfig(num_steps=10)).chunks[0]
    far, near = (np.abs(chunk[:3] - request.prefix_model[:3]).max() for chunk in (plain, guided))
    assert near < 0.1 * far


# --- the Jacobian --------------------------------------------------------------------------------------------------------------


def test_the_true_jacobian_is_that_of_finite_differences_and_rows_without_it_keep_theirs() -> None:
    model, requests = Curved(), [ask(0, delay=2, prefix=5, true_jacobian=True), ask(1, delay=2, prefix=5)]
    x, tau = torch.from_numpy(np.random.default_rng(4).normal(size=(2, T, A))), 0.4
    target, context = target_of(requests, x), model.perceive(requests)
    assert target is not None
    times = torch.full((2, T), 1 - tau, dtype=x.dtype)

    def velocity(x: Tensor) -> Tensor:
        return model.velocity(x, times, context)

    def clean(x: Tensor) -> Tensor:
        return x - (1 - tau) * velocity(x)

    error, numeric = target.error(clean(x)), torch.empty(T * A, dtype=x.dtype)
    for i in range(T * A):
        step = torch.zeros_like(x)
        step.view(2, -1)[0, i] = 1e-5
        numeric[i] = ((clean(x + step) - clean(x - step)) / 2e-5 * error).sum()
    weight = float(guidance_weight(tau, np.array(10.0)))
    corrected = velocity(x) - guided_velocity(velocity, x, tau, target)
    np.testing.assert_allclose(corrected[0].flatten(), weight * numeric, atol=1e-6)
    np.testing.assert_allclose(corrected[1], weight * error[1], atol=1e-12)


def test_gradients_are_on_only_when_a_row_asks_for_the_jacobian() -> None:
    for requests, gradients in [
        ([ask(0, NONE, prefix=4)], False),
        ([ask(0, prefix=4)], False),
        ([ask(0, true_jacobian=True)], False),
        ([ask(0, NONE), ask(1, prefix=4, true_jacobian=True)], True),
    ]:
        model = Curved()
        sample(model, requests, SamplingConfig(num_steps=3))
        assert model.calls == [(gradients, not gradients)] * 3


# --- as an engine --------------------------------------------------------------------------------------------------------------


def test_an_engine_says_what_its_model_can_do() -> None:
    assert FlowEngine(Curved(max_delay=4)).contract.conditionings == (NONE, PREFIX, GUIDED)
    assert FlowEngine(Curved(max_delay=0)).contract.conditionings == (NONE, GUIDED)


@pytest.mark.parametrize("true_jacobian", [False, True])
def test_a_row_of_nan_spoils_no_other(true_jacobian: bool) -> None:
    requests = [ask(i, delay=2, prefix=5, true_jacobian=true_jacobian) for i in range(3)]
    healthy = FlowEngine(Curved()).infer(requests)
    broken = [requests[0], replace(requests[1], state=np.full(S, np.nan, np.float32)), requests[2]]
    replies = FlowEngine(Curved()).infer(broken)
    assert np.isnan(replies[1].chunk_robot).any()
    for i in (0, 2):
        np.testing.assert_array_equal(replies[i].chunk_robot, healthy[i].chunk_robot)
    with pytest.raises(ModelError, match="not finite"):
        FlowEngine(Curved()).infer(broken[1:2])


def test_one_nan_makes_a_chunk_unusable() -> None:
    class Leaky(Curved):
        def velocity(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
            v = super().velocity(x, time, context)
            v[:, 3, 1] = math.nan
            return v

    with pytest.raises(ModelError, match="not finite"):
        FlowEngine(Leaky(), SamplingConfig(num_steps=1)).infer([ask(0, NONE)])
