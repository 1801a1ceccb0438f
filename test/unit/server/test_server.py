from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ros2_rfm_serving.errors import BadMessageError, CapacityError, ContractError, ModelError, SessionError
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.server.figures import ServerFigures
from ros2_rfm_serving.types import (
    ActionChunk,
    Conditioning,
    EncodedImage,
    EngineReply,
    Guidance,
    InferenceRequest,
    JudgeVerdict,
    OutputKind,
    PrefixSchedule,
    SubgoalPlan,
    empty,
)
from test.unit.fakes import CONTRACT, JPEG, FakeEngine, observation, rows, session_request


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def server(engine: FakeEngine | None = None, **config: object) -> ModelServer:
    return ModelServer(ServerConfig(name="s1", **config), engine or FakeEngine())  # type: ignore[arg-type]


def submit(target: ModelServer, request: object, now_s: float = 0.0) -> None:
    with target.counting_refusals():
        target.submit(request, now_s)  # type: ignore[arg-type]


def test_a_request_is_answered_with_its_own_identity() -> None:
    target = server()
    epoch = target.open_session(session_request()).session_epoch
    submit(target, observation(epoch))
    (reply,) = target.loop.step(Clock())
    assert isinstance(reply, ActionChunk)
    assert (reply.id.robot, reply.id.session_epoch, reply.id.sequence, reply.stamp_ns) == ("r1", epoch, 1, 7)
    assert reply.model_hash == "hash" and reply.action_names == ("x", "y")
    assert target.loop.step(Clock()) == []
    target.check_integrity()


def test_newest_wins_and_the_superseded_are_counted() -> None:
    engine = FakeEngine()
    target = server(engine)
    epoch = target.open_session(session_request()).session_epoch
    for sequence in (1, 2, 3):
        submit(target, observation(epoch, sequence))
    (reply,) = target.loop.step(Clock())
    assert reply.id.sequence == 3 and reply.served.superseded == 2
    assert len(engine.batches) == 1 and target.snapshot(0.0).superseded == 2


def test_batches_oldest_first_up_to_the_batch_size() -> None:
    engine = FakeEngine()
    target = server(engine, batch_size=2)
    for i, robot in enumerate(("r1", "r2", "r3")):
        epoch = target.open_session(session_request(robot)).session_epoch
        submit(target, observation(epoch, robot=robot), now_s=float(-i))
    assert {r.id.robot for r in target.loop.step(Clock())} == {"r2", "r3"}
    (last,) = target.loop.step(Clock())
    assert last.id.robot == "r1" and last.served.batch_size == 1


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"action_names": ("y", "x")}, "action names and order"),
        ({"cameras": ("wrist",)}, "cameras"),
        ({"state_size": 4}, "state size"),
        ({"schema_version": 99}, "schema version"),
        ({"expected_model_hash": "other"}, "model hash"),
    ],
)
def test_a_session_opens_only_when_the_contract_holds(change: dict[str, object], differs: str) -> None:
    target = server()
    with pytest.raises(ContractError, match=differs):
        target.open_session(session_request(**change))
    assert target.snapshot(0.0).sessions == 0


def test_capacity_is_refused_but_a_returning_robot_is_not() -> None:
    target = server(max_sessions=1)
    first = target.open_session(session_request()).session_epoch
    with pytest.raises(CapacityError, match="1 of 1"):
        target.open_session(session_request("r2"))
    assert target.open_session(session_request()).session_epoch > first


