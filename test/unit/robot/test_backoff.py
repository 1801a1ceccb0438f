"""Retries of many robots are spread, and the same seed gives the same ones."""

from __future__ import annotations

from ros2_rfm_serving.robot.client.component_client import ComponentClient
from ros2_rfm_serving.robot.config import ComponentClientConfig

CONFIG = ComponentClientConfig()


def retries_s(robot: str, *, seed: int = 1) -> list[float]:
    """The waits before the first six attempts."""
    link = ComponentClient(robot, "system1", ComponentClientConfig(seed=seed))
    waits = []
    for _ in range(6):
        link.on_refused("no", 100.0)
        waits.append(link.retry_s - 100.0)
    return waits


def test_robots_that_lost_a_server_together_return_one_by_one() -> None:
    first = [retries_s(f"r{i}")[0] for i in range(300)]
    assert min(first) >= 0.5 * CONFIG.initial_backoff_s and max(first) <= CONFIG.initial_backoff_s
    bins = [sum(k <= 20 * (wait / CONFIG.initial_backoff_s - 0.5) < k + 1 for wait in first) for k in range(10)]
    assert min(bins) >= 10  # of 30


def test_the_waits_grow_to_their_bound_and_are_those_of_the_seed() -> None:
    waits = retries_s("r1")
    assert waits[-1] >= 0.5 * CONFIG.max_backoff_s > waits[0] and max(waits) <= CONFIG.max_backoff_s
    assert retries_s("r1") == waits and retries_s("r1", seed=2) != waits


def test_a_server_that_returns_is_asked_by_one_after_the_other() -> None:
    asks = []
    for i in range(300):
        link = ComponentClient(f"r{i}", "system1", CONFIG)
        link.on_refused("gone", 0.0)
        link.on_server_returned(100.0)
        asks.append(link.retry_s - 100.0)
    assert min(asks) >= 0.0 and max(asks) <= CONFIG.initial_backoff_s and len(set(asks)) == 300


def test_one_that_was_never_lost_is_asked_at_once() -> None:
    link = ComponentClient("r1", "system1", CONFIG)
    link.on_server_returned(100.0)
    assert link.retry_s < 100.0
