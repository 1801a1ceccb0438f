"""Robots' servers and their standbys on different hosts: in every plan, when servers change, and in words where it cannot be."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.factory import Factory, parse_factory
from ros2_rfm_serving.scheduler import PlanJob, plan, plan_factory
from ros2_rfm_serving.scheduler.anti_affinity import spread
from ros2_rfm_serving.scheduler.build_problem import problem_of
from ros2_rfm_serving.scheduler.estimates import AS_DECLARED, FactoryEstimates
from ros2_rfm_serving.scheduler.failover import seeing
from ros2_rfm_serving.scheduler.plan_service import refit_by
from ros2_rfm_serving.scheduler.prediction.curves import Curves, ServerConfiguration
from ros2_rfm_serving.scheduler.problem import PlanningProblem
from ros2_rfm_serving.scheduler.reserved_standby import with_reserved
from ros2_rfm_serving.scheduler.server_load import hosts_of
from ros2_rfm_serving.scheduler.slo import Slo
from ros2_rfm_serving.scheduler.solution import ServerSolution, Stream
from ros2_rfm_serving.scheduler.standby import cover_of
from ros2_rfm_serving.types import Placement, Schedule
from test.unit.scheduler.small_factories import small_factory
from test.unit.scheduler.test_adaptation import PROFILE, fleet
from test.unit.scheduler.test_adaptation import factory as small

REFIT = refit_by(PROFILE, None)
CURVES = Curves(PROFILE, ("policy", "judge"), ("GPU",), {("policy", "GPU"): 1.0, ("judge", "GPU"): 1.0})


def factory(gpus: dict[str, int], robots: int = 6, standby: str = "{}") -> Factory:
    hosts = "".join(f"  {name}: {{address: 10.0.0.{i + 1}, gpus: {{GPU: {num}}}}}\n" for i, (name, num) in enumerate(gpus.items()))
    return parse_factory(
        f"""
server_cluster: {{num_servers: {sum(gpus.values())}, gpu_type: GPU}}
standby: {standby}
robot_fleet: [{{task: carry, num_robots: {robots}}}]
hosts:
{hosts}
carry:
  pipeline: {{action_period_ms: 400}}
  components:
    system1: {{model: policy, slo_ms: 60}}
    monitor: {{model: judge, freq_hz: 2, slo_ms: 50}}