RAW_THAT_LIES = EncodedImage(camera="front", format="rgb8", data=b"123", height_px=9, width_px=9)
BAD = [
    ("unknown_session", lambda o: replace(o, id=replace(o.id, robot="ghost"))),
    ("unknown_session", lambda o: replace(o, id=replace(o.id, component="monitor"))),
    ("stale_epoch", lambda o: replace(o, id=replace(o.id, session_epoch=o.id.session_epoch + 1))),
    ("stale_sequence", lambda o: replace(o, id=replace(o.id, sequence=0))),
    ("bad_shape", lambda o: replace(o, state=np.zeros(4, np.float32))),
    ("bad_shape", lambda o: replace(o, state=np.zeros(0, np.float32))),
    ("bad_shape", lambda o: replace(o, prefix_model=np.zeros((2, 5), np.float32))),
    ("bad_shape", lambda o: replace(o, instruction="x" * 10_000)),
    ("bad_shape", lambda o: replace(o, prefix_model=np.zeros((5, 0), np.float32), inference_delay_steps=3)),
    ("non_finite", lambda o: replace(o, state=np.array([0, np.nan, 0], np.float32))),
    ("non_finite", lambda o: replace(o, prefix_model=np.full((1, 2), np.inf, np.float32))),
    ("bad_cameras", lambda o: replace(o, images=())),
    ("bad_cameras", lambda o: replace(o, images=o.images * 2)),
    ("bad_image", lambda o: replace(o, images=(replace(o.images[0], data=b"no jpeg"),))),
    ("bad_image", lambda o: replace(o, images=(replace(o.images[0], data=JPEG[:50]),))),
    ("bad_image", lambda o: replace(o, images=(replace(o.images[0], format="png"),))),
    ("bad_image", lambda o: replace(o, images=(RAW_THAT_LIES,))),
    ("image_too_large", lambda o: replace(o, images=(replace(o.images[0], data=bytes(50_000_000)),))),
]


@pytest.mark.parametrize(("kind", "spoil"), BAD, ids=[f"{kind}-{i}" for i, (kind, _) in enumerate(BAD)])
def test_a_bad_request_is_refused_counted_and_costs_nothing_else(kind: str, spoil) -> None:  # type: ignore[no-untyped-def]
    target = server()
    epoch = target.open_session(session_request()).session_epoch
    good = observation(epoch)
    with pytest.raises(BadMessageError):
        submit(target, spoil(good))
    assert target.refused[kind] == 1
    submit(target, good)
    assert len(target.loop.step(Clock())) == 1


def test_a_reset_discards_what_began_before() -> None:
    target = server()
    epoch = target.open_session(session_request()).session_epoch
    submit(target, observation(epoch, episode=1))
    target.reset_episode("r1", "system1", epoch, 2)
    assert target.loop.step(Clock()) == []
    with pytest.raises(BadMessageError):
        submit(target, observation(epoch, sequence=2, episode=1))
    assert target.refused["stale_episode"] == 2
    with pytest.raises(SessionError):
        target.reset_episode("r1", "system1", epoch + 1, 3)


class Breaking(FakeEngine):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def infer(self, requests):  # type: ignore[no-untyped-def]
        if self.how == "raise":
            raise ValueError("out of memory")
        if self.how == "few":
            return []
        bad = rows()
        bad[1, 0] = np.nan
        return [EngineReply(chunk_model=bad, chunk_robot=bad) for _ in requests]


@pytest.mark.parametrize(("how", "counter"), [("raise", "engine_error"), ("few", "engine_error"), ("nan", "non_finite_output")])
def test_a_broken_engine_answers_nobody_and_the_server_lives(how: str, counter: str) -> None:
    target = server(Breaking(how))
    epoch = target.open_session(session_request()).session_epoch
    submit(target, observation(epoch))
    assert target.loop.step(Clock()) == []
    assert target.refused[counter] == 1


def test_a_reply_to_a_closed_session_is_not_sent() -> None:
    class Closing(FakeEngine):
        def infer(self, requests):  # type: ignore[no-untyped-def]
            target.close_session("r1", "system1", epoch)
            return super().infer(requests)

    target = server(Closing())
    epoch = target.open_session(session_request()).session_epoch
    submit(target, observation(epoch))
    assert target.loop.step(Clock()) == []
    target.check_integrity()


@given(st.lists(st.tuples(st.sampled_from(["open", "close", "send", "reset", "step"]), st.sampled_from(["r1", "r2"])), max_size=60))
def test_whatever_the_order_every_request_is_answered_at_most_once_and_only_in_its_session(events: list[tuple[str, str]]) -> None:
    target, epochs, answered = server(batch_size=2), {}, set()
    for sequence, (what, robot) in enumerate(events, start=1):
        if what == "open":
            epochs[robot] = target.open_session(session_request(robot)).session_epoch
        elif what == "close" and robot in epochs:
            target.close_session(robot, "system1", epochs.pop(robot))
        elif what == "send":
            try:
                submit(target, observation(epochs.get(robot, 0), sequence, robot))
            except BadMessageError:
                assert robot not in epochs
        elif what == "step":
            for reply in target.loop.step(Clock()):
                assert reply.id not in answered and epochs[reply.id.robot] == reply.id.session_epoch
                answered.add(reply.id)
        target.check_integrity()


