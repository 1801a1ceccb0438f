from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ros2_rfm_serving.dispatch import (
    DISPATCH_POLICIES,
    Dispatcher,
    EngineView,
    ServiceTimes,
    WaitingRequest,
    check_policy,
    dispatcher,
    policy,
)
from ros2_rfm_serving.dispatch.history import TaskHistory
from ros2_rfm_serving.dispatch.task_lengths import TaskLengths
from ros2_rfm_serving.dispatch.wait_ratio import WaitRatioPolicy
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.server import EngineConfig, ModelServer, RunningBatch, ServerConfig
from ros2_rfm_serving.server.engine_queues import overflow
from ros2_rfm_serving.types import NO_ROWS, NO_VALUES, ExecutionReport, InferenceRequest, OutputKind, RequestId, empty
from test.unit.fakes import CONTRACT, FakeEngine, observation, session_request

LAW_S = tuple(0.1 + 0.02 * rows for rows in range(1, 9))


def waits(
    robot: str, *, since_s: float = 0.0, starves_s: float = 0.0, due_s: float = math.inf, **of_history: float
) -> WaitingRequest:
    """`execution_s`, `wait_ratio` (of a life of 10 s at time 10) or any field of the history."""
    history = TaskHistory()
    history.begin_task(1, ("system1", "go"), 0.0)
    if execution_s := of_history.pop("execution_s", 0.0):
        history.on_generated(0.0, 0.1)
        history.on_request(0.2, ExecutionReport(executing_s=0.1, remaining_s=execution_s - 0.1))
    history.waited_s = 10.0 * of_history.pop("wait_ratio", 0.0)
    for name, value in of_history.items():
        setattr(history, name, value)
    request = InferenceRequest(
        id=RequestId(robot=robot, component="system1", session_epoch=1, episode=1, sequence=1),
        instruction="go",
        state=NO_VALUES,
        images={},
        inference_delay_steps=0,
        prefix_model=NO_ROWS,
    )
    return WaitingRequest(request, 0, since_s, since_s, starves_s, due_s, history)


def engine(batch_size: int = 8, profile_s: Sequence[float] = LAW_S, **changes: float) -> EngineView:
    return EngineView(batch_size, ServiceTimes(profile_s), **changes)


def names(waiting: Sequence[WaitingRequest]) -> list[str]:
    return [w.request.id.robot for w in waiting]


@pytest.mark.parametrize("name", DISPATCH_POLICIES)
def test_safety_goes_before_the_monitor_before_plans_whatever_the_policy(name: str) -> None:
    class Judge(FakeEngine):
        contract = replace(CONTRACT, output=OutputKind.JUDGEMENT, action_names=(), chunk_length=0)

    target = ModelServer(ServerConfig(name="s1", dispatch=name), Judge())  # type: ignore[arg-type]
    for i, component in enumerate(("system2", "other", "monitor", "safety", "system2", "safety")):
        opening = session_request(f"r{i}", component=component, action_names=())
        asked = observation(target.open_session(opening).session_epoch, robot=f"r{i}")
        named = replace(asked, id=replace(asked.id, component=component), prefix_model=empty(0, 0))
        target.submit(named, float(i))
    order = [work.batch[0].request.id for work in iter(lambda: _next(target), None)]
    assert [identity.component for identity in order] == ["safety", "safety", "monitor", "other", "system2", "system2"]


def _next(target: ModelServer) -> RunningBatch | None:
    work = target.loop.begin(10.0)
    if work is not None:
        target.loop.complete(work, [None], 10.0)
    return work


# --- policies -----------------------------------------------------------------------------------------------------------------


def test_each_policy_ranks_by_its_own_rule() -> None:
    a = waits("a", since_s=1.0, starves_s=9.0, attained_s=1.0)
    b = waits("b", since_s=2.0, starves_s=3.0, attained_s=3.0)
    c = waits("c", since_s=3.0, starves_s=5.0, attained_s=2.0)
    ranked = {name: names(policy(name).rank([c, b, a], engine(), 10.0)) for name in ("fifo", "least_attained", "deadline")}
    assert ranked == {"fifo": ["a", "b", "c"], "least_attained": ["a", "c", "b"], "deadline": ["b", "c", "a"]}


