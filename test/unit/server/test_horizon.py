from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ros2_rfm_serving.errors import ConfigurationError, ContractError
from ros2_rfm_serving.server import EngineConfig, ModelServer, ServerConfig, horizon
from ros2_rfm_serving.server.horizon import Confidence, Static, check, convergence, horizon_decisions
from ros2_rfm_serving.types import NO_VALUES, ActionChunk, EngineReply, HorizonRequest
from test.unit.fakes import FakeEngine, observation, rows, session_request


def updates(*last: float, steps: int = 4, mean: float = 1.0) -> np.ndarray:
    """[K, T, 1]: each action's last update, after earlier ones of `mean`."""
    values = np.full((steps, len(last), 1), mean, np.float32)
    values[-1, :, 0] = last
    return values


def rule(values: np.ndarray, threshold: float, min_steps: int) -> int:
    """Kairos §3.1, word by word."""
    magnitudes = np.linalg.norm(values.astype(np.float64), axis=-1)
    for i in range(values.shape[1]):
        if magnitudes[-1, i] > (1 + threshold) * magnitudes[:-1, i].mean():
            return max(i, min_steps)
    return max(values.shape[1], min_steps)


def test_the_figure_of_the_paper() -> None:
    """Figure 7: the fifth of six actions was still changed by 50 % more than before, beyond t = 40 %: four are executed."""
    values = updates(0.3, 0.5, 0.8, 0.9, 1.5, 0.5)
    (confidence,) = convergence(values[None])
    assert Confidence().rows(confidence, HorizonRequest(policy="confidence", threshold=0.4)) == 4
    assert Confidence().rows(confidence, HorizonRequest(policy="confidence", threshold=0.6)) == 6
    assert Confidence().rows(confidence, HorizonRequest(policy="confidence", threshold=0.4, min_steps=5)) == 5


SHAPES = st.tuples(st.integers(2, 6), st.integers(1, 8), st.integers(1, 4))


@given(hnp.arrays(np.float32, SHAPES, elements=st.integers(0, 50).map(lambda n: n / 7)), st.floats(-0.5, 3.0), st.integers(1, 4))
def test_the_threshold_on_the_confidence_is_the_rule_on_the_updates(values: np.ndarray, threshold: float, min_steps: int) -> None:
    magnitudes = np.linalg.norm(values.astype(np.float64), axis=-1)
    last, mean = magnitudes[-1], magnitudes[:-1].mean(axis=0)
    if np.any(np.isclose(last, (1 + threshold) * mean, rtol=1e-4) & (last > 0)):
        return  # on the very edge rounding decides
    (confidence,) = convergence(values[None])
    assert ((confidence >= 0) & (confidence <= 1)).all()
    asked = HorizonRequest(policy="confidence", threshold=threshold, min_steps=min_steps)
    assert Confidence().rows(confidence, asked) == rule(values, threshold, min_steps)


def test_rows_fixed_by_a_prefix_count_as_converged_and_numbers_that_are_none_do_not() -> None:
    values = updates(0.0, 0.0, 0.5, np.nan)
    values[:, :2] = 0.0
    (confidence,) = convergence(values[None])
    assert confidence[:2].tolist() == [1.0, 1.0] and confidence[3] == 0.0
    assert Confidence().rows(confidence, HorizonRequest(policy="confidence")) == 3


def test_one_solver_step_or_none_tells_nothing() -> None:
    assert convergence(np.ones((2, 1, 4, 3), np.float32)).shape == (2, 0)
    assert Confidence().rows(NO_VALUES, HorizonRequest(policy="confidence")) == 0
    assert Static().rows(NO_VALUES, HorizonRequest(policy="static", steps=3)) == 3


def reply(values: np.ndarray | None = None) -> EngineReply:
    return EngineReply(chunk_model=rows(), chunk_robot=rows(), **({} if values is None else {"updates": values}))


def test_sessions_of_one_batch_have_their_own_policies() -> None:
    values = updates(0.5, 0.5, 2.0, 0.5)
    asked = [
        HorizonRequest(),
        HorizonRequest(policy="static", steps=3),
        HorizonRequest(policy="confidence"),
        HorizonRequest(policy="static", steps=99),
    ]
    got = horizon_decisions([*asked, HorizonRequest(policy="confidence")], [reply(values), reply(), reply(values), reply(), None])
    assert [outlook.execution_horizon for outlook in got] == [0, 3, 2, 4, 0]
    assert got[0].confidence == pytest.approx([2 / 3, 2 / 3, 1 / 3, 2 / 3]) and len(got[1].confidence) == 0
    assert got[2].confidence == pytest.approx(got[0].confidence)


def test_a_confidence_that_the_model_tells_is_what_the_policy_goes_by() -> None:
    """Of an autoregressive one: there are no updates."""
    told = replace(reply(), confidence=np.array([0.9, 0.8, 0.3, 0.9], np.float32))
    asked = [HorizonRequest(), HorizonRequest(policy="static", steps=3), HorizonRequest(policy="confidence", threshold=0.4)]
    got = horizon_decisions(asked, [told] * 3)
    assert [outlook.execution_horizon for outlook in got] == [0, 3, 2]
    assert all(outlook.confidence is told.confidence for outlook in got)


