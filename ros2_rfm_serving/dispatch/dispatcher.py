"""Combination of a dispatch policy and a batching method, both chosen by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

from ros2_rfm_serving.dispatch.base import NOTHING, DispatchDecision, DispatchPolicy, EngineView
from ros2_rfm_serving.dispatch.batching import BATCHINGS, ExpectedArrivals
from ros2_rfm_serving.dispatch.best import BalancedPolicy, BestPolicy, SwiftPolicy
from ros2_rfm_serving.dispatch.deadline import DeadlinePolicy
from ros2_rfm_serving.dispatch.fifo import FifoPolicy
from ros2_rfm_serving.dispatch.least_attained import LeastAttainedPolicy
from ros2_rfm_serving.dispatch.wait_ratio import WaitRatioPolicy
from ros2_rfm_serving.dispatch.waiting_request import WaitingRequest
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.types import PRECEDENCE

DISPATCH_POLICIES: dict[str, type[DispatchPolicy]] = {
    "fifo": FifoPolicy,
    "least_attained": LeastAttainedPolicy,
    "wait_ratio": WaitRatioPolicy,
    "deadline": DeadlinePolicy,
    "best": BestPolicy,
    "balanced": BalancedPolicy,
    "swift": SwiftPolicy,
}
ENTRY_POINTS = "ros2_rfm_serving.dispatch"
"""Group of the entry points with which other packages add policies: classes that take no arguments."""


def check_policy(name: str, file: str = "", key: str = "dispatch") -> None:
    """Check that a policy with this name exists, without loading those of other packages. Raises: `ConfigurationError` if not."""
    if name not in DISPATCH_POLICIES and name not in (others := [e.name for e in entry_points(group=ENTRY_POINTS)]):
        known = [*DISPATCH_POLICIES, *others]
        fix = f"{did_you_mean(name, known)}; or install the package that adds it (entry points {ENTRY_POINTS!r})"
        raise ConfigurationError(f"no dispatch policy is named {name!r}", file=file, key=key, fix=fix)


def policy(name: str) -> DispatchPolicy:
    """Return a new policy by its name. Raises: `ConfigurationError` if it is unknown or cannot be made."""
    check_policy(name)
    if name in DISPATCH_POLICIES:
        return DISPATCH_POLICIES[name]()
    try:
        made: DispatchPolicy = _added(name)()
    except (Exception, SystemExit) as error:
        problem, fix = f"dispatch policy {name!r} cannot be made: {type(error).__name__}: {error}", "mend the package that adds it"
        raise ConfigurationError(problem, key="dispatch", fix=fix) from error
    return made


def is_policy_class(kind: type, name: str) -> bool:
    """Return whether `policy` makes an object of exactly this class for a name."""
    try:
        return kind is (DISPATCH_POLICIES[name] if name in DISPATCH_POLICIES else _added(name))
    except (Exception, SystemExit):  # the package that adds it has changed since
        return False


def _added(name: str) -> Callable[[], DispatchPolicy]:
    """Return the class of a policy that another package adds. Raises: whatever its import raises."""
    found: Callable[[], DispatchPolicy] = next(e for e in entry_points(group=ENTRY_POINTS) if e.name == name).load()
    return found


class Dispatcher:
    """Selector of the requests that run next."""

    def __init__(self, policy: DispatchPolicy, batching: str) -> None:
        """Combine a policy with a batching method. Raises: `ConfigurationError` if the method is unknown."""
        if batching not in BATCHINGS:
            fix = did_you_mean(batching, BATCHINGS)
            raise ConfigurationError(f"no way of batching is named {batching!r}", key="batching", fix=fix)
        self.policy, self._batch = policy, BATCHINGS[batching]

    def select(
        self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float, expected_arrivals: ExpectedArrivals = list
    ) -> DispatchDecision:
        """Return the next batch of an engine that may run all of the waiting requests."""
        return self.form_batch(waiting, self.rank(waiting, engine, now_s), engine, now_s, expected_arrivals)

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        """Return the requests in the policy's order within each component; safety precedes the monitor and the monitor precedes
        plans, whatever the policy."""
        ranked = self.policy.rank(waiting, engine, now_s)
        if len(ranked) == 1 or len({w.request.id.component for w in ranked}) < 2:
            return ranked
        return sorted(ranked, key=lambda w: PRECEDENCE.get(w.request.id.component, PRECEDENCE["*"]))

    def form_batch(
        self,
        waiting: Sequence[WaitingRequest],
        ranked: Sequence[WaitingRequest],
        engine: EngineView,
        now_s: float,
        expected_arrivals: ExpectedArrivals = list,
    ) -> DispatchDecision:
        """Return the next batch and count the requests that it passes over.
        ranked: the requests of `waiting` that may run on this engine, most urgent first."""
        selection = self._batch(ranked, engine, now_s, expected_arrivals) if ranked else NOTHING
        if selection.batch and len(selection.batch) < len(waiting) and (selection.whole or not _more_follow(engine)):
            count_skips(waiting, selection.batch)
        return selection


def _more_follow(engine: EngineView) -> bool:
    """Return whether more rows can join a batch after the next one. Rows join one by one, so that a request is passed over only
    when no capacity is left."""
    return engine.in_flight is not None and len(engine.in_flight.rows) + 1 < engine.in_flight.max_rows


def count_skips(waiting: Sequence[WaitingRequest], batch: Sequence[WaitingRequest]) -> None:
    """Update the skip counts after a selection (Kairos Algorithm 1, lines 23-26)."""
    for passed_over in waiting:
        passed_over.history.skipped += 1
    for chosen in batch:
        chosen.history.skipped = 0