@pytest.mark.parametrize(
    ("ratio", "skipped", "bucket"),
    [(0.0, 0, 0), (0.34, 0, 3), (1.0, 0, 9), (0.34, 9, 3), (0.34, 10, 4), (0.34, 11, 5), (0.34, 20, 5), (0.9, 500, 9)],
)
def test_the_buckets_of_algorithm_1(ratio: float, skipped: int, bucket: int) -> None:
    assert WaitRatioPolicy(buckets=10, aging_rounds=10).bucket(ratio, skipped) == bucket


def test_the_higher_bucket_first_and_within_it_the_longest_aged_execution() -> None:
    waiting = [
        waits("short", wait_ratio=0.31, execution_s=0.3),
        waits("long", wait_ratio=0.38, execution_s=2.0),
        waits("patient", wait_ratio=0.35, execution_s=0.5, skipped=4),
        waits("starved", wait_ratio=0.71, execution_s=0.3),
    ]
    assert names(WaitRatioPolicy().rank(waiting, engine(), 10.0)) == ["starved", "patient", "long", "short"]


def test_skips_are_counted_until_a_request_is_chosen() -> None:
    waiting = [waits("a", since_s=0.0), waits("b", since_s=1.0), waits("c", since_s=2.0)]
    chooser = Dispatcher(policy("fifo"), "fixed")
    chooser.select(waiting, engine(batch_size=1), 3.0)
    chooser.select(waiting[1:], engine(batch_size=1), 4.0)
    assert [w.history.skipped for w in waiting] == [0, 0, 2]


def test_best_weighs_a_task_s_age_what_is_left_of_it_and_the_last_chance() -> None:
    best = policy("best")
    for rounds in (10, 10, 10):
        task = TaskHistory()
        task.begin_task(1, ("system1", "go"), 0.0)
        task.rounds = rounds
        best.task_ended(task)

    def first(*waiting: WaitingRequest) -> str:
        return names(best.rank(waiting, engine(), 10.0))[0]

    assert first(waits("new", rounds=1), waits("nearly there", rounds=9)) == "nearly there"
    assert first(waits("young, nearly there", began_s=8.0, rounds=9), waits("old")) == "old"
    assert first(waits("endless", began_s=-1e6), waits("old, nearly there", began_s=-60.0, rounds=9)) == "old, nearly there"
    assert first(waits("in time"), waits("last chance", due_s=10.2)) == "last chance"
    assert first(waits("lost", due_s=9.0), waits("last chance", due_s=10.2)) == "last chance"
    assert first(waits("has actions", starves_s=20.0, rounds=9), waits("stands still")) == "stands still"
    assert first(waits("nearly there", rounds=9), waits("passed over", skipped=300)) == "passed over", "nobody waits for ever"


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(0, 32))
def test_rounds_left_are_the_least_that_any_stopping_rule_spends_per_task_that_ends(lengths: list[int], rounds: int) -> None:
    learned = TaskLengths()
    for length in lengths:
        learned.learn(length)
    longer = [length for length in lengths if length > rounds]
    stops = [
        sum(min(length, stop) - rounds for length in longer) / sum(length <= stop for length in longer)
        for stop in sorted(set(longer))
    ]
    assert learned.rounds_left(rounds) == pytest.approx(min(stops) if stops else 1.0 + rounds)


def test_without_a_finished_task_all_are_alike() -> None:
    assert TaskLengths().rounds_left(0) == TaskLengths().rounds_left(7) == 1.0


def test_only_recent_tasks_count() -> None:
    learned = TaskLengths()
    for length in [100] * 50 + [5] * 64:
        learned.learn(length)
    assert learned.rounds_left(0) == 5.0


def test_a_name_that_is_not_known_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean `fifo`"):
        ModelServer(ServerConfig(name="s1", dispatch="fiffo"), FakeEngine())
    with pytest.raises(ConfigurationError, match="did you mean `saturation`"):
        ModelServer(ServerConfig(name="s1", batching="saturated"), FakeEngine())


