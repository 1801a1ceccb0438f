"""Faults on the wire: what the plan says, what it costs, and that nothing damaged is ever taken for good."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.faults import Cut, Delivery, Direction, FaultPlan, FaultyWire, corrupt
from ros2_rfm_serving.types import ActionChunk, EncodedImage, JudgeVerdict, ObservationRequest, RequestId, ServingStats, SubgoalPlan

UP, DOWN = Direction.UP, Direction.DOWN
ID = RequestId(robot="arm", component="system1", session_epoch=3, episode=2, sequence=7)
SERVED = ServingStats(queue_wait_s=0.0, inference_s=0.1, batch_size=1, superseded=0, server_load=0.5)


def wire(text: str, seed: int = 1) -> FaultyWire:
    return FaultyWire(FaultPlan.parse(text), random.Random(seed))


def test_a_plan_is_written_as_people_say_it() -> None:
    text = "drop=0.05 delay_ms=25 jitter_ms=10 duplicate=0.01 reorder=0.02 hold_ms=50 corrupt=0.001 cut=10-12 cut_up=20-25,40-"
    assert FaultPlan.parse(text) == FaultPlan(
        drop=0.05,
        delay_s=0.025,
        jitter_s=0.01,
        duplicate=0.01,
        reorder=0.02,
        hold_s=0.05,
        corrupt=0.001,
        cuts=(
            Cut(start_s=10, end_s=12),
            Cut(start_s=20, end_s=25, direction=UP),
            Cut(start_s=40, end_s=math.inf, direction=UP),
        ),
    )
    assert FaultPlan.parse("").is_clean and FaultPlan.parse("hold_ms=70").is_clean and not FaultPlan.parse("cut_down=1-2").is_clean


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("drop=1.5", r"faults\.drop: is 1\.5; give a share, 0 to 1"),
        ("drop=nan", r"faults\.drop: is nan"),
        ("corrupt=-0.1", r"faults\.corrupt: is -0\.1"),
        ("delay_ms=-1", r"faults\.delay_s: is -0\.001; give 0 or more"),
        ("jitter_ms=inf", r"faults\.jitter_s: is inf"),
        ("drop=x", r"faults\.drop: 'x' is no number; write drop=<number>"),
        ("drop", r"faults: 'drop' is no fault; known here: drop, duplicate"),
        ("lose=0.1", r"faults: 'lose=0\.1' is no fault"),
        ("cut=10", r"faults\.cut: '10' has no end; write cut=<start>-<end>"),
        ("cut_up=a-b", r"faults\.cut_up: 'a' is no number"),
        ("cut=12-10", r"cut\.end_s: is 10; give a time after its start at 12"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_with_its_key(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        FaultPlan.parse(text)


def test_a_clean_wire_delivers_at_once_and_draws_nothing() -> None:
    rng = random.Random(1)
    clean = FaultyWire(FaultPlan(), rng)
    assert clean.deliveries(UP, 0.0) == (Delivery(0.0),) and rng.random() == random.Random(1).random() and not clean.happened


def test_a_cut_may_be_one_way() -> None:
    cut = wire("cut_up=1-2 cut=3-4")
    arrives = {(way, t): bool(cut.deliveries(way, t, reliable=True)) for way in Direction for t in (0.9, 1.0, 1.9, 2.0, 3.5, 4.0)}
    assert [key for key, there in arrives.items() if not there] == [(UP, 1.0), (UP, 1.9), (UP, 3.5), (DOWN, 3.5)]
    assert cut.happened == {"cut": 4}


def test_shares_are_kept_and_counted() -> None:
    rough, n = wire("drop=0.1 duplicate=0.2 corrupt=0.3 reorder=0.4"), 20_000
    sent = [rough.deliveries(UP, float(i)) for i in range(n)]
    copies = [copy for deliveries in sent for copy in deliveries]
    assert sum(not deliveries for deliveries in sent) == rough.happened["dropped"] == pytest.approx(0.1 * n, rel=0.1)
    assert sum(len(deliveries) == 2 for deliveries in sent) == rough.happened["duplicated"] == pytest.approx(0.18 * n, rel=0.1)
    assert sum(c.corrupt for c in copies) == rough.happened["corrupted"] == pytest.approx(0.3 * len(copies), rel=0.1)
    assert sum(c.delay_s > 0 for c in copies) == rough.happened["reordered"] == pytest.approx(0.4 * len(copies), rel=0.1)


def test_what_is_reliable_is_only_late() -> None:
    rough = wire("drop=1 duplicate=1 corrupt=1 reorder=1 delay_ms=5")
    assert rough.deliveries(UP, 0.0, reliable=True) == (Delivery(0.005),) and rough.deliveries(UP, 0.0) == ()


@given(st.lists(st.floats(0, 0.05), min_size=2, max_size=50), st.integers(0, 100))
def test_jitter_keeps_the_order_and_its_bounds(gaps_s: list[float], seed: int) -> None:
    jittery, now_s, last_due_s = wire("delay_ms=25 jitter_ms=40", seed), 0.0, 0.0
    for gap_s in gaps_s:
        now_s += gap_s
        (copy,) = jittery.deliveries(UP, now_s)
        assert now_s + copy.delay_s >= last_due_s - 1e-12 and 0 <= copy.delay_s <= 0.065 + 1e-12
        last_due_s = now_s + copy.delay_s


def test_reordering_lets_later_messages_overtake() -> None:
    wild = wire("reorder=0.3 hold_ms=100")
    due_s = [0.01 * i + wild.deliveries(UP, 0.01 * i)[0].delay_s for i in range(200)]
    assert due_s != sorted(due_s)


def test_the_same_seed_gives_the_same_faults() -> None:
    rough = "drop=0.1 duplicate=0.1 corrupt=0.1 reorder=0.1 jitter_ms=5"
    one, same, other = ([tuple(w.deliveries(UP, 0.1 * i)) for i in range(300)] for w in (wire(rough), wire(rough), wire(rough, 2)))
    assert one == same != other


# --- corruption -----------------------------------------------------------------------------------------------------------


def request(state_size: int, num_images: int) -> ObservationRequest:
    images = tuple(EncodedImage(camera=f"c{i}", format="jpeg", data=b"12345678") for i in range(num_images))
    return ObservationRequest(id=ID, stamp_ns=1, instruction="go", state=np.ones(state_size, np.float32), images=images)


def chunk(rows: int, columns: int) -> ActionChunk:
    actions = np.ones((rows, columns), np.float32)
    return ActionChunk(
        id=ID,
        stamp_ns=1,
        server="s",
        model_hash="aa",
        action_names=(),
        chunk_model=actions,
        chunk_robot=actions,
        confidence=np.zeros(0, np.float32),
        execution_horizon=8,
        inference_delay_steps=0,
        served=SERVED,
    )


def judgement(kind: type[JudgeVerdict] | type[SubgoalPlan]) -> JudgeVerdict | SubgoalPlan:
    common = {"id": ID, "stamp_ns": 1, "server": "s", "model_hash": "aa", "text": "", "served": SERVED}
    return SubgoalPlan(subgoals=("a",), **common) if kind is SubgoalPlan else JudgeVerdict(verdict="done", score=1.0, **common)  # type: ignore[arg-type]


MESSAGES = [request(3, 2), request(0, 0), chunk(4, 2), chunk(1, 0), judgement(JudgeVerdict), judgement(SubgoalPlan)]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_damage_is_real_seeded_and_leaves_the_original_alone(
    message: ObservationRequest | ActionChunk | JudgeVerdict | SubgoalPlan,
) -> None:
    before = repr(message)
    damaged = {repr(corrupt(message, random.Random(seed))) for seed in range(200)}
    assert before not in damaged and len(damaged) >= 5
    assert repr(message) == before
    assert repr(corrupt(message, random.Random(5))) == repr(corrupt(message, random.Random(5)))


def test_every_kind_of_damage_to_a_chunk_occurs() -> None:
    good = chunk(4, 2)
    bad = [corrupt(good, random.Random(seed)) for seed in range(300)]
    assert any(not np.isfinite(b.chunk_robot).all() for b in bad)
    assert {b.chunk_robot.shape for b in bad} == {(4, 2), (4, 3), (2, 2)} and {b.chunk_model.shape for b in bad} == {(4, 2), (4, 3)}
    assert {b.model_hash for b in bad} == {"aa", "aa0"}
    ids = {b.id for b in bad}
    assert {replace(ID, session_epoch=4), replace(ID, sequence=8), replace(ID, episode=3), replace(ID, component="nobody")} < ids


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), drop=st.floats(0, 1), duplicate=st.floats(0, 1), reorder=st.floats(0, 1))
def test_no_plan_delivers_before_it_was_sent_or_more_than_twice(seed: int, drop: float, duplicate: float, reorder: float) -> None:
    plan = FaultPlan(drop=drop, duplicate=duplicate, reorder=reorder, delay_s=0.01, jitter_s=0.02)
    rough = FaultyWire(plan, random.Random(seed))
    for i in range(50):
        copies = rough.deliveries(DOWN, 0.02 * i)
        assert len(copies) <= 2 and all(copy.delay_s >= 0 for copy in copies)
