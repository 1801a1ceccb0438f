"""Who may send requests: contract, capacity, quota, garbage collection, exclusive models, draining."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ros2_rfm_serving.errors import BadMessageError, CapacityError, ContractError, DrainingError
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.server import server as server_module
from ros2_rfm_serving.server.capacity import max_sessions
from ros2_rfm_serving.server.quota import Quota
from ros2_rfm_serving.server.sessions import MAX_QUOTAS, SessionRules
from ros2_rfm_serving.types import EncodedImage, SessionSharing
from test.unit.fakes import CONTRACT, JPEG, FakeEngine, observation, session_request


def server(engine: FakeEngine | None = None, *, max_sessions: int = 8, **rules: object) -> ModelServer:
    config = ServerConfig(name="s1", max_sessions=max_sessions, sessions=SessionRules(**rules))  # type: ignore[arg-type]
    return ModelServer(config, engine or FakeEngine())


def submit(target: ModelServer, request: object, now_s: float = 0.0) -> None:
    with target.counting_refusals():
        target.submit(request, now_s)  # type: ignore[arg-type]


class Exclusive(FakeEngine):
    contract = replace(CONTRACT, serving=SessionSharing.EXCLUSIVE)

    def __init__(self) -> None:
        super().__init__()
        self.resets = 0

    def reset(self) -> None:
        self.resets += 1


def test_a_model_that_keeps_state_serves_one_session_and_forgets_with_every_episode() -> None:
    engine = Exclusive()
    target = server(engine)
    epoch = target.open_session(session_request("r1")).session_epoch
    with pytest.raises(CapacityError, match="keeps state between chunks and serves one session, r1's"):
        target.open_session(session_request("r2"))
    for sequence, (episode, resets) in enumerate([(1, 1), (1, 1), (2, 2), (2, 2)], start=1):
        submit(target, observation(epoch, sequence, episode=episode))
        assert target.loop.step(lambda: 0.0) and engine.resets == resets
    again = target.open_session(session_request("r1")).session_epoch
    submit(target, observation(again, episode=2))
    assert target.loop.step(lambda: 0.0) and engine.resets == 3


def test_a_shared_model_is_never_reset() -> None:
    class Shared(Exclusive):
        contract = CONTRACT

    engine = Shared()
    target = server(engine)
    for robot in ("r1", "r2"):
        submit(target, observation(target.open_session(session_request(robot)).session_epoch, robot=robot))
        target.loop.step(lambda: 0.0)
    assert engine.resets == 0


def test_a_full_server_says_how_busy_it_is() -> None:
    target = server(max_sessions=1)
    target.open_session(session_request("r1"))
    with pytest.raises(CapacityError, match=r"1 of 1 sessions are open, the engine is busy 0% of the time; try another server"):
        target.open_session(session_request("r2"))


def test_a_rate_of_its_own_is_a_warning_or_strictly_a_refusal() -> None:
    class Trained(FakeEngine):
        contract = replace(CONTRACT, control_rate_hz=20.0)

    (warning,) = server(Trained()).open_session(session_request(control_rate_hz=30.0)).warnings
    assert warning == "the robot runs at 30 Hz, the demonstrations ran at 20 Hz"
    assert server(Trained()).open_session(session_request(control_rate_hz=20.5)).warnings == ()
    with pytest.raises(ContractError, match="control rate: the robot runs at 30 Hz"):
        server(Trained(), strict_rate=True).open_session(session_request(control_rate_hz=30.0))


def test_a_session_may_choose_its_solver_steps_as_far_as_the_model_lets_it() -> None:
    class Solves(FakeEngine):
        contract = replace(CONTRACT, max_num_steps=20)

    target = server(engine := Solves())
    for asked, why in ((21, "21 solver steps, the model takes 1 to 20"), (-1, "1 to 20")):
        with pytest.raises(ContractError, match=f"num_steps: .*{why}"):
            target.open_session(session_request(num_steps=asked))
    with pytest.raises(ContractError, match="its own number alone"):
        server().open_session(session_request(num_steps=1))
    for robot, num_steps in (("r1", 0), ("r2", 7)):
        grant = target.open_session(session_request(robot, num_steps=num_steps))
        submit(target, observation(robot=robot, epoch=grant.session_epoch))
        target.loop.step(lambda: 0.0)
    assert [[request.num_steps for request in batch] for batch in engine.batches] == [[0], [7]]


def test_a_pinned_instruction_is_the_only_one() -> None:
    target = server(instruction="fold")
    with pytest.raises(ContractError, match="instruction: the robot has 'cut', the model 'fold'"):
        target.open_session(session_request(instruction="cut"))
    engine = FakeEngine()
    target = server(engine, instruction="fold")
    epoch = target.open_session(session_request()).session_epoch
    with pytest.raises(BadMessageError, match="for 'fold' alone"):
        submit(target, observation(epoch, instruction="cut"))
    assert target.refused["other_instruction"] == 1
    submit(target, observation(epoch, instruction=""))
    target.loop.step(lambda: 0.0)
    assert engine.batches[0][0].instruction == "fold"


def test_a_session_may_pin_its_own_instruction() -> None:
    target = server()
    epoch = target.open_session(session_request(instruction="fold")).session_epoch
    with pytest.raises(BadMessageError):
        submit(target, observation(epoch, instruction="cut"))
    submit(target, observation(epoch, instruction="fold"))


@pytest.mark.parametrize("change", [{"slo_s": math.nan}, {"slo_s": -1.0}, {"slo_s": math.inf}])
def test_impossible_values_open_no_session(change: dict[str, object]) -> None:
    with pytest.raises(BadMessageError, match="it must be"):
        server().open_session(session_request(**change))


def test_a_flood_is_refused_before_it_is_decoded_and_the_others_are_served() -> None:
    target = server(max_request_rate_hz=10.0, burst=2)
    epochs = {robot: target.open_session(session_request(robot)).session_epoch for robot in ("r1", "r2")}
    undecodable = (EncodedImage(camera="front", format="jpeg", data=b"x"),)
    for sequence in (1, 2):
        submit(target, observation(epochs["r1"], sequence))
    for sequence in range(3, 100):
        with pytest.raises(BadMessageError, match="more than 10 times a second"):
            submit(target, observation(epochs["r1"], sequence, images=undecodable))
    assert target.refused == {"over_quota": 97}
    submit(target, observation(epochs["r2"], robot="r2"))
    submit(target, observation(epochs["r1"], 100), now_s=0.11)
    assert {r.id.robot for r in target.loop.step(lambda: 0.2) + target.loop.step(lambda: 0.2)} == {"r1", "r2"}


@pytest.mark.parametrize("schedule_first", [True, False])
def test_a_robot_of_the_schedule_may_ask_twice_its_rate_and_others_what_the_rules_allow(schedule_first: bool) -> None:
    target = server(max_request_rate_hz=50.0, burst=20)
    declared = {("r1", "system1"): 10.0, ("r2", "system1"): 0.5, ("r3", "system1"): 40.0, ("r4", "system1"): math.inf}
    if schedule_first:
        target.declare(declared)
    epochs = {robot: target.open_session(session_request(robot)).session_epoch for robot in ("r1", "r2", "r3", "r4", "guest")}
    target.declare(declared)

    starts_s = dict.fromkeys(epochs, 0.0)

    def share_of(robot: str, rate_hz: float) -> float:
        """That is taken of what it asks within ten seconds."""
        begin_s, num_asked = starts_s[robot] + 10.0, round(10.0 * rate_hz)
        starts_s[robot] = begin_s + 10.0
        for i in range(num_asked):
            with contextlib.suppress(BadMessageError):
                submit(target, observation(epochs[robot], int(begin_s * 200) + i, robot), begin_s + i / rate_hz)
        return 1.0 - target.refused.pop("over_quota", 0) / num_asked

    def check(quotas: dict[str, tuple[float, int]]) -> None:
        for robot, (quota_hz, burst) in quotas.items():
            assert share_of(robot, quota_hz) == 1.0, "within its quota"
            assert share_of(robot, 1.5 * quota_hz) == pytest.approx(1 / 3, abs=0.12), "the less, the more it asks for"
            assert share_of(robot, 2.5 * quota_hz) <= 2 * burst / (25 * quota_hz), "what its burst allows"
            assert share_of(robot, 0.9 * quota_hz) == 1.0, "nothing is held against it"

    check({"r1": (20, 4), "r2": (5, 4), "r3": (50, 4), "r4": (50, 20), "guest": (50, 20)})
    target.declare({("r2", "system1"): 20.0})
    check({"r1": (50, 20), "r2": (40, 4)})


def test_what_a_session_leaves_behind_is_counted() -> None:
    """While it waits and while it runs."""
    target = server()
    epoch = target.open_session(session_request()).session_epoch
    submit(target, observation(epoch))
    work = target.loop.begin(0.0)
    assert work is not None
    submit(target, observation(epoch, 2))
    target.close_session("r1", "system1", epoch)
    assert target.loop.complete(work, target.loop.run(work), 0.1) == [] and target.refused == {"session_ended": 2}


def test_nobody_takes_the_place_of_a_robot_of_the_schedule() -> None:
    target = server(max_sessions=4)
    target.declare({("r1", "system1"): 5.0, ("r2", "system1"): 5.0})
    for guest in ("g1", "g2"):
        target.open_session(session_request(guest))
    with pytest.raises(CapacityError, match="2 of 4 sessions are open, 2 are kept"):
        target.open_session(session_request("g3"))
    for robot in ("r1", "r2", "g1"):  # one of them anew
        target.open_session(session_request(robot))
    with pytest.raises(CapacityError, match="4 of 4 sessions are open, the engine"):
        target.open_session(session_request("g3"))
    target.declare({})
    target.close_session("r1", "system1", 3)
    target.open_session(session_request("g3"))


def test_another_session_is_no_new_quota() -> None:
    target, taken = server(max_request_rate_hz=1.0, burst=2), 0
    for i in range(1000):
        epoch = target.open_session(session_request("r1")).session_epoch
        with contextlib.suppress(BadMessageError):
            submit(target, observation(epoch), 0.001 * i)
            taken += 1
        target.close_session("r1", "system1", epoch)
        target.close_session("r2", "system1", target.open_session(session_request("r2")).session_epoch)
    assert 2 <= taken <= 3 and len(target.core.sessions._quotas) == 2
    for i in range(2 * MAX_QUOTAS):
        target.close_session(f"x{i}", "system1", target.open_session(session_request(f"x{i}")).session_epoch)
    assert len(target.core.sessions._quotas) <= MAX_QUOTAS


def test_a_large_fleet_does_not_look_through_all_quotas_for_each_that_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ros2_rfm_serving.server.sessions.MAX_QUOTAS", 8)
    sessions = server(max_sessions=100).core.sessions
    found = set()
    for i in range(40):
        sessions.open(session_request(f"r{i}"), 0.0)
        found.add(id(sessions._quotas))
    assert len(found) == 1 and len(sessions._quotas) == 40


@given(st.lists(st.floats(0, 2), max_size=60), st.integers(1, 10))
def test_a_quota_never_allows_more_than_burst_and_rate(gaps: list[float], burst: int) -> None:
    quota, now_s, taken = Quota(5.0, burst), 0.0, []
    for gap in gaps:
        now_s += gap
        if quota.try_acquire(now_s):
            taken.append(now_s)
        for first in taken:
            assert sum(t >= first for t in taken) <= burst + 5.0 * (now_s - first) + 1e-6


def test_a_robot_that_left_loses_its_session_after_a_grace_and_one_that_returns_does_not() -> None:
    target = server(absent_grace_s=10.0)
    epoch = target.open_session(session_request("r1")).session_epoch
    target.open_session(session_request("r2"))
    submit(target, observation(epoch))
    key = ("r1", "system1")
    assert target.collect_sessions({key}, 0.0) == target.collect_sessions({key}, 9.0) == []
    assert target.collect_sessions(set(), 9.5) == target.collect_sessions({key}, 12.0) == []
    assert target.collect_sessions({key}, 22.0) == [(key, "robot_gone")]
    assert target.refused["robot_gone"] == 1 and not target.num_waiting and target.session_names() == ["r2/system1"]
    target.check_integrity()


def test_an_idle_session_is_closed() -> None:
    target = server(idle_timeout_s=60.0)
    epoch = target.open_session(session_request("r1")).session_epoch
    assert target.collect_sessions((), 0.0) == []
    submit(target, observation(epoch), now_s=50.0)
    assert target.collect_sessions((), 100.0) == []
    assert target.collect_sessions((), 111.0) == [(("r1", "system1"), "session_idle")]


def test_a_draining_server_finishes_what_it_has() -> None:
    target = server()
    epoch = target.open_session(session_request()).session_epoch
    submit(target, observation(epoch))
    target.drain()
    with pytest.raises(DrainingError, match="draining"):
        target.open_session(session_request("r2"))
    with pytest.raises(BadMessageError):
        submit(target, observation(epoch, 2))
    assert not target.is_idle and len(target.loop.step(lambda: 0.0)) == 1 and target.is_idle
    assert target.refused == {"draining": 1}


def test_an_engine_that_decodes_by_itself_gets_what_travelled_checked() -> None:
    class Encoded(FakeEngine):
        takes_encoded = True

    engine = Encoded()
    target = server(engine)
    epoch = target.open_session(session_request()).session_epoch
    for data in (b"no jpeg", bytes(5 << 20)):
        with pytest.raises(BadMessageError):
            submit(target, observation(epoch, images=(EncodedImage(camera="front", format="jpeg", data=data),)))
    submit(target, observation(epoch))
    target.loop.step(lambda: 0.0)
    image = engine.batches[0][0].images["front"]
    assert isinstance(image, EncodedImage) and image.data is JPEG


@pytest.mark.parametrize(
    ("service_s", "batch", "more", "expected"),
    [
        (0.15, 1, {"rate_hz": 1.0}, 5),  # Remote-RTC P10: Pi0 at 150 ms, 1 Hz
        (0.02, 1, {"rate_hz": 1.0}, 40),  # ACT at 20 ms, 1 Hz
        (0.08, 8, {"rate_hz": 1.0}, 80),
        (0.0, 1, {}, 65_535),
        (9.0, 1, {"rate_hz": 1.0}, 1),
    ],
)
def test_sessions_by_formula(service_s: float, batch: int, more: dict[str, float], expected: int) -> None:
    assert max_sessions(CONTRACT, service_s, batch, **more) == expected


def test_a_chunk_must_be_there_when_half_of_the_last_one_is_executed() -> None:
    contract = replace(CONTRACT, control_rate_hz=10.0, chunk_length=20)  # 2 s of actions
    assert max_sessions(contract, 0.1, 1, rate_hz=0.1) == 10
    assert max_sessions(contract, 0.1, 1, rate_hz=0.1, round_trip_s=0.5) == 5
    assert max_sessions(replace(contract, serving=SessionSharing.EXCLUSIVE), 0.1, 1) == 1


@pytest.mark.interpreted
def test_a_request_that_is_still_decoded_when_its_robot_opens_anew_takes_nobodys_place(monkeypatch: pytest.MonkeyPatch) -> None:
    target = server()
    former = target.open_session(session_request()).session_epoch
    decode, opened = server_module.decoded_request, []

    def slowly(request, *arguments, **more):  # type: ignore[no-untyped-def]
        row = decode(request, *arguments, **more)
        if not opened:
            opened.append(target.open_session(session_request()).session_epoch)
            submit(target, observation(opened[0], 1))
        return row

    monkeypatch.setattr(server_module, "decoded_request", slowly)
    with pytest.raises(BadMessageError):
        submit(target, observation(former, 9))
    (reply,) = target.loop.step(lambda: 1.0)
    assert reply.id.session_epoch == opened[0] and target.refused == {"stale_epoch": 1}


# --- what engines keep ------------------------------------------------------------------------------------------------------


def test_engines_hear_of_every_session_that_ends_once_and_of_no_other() -> None:
    engine = FakeEngine()
    target = server(engine, absent_grace_s=1.0)
    first = target.open_session(session_request("r1")).session_epoch
    stays = target.open_session(session_request("r2")).session_epoch
    second = target.open_session(session_request("r1")).session_epoch  # it has restarted
    assert engine.closed == [("r1", "system1", first)]
    target.close_session("r1", "system1", first)  # too late: that is over
    target.close_session("r1", "system1", second)
    third = target.open_session(session_request("r1")).session_epoch
    for now_s in (0.0, 2.0):
        target.collect_sessions([("r1", "system1")], now_s)
    assert engine.closed == [("r1", "system1", epoch) for epoch in (first, second, third)]
    assert target.session_keys() == [("r2", "system1")] and stays == first + 1


def test_an_engine_that_fails_to_forget_a_session_costs_nobody_anything() -> None:
    class Forgetless(FakeEngine):
        def close_session(self, robot: str, component: str, epoch: int) -> None:
            raise RuntimeError("no such pipeline")

    target = server(Forgetless())
    for _ in range(2):
        epoch = target.open_session(session_request()).session_epoch
    assert target.refused == {"engine_error": 1} and "no such pipeline" in target.problems["engine_error"]
    submit(target, observation(epoch))
    assert len(target.loop.step(lambda: 1.0)) == 1


def test_who_asks_too_much_is_known_by_name() -> None:
    target = server(max_request_rate_hz=1.0, burst=2)
    epochs = {robot: target.open_session(session_request(robot)).session_epoch for robot in ("r1", "r2")}
    for sequence in range(1, 6):
        with contextlib.suppress(BadMessageError):
            submit(target, observation(epochs["r1"], sequence, robot="r1"))
    submit(target, observation(epochs["r2"], robot="r2"))
    assert target.over_quota == {"r1/system1": 3} and target.refused["over_quota"] == 3
    target.close_session("r1", "system1", epochs["r1"])
    assert target.over_quota == {}