def test_other_packages_add_policies_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        name = "mine"

        def load(self) -> type:
            return DISPATCH_POLICIES["deadline"]

    monkeypatch.setattr(dispatcher, "entry_points", lambda group: [Entry()] if group == "ros2_rfm_serving.dispatch" else [])
    assert isinstance(policy("mine"), DISPATCH_POLICIES["deadline"])
    check_policy("mine")
    with pytest.raises(ConfigurationError, match=r"f.yaml: server_cluster.dispatch: .* named 'edf'; .*fifo.*mine"):
        check_policy("edf", "f.yaml", "server_cluster.dispatch")


# --- service times and batching -------------------------------------------------------------------------------------------------


def test_service_times_are_running_means_with_straight_lines_between() -> None:
    times = ServiceTimes()
    assert times.seconds(3) == 0.0 and times.saturation(8) == 8, "nothing is known: try what fits"
    times.observe(2, 0.2)
    times.observe(4, 0.4)
    assert [times.seconds(rows) for rows in (1, 2, 3, 4, 9)] == pytest.approx([0.2, 0.2, 0.3, 0.4, 0.4])
    for _ in range(50):
        times.observe(4, 0.8)
    assert times.seconds(4) == pytest.approx(0.8, rel=0.03) and times.seconds(2) == pytest.approx(0.2)


def test_a_batch_ends_where_throughput_does_not_improve() -> None:
    flat_from_4 = [0.1, 0.11, 0.12, 0.13, 0.1625, 0.195, 0.2275, 0.26]
    assert ServiceTimes(flat_from_4).saturation(8) == 4
    assert ServiceTimes([0.1] * 8).saturation(8) == 8 and ServiceTimes([0.1 * n for n in range(1, 9)]).saturation(8) == 1
    waiting = [waits(f"r{i}", since_s=i) for i in range(8)]
    assert len(Dispatcher(policy("fifo"), "saturation").select(waiting, engine(profile_s=flat_from_4), 9.0).batch) == 4
    assert len(Dispatcher(policy("fifo"), "fixed").select(waiting, engine(profile_s=flat_from_4), 9.0).batch) == 8


@pytest.mark.parametrize(
    ("starves_s", "due_s", "asks_s", "waits_on"),
    [
        (99.0, math.inf, [10.05, 11.0], True),
        (99.0, math.inf, [10.2], False),  # the engine would idle longer than it saves
        (10.1, math.inf, [10.05], False),  # the robot would run out of actions
        (99.0, 10.1, [10.05], False),  # its SLO would be missed
        (99.0, math.inf, [9.0, math.nan], False),  # overdue, or not known: nothing to wait for
    ],
)
def test_waiting_for_one_more_only_while_it_saves_and_hurts_nobody(
    starves_s: float, due_s: float, asks_s: list[float], waits_on: bool
) -> None:
    chooser, waiting = Dispatcher(policy("fifo"), "wait"), [waits("a", starves_s=starves_s, due_s=due_s)]
    selection = chooser.select(waiting, engine(), 10.0, lambda: asks_s)
    assert (len(selection.batch), selection.poll_at_s) == ((0, 10.05) if waits_on else (1, math.inf))


def test_the_server_says_when_to_look_again_and_then_runs_whoever_is_there() -> None:
    target = ModelServer(ServerConfig(name="s1", batch_size=4, batching="wait", profile_s=LAW_S[:4]), FakeEngine())
    epochs = {robot: target.open_session(session_request(robot)).session_epoch for robot in ("r1", "r2")}

    def ask(robot: str, sequence: int, now_s: float, remaining_s: float) -> None:
        report = ExecutionReport(executing_s=0.5, remaining_s=remaining_s)
        target.submit(observation(epochs[robot], sequence, robot, report=report), now_s)

    for sequence, begin_s in [(1, 0.0), (2, 1.0)]:  # r1 asks 0.85 s after its chunk, r2 0.05 s later
        ask("r1", sequence, begin_s, 9.0)
        ask("r2", sequence, begin_s + 0.05, 9.0)
        work = target.loop.begin(begin_s + 0.05)
        assert work is not None and len(work.batch) == 2
        target.loop.complete(work, target.loop.run(work), begin_s + 0.2)
    ask("r1", 3, 2.0, 9.0)
    assert target.loop.begin(2.0) is None and target.num_waiting == 1
    assert 2.05 <= target.loop.poll_at_s < 2.1
    late = target.loop.begin(target.loop.poll_at_s)
    assert late is not None and len(late.batch) == 1 and target.loop.poll_at_s == math.inf


