"""What the scheduler makes of statuses: who lives, how fast servers are, what robots need; and of statuses that say nonsense."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ros2_rfm_serving.factory import Factory, parse_factory
from ros2_rfm_serving.factory.cluster import StragglerConfig
from ros2_rfm_serving.profiles import COLUMNS, Profile, parse_profiles
from ros2_rfm_serving.scheduler.estimates import AS_DECLARED, FactoryEstimates, NetworkDelay, from_json, to_json
from ros2_rfm_serving.scheduler.estimation import (
    SAMPLE,
    ComponentTotals,
    EstimateChange,
    FactoryEstimator,
    RobotStatusSample,
    ServerStatusSample,
    SloCounts,
)
from ros2_rfm_serving.scheduler.estimation.batch_means import MOST_LOTS, BatchMeans
from ros2_rfm_serving.scheduler.estimation.health import (
    BACK_AFTER_S,
    FIRST_WORD_S,
    LATE_WORD_S,
    LOADING_S,
    LOST_AFTER_S,
    SHORT_BACK_S,
)
from ros2_rfm_serving.types import Placement, Route, Schedule, ServerState

PROFILE = parse_profiles(
    f"""{",".join(COLUMNS)}
policy,GPU,fixed,1,2,20,20,22,24,30
policy,GPU,fixed,1,50,30,30,40,50,60
policy,GPU,fixed,4,2,40,40,42,44,50
policy,GPU,fixed,4,100,60,60,70,80,90
judge,GPU,continuous,1,1,50,50,60,70,80
judge,GPU,continuous,1,50,100,100,120,140,160
"""
)
FACTORY = """
server_cluster: {num_servers: 4, gpu_type: GPU}
robot_fleet: [{task: carry, num_robots: 4}]
carry:
  execution: {mode: async, horizon: {policy: confidence, mean_period_ms: 400}}
  pipeline: {action_period_ms: 400, system2_to_system1_call_ratio: 0.1}
  components:
    system1: {model: policy, slo_ms: 150}
    system2: {model: judge, slo_ms: 900}