# --- conditioning -----------------------------------------------------------------------------------------------------------

ALL = tuple(Conditioning)
NONE, PREFIX, GUIDED = Conditioning


class Able(FakeEngine):
    """Chunks of 4 steps; trained to continue 2."""

    def __init__(self, conditionings: tuple[Conditioning, ...] = ALL) -> None:
        super().__init__()
        self.contract = replace(CONTRACT, conditionings=conditionings, max_inference_delay_steps=2, true_jacobian=True)


def test_a_session_opens_only_with_a_conditioning_that_the_model_can_do() -> None:
    target = server(Able((NONE, GUIDED)))
    with pytest.raises(ContractError, match="asks for 'prefix', the model can do 'none', 'guided'"):
        target.open_session(session_request(conditioning=PREFIX))
    assert target.open_session(session_request(conditioning=GUIDED)).contract.conditionings == (NONE, GUIDED)


@pytest.mark.parametrize(("able", "agreed"), [(ALL, PREFIX), ((NONE, PREFIX), PREFIX), ((NONE, GUIDED), GUIDED), ((NONE,), NONE)])
def test_a_session_that_leaves_it_to_the_model_gets_the_best_that_it_can_do(
    able: tuple[Conditioning, ...], agreed: Conditioning
) -> None:
    engine = Able(able)
    target = server(engine)
    epoch = target.open_session(session_request(conditioning=None)).session_epoch
    submit(target, observation(epoch, inference_delay_steps=1))
    assert len(target.loop.step(Clock())) == 1 and engine.batches[0][0].conditioning is agreed


@pytest.mark.parametrize(
    "change",
    [{"max_weight": 0.0}, {"max_weight": -1.0}, {"max_weight": math.nan}, {"max_weight": math.inf}, {"execution_horizon": 0}],
)
def test_impossible_guidance_opens_no_session(change: dict[str, float]) -> None:
    target = server(Able())
    with pytest.raises(BadMessageError, match="it must be") as error, target.counting_refusals():
        target.open_session(session_request(conditioning=GUIDED, guidance=Guidance(**change)))  # type: ignore[arg-type]
    assert error.value.kind == "bad_session" and target.refused["bad_session"] == 1 and target.session_names() == []


@pytest.mark.parametrize(("conditioning", "longest"), [(NONE, 3), (PREFIX, 2), (GUIDED, 3)])
def test_an_inference_delay_beyond_the_envelope_is_refused_not_cut(conditioning: Conditioning, longest: int) -> None:
    engine = Able()
    target = server(engine)
    epoch = target.open_session(session_request(conditioning=conditioning)).session_epoch
    for delay, refused in [(longest + 1, 1), (-1, 2)]:
        with pytest.raises(BadMessageError, match=f"{delay} steps; with '{conditioning.value}' the model bridges {longest}"):
            submit(target, observation(epoch, inference_delay_steps=delay))
        assert target.refused["delay_too_long"] == refused
    submit(target, observation(epoch, inference_delay_steps=longest))
    assert len(target.loop.step(Clock())) == 1 and engine.batches[0][0].inference_delay_steps == longest


def test_no_robot_makes_a_server_compute_jacobians_that_does_not_allow_it() -> None:
    """They slow down every robot of a batch; whether that is served is said in the model's options, not in robot.yaml."""
    asks = Guidance(true_jacobian=True)
    target = server(FakeEngine())
    with pytest.raises(
        ContractError, match=r"guidance_true_jacobian: .*served without.*`true_jacobian: true` in the model's options"
    ):
        target.open_session(session_request(conditioning=GUIDED, guidance=asks))
    target.open_session(session_request(conditioning=GUIDED))
    target.open_session(session_request("r2", conditioning=PREFIX, guidance=asks))  # of no effect, so of no harm
    server(Able()).open_session(session_request(conditioning=GUIDED, guidance=asks))


