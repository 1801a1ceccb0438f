"""How far an engine is from its profile."""

from __future__ import annotations

from dataclasses import replace

from ros2_rfm_serving.dispatch import StepCosts
from ros2_rfm_serving.server import ModelServer, ServerConfig
from test.unit.fakes import FakeEngine, observation, session_request
from test.unit.stepping import FakeStepping


def test_the_size_of_batch_that_is_furthest_from_the_profile_is_told() -> None:
    now_s = 0.0

    class Slow(FakeEngine):
        def infer(self, requests: object) -> object:  # type: ignore[override]
            nonlocal now_s
            now_s += 0.4
            return super().infer(requests)  # type: ignore[arg-type]

    target = ModelServer(ServerConfig(name="s1", batch_size=2, profile_s=(0.1, 0.15)), Slow())
    assert target.drift and target.drift.measured_s == target.drift.profiled_s
    epoch = target.open_session(session_request("r1")).session_epoch
    for sequence in range(1, 31):
        target.submit(observation(epoch, sequence, robot="r1"), now_s)
        assert target.loop.step(lambda: now_s)
    drift = target.drift
    assert drift and drift.rows == 1 and drift.profiled_s == 0.1 and drift.full_s == 0.15 and abs(drift.measured_s - 0.4) < 0.01


def test_nothing_is_told_without_a_profile_or_where_requests_share_the_engine() -> None:
    assert ModelServer(ServerConfig(name="s1"), FakeEngine()).drift is None
    assert ModelServer(ServerConfig(name="s1", max_concurrent=4, profile_s=(0.1,)), FakeEngine()).drift is None


def test_what_was_measured_before_anybody_asked_does_not_hide_how_far_that_is_from_the_profile() -> None:
    """As a continuous server is told to serve whole batches."""
    config = ServerConfig(name="s1", batching="continuous", profile_s=(0.1,), costs=StepCosts(whole_s=(0.4,)))
    target = ModelServer(config, FakeStepping())  # type: ignore[arg-type]
    target.reconfigure(replace(config, batching="fixed"))
    assert target.drift and target.drift.profiled_s == 0.1 and target.drift.measured_s == 0.4