"""
    )


PROBLEM = problem_of(factory({"a": 2, "b": 2}), {"carry": 1}, PROFILE, None)


def together(declared: Factory, schedule: Schedule) -> list[tuple[str, str]]:
    """Servers and standbys of routes on one host."""
    hosts = {server: seat.host for server, seat in declared.gpu_assignments.items()}
    return [(r.server, r.standby) for r in schedule.routes if r.standby and hosts[r.server] == hosts[r.standby]]


def planned(declared: Factory) -> Schedule:
    order = PlanJob(factory=declared, robots=tuple(declared.robots), policy="best")
    return plan(order, PROFILE, None, work=0.0).fleet.schedule


@pytest.mark.parametrize("gpus", [{"a": 2, "b": 2}, {"a": 1, "b": 3}, {"a": 2, "b": 1, "c": 2}])
@pytest.mark.parametrize("standby", ["{}", "{num_servers: 1}", "{num_servers: 1, peers: false}"])
def test_no_robot_has_its_server_and_its_standby_on_one_host(gpus: dict[str, int], standby: str) -> None:
    declared = factory(gpus, standby=standby)
    schedule = planned(declared)
    assert not together(declared, schedule) and any(route.standby for route in schedule.routes)


def test_a_plan_that_cannot_says_why_and_what_would_help() -> None:
    problem = of_hosts(s1="a", s2="a", s3="b")
    servers = [server("s1", "policy"), server("s2", "policy"), server("s3", "judge")]
    cover = cover_of(servers, problem, CURVES, peers=True)
    assert not cover.standby_of and cover.uncovered == ("s1", "s2", "s3") and cover.beside == ("s1", "s2")
    assert cover.notes == (
        "no standby covers the loss of s1, s2, s3",
        "only servers of the same host could stand by for s1, s2 (standby: {same_host: true})",
    )
    allowed = cover_of(servers, replace(problem, same_host=True), CURVES, peers=True)
    assert allowed.standby_of == {"s1": "s2", "s2": "s1"} and allowed.notes == ("no standby covers the loss of s3",)


def test_a_host_whose_servers_fall_together_on_one_standby_is_named() -> None:
    problem = of_hosts(s1="a", s2="a", s3="b", s4="c")
    most_hz = CURVES.capacity_hz(ServerConfiguration("policy", "GPU", "fixed", 1), Slo(1.0))
    busy = [server(name, "policy", most_hz / 2.5) for name in ("s1", "s2")]
    one = cover_of([*busy, server("s3", "policy")], problem, CURVES, peers=True)
    assert one.standby_of["s1"] == one.standby_of["s2"] == "s3" and one.crowding == ()
    busy = [server(name, "policy", most_hz / 1.5) for name in ("s1", "s2")]
    full = cover_of([*busy, server("s3", "policy")], problem, CURVES, peers=True)
    assert full.standby_of["s1"] == full.standby_of["s2"] == "s3"
    assert full.notes[-1] == "the loss of host a at once is more than the standbys of its servers carry"
    two = cover_of([*busy, server("s3", "policy"), server("s4", "policy")], problem, CURVES, peers=True)
    assert {two.standby_of["s1"], two.standby_of["s2"]} == {"s3", "s4"} and two.crowding == ()


def test_without_hosts_or_with_one_nothing_changes() -> None:
    one, none = factory({"a": 4}), factory({"a": 4}).model_copy(update={"hosts": {}})
    assert planned(one) == planned(none) and one.hosts_of_servers == {}


def test_a_repair_and_a_return_keep_hosts_apart() -> None:
    declared = factory({"a": 2, "b": 2, "c": 2}, standby="{num_servers: 2}")
    order = PlanJob(factory=declared, robots=tuple(declared.robots), policy="best")
    fleet = plan(order, PROFILE, None, work=0.0).fleet
    for lost in declared.servers:
        changed, refused = seeing(fleet, declared, FactoryEstimates(lost=(lost,)), (lost,), (), REFIT)
        assert not together(declared, changed.schedule), lost
        back, _ = seeing(changed, declared, AS_DECLARED, (), (lost,), REFIT)
        assert not together(declared, back.schedule), lost
        assert not refused


def test_a_whole_host_is_lost_and_its_robots_are_on_the_others() -> None:
    declared = factory({"a": 3, "b": 3}, robots=4, standby="{num_servers: 2}")
    order = PlanJob(factory=declared, robots=tuple(declared.robots), policy="best")
    fleet = plan(order, PROFILE, None, work=0.0).fleet
    for host in ("a", "b"):
        lost = tuple(server for server, seat in declared.gpu_assignments.items() if seat.host == host)
        changed, refused = seeing(fleet, declared, FactoryEstimates(lost=lost), lost, (), REFIT)
        assert not refused and not {route.server for route in changed.schedule.routes} & set(lost)
        standby_of = {(r.robot, r.component): r.standby for r in fleet.schedule.routes if r.server in lost}
        now = {(r.robot, r.component): r.server for r in changed.schedule.routes}
        assert all(now[key] == standby for key, standby in standby_of.items() if standby and standby not in lost)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 3), st.integers(0, 1))
def test_of_random_factories(seed: int, num_hosts: int, num_standby: int) -> None:
    small = small_factory(seed)
    declared = on_hosts(small.factory, num_hosts, num_standby)
    hosts = declared.hosts_of_servers
    solution = plan_factory(declared, small.profile, work=0.0, explained=False)
    for server, standby in solution.standby_of.items():
        assert not hosts or hosts[server] != hosts[standby]
    without = plan_factory(declared.model_copy(update={"hosts": {}}), small.profile, work=0.0, explained=False)
    assert solution.objective == without.objective  # names alone differ
    assert sorted((s.model, s.gpu_type, s.num_streams) for s in solution.servers) == sorted(
        (s.model, s.gpu_type, s.num_streams) for s in without.servers
    )
    assert len({s.server for s in solution.servers}) == len(solution.servers)
    assert all(declared.gpu_types[s.server] == s.gpu_type for s in solution.servers if not s.gpu)


def on_hosts(declared: Factory, num_hosts: int, num_standby: int) -> Factory:
    """Every host has all GPUs: whatever fits."""
    gpus = {gpu: len(declared.servers) for gpu in set(declared.gpu_types.values())}
    plain = factory({f"h{i}": 1 for i in range(num_hosts)}).hosts
    hosts = {name: host.model_copy(update={"gpus": gpus}) for name, host in plain.items()}
    kept = min(num_standby, len(declared.servers) - 1)
    standby = declared.standby.model_copy(update={"num_servers": kept})
    return declared.model_copy(update={"hosts": hosts, "standby": standby})


def of_hosts(**hosts: str) -> PlanningProblem:
    return replace(PROBLEM, hosts=hosts)


def server(name: str, model: str, rate_hz: float = 1.0) -> ServerSolution:
    stream = Stream(task="carry", component="system1", num_robots=1, rate_hz=rate_hz, cap_hz=1.0, slo=Slo(1.0))
    return ServerSolution(
        server=name,
        gpu_type="GPU",
        model=model,
        batching="fixed",
        batch_size=1,
        streams=(stream,),
        rate_hz=rate_hz,
        mean_s=0.01,
        p99_s=0.02,
    )


@given(st.lists(st.sampled_from("mn"), min_size=1, max_size=5), st.lists(st.sampled_from("ab"), min_size=5, max_size=6))
def test_no_naming_covers_more(models: list[str], hosts: list[str]) -> None:
    """Against every permutation of the names."""
    names = [f"s{i}" for i in range(len(hosts))]
    problem = replace(
        problem_of(factory({"a": 2, "b": 2}), {"carry": 1}, PROFILE, None), hosts=dict(zip(names, hosts, strict=True))
    )

    def able(other: ServerSolution, one: ServerSolution) -> bool:
        return other.model == one.model

    servers = [server(name, model) for name, model in zip(names, models, strict=False)]
    idle = dict.fromkeys(names[len(servers) :], "GPU")
    found = spread(servers, idle, problem, able)

    def covered(given: list[str]) -> int:
        pairs = [(i, j) for i, j in itertools.permutations(range(len(servers)), 2) if models[i] == models[j]]
        return len({i for i, j in pairs if problem.apart(given[i], given[j])})

    assert len({s.server for s in found}) == len(found) and [s.model for s in found] == models
    assert covered([s.server for s in found]) == max(covered(list(p)) for p in itertools.permutations(names))


def test_who_hosts_its_model_already_keeps_its_name() -> None:
    servers = [server("s1", "m"), server("s2", "m"), server("s3", "n"), server("s4", "n")]
    problem = of_hosts(s1="a", s2="a", s3="b", s4="b")
    before = Schedule(
        epoch=1,
        placements=tuple(
            Placement(
                server=s.server,
                model=s.model,
                components=("system1",),
                gpu_type="GPU",
                batching="fixed",
                batch_size=1,
                max_sessions=8,
                predicted_p99_s=0.02,
            )
            for s in servers
        ),
        routes=(),
        predicted_actions_hz=4.0,
        policy="best",
    )
    running = replace(problem, previous=before)
    assert spread(servers, {}, running, lambda other, one: other.model == one.model) == servers
    fresh = spread(servers, {}, problem, lambda other, one: other.model == one.model)
    assert {frozenset(s.server for s in fresh if s.model == model) for model in "mn"} != {
        frozenset({"s1", "s2"}),
        frozenset({"s3", "s4"}),
    }


@pytest.mark.timeout(60)
def test_many_servers_that_nobody_can_cover_are_named_at_once() -> None:
    """A host with many GPUs and one with none of theirs: it took days to find that no exchange helps."""
    hosts = {f"s{i}": "a" for i in range(128)} | {"cpu": "b"}
    servers = [*(server(f"s{i}", "m") for i in range(128)), replace(server("cpu", "n"), gpu_type="CPU")]
    assert spread(servers, {}, of_hosts(**hosts), lambda other, one: other.model == one.model) == servers


def test_what_robots_wait_for_is_on_the_nearest_hosts() -> None:
    """Of two that are equal but for their round trips, whichever comes first in the file."""
    for near, far in (("a", "b"), ("b", "a")):
        declared = factory({"a": 1, "b": 1}, robots=2)
        hosts = {name: host.model_copy(update={"round_trip_ms": 15.0 * (name == far)}) for name, host in declared.hosts.items()}
        made = planned(declared.model_copy(update={"hosts": hosts}))
        at = {p.components[0]: declared.gpu_assignments[p.server].host for p in made.placements}
        assert at == {"system1": near, "monitor": far}


def test_a_host_behind_a_narrow_network_is_far_and_may_be_too_narrow() -> None:
    """20 KB take 16 ms at 10 Mbit/s: System 1 is on the other host, and the plan reckons with it."""
    declared = factory({"a": 1, "b": 1}, robots=2)
    hosts = {**declared.hosts, "a": declared.hosts["a"].model_copy(update={"bandwidth_mbit_s": 10.0})}
    (entry,) = declared.robot_fleet
    fleet = (entry.model_copy(update={"network": entry.network.model_copy(update={"observation_kb": 20.0})}),)
    narrow = declared.model_copy(update={"hosts": hosts, "robot_fleet": fleet})
    assert narrow.round_trips_s == {"server_1": pytest.approx(0.016), "server_2": 0.0}
    assert narrow.with_round_trips().network_of("carry").round_trip_ms == pytest.approx(16.0)
    solution = plan_factory(narrow, PROFILE, None)
    (judge,) = [server for server in solution.servers if server.model == "judge"]
    assert judge.server == "server_1" and not [note for note in solution.notes if "Mbit/s" in note]
    hosts["a"] = hosts["a"].model_copy(update={"bandwidth_mbit_s": 0.5})  # two judged at 2 Hz, 20 KB each: 0.64 Mbit/s
    solution = plan_factory(narrow.model_copy(update={"hosts": hosts}), PROFILE, None)
    (link,) = solution.links
    assert (
        solution.feasible and (link.host, link.takes_mbit_s) == ("a", pytest.approx(0.45)) and link.in_mbit_s <= 0.45 * (1 + 1e-6)
    )


@pytest.mark.parametrize(("there", "standby"), [("a", ""), ("b", "server_3")])
def test_the_first_robot_of_a_server_brings_it_no_standby_on_its_own_host(there: str, standby: str) -> None:
    """While it was idle it had none."""
    running = fleet(small(robots=2, servers=3, extra="standby: {num_servers: 1, peers: false}"))
    idle = next(p for p in running.schedule.placements if p.model == "policy" and not p.standby)
    reserved = replace(idle, server="server_3", standby=True)
    hosts = hosts_of([replace(idle, server="server_1"), reserved], running.problem.seen)
    demand = next(d for d in running.problem.demands if d.model == "policy")
    route = replace(next(r for r in running.schedule.routes if r.component == demand.component), server="server_1", standby="")
    problem = replace(running.problem, hosts={"server_1": "a", "server_3": there})
    (found,) = with_reserved([(route, demand)], hosts, running.curves, problem, None)
    assert found.standby == standby