def test_a_judge_bridges_no_delay() -> None:
    target = server(Thinking())
    with pytest.raises(BadMessageError):
        asking(target, "safety", inference_delay_steps=1)
    assert target.refused["delay_too_long"] == 1


def test_what_a_session_asked_for_reaches_the_engine_with_each_of_its_rows_and_the_reply_says_what_was_held() -> None:
    engine = Able()
    target = server(engine, batch_size=3)
    asked = {
        "r1": (NONE, Guidance()),
        "r2": (PREFIX, Guidance()),
        "r3": (GUIDED, Guidance(schedule=PrefixSchedule.EXP, max_weight=5.0, execution_horizon=3, true_jacobian=True)),
    }
    for robot, (conditioning, guidance) in asked.items():
        epoch = target.open_session(session_request(robot, conditioning=conditioning, guidance=guidance)).session_epoch
        submit(target, observation(epoch, robot=robot, inference_delay_steps=2, prefix_model=rows(length=3)))
    held = {reply.id.robot: reply.inference_delay_steps for reply in target.loop.step(Clock()) if isinstance(reply, ActionChunk)}
    assert {row.id.robot: (row.conditioning, row.guidance) for row in engine.batches[0]} == asked
    assert held == {"r1": 0, "r2": 2, "r3": 0}


class InTwoSpaces(FakeEngine):
    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        super().infer(requests)
        return [EngineReply(chunk_model=rows(10.0), chunk_robot=rows(20.0)) for _ in requests]


def test_actions_stay_in_their_spaces() -> None:
    engine = InTwoSpaces()
    target = server(engine)
    epoch = target.open_session(session_request()).session_epoch
    submit(target, observation(epoch, inference_delay_steps=2, prefix_model=rows(1.0, 2), prefix_robot=rows(2.0, 2)))
    (reply,) = target.loop.step(Clock())
    ((row,),) = engine.batches
    assert (row.prefix_model[0, 0], row.prefix_robot[0, 0]) == (1.0, 2.0)
    assert isinstance(reply, ActionChunk) and (reply.chunk_model[0, 0], reply.chunk_robot[0, 0]) == (10.0, 20.0)


@pytest.mark.parametrize("field", ["chunk_model", "chunk_robot"])
def test_a_row_of_nan_is_refused_alone(field: str) -> None:
    class OneBad(FakeEngine):
        def infer(self, requests):  # type: ignore[no-untyped-def]
            spoilt = rows()
            spoilt[1, 0] = np.nan
            return [replace(a, **{field: spoilt}) if i == 1 else a for i, a in enumerate(super().infer(requests))]

    target = server(OneBad(), batch_size=3)
    for robot in ("r1", "r2", "r3"):
        submit(target, observation(target.open_session(session_request(robot)).session_epoch, robot=robot))
    assert [reply.id.robot for reply in target.loop.step(Clock())] == ["r1", "r3"]
    assert target.refused == {"non_finite_output": 1}


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 2, 1), ()])
def test_a_row_of_another_shape_is_refused_alone(shape: tuple[int, ...]) -> None:
    class OneBad(FakeEngine):
        def infer(self, requests):  # type: ignore[no-untyped-def]
            bad = np.zeros(shape, np.float32)
            return [replace(a, chunk_robot=bad, chunk_model=bad) if i == 1 else a for i, a in enumerate(super().infer(requests))]

    target = server(OneBad(), batch_size=3)
    for robot in ("r1", "r2", "r3"):
        submit(target, observation(target.open_session(session_request(robot)).session_epoch, robot=robot))
    assert [reply.id.robot for reply in target.loop.step(Clock())] == ["r1", "r3"]
    assert target.refused == {"bad_output": 1}


# --- the parts of step ------------------------------------------------------------------------------------------------------

JUDGE = replace(CONTRACT, output=OutputKind.JUDGEMENT, action_names=(), chunk_length=0)


class Thinking(FakeEngine):
    contract = JUDGE

    def infer(self, requests):  # type: ignore[no-untyped-def]
        return [EngineReply(verdict="ongoing", text=" reach \n\nlift\n") for _ in requests]


def asking(target: ModelServer, component: str, robot: str = "r1", **changes: object) -> None:
    epoch = target.open_session(session_request(robot, component=component, action_names=())).session_epoch
    request = observation(epoch, robot=robot, **changes)
    submit(target, replace(request, id=replace(request.id, component=component), prefix_model=empty(0, 0)))