def test_a_row_that_was_answered_elsewhere_keeps_the_horizon_that_it_got_there() -> None:
    class Elsewhere(FakeEngine):
        def infer(self, requests):  # type: ignore[no-untyped-def]
            super().infer(requests)
            sure = np.full(4, 0.7, np.float32)
            return [EngineReply(chunk_model=rows(), chunk_robot=rows(), confidence=sure, execution_horizon=2) for _ in requests]

    elsewhere = Elsewhere()
    tier = EngineConfig(engine=elsewhere, round_trip_s=0.01, profile_s=(0.01,))
    target = ModelServer(ServerConfig(name="s1", profile_s=(1.0,)), FakeEngine(), tier)
    asked = HorizonRequest(policy="confidence")
    for robot in ("r1", "r2"):
        epoch = target.open_session(session_request(robot, horizon=asked)).session_epoch
        target.submit(observation(epoch, robot=robot), 0.0)
    work = target.loop.begin(0.0, queue_index=1)
    assert work is not None
    (reply,) = target.loop.complete(work, target.loop.run(work), 0.1)
    assert isinstance(reply, ActionChunk) and reply.execution_horizon == 2 and reply.confidence.tolist() == pytest.approx([0.7] * 4)
    assert elsewhere.batches[0][0].horizon == asked


@pytest.mark.parametrize(
    ("policy", "num_updates", "told"),
    [
        ("confidence", 1, True),
        ("confidence", 2, False),
        ("curvature", 2, True),
        ("curvature", 3, False),
        ("confidence", None, False),
    ],
)
def test_a_session_whose_policy_has_nothing_to_go_by_is_told_so(policy: str, num_updates: int | None, told: bool) -> None:
    target = ModelServer(ServerConfig(name="s1", num_updates=num_updates), FakeEngine())
    assert target.open_session(session_request("r2")).warnings == ()
    warnings = target.open_session(session_request(horizon=HorizonRequest(policy=policy))).warnings
    assert bool(warnings) == told
    if told:
        assert f"{policy!r} goes by" in warnings[0] and f"tells of {num_updates}" in warnings[0]


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (HorizonRequest(policy="confidense"), "did you mean `confidence`"),
        (HorizonRequest(policy="static"), "horizon_steps is 0"),
        (HorizonRequest(policy="confidence", min_steps=0), "horizon_min_steps is 0"),
        (HorizonRequest(policy="confidence", threshold=math.nan), "horizon_threshold is nan"),
        (HorizonRequest(policy="confidence", threshold=-1.0), "above -1"),
    ],
)
def test_what_a_session_asks_for_is_checked_when_it_opens(asked: HorizonRequest, problem: str) -> None:
    assert problem in check(asked)
    target = ModelServer(ServerConfig(name="s1"), FakeEngine())
    with pytest.raises(ContractError, match=problem):
        target.open_session(session_request(horizon=asked))
    assert (
        check(HorizonRequest())
        == check(HorizonRequest(policy="confidence"))
        == check(HorizonRequest(policy="static", steps=1))
        == ""
    )


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="no horizon policy"):
        horizon.policy("nothing")


def test_the_reply_carries_the_horizon_and_the_confidence() -> None:
    class Unsure(FakeEngine):
        def infer(self, requests):  # type: ignore[no-untyped-def]
            return [replace(answer, updates=updates(0.5, 2.0, 0.5, 0.5)) for answer in super().infer(requests)]

    target = ModelServer(ServerConfig(name="s1", batch_size=2), Unsure())
    for robot, asked in [("r1", HorizonRequest(policy="confidence")), ("r2", HorizonRequest())]:
        epoch = target.open_session(session_request(robot, horizon=asked)).session_epoch
        target.submit(observation(epoch, robot=robot), 0.0)
    first, second = target.loop.step(lambda: 1.0)
    assert isinstance(first, ActionChunk) and isinstance(second, ActionChunk)
    assert (first.execution_horizon, second.execution_horizon) == (1, 0)
    assert len(first.confidence) == len(second.confidence) == 4


class Half(horizon.HorizonPolicy):
    def rows(self, confidence: np.ndarray, asked: HorizonRequest) -> int:
        return len(confidence) // 2


def test_other_packages_add_policies_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        name = "half"

        def load(self) -> type[Half]:
            return Half

    monkeypatch.setattr(horizon, "entry_points", lambda group: [Entry()] if group == "ros2_rfm_serving.horizon" else [])
    asked = HorizonRequest(policy="half")
    try:
        assert check(asked) == ""
        assert horizon_decisions([asked], [reply(updates(0.5, 0.5, 2.0, 0.5))])[0].execution_horizon == 2
    finally:
        horizon.policy.cache_clear()