# --- tiers ----------------------------------------------------------------------------------------------------------------------


def test_the_cloud_takes_what_it_serves_before_the_edge_begins() -> None:
    waiting = [waits(f"r{i}", since_s=i) for i in range(6)]
    cloud = engine(profile_s=[0.05] * 8, round_trip_s=0.1)
    assert names(overflow(waiting, engine(batch_size=2, profile_s=LAW_S[:2], free_s=10.1), cloud, 10.0)) == ["r2", "r3", "r4", "r5"]
    assert names(overflow(waiting, engine(batch_size=2, profile_s=LAW_S[:2]), cloud, 10.0)) == ["r4", "r5"], (
        "the edge is free: one batch away"
    )
    assert not overflow(waiting[:2], engine(batch_size=2, free_s=99.0), cloud, 10.0), "the first batch is the edge's"
    far = engine(profile_s=[0.05] * 8, round_trip_s=1.0)
    assert not overflow(waiting, engine(batch_size=2, profile_s=LAW_S[:2], free_s=10.1), far, 10.0)


def test_two_tiers_run_at_once_each_on_its_engine() -> None:
    edge, cloud = FakeEngine(), FakeEngine()
    config = ServerConfig(name="s1", batch_size=1, dispatch="wait_ratio", profile_s=(1.0,))
    target = ModelServer(config, edge, EngineConfig(engine=cloud, batch_size=4, round_trip_s=0.1, profile_s=(0.1,) * 4))
    for robot in ("r1", "r2", "r3"):
        target.submit(observation(target.open_session(session_request(robot)).session_epoch, robot=robot), 0.0)
    first = target.loop.begin(0.0)
    assert first is not None and len(first.batch) == 1 and target.loop.begin(0.0) is None
    away = target.loop.begin(0.0, queue_index=1)
    assert away is not None and len(away.batch) == 1 and target.num_waiting == 1, "the edge keeps its next batch"
    assert len(target.loop.complete(away, target.loop.run(away), 0.2)) == 1
    assert len(target.loop.complete(first, target.loop.run(first), 1.0)) == 1
    assert (len(edge.batches), len(cloud.batches)) == (1, 1) and target.snapshot(1.0).waiting == 1


def test_several_batches_are_on_their_way_to_a_tier_elsewhere_which_runs_them_one_after_the_other() -> None:
    edge, cloud = FakeEngine(), FakeEngine()
    config = ServerConfig(name="s1", batch_size=1, dispatch="fifo", profile_s=(9.0,))
    away = EngineConfig(engine=cloud, batch_size=2, batches_in_flight=2, round_trip_s=1.0, profile_s=(0.5, 0.5))
    target = ModelServer(config, edge, away)
    for i in range(8):
        target.submit(observation(target.open_session(session_request(f"r{i}")).session_epoch, robot=f"r{i}"), 0.0)
    assert target.loop.begin(0.0) is not None and target.max_concurrent(1) == 2
    first, second = target.loop.begin(0.0, queue_index=1), target.loop.begin(0.1, queue_index=1)
    assert first is not None and second is not None and target.loop.begin(0.1, queue_index=1) is None, "two, and no third one"
    view = target._queues[1].view
    assert view.remote_free_s == pytest.approx(1.5), "they were there after 0.5 and 0.6, the second waits for the first"
    assert view.answers_in_s(2, 0.2) == pytest.approx(2.3), "behind both of them"
    target.loop.complete(first, target.loop.run(first), 1.5)
    target.loop.complete(second, target.loop.run(second), 2.0)
    assert view.times.seconds(2) == pytest.approx(0.5), "what each took there, not what it waited there"
    assert target.loop.begin(2.1, queue_index=1) is not None and view.remote_free_s == pytest.approx(3.1), "nothing is ahead of it"