@pytest.mark.parametrize(("component", "kind"), [("system2", SubgoalPlan), ("safety", JudgeVerdict), ("monitor", JudgeVerdict)])
def test_system_2_is_answered_with_a_plan_and_judges_with_a_verdict(component: str, kind: type) -> None:
    target = server(Thinking())
    asking(target, component)
    (reply,) = target.loop.step(Clock())
    assert type(reply) is kind is target.reply_kind(component)
    if isinstance(reply, SubgoalPlan):
        assert reply.subgoals == ("reach", "lift")


def test_begin_run_and_complete_are_step_in_parts() -> None:
    whole, parts = server(), server()
    for target in (whole, parts):
        epoch = target.open_session(session_request()).session_epoch
        submit(target, observation(epoch), now_s=1.0)
    (expected,) = whole.loop.step(iter([2.0, 3.5]).__next__)
    work = parts.loop.begin(2.0)
    assert work is not None and parts.loop.begin(2.0) is None, "one at a time"
    (reply,) = parts.loop.complete(work, parts.loop.run(work), 3.5)
    assert reply.served == expected.served and reply.id == expected.id
    assert (reply.served.queue_wait_s, reply.served.inference_s) == (1.0, 1.5)


def test_continuous_batching_has_several_works_of_one_request_in_progress() -> None:
    target = server(Thinking(), batch_size=4, max_concurrent=2)
    for robot in ("r1", "r2", "r3"):
        asking(target, "safety", robot)
    first, second = target.loop.begin(0.0), target.loop.begin(0.0)
    assert first and second and target.loop.begin(0.0) is None
    assert len(first.batch) == len(second.batch) == 1 and target.num_waiting == 1
    target.loop.complete(second, target.loop.run(second), 1.0)
    third = target.loop.begin(1.0)
    assert third is not None
    target.loop.complete(third, target.loop.run(third), 2.0)
    target.loop.complete(first, target.loop.run(first), 4.0)
    assert target.snapshot(5.0).load == pytest.approx(4.0 / 5.0), "busy from 0 to 4, however many at once"


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.001, 2.0)), min_size=1, max_size=40))
def test_the_load_is_the_busy_share_of_the_window(works: list[tuple[float, float]]) -> None:
    figures, now_s, busy = ServerFigures(10.0), 0.0, []
    for idle_s, busy_s in works:
        now_s += idle_s
        figures.begun(now_s)
        now_s += busy_s
        figures.ended(now_s, (busy_s,))
        busy.append((now_s, busy_s))
    inside = sum(b for end_s, b in busy if end_s >= now_s - 10.0)
    assert figures.load() == pytest.approx(min(1.0, inside / 10.0))


class Choosy(FakeEngine):
    def __init__(self) -> None:
        super().__init__()
        self.prepared: list[int] = []

    def prepare(self, batch_size: int) -> None:
        if batch_size == 3:
            raise ModelError("3 was never compiled")
        self.prepared.append(batch_size)


def test_the_engine_is_prepared_for_the_batch_size_at_start_and_when_it_changes() -> None:
    engine = Choosy()
    target = server(engine, batch_size=2)
    target.resize(4, 8)
    target.resize(4, 9)
    target.resize(100, 9)
    assert engine.prepared == [2, 4]
    with pytest.raises(ModelError):
        target.resize(3, 9)
    assert target.snapshot(0.0).batch_size == 4


def test_every_reply_is_counted_with_its_wait_and_its_inference() -> None:
    target, clock = server(FakeEngine()), Clock()
    epoch = target.open_session(session_request()).session_epoch
    for i in range(3):
        submit(target, observation(epoch, sequence=i + 1), clock.now_s)
        clock.now_s += 0.02
        assert len(target.loop.step(clock)) == 1
    waits, inferences = (target.snapshot(clock.now_s).histograms[name] for name in ("queue_wait_s", "inference_s"))
    assert sum(waits.counts) == sum(inferences.counts) == 3 and math.isclose(waits.sum, 0.06)
    target.loop.step(clock)
    assert sum(target.snapshot(clock.now_s).histograms["queue_wait_s"].counts) == 3 and waits.counts[0] == 0
