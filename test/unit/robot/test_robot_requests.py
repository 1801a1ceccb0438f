"""What a robot tells of its execution, when a server's horizon makes it ask, and what it does when asked again."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ros2_rfm_serving.robot import RobotConfig
from ros2_rfm_serving.robot.config import CommandType, FailSafeConfig
from ros2_rfm_serving.types import Conditioning, HorizonRequest, ObservationRequest
from test.unit.fakes import CONTRACT, NAMES, SERVED, chunk, grant, rows, schedule
from test.unit.robot.robots import CONFIG, FOREVER_S, GOAL, PERIOD_S, Rig, begin, sensors, working, world

SYNCHRONOUS = replace(CONFIG, synchronous=True)
BY_TIMER = replace(CONFIG, tick_is_step=False)


def long_chunk(request: ObservationRequest, horizon: int = 0, length: int = 16):  # type: ignore[no-untyped-def]
    return replace(chunk(request), chunk_model=rows(length=length), chunk_robot=rows(length=length), execution_horizon=horizon)


@pytest.mark.parametrize(("horizon", "executed"), [(0, 3), (1, 1), (5, 5), (100, 16)])
def test_a_synchronous_robot_executes_as_much_as_the_server_says(horizon: int, executed: int) -> None:
    rig = working(SYNCHRONOUS)
    rig.brain.on_reply(long_chunk(rig.ask(), horizon), rig.now_s)
    commands = [rig.tick().command for _ in range(20)]
    assert [c is not None for c in commands] == [True] * executed + [False] * (20 - executed)


@pytest.mark.parametrize("delay", [0, 1, 3])
@pytest.mark.parametrize("horizon", [8, 10, 12])
def test_an_asynchronous_robot_asks_so_that_the_next_chunk_is_there_where_the_horizon_ends(horizon: int, delay: int) -> None:
    rig = working()
    for _ in range(3):  # the first answer's latency does not count
        request = rig.ask()
        for _ in range(delay):
            rig.tick()
        rig.brain.on_reply(long_chunk(request, horizon), rig.now_s)
    rig.ask()
    asked_behind = rig.brain._queue.steps_since_merge - 1  # a step was executed in the period of the request
    assert asked_behind == horizon - delay


def lasting(config: RobotConfig = CONFIG, length: int = 16) -> Rig:
    """With a model of long chunks."""
    rig = Rig(config)
    rig.brain.on_schedule(schedule(), rig.now_s)
    rig.tick()
    rig.brain.on_session_opened("system1", "s1", grant(contract=replace(CONTRACT, chunk_length=length)), rig.now_s)
    rig.brain.start(GOAL, rig.now_s)
    return rig


def steps_between(rig: Rig, *unusual_s: float, length: int = 16) -> list[int]:
    """Of a robot whose requests are answered after a step each, so much later than usual: steps from one to the next."""
    request, steps = rig.ask(), []
    for each_s in unusual_s:
        begun = rig.brain._queue.steps_executed
        rig.tick()
        assert rig.brain.on_reply(
            replace(long_chunk(request, length=length), served=replace(SERVED, excess_delay_s=each_s)), rig.now_s
        )
        while not (requests := (tick := rig.tick()).requests):
            assert tick.command is not None, "a gap in the motion"
        request = requests[0][1]
        steps.append(rig.brain._queue.steps_executed - begun)
    return steps[1:]  # before the first there was nothing to execute


def test_an_asynchronous_robot_gives_way_by_rows_of_its_chunk_and_once() -> None:
    found = steps_between(lasting(), *(n * PERIOD_S for n in (0.0, 0.0, 2.0, 0.0, 0.6, 0.6, -1.0, 1.0)))
    assert found == [3, 5, 3, 3, 4, 3, 3]


@pytest.mark.parametrize("changes", [{"horizon": HorizonRequest(policy="confidence")}, {"replace_queue": False}])
def test_who_may_not_execute_more_of_a_chunk_asks_as_ever(changes: dict[str, object]) -> None:
    rig = lasting(replace(CONFIG, **changes))  # type: ignore[arg-type]
    rig.brain.on_reply(replace(long_chunk(rig.ask()), served=replace(SERVED, excess_delay_s=1.0)), rig.now_s)
    assert rig.brain._clients.system1 and not rig.brain._clients.system1.phase_shift_s


@pytest.mark.parametrize(("length", "steps"), [(4, 3), (5, 4), (6, 5), (8, 6), (16, 6), (64, 6)])
def test_nobody_gives_way_until_it_runs_out_of_young_actions(length: int, steps: int) -> None:
    """What is executed during an answer is left, and a move is a horizon at most."""
    assert max(steps_between(lasting(length=length), 0.0, *[9.0] * 3, length=length)) == steps
    aged = lasting(replace(CONFIG, max_action_age_s=6.5 * PERIOD_S), length)
    assert max(steps_between(aged, 0.0, *[9.0] * 3, length=length)) <= 5
    assert not aged.brain.refused["stale_action"]


def test_what_is_queued_goes_out_in_both_spaces() -> None:
    rig = working(replace(CONFIG, execution_horizon=1))
    rig.brain.on_reply(replace(long_chunk(rig.ask()), chunk_model=rows(100.0, 16)), rig.now_s)
    request = rig.ask()
    assert len(request.prefix_model) and (request.prefix_model - request.prefix_robot == 100.0).all()


def test_a_report_says_how_long_the_chunk_has_been_executed_and_for_how_long_it_lasts() -> None:
    rig = working(SYNCHRONOUS)
    first = rig.ask()
    assert (first.report.executed_steps, first.report.executing_s, first.report.remaining_s) == (0, 0.0, 0.0)
    rig.brain.on_reply(long_chunk(first), rig.now_s)
    report = rig.ask().report
    assert report.executed_steps == 3 and report.executing_s == pytest.approx(3 * PERIOD_S)
    assert report.remaining_s == pytest.approx(0.0, abs=1e-6)


def test_a_robot_that_has_run_out_says_since_when() -> None:
    rig = working(replace(CONFIG, control_rate_hz=1 / PERIOD_S, execution_horizon=100))
    rig.brain.on_reply(long_chunk(rig.ask(), length=4), rig.now_s)
    request = rig.ask()
    assert request.report.remaining_s == pytest.approx((4 - request.report.executed_steps) * PERIOD_S, abs=1e-6)
    rig.tick(10)  # nobody answers; the request is given up in time, and the next one says so
    for _ in range(60):
        if requests := rig.tick().requests:
            assert requests[0][1].report.remaining_s < -PERIOD_S
            return
    raise AssertionError("it never asked again")


@pytest.mark.parametrize("config", [CONFIG, SYNCHRONOUS, BY_TIMER])
def test_reports_are_finite_whatever_happens(config: RobotConfig) -> None:
    rig = working(config)
    for i in range(200):
        for _, request in rig.tick().requests:
            report = request.report
            assert math.isfinite(report.executing_s) and math.isfinite(report.remaining_s) and report.executing_s >= 0
            if i % 3:
                rig.brain.on_reply(long_chunk(request, horizon=i % 7), rig.now_s)


def test_a_newer_observation_is_sent_when_the_server_asks_for_one_and_only_the_newer_request_counts() -> None:
    rig = working()
    old = rig.ask()
    calls, pace_s = rig.brain._client.calls.due, rig.brain._clients.system1.next_send_s  # type: ignore[union-attr]
    rig.brain.request_refetch(old.id)
    assert rig.brain.next_tick_s(rig.now_s) <= rig.now_s
    ((_, new),) = rig.tick().requests
    assert new.id.sequence == old.id.sequence + 1 and new.stamp_ns > old.stamp_ns and new.episode_start == old.episode_start
    assert rig.brain._clients.system1.next_send_s == pace_s and rig.brain._client.calls.due == calls  # type: ignore[union-attr]
    assert not rig.brain.on_reply(chunk(old), rig.now_s) and rig.brain.refused["late_or_duplicate"] == 1
    assert rig.brain.on_reply(chunk(new), rig.now_s)
    rig.brain.request_refetch(new.id)
    assert rig.brain.refused["late_refetch"] == 1 and not rig.tick().requests


def test_asking_again_gives_no_more_time() -> None:
    rig = working()
    request = rig.ask()
    sent_s, given_up = rig.now_s, 0.0
    for _ in range(100):
        rig.brain.request_refetch(request.id)
        for _, newer in rig.tick().requests:
            request = newer
        if rig.brain.refused["request_timeout"]:
            given_up = rig.now_s
            break
    assert given_up - sent_s == pytest.approx(CONFIG.link.request_timeout_s, abs=2 * PERIOD_S)


def test_a_session_is_asked_for_with_the_horizon_and_the_slo() -> None:
    horizon = HorizonRequest(policy="confidence", threshold=0.3, min_steps=2)
    rig = Rig(replace(CONFIG, horizon=horizon))
    rig.brain.on_schedule(schedule(), rig.now_s)
    ((_, opening),) = rig.tick().opens
    assert opening.horizon == horizon and opening.action_names == NAMES
    assert opening.slo_s == (schedule().routes[0].slo_s if math.isfinite(schedule().routes[0].slo_s) else 0.0)


def test_readings_that_are_too_old_are_not_sent_again_either() -> None:
    rig = working()
    request = rig.ask()
    rig.brain.request_refetch(request.id)
    assert not rig.brain.tick(sensors(rig.now_s - 10.0), rig.now_s).requests
    assert rig.brain.refused["old_observation"] == 1


def test_a_request_has_its_own_time_although_the_last_one_was_never_answered() -> None:
    """A new episode asks anew. That the server is silent counts from the first, but no third request joins one that is young."""
    made = world()
    made.conditions.latency_s = FOREVER_S
    made.run(0.8)
    begin(made)
    made.run(0.5)
    assert len(made.sent_ids) == 2 and made.brain.refused["request_timeout"] == 1
    made.run(0.6)
    assert made.brain.refused["request_timeout"] == 2, "that makes two in a row: the session is opened anew"
    assert made.brain.sessions == [] or made.brain.sessions[0][2] > 1


# --- what a session's contract promises ---


@pytest.mark.parametrize("config", [CONFIG, SYNCHRONOUS, BY_TIMER, replace(CONFIG, replace_queue=False)])
@pytest.mark.parametrize("length", [1, 4, 15])
def test_a_chunk_longer_than_the_contract_is_cut(config: RobotConfig, length: int) -> None:
    """The rows beyond are never executed, never go out as a prefix, and are counted; as many as promised are no matter."""
    rig = lasting(replace(config, execution_horizon=100), length)
    request = rig.ask()
    assert rig.brain.on_reply(long_chunk(request, length=length), rig.now_s) and not rig.brain.validator_warnings
    assert rig.brain.queue_depth == length
    rig = lasting(replace(config, execution_horizon=100), length)
    request = rig.ask()
    assert rig.brain.on_reply(long_chunk(request, horizon=100), rig.now_s)
    assert rig.brain.validator_warnings == {"chunk_too_long": 1} and rig.brain.queue_depth == length
    commands = [tick.command for tick in (rig.tick() for _ in range(20)) if tick.command is not None]
    assert [float(command[0]) for command in commands] == [float(row) for row in range(length)]


def test_rows_beyond_the_contract_hide_no_damage() -> None:
    """A chunk is judged before it is cut: with fewer rows for the robot than of the model, or with NaN in a row that is cut."""
    whole = rows(length=16)
    nan = whole.copy()
    nan[15, 0] = math.nan
    for damage, counter in (
        ({"chunk_robot": whole[:8]}, "bad_shape"),
        ({"chunk_model": whole[:8]}, "bad_shape"),
        ({"chunk_model": nan}, "non_finite"),
    ):
        rig = lasting(length=4)
        assert not rig.brain.on_reply(replace(long_chunk(rig.ask()), **damage), rig.now_s)
        assert rig.brain.refused[counter] == 1 and not rig.brain.validator_warnings


def asked_after(rig: Rig, delay: int, length: int = 16) -> list[ObservationRequest]:
    """Requests of a robot whose answers take so many steps, until its delay is known and asked for."""
    requests = []
    for _ in range(4):
        requests.append(rig.ask())
        rig.tick(delay)
        rig.brain.on_reply(long_chunk(requests[-1], length=length), rig.now_s)
    return requests


@pytest.mark.parametrize("delay", [1, 2, 3, 5, 8])
def test_the_first_request_of_a_new_session_uses_the_delay_that_is_known(delay: int) -> None:
    """One that the model bridges is declared at once; for a longer one the robot waits at once, and asks beyond nothing."""
    rig = lasting()
    asked_after(rig, delay)
    bridged = CONTRACT.max_inference_delay_steps
    assert (rig.brain._client.timing.waits_for_chunk, rig.brain._clients.system1.delay_steps(1 / PERIOD_S)) == (
        delay > bridged,
        delay,
    )  # type: ignore[union-attr]
    rig.brain.on_server_lost("s1", rig.now_s)
    while not rig.tick().opens:
        pass
    rig.brain.on_session_opened("system1", "s1", grant(9, replace(CONTRACT, chunk_length=16)), rig.now_s)
    first = rig.ask()
    if delay > bridged:
        assert first.inference_delay_steps == 0 and not len(first.prefix_model)
        assert "more than the 3 that the model can bridge" in rig.brain._client.timing.too_slow
    assert first.inference_delay_steps == min(delay, len(first.prefix_model)) <= bridged


@pytest.mark.parametrize("conditioning", [Conditioning.PREFIX, Conditioning.GUIDED, Conditioning.NONE])
@pytest.mark.parametrize("buffer_s", [0.0, 10 * PERIOD_S])
@pytest.mark.parametrize("delay", [1, 3, 6, 12])
def test_a_robot_that_appends_its_chunks_declares_no_delay_beyond_the_models(
    conditioning: Conditioning, buffer_s: float, delay: int
) -> None:
    """Its server would refuse that for ever; it goes on at the end of its queue."""
    config = replace(CONFIG, replace_queue=False, conditioning=conditioning, failsafe=FailSafeConfig(buffer_time_s=buffer_s))
    rig = lasting(config, length=8)
    most = CONTRACT.max_inference_delay_steps if conditioning is Conditioning.PREFIX else 7
    requests = asked_after(rig, delay, length=8)
    executed = rig.brain._queue.steps_executed
    assert len(requests) == 4 and executed > 8
    for request in requests:
        assert request.inference_delay_steps <= most
        assert conditioning is not Conditioning.PREFIX or len(request.prefix_model) == request.inference_delay_steps


@pytest.mark.parametrize(
    ("control_hz", "interpolation", "demonstrated_hz", "fix"),
    [
        (30.0, 1, 20.0, "set `control_rate_hz: 20`"),
        (20.0, 1, 30.0, "set `control_rate_hz: 30`"),
        (60.0, 2, 20.0, "set `interpolation: 3`"),
        (100.0, 1, 50.0, "set `interpolation: 2`"),
        (30.0, 1, 30.5, ""),
        (60.0, 3, 20.0, ""),
        (30.0, 1, 0.0, ""),
    ],
)
def test_a_robot_refuses_a_model_of_another_rate_unless_it_is_accepted(
    control_hz: float, interpolation: int, demonstrated_hz: float, fix: str
) -> None:
    """Interpolation bridges a multiple; a model that does not say its rate is served at any."""
    for accepted in (False, True):
        config = replace(CONFIG, control_rate_hz=control_hz, interpolation=interpolation, accept_other_rate=accepted)
        rig = Rig(replace(config, command_type=CommandType.POSITION))
        rig.brain.on_schedule(schedule(), rig.now_s)
        rig.tick()
        granted = grant(contract=replace(CONTRACT, control_rate_hz=demonstrated_hz))
        rig.brain.on_session_opened("system1", "s1", granted, rig.now_s)
        refused = bool(fix) and not accepted
        assert rig.brain.refused["other_rate"] == refused and bool(rig.brain.sessions) is not refused
        problem = rig.brain._clients.system1.problem  # type: ignore[union-attr]
        if refused:
            assert f"the demonstrations ran at {demonstrated_hz:g} Hz; {fix}" in problem
            assert problem.endswith("`accept_other_rate: true` accepts it")


@pytest.mark.parametrize("best", [Conditioning.PREFIX, Conditioning.GUIDED, Conditioning.NONE])
def test_a_robot_that_leaves_the_conditioning_to_the_model_asks_as_if_it_had_named_the_best(best: Conditioning) -> None:
    worse = {Conditioning.PREFIX: tuple(Conditioning), Conditioning.GUIDED: (Conditioning.NONE, best), Conditioning.NONE: (best,)}
    contract = replace(CONTRACT, chunk_length=8, conditionings=worse[best])
    asked = []
    for conditioning in (None, best):
        rig = Rig(replace(CONFIG, conditioning=conditioning))
        rig.brain.on_schedule(schedule(), rig.now_s)
        ((_, opening),) = rig.tick().opens
        assert opening.conditioning is conditioning
        rig.brain.on_session_opened("system1", "s1", grant(5, contract), rig.now_s)
        assert rig.brain.conditioning is best
        rig.brain.start(GOAL, rig.now_s)
        first = rig.ask()
        rig.brain.on_reply(long_chunk(first, length=8), rig.now_s)
        second = rig.ask()
        asked.append((first.inference_delay_steps, second.inference_delay_steps, second.prefix_model.tolist()))
    assert asked[0] == asked[1]