"""
PERIOD_S = 0.5


def placed(server: str, model: str = "policy", size: int = 4) -> Placement:
    batching = "fixed" if model == "policy" else "continuous"
    return Placement(
        server=server,
        model=model,
        components=("system1",),
        gpu_type="GPU",
        batching=batching,
        batch_size=size,
        max_sessions=8,
        predicted_p99_s=0.1,
    )


class Floor:
    """Servers and robots that say what they are told to, twice a second."""

    def __init__(self, factory: Factory | None = None, profile: Profile = PROFILE) -> None:
        self.now_s = 1e6
        self.watch = FactoryEstimator(factory or parse_factory(FACTORY), profile, None)
        self.words = {f"server_{i}": self.ready(f"server_{i}") for i in (1, 2, 3)}
        self.words["server_4"] = replace(self.ready("server_4"), model="judge", batch_size=1)
        self.service_s = dict.fromkeys(self.words, 0.04)
        self.service_s["server_4"] = PROFILE.latency_s("judge", "GPU", "continuous", 1, 20.0, "mean")
        self.robots: dict[str, RobotStatusSample] = {}
        self.change: Callable[[], None] = lambda: None
        """Before every round of words."""
        self.silent: set[str] = set()
        self.short = False
        self.found: list[EstimateChange] = []
        self.follow()

    def follow(self, epoch: int = 1, **anew: Placement) -> None:
        placements = [placed("server_1"), placed("server_2"), placed("server_3"), placed("server_4", "judge", 1)]
        placements = [anew.get(p.server, p) for p in placements]
        routes = tuple(
            Route(robot=f"carry_{i}", component="system1", server="server_1", max_rate_hz=2.0, slo_s=0.15, task="carry")
            for i in range(10 * SAMPLE)
        )
        self.watch.follow(
            Schedule(
                epoch=epoch, placements=tuple(p for p in placements if p.model), routes=routes, predicted_actions_hz=1.0, policy=""
            )
        )

    def begins(self, **words: ServerStatusSample) -> None:
        """First words of all but server_2."""
        for word in {**self.words, **words}.values():
            if word.server != "server_2":
                self.watch.hear_server(word, self.now_s)

    @staticmethod
    def ready(server: str) -> ServerStatusSample:
        return ServerStatusSample(
            server=server, state=ServerState.READY, model="policy", batch_size=4, mean_batch_size=4.0, latency_p99_s=0.1
        )

    def run(self, seconds: float) -> FactoryEstimates:
        for _ in range(round(seconds / PERIOD_S)):
            self.now_s += PERIOD_S
            self.change()
            self.words = {name: self._worked(word) for name, word in self.words.items()}
            for name in self.words.keys() - self.silent:
                self.watch.hear_server(self.words[name], self.now_s)
            for robot in self.robots.values():
                self.watch.hear_robot(robot, self.now_s)
            if finding := self.watch.look(self.now_s, short=self.short):
                self.found.append(finding)
        return self.watch.seen

    def _worked(self, word: ServerStatusSample) -> ServerStatusSample:
        """10 replies, of which every one took the engine `service_s`."""
        return replace(word, replies=word.replies + 10, inference_s=word.inference_s + 10 * self.service_s[word.server])

    def drives(self, robot: str, *, way_s: float = 0.0, cycle_s: float = 0.4, calls: float = 0.1) -> None:
        """One robot goes on for half a second, two chunks at a time."""
        word = self.robots.get(robot, RobotStatusSample(robot=robot, task="carry", server="server_1", streams=True))
        one, two = word.asked.get("system1", ComponentTotals(0, 0.0)), word.asked.get("system2", ComponentTotals(0, 0.0))
        asked = {
            "system1": ComponentTotals(one.answers + 20, one.round_trips_s + 20 * (self.service_s["server_1"] + way_s)),
            "system2": ComponentTotals(two.answers + round(20 * calls), two.round_trips_s + 1.0),
        }
        chunks = word.horizons + 20
        self.robots[robot] = replace(
            word, asked=asked, horizons=chunks, horizons_s=word.horizons_s + 20 * cycle_s, round_trip_p99_s=0.1 + way_s
        )


@pytest.fixture
def floor() -> Floor:
    made = Floor()
    made.run(20.0)
    assert not made.found and made.watch.seen == AS_DECLARED
    return made


# --- who lives ---


def test_a_silent_server_is_lost_after_a_while_and_used_again_after_a_longer_one(floor: Floor) -> None:
    floor.silent = {"server_2"}
    floor.run(LOST_AFTER_S - PERIOD_S)
    assert not floor.found, "robots have their standby; the scheduler does not jump at a hiccup"
    assert floor.run(1.5).lost == ("server_2",) and floor.found[-1].lost == ("server_2",)
    floor.silent = set()
    assert floor.run(BACK_AFTER_S - 1.0).lost == ("server_2",)
    assert floor.run(2.0).lost == () and floor.found[-1].back == ("server_2",) and len(floor.found) == 2


@pytest.mark.parametrize("state", [ServerState.FAILED, ServerState.HUNG, ServerState.DRAINING, ServerState.LOADING])
def test_one_that_says_that_it_serves_nothing_is_lost_too(floor: Floor, state: ServerState) -> None:
    """Also one that was ready and loads again what it had: its process was started anew."""
    floor.words["server_1"] = replace(floor.words["server_1"], state=state)
    assert floor.run(LOST_AFTER_S + 1.0).lost == ("server_1",)


def test_loading_another_model_is_no_loss_for_as_long_as_that_takes(floor: Floor) -> None:
    floor.follow(server_1=placed("server_1", "judge", 1))
    floor.words["server_1"] = replace(floor.words["server_1"], state=ServerState.LOADING, model="judge")
    assert floor.run(LOADING_S - 2.0).lost == ()
    assert floor.run(4.0).lost == ("server_1",)


@pytest.mark.parametrize("anew", [placed("server_1", "judge", 1), placed("server_1", size=8)], ids=["model", "batches"])
def test_one_that_turns_to_what_is_placed_anew_is_no_loss(floor: Floor, anew: Placement) -> None:
    """It says that it is ready until it has heard of it, then answers what it has; other batches are prepared, too."""
    floor.words["server_1"] = replace(floor.words["server_1"], follows=1)
    floor.follow(epoch=2, server_1=anew)
    floor.run(1.0)
    for state in (ServerState.DRAINING, ServerState.LOADING):
        floor.words["server_1"] = replace(floor.words["server_1"], state=state, follows=2)
        assert floor.run(LOST_AFTER_S + 2.0).lost == ()
    floor.words["server_1"] = replace(floor.words["server_1"], state=ServerState.READY, model=anew.model)
    floor.run(2.0)
    floor.words["server_1"] = replace(floor.words["server_1"], state=ServerState.LOADING)
    assert floor.run(LOST_AFTER_S + 1.0).lost == ("server_1",), "it was ready: its process was started anew"


@pytest.mark.parametrize("seed", range(10))
def test_a_factory_that_starts_loads_in_peace(seed: int) -> None:
    """Words that come just before or just after a look, and pauses while imports keep an interpreter to themselves."""
    rng = random.Random(seed)
    floor = Floor()
    floor.words = {name: replace(word, state=ServerState.LOADING, model="") for name, word in floor.words.items()}
    for _ in range(80):
        floor.silent = {name for name in floor.words if rng.random() < 0.3}
        floor.run(PERIOD_S)
    floor.silent = {"server_1"}
    floor.run(6.0)
    assert not floor.found, [found.words for found in floor.found]
    assert floor.run(10.0).lost == ("server_1",)


def test_one_that_loads_and_is_lost_is_not_back_before_it_is_ready(floor: Floor) -> None:
    """Where no schedule remains without it."""
    floor.words["server_1"] = replace(floor.words["server_1"], state=ServerState.LOADING)
    assert floor.run(60.0).lost == ("server_1",) and len(floor.found) == 1


def test_who_comes_and_goes_is_kept_out_for_longer_each_time(floor: Floor) -> None:
    outs, began_s = [], 0.0
    for _ in range(4):
        floor.silent = {"server_3"}
        floor.run(LOST_AFTER_S + 1.0)
        floor.silent, began_s = set(), floor.now_s
        while floor.watch.seen.lost:
            floor.run(PERIOD_S)
        outs.append(floor.now_s - began_s)
    assert outs == sorted(outs) and outs[-1] > 4 * outs[0], outs
    floor.run(3600.0)
    floor.silent = {"server_3"}
    floor.run(LOST_AFTER_S + 1.0)
    floor.silent = set()
    assert floor.run(BACK_AFTER_S + 1.0).lost == (), "an hour without a loss is forgiven"


def test_where_robots_stand_nobody_who_lives_is_kept_out(floor: Floor) -> None:
    """However often it came and went."""
    for _ in range(4):
        floor.silent = {"server_3"}
        floor.run(LOST_AFTER_S + 1.0)
        floor.silent = set()
        floor.run(90.0)
    floor.silent = {"server_3"}
    floor.run(LOST_AFTER_S + 1.0)
    floor.silent, floor.short = set(), True
    assert floor.run(SHORT_BACK_S + PERIOD_S).lost == ()


def test_when_nobody_is_heard_it_is_the_scheduler_that_is_deaf(floor: Floor) -> None:
    floor.silent = set(floor.words)
    assert floor.run(60.0).lost == () and not floor.found


def test_a_scheduler_that_was_stopped_calls_nobody_lost(floor: Floor) -> None:
    floor.now_s += 500.0
    floor.run(5.0)
    floor.now_s -= 400.0  # nor does a clock that is set back cost anything
    assert floor.run(5.0).lost == () and not floor.found


def test_one_that_is_never_heard_has_time_to_start() -> None:
    floor = Floor()
    floor.begins()
    floor.silent = {"server_2"}
    assert floor.run(FIRST_WORD_S - 2.0).lost == () and floor.run(4.0).lost == ("server_2",)


@pytest.mark.parametrize("said", [{"follows": 0, "follows_another": True}, {"replies": 1000}], ids=["follows", "served"])
def test_a_scheduler_that_is_started_again_does_not_wait_long_for_one_that_is_dead(said: dict[str, Any]) -> None:
    """What the others say of the time before: they follow its predecessor, or have answered somebody."""
    floor = Floor()
    floor.begins(server_1=replace(floor.words["server_1"], **said))
    floor.silent = {"server_2"}
    assert floor.run(LATE_WORD_S - 2.0).lost == () and floor.run(4.0).lost == ("server_2",)


def test_a_server_that_nobody_declared_is_counted_and_no_more(floor: Floor) -> None:
    floor.words["server_9"], floor.service_s["server_9"] = floor.ready("server_9"), 0.4
    assert floor.run(20.0) == AS_DECLARED and floor.watch.health.unknown == 40


# --- how fast they are ---


def test_a_slower_server_is_planned_with_as_measured_and_no_other(floor: Floor) -> None:
    floor.service_s["server_2"] *= 1.3
    floor.run(15.0)
    assert floor.watch.seen.paces == {"server_2": 1.3} and len(floor.found) == 1, floor.found
    assert "server_2 takes 1.30 times its profile" in floor.found[0].words
    pace = floor.watch.told()["server_2"]
    assert pace.interval.low <= 1.3 + 1e-9 and pace.interval.high >= 1.3 - 1e-9 and pace.used == pytest.approx(1.3)
    floor.service_s["server_2"] /= 1.3
    assert floor.run(20.0) == AS_DECLARED and len(floor.found) == 2


def test_what_all_servers_of_a_model_have_in_common_is_the_models(floor: Floor) -> None:
    for name in ("server_1", "server_2", "server_3"):
        floor.service_s[name] *= 0.7
    floor.run(15.0)
    assert floor.watch.seen == FactoryEstimates(models={("policy", "GPU"): 0.7}) and len(floor.found) == 1


def test_a_shared_engine_is_measured_by_its_curve(floor: Floor) -> None:
    """20 requests/s take 69 ms by the profile. At half the pace the curve is twice as high, at twice the rate."""
    floor.service_s["server_4"] = 2 * PROFILE.latency_s("judge", "GPU", "continuous", 1, 40.0, "mean")
    floor.run(20.0)
    assert floor.watch.seen.paces == {"server_4": pytest.approx(2.0, abs=0.01)}


@pytest.mark.parametrize("seed", range(8))
def test_noise_is_not_drift(seed: int) -> None:
    """10 % of scatter from one lot to the next, for minutes."""
    floor, rng = Floor(), random.Random(seed)

    def draw() -> None:
        floor.service_s |= {f"server_{i}": 0.04 * rng.gammavariate(100, 0.01) for i in (1, 2, 3)}

    floor.change = draw
    assert floor.run(400.0) == AS_DECLARED and not floor.found


def test_between_half_filled_and_full_batches_no_difference_is_claimed(floor: Floor) -> None:
    """A batch of one row takes 20 ms, a full one 40: an engine that fills up takes 40 for either."""
    for seconds in (0.02, 0.03, 0.04):
        floor.words["server_1"] = replace(floor.words["server_1"], mean_batch_size=1.0)
        floor.service_s["server_1"] = seconds
        assert floor.run(30.0) == AS_DECLARED
    floor.service_s["server_1"] = 0.05
    assert floor.run(30.0).paces == {"server_1": 1.25}


# --- what robots need ---


def drive(floor: Floor, **needs: float) -> FactoryEstimates:
    floor.robots.clear()

    def go() -> None:
        for i in range(3):
            floor.drives(f"carry_{i}", **needs)

    floor.change = go
    return floor.run(40.0)


def test_the_way_to_servers_is_measured(floor: Floor) -> None:
    seen = drive(floor, way_s=0.05)
    assert seen.travels == {"carry": NetworkDelay(mean_s=0.05, tail_s=0.05)} and len(floor.found) == 1


def test_horizons_and_calls_of_system_2_are_as_measured(floor: Floor) -> None:
    seen = drive(floor, cycle_s=0.25, calls=0.3)
    assert seen.cycles_s == {"carry": 0.25} and seen.calls == {"carry": {"system2": 0.3}}
    assert "250 ms of a chunk are executed" in floor.found[0].words and len(floor.found) == 1


def test_robots_that_do_as_declared_change_nothing(floor: Floor) -> None:
    assert drive(floor) == AS_DECLARED and not floor.found


def test_of_a_large_fleet_a_sample_is_heard(floor: Floor) -> None:
    factors = floor.watch.factors
    for i in range(10 * SAMPLE):
        floor.watch.hear_robot(RobotStatusSample(robot=f"carry_{i}", task="carry", server="server_1", streams=True), floor.now_s)
    assert factors.wants("carry_0", "carry") and not factors.wants(f"carry_{SAMPLE}", "carry") and not factors.wants("x", "dance")
    factors.keep([])
    assert factors.wants(f"carry_{SAMPLE}", "carry"), "those that left make room"


def keeping(floor: Floor, late: int) -> Callable[[], None]:
    """Of 20 answers of each robot so many are late, more and fewer by turns."""

    def go() -> None:
        for i in range(3):
            name = f"carry_{i}"
            then = floor.robots[name].kept.get("system1", SloCounts()) if name in floor.robots else SloCounts()
            floor.drives(name)
            now = min(2 * late, 20) if late and floor.now_s % 1.0 else 0
            kept = {"system1": SloCounts(then.in_time + 20 - now, then.late + now)}
            floor.robots[name] = replace(floor.robots[name], kept=kept)

    return go


def test_promises_that_are_not_kept_are_told_until_they_are(floor: Floor) -> None:
    """Though servers and ways to them are as planned; whoever is late less often than promised is not named."""
    floor.change = keeping(floor, 0)
    floor.run(60.0)
    assert not floor.watch.missed
    floor.change = keeping(floor, 2)
    floor.run(60.0)
    assert floor.watch.missed == ("'carry': 90.0 % of the answers of system1 are in time by what robots count, 99 % are promised",)
    floor.change = keeping(floor, 0)
    floor.run(200.0)
    assert not floor.watch.missed and not floor.found


def test_one_that_worked_a_little_before_a_clock_was_set_back_keeps_nobody_waiting() -> None:
    """What others of its model take was in doubt until the clock had caught up: an hour."""
    floor = Floor()
    floor.silent = {"server_2"}
    floor.run(10.0)
    floor.silent = set()
    floor.run(2.0)
    floor.silent = {"server_2"}
    floor.now_s -= 3600.0
    floor.service_s["server_1"] *= 1.5
    assert "server_1" in floor.run(60.0).paces


def test_a_clock_that_goes_back_keeps_nobody_from_counting(floor: Floor) -> None:
    floor.change = keeping(floor, 2)
    floor.run(12.0)
    floor.now_s -= 3_600.0
    floor.run(60.0)
    assert floor.watch.missed


def test_what_was_missed_before_figures_changed_is_not_told_of_the_next_plan(floor: Floor) -> None:
    floor.change = keeping(floor, 2)
    floor.run(60.0)
    assert floor.watch.missed
    floor.service_s["server_2"] *= 1.5
    while not floor.found:
        floor.run(1.0)
    floor.run(10.0)
    assert not floor.watch.missed


def test_answers_of_a_robot_that_began_anew_or_was_not_heard_for_long_do_not_count(floor: Floor) -> None:
    floor.change = keeping(floor, 0)
    floor.run(30.0)
    for _ in range(40):
        floor.robots = {name: replace(word, kept={"system1": SloCounts(0, 10)}) for name, word in floor.robots.items()}
        floor.now_s += 31.0
        floor.run(0.5)
    assert not floor.watch.missed


# --- nonsense ---

WRONG = [math.nan, math.inf, -math.inf, -1.0, 1e300]


@pytest.mark.parametrize("field", ["inference_s", "queue_wait_s", "mean_batch_size", "replies", "latency_p99_s"])
@pytest.mark.parametrize("value", WRONG)
def test_figures_that_are_none_are_counted_and_change_nothing(floor: Floor, field: str, value: float) -> None:
    floor.watch.hear_server(replace(floor.words["server_1"], **{field: value}), floor.now_s)
    nothing_ran = field == "latency_p99_s" and math.isnan(value)
    assert floor.watch.insane == (not nothing_ran) and floor.run(60.0) == AS_DECLARED


def test_a_server_that_says_that_it_answered_before_it_was_asked_lengthens_no_way_to_it(floor: Floor) -> None:
    """Its percentile is what is taken off the robots', and is not the network's."""
    floor.words["server_1"] = replace(floor.words["server_1"], latency_p99_s=-3.0)
    assert "carry" not in drive(floor).travels and floor.watch.insane > 0


@pytest.mark.parametrize("kept", [SloCounts(-1, 0), SloCounts(0, 1 << 60)])
def test_of_counts_of_robots_too(floor: Floor, kept: SloCounts) -> None:
    drive(floor)
    floor.watch.hear_robot(replace(floor.robots["carry_0"], kept={"system1": kept}), floor.now_s)
    assert floor.watch.insane == 1


@pytest.mark.parametrize("value", WRONG)
def test_of_robots_too(floor: Floor, value: float) -> None:
    drive(floor)
    word = floor.robots["carry_1"]
    for wrong in (
        replace(word, horizons_s=value),
        replace(word, asked={"system1": ComponentTotals(1, value)}),
        replace(word, asked={"system1": ComponentTotals(value, 1.0)}),  # type: ignore[arg-type]
        replace(word, round_trip_p99_s=value),
    ):
        floor.watch.hear_robot(wrong, floor.now_s)
    assert floor.watch.insane >= 3 and drive(floor) == AS_DECLARED


@pytest.mark.parametrize("more", [100, 10**6, 10**8])
@pytest.mark.parametrize("times", [0.0, 2.0, 5.0])
@pytest.mark.parametrize("after", range(2))
def test_one_count_that_jumps_makes_nothing_sure(more: int, times: float, after: int) -> None:
    """A word with a million replies more outweighed all others: two plans were made of it, for a server twice as slow."""
    floor = Floor()
    floor.drives("carry_0")
    floor.run(20.0 + after * PERIOD_S)
    for jumps in ("server_1", "carry_0"):
        server, robot = floor.words["server_1"], floor.robots["carry_0"]
        if jumps == "server_1":
            seconds = server.inference_s + more * times * 0.04
            floor.watch.hear_server(replace(server, replies=server.replies + more, inference_s=seconds), floor.now_s + 1.1)
        else:
            asked = {
                part: ComponentTotals(said.answers + more, said.round_trips_s + more * times) for part, said in robot.asked.items()
            }
            floor.watch.hear_robot(replace(robot, asked=asked, horizons=robot.horizons + more), floor.now_s + 2.1)
        floor.change = lambda: floor.drives("carry_0")
        assert floor.run(30.0) == AS_DECLARED and not floor.found
    if more >= 10**6 and times:
        assert floor.watch.drift.implausible == 1


def test_thousands_of_names_take_no_memory_and_nobodys_place(floor: Floor) -> None:
    for i in range(5000):
        floor.watch.hear_robot(RobotStatusSample(robot=f"robot_{i}", task="carry", server="server_1", streams=True), floor.now_s)
    assert floor.watch.strangers == 5000 and floor.watch.factors.wants("carry_8", "carry")
    many = {f"component_{i}": ComponentTotals(1, 0.1) for i in range(5000)}
    floor.watch.hear_robot(RobotStatusSample(robot="carry_1", task="carry", server="", streams=True, asked=many), floor.now_s)
    assert floor.watch.insane == 1


def test_two_servers_with_one_name_say_nothing_about_its_pace(floor: Floor) -> None:
    """They count from different beginnings, and one is four times as slow."""
    rng, other = random.Random(1), floor.ready("server_1")

    def speak() -> None:
        nonlocal other
        other = replace(other, replies=other.replies + 10, inference_s=other.inference_s + 10 * 0.16)
        if rng.random() < 0.5:
            floor.watch.hear_server(other, floor.now_s)

    floor.change = speak
    floor.run(120.0)
    assert 0.25 <= floor.watch.seen.paces.get("server_1", 1.0) <= 4.0 and len(floor.found) <= 2, floor.found
    assert set(floor.watch.seen.paces) <= {"server_1"}


def test_a_server_that_began_anew_or_of_another_model_or_batch_does_not_count(floor: Floor) -> None:
    floor.words["server_1"] = replace(floor.ready("server_1"), replies=3)
    assert floor.run(10.0) == AS_DECLARED
    floor.service_s["server_1"] = 0.4
    for stale in (replace(floor.words["server_1"], model="older"), replace(floor.words["server_1"], batch_size=2)):
        floor.words["server_1"] = stale
        assert floor.run(20.0) == AS_DECLARED


def test_a_thousand_statuses_a_second_are_as_good_as_two(floor: Floor) -> None:
    word = floor.words["server_1"]
    for i in range(5000):
        word = replace(word, replies=word.replies + 1, inference_s=word.inference_s + 0.04)
        floor.watch.hear_server(word, floor.now_s + i / 1000)
    assert floor.watch.look(floor.now_s + 5.0) is None and floor.watch.drift.implausible == 0
    means = BatchMeans()
    for _ in range(1000):
        means.add(1.0, 1.0)
    assert len(means) == MOST_LOTS


# --- what plans are made with ---


def test_a_server_at_a_pace_has_the_curves_of_one_that_takes_so_many_times_longer() -> None:
    seen = FactoryEstimates(paces={"server_2": 2.0}, models={("judge", "GPU"): 1.5})
    declared = {"server_1": "GPU", "server_2": "GPU"}
    profile, own = seen.profile(PROFILE, declared), seen.types(declared)["server_2"]
    assert seen.types(declared)["server_1"] == "GPU" != own
    for rate_hz in (1.0, 20.0, 45.0):
        slow_s = profile.latency_s("policy", own, "fixed", 4, rate_hz, "p99")
        assert slow_s == pytest.approx(2 * PROFILE.latency_s("policy", "GPU", "fixed", 4, 2 * rate_hz, "p99"))
    assert profile.max_rate_hz("policy", own, "fixed", 4) == 50.0 and profile.max_rate_hz("policy", "GPU", "fixed", 4) == 100.0
    assert profile.latency_s("judge", "GPU", "continuous", 1, 0.1, "mean") == pytest.approx(0.075)


def test_all_that_was_seen_can_be_kept_and_read() -> None:
    seen = FactoryEstimates(
        lost=("server_1",),
        paces={"server_2": 1.3},
        models={("policy", "GPU"): 0.9},
        travels={"carry": NetworkDelay(mean_s=0.01, tail_s=0.02)},
        cycles_s={"carry": 0.3},
        calls={"carry": {"system2": 0.2}},
        stragglers={"server_2": StragglerConfig(share=0.02, factor=4.0)},
    )
    assert from_json(to_json(seen)) == seen and from_json({}) == AS_DECLARED and to_json(AS_DECLARED) == {}