def test_fewer_are_sent_elsewhere_the_more_are_on_their_way() -> None:
    waiting = [waits(f"r{i}", since_s=i) for i in range(6)]
    edge, cloud = engine(batch_size=2, profile_s=LAW_S[:2], free_s=10.2), engine(profile_s=[0.05] * 8, round_trip_s=0.1)
    assert names(overflow(waiting, edge, cloud, 10.0)) == ["r2", "r3", "r4", "r5"]
    cloud.remote_free_s = 10.05
    assert names(overflow(waiting, edge, cloud, 10.0)) == ["r2", "r3", "r4", "r5"], "it is free when they get there"
    cloud.remote_free_s = 10.25
    assert names(overflow(waiting, edge, cloud, 10.0)) == ["r4", "r5"]


def test_who_has_steps_of_its_own_is_served_where_these_can_be_had() -> None:
    edge, cloud = FakeEngine(), FakeEngine()
    edge.contract = replace(CONTRACT, pipelines=True, max_num_steps=8)
    assert edge.contract.for_remote_engine == cloud.contract
    config = ServerConfig(name="s1", batch_size=1, dispatch="wait_ratio", profile_s=(1.0,))
    target = ModelServer(config, edge, EngineConfig(engine=cloud, batch_size=4, round_trip_s=0.1, profile_s=(0.1,) * 4))
    for robot, num_steps in (("r1", 0), ("r2", 3), ("r3", 3), ("r4", 0), ("r5", 0)):
        session = target.open_session(session_request(robot, num_steps=num_steps))
        target.submit(observation(session.session_epoch, robot=robot), 0.0)
    assert target.loop.begin(0.0) is not None
    away = target.loop.begin(0.0, queue_index=1)
    assert away is not None and all(waiting.request.num_steps == 0 for waiting in away.batch)


# --- newer observations ---------------------------------------------------------------------------------------------------------


def busy_server() -> tuple[ModelServer, int]:
    """Busy from 0 to 1; a request waits since 0.1."""
    target = ModelServer(ServerConfig(name="s1", refetch_after_s=0.3, profile_s=(1.0,), dispatch="best"), FakeEngine())
    epochs = [target.open_session(session_request(robot)).session_epoch for robot in ("r1", "r2")]
    target.submit(observation(epochs[0]), 0.0)
    assert target.loop.begin(0.0) is not None
    target.submit(observation(epochs[1], robot="r2"), 0.1)
    return target, epochs[1]


def test_a_newer_observation_is_asked_for_when_it_will_be_fresh_and_costs_nothing() -> None:
    target, epoch = busy_server()
    assert target.refetches(0.5) == [], "too early: what came now would be stale too"
    (stale,) = target.refetches(0.8)
    assert (stale.robot, stale.sequence) == ("r2", 1) and target.refetches(0.81) == [], "once"
    target.submit(observation(epoch, 2, "r2"), 0.85)
    assert target.refetches(0.9) == [], "it is fresh now"
    snapshot = target.snapshot(0.9)
    assert (snapshot.refetched, snapshot.waiting, snapshot.dispatch) == (1, 1, "best")


def test_none_is_asked_for_that_would_come_too_late_or_is_young_enough() -> None:
    target, epoch = busy_server()
    assert target.refetches(0.99) == [], "the round trip does not fit any more"
    target.submit(observation(epoch, 2, "r2"), 0.75)
    assert target.refetches(0.8) == []


def test_a_newer_observation_keeps_the_place_in_the_queue_and_a_new_episode_does_not() -> None:
    engine = FakeEngine()
    target = ModelServer(ServerConfig(name="s1"), engine)
    epochs = {robot: target.open_session(session_request(robot)).session_epoch for robot in ("r1", "r2")}
    target.submit(observation(epochs["r1"]), 0.0)
    target.submit(observation(epochs["r2"], robot="r2"), 1.0)
    target.submit(observation(epochs["r1"], 2), 2.0)
    assert [reply.id.robot for reply in target.loop.step(lambda: 3.0)] == ["r1"]
    target.submit(observation(epochs["r1"], 3), 4.0)
    target.submit(observation(epochs["r2"], 2, robot="r2", episode=2), 5.0)
    assert [reply.id.robot for reply in target.loop.step(lambda: 6.0)] == ["r1"]
