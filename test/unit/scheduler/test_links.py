"""Links of hosts: no plan, admission or repair asks for more than they take, now and after every loss that a standby covers."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import Factory, RobotEntry, parse_factory
from ros2_rfm_serving.factory.cluster import Standby
from ros2_rfm_serving.scheduler import ActiveFleet, fleet_of, plan_factory
from ros2_rfm_serving.scheduler.estimates import FactoryEstimates
from ros2_rfm_serving.scheduler.failover import seeing
from ros2_rfm_serving.scheduler.link_load import LinkDirection, NetworkLinkLoads
from ros2_rfm_serving.scheduler.plan_service import refit_by
from ros2_rfm_serving.scheduler.promises import broken
from ros2_rfm_serving.types import Schedule
from test.unit.scheduler.test_adaptation import PROFILE
from test.unit.simulation.promises import on_links, too_much

REFIT = refit_by(PROFILE, None)
ROUNDING = 1 + 1e-5
CARRY = """
carry:
  pipeline: {action_period_ms: 400}
  components:
    system1: {model: policy, slo_ms: 900}
    monitor: {model: judge, freq_hz: 2, slo_ms: 900}
"""


def factory(hosts: str, fleet: str, tasks: str = CARRY, servers: int = 4, more: str = "") -> Factory:
    cluster = f"server_cluster: {{num_servers: {servers}, gpu_type: GPU}}"
    return parse_factory(f"{cluster}\nrobot_fleet: [{fleet}]\nhosts:\n{hosts}\n{more}\n{tasks}")


def carriers(num: int, kb: float = 20, reply_kb: float = 0) -> str:
    return f"{{task: carry, num_robots: {num}, network: {{observation_kb: {kb}, reply_kb: {reply_kb}}}}}"


def two_hosts(a: str = "", b: str = "", gpus: int = 2) -> str:
    return "\n".join(
        f"  {name}: {{address: 10.0.0.{i}, gpus: {{GPU: {gpus}}}{more}}}" for i, (name, more) in enumerate([("a", a), ("b", b)], 1)
    )


# --- every loss that is covered ---


def servers_with_standbys(schedule: Schedule) -> Iterator[list[str]]:
    yield from ([server] for server in {route.server for route in schedule.routes if route.standby})


def hosts_with_standbys(declared: Factory, schedule: Schedule, notes: Collection[str]) -> Iterator[list[str]]:
    """Whose loss is promised to be covered: all of its servers are, elsewhere, and no note says otherwise."""
    seats = {server: seat.host for server, seat in declared.gpu_assignments.items()}
    for host in declared.hosts:
        mine = [route for route in schedule.routes if seats.get(route.server) == host]
        if (
            mine
            and all(r.standby and seats[r.standby] != host for r in mine)
            and not any(f"loss of host {host} at" in n for n in notes)
        ):
            yield list({route.server for route in mine})


def faults(declared: Factory, schedule: Schedule, notes: Collection[str] = ("",), *, hosts: bool = True) -> list[str]:
    found = too_much(declared, on_links(declared, schedule))
    losses = [*servers_with_standbys(schedule), *(hosts_with_standbys(declared, schedule, notes) if hosts else ())]
    return [
        *found,
        *(f"without {lost}: {text}" for lost in losses for text in too_much(declared, on_links(declared, schedule, lost))),
    ]


# --- random factories ---


def drawn(seed: int) -> Factory:
    """Two to four hosts whose links take a tenth of what their servers could do, all of it or more, one to three classes."""
    rng = random.Random(seed)
    names = ["a", "b", "c", "d"][: rng.randint(2, 4)]
    tasks = [f"task_{i}" for i in range(rng.randint(1, 3))]
    homes = {task: rng.choice(names) for task in tasks if rng.random() < 0.3}
    lines, servers = [], 0
    for i, name in enumerate(names):
        gpus = rng.randint(0 if i else 1, 3)
        servers += gpus
        link = f", bandwidth_mbit_s: {rng.choice([1, 3, 10, 20, 60])}" if rng.random() < 0.8 else ""
        robots = f", robots: [{', '.join(task for task, home in homes.items() if home == name)}]"
        lines.append(f"  {name}: {{address: 10.0.0.{i + 1}{f', gpus: {{GPU: {gpus}}}' if gpus else ''}{link}{robots}}}")
    fleet = ", ".join(
        f"{{task: {task}, num_robots: {rng.randint(1, 20)}, network: {{observation_kb: {rng.choice([0, 5, 20, 60])}, "
        f"reply_kb: {rng.choice([0, 2, 10])}, round_trip_ms: {rng.choice([0, 0, 5])}}}}}"
        for task in tasks
    )
    text = "\n".join(task_text(task, rng) for task in tasks)
    reserved = f"standby: {{num_servers: {int(rng.random() < 0.3 and servers > 1)}, same_host: {str(rng.random() < 0.2).lower()}}}"
    share = f"planning: {{link_share: {rng.choice([0.5, 0.9, 1.0])}}}"
    return factory("\n".join(lines), fleet, text, servers, f"{reserved}\n{share}")


def task_text(task: str, rng: random.Random) -> str:
    watch = f"\n    monitor: {{model: judge, freq_hz: {rng.choice([0.5, 2])}, slo_ms: 600}}" if rng.random() < 0.5 else ""
    floor = f"\n  min_action_rate_hz: {rng.choice([0.1, 0.5])}" if rng.random() < 0.3 else ""
    mode = rng.choice(["sync", "async"])
    return (
        f"{task}:\n  pipeline: {{action_period_ms: {rng.choice([200, 400])}}}\n  execution: {{mode: {mode}}}{floor}\n"
        f"  components:\n    system1: {{model: policy, slo_ms: {rng.choice([200, 800])}}}{watch}"
    )


@pytest.mark.patient
@given(seed=st.integers(0, 1_000_000))
@settings(max_examples=25, deadline=None)
def test_nothing_that_is_called_feasible_asks_more_of_a_link_than_it_takes(seed: int) -> None:
    declared = drawn(seed)
    solution = plan_factory(declared, PROFILE, None, work=0.05, explained=False)
    if not solution.feasible:
        assert solution.problems
        return
    schedule = fleet_of(declared, solution, declared.robots, PROFILE, None, epoch=1).schedule
    assert faults(declared, schedule, solution.notes) == []
    load = on_links(declared, schedule)
    for link in solution.links:
        assert link.in_mbit_s == pytest.approx(load[link.host, "in"], rel=1e-6, abs=1e-9)
        assert link.out_mbit_s == pytest.approx(load[link.host, "out"], rel=1e-6, abs=1e-9)


@given(seed=st.integers(0, 1_000_000))
@example(seed=144)
@settings(max_examples=12, deadline=None)
def test_no_sequence_of_changes_asks_more_of_a_link_than_it_takes(seed: int) -> None:
    """Robots come and go; a server is lost, its robots are at their standbys; more come."""
    declared, rng = drawn(seed), random.Random(seed)
    solution = plan_factory(declared, PROFILE, None, work=0.0, explained=False)
    if not solution.feasible:
        return
    running = fleet_of(declared, solution, declared.robots, PROFILE, None, epoch=1)
    running = changed(declared, running, rng, "early")
    assert faults(declared, running.schedule, hosts=False) == []
    lost = rng.choice(running.schedule.routes).server
    if running.schedule.placements[0].gpu or len(declared.servers) == 1:
        return
    running, _ = seeing(running, declared, FactoryEstimates(lost=(lost,)), (lost,), (), REFIT)
    if lost in {route.server for route in running.schedule.routes}:
        return  # nobody could be served without it
    assert faults(declared, running.schedule, hosts=False) == []
    assert faults(declared, changed(declared, running, rng, "late").schedule, hosts=False) == []


def changed(declared: Factory, running: ActiveFleet, rng: random.Random, name: str) -> ActiveFleet:
    for i in range(8):
        try:
            if running.robots and rng.random() < 0.2:
                running = running.release(rng.choice(running.robots).name)
            else:
                running = running.admit(RobotEntry(name=f"{name}_{i}", task=rng.choice(list(declared.tasks)), index=99 + i))
        except ScheduleError:
            continue
    return running


# --- one by one ---


def planned(declared: Factory) -> ActiveFleet:
    solution = plan_factory(declared, PROFILE, None, explained=False)
    assert solution.feasible, solution.problems
    return fleet_of(declared, solution, declared.robots, PROFILE, None, epoch=1)


@pytest.mark.parametrize("host", ["a", "b"])
def test_what_needs_a_wide_link_is_where_there_is_one(host: str) -> None:
    """20 KB at 10 robots' 2 Hz are 3.2 Mbit/s: beside its delay next to nothing is lost to a narrow link, whichever host has it."""
    free = plan_factory(factory(two_hosts(**{host: ", round_trip_ms: 80"}), carriers(10)), PROFILE, None)
    declared = factory(two_hosts(**{host: ", bandwidth_mbit_s: 2"}), carriers(10))  # type: ignore[arg-type]
    solution = plan_factory(declared, PROFILE, None)
    assert solution.feasible and solution.objective >= 0.95 * free.objective > 22, "20 where the delay is everybody's"
    schedule = fleet_of(declared, solution, declared.robots, PROFILE, None, epoch=1).schedule
    assert faults(declared, schedule, solution.notes) == []


def test_rates_are_capped_where_no_place_has_room() -> None:
    """Both links take 0.9 x 1 Mbit/s, of which the monitors' 2 Hz of 6 robots take a part: 0.16 Mbit for a request."""
    declared = factory(two_hosts(", bandwidth_mbit_s: 2", ", bandwidth_mbit_s: 2"), carriers(6))
    free = plan_factory(factory(two_hosts(), carriers(6)), PROFILE, None)
    solution = plan_factory(declared, PROFILE, None)
    left_hz = 0.9 * (2 + 2) / 0.16 - 6 * 2
    assert solution.feasible and 0.97 * left_hz <= solution.objective <= left_hz * ROUNDING < free.objective
    assert solution.bound <= left_hz * ROUNDING
    assert faults(declared, fleet_of(declared, solution, declared.robots, PROFILE, None, epoch=1).schedule) == []


def test_obligations_that_no_link_carries_are_refused_with_host_and_figures() -> None:
    declared = factory(two_hosts(", bandwidth_mbit_s: 0.5", ", bandwidth_mbit_s: 0.5"), carriers(6))
    solution = plan_factory(declared, PROFILE, None)
    assert not solution.feasible and not solution.servers
    (text,) = [text for text in solution.problems if "host a" in text or "host b" in text][:1]
    assert "may be sent" in text and "its link takes 0.45 Mbit/s (90% of bandwidth_mbit_s 0.5)" in text and "faster link" in text
    assert any(text.startswith("feasible with fewer robots") for text in solution.problems)


def test_answers_count_the_other_way() -> None:
    """Chunks of 20 KB out of a host whose observations are next to nothing."""
    declared = factory(two_hosts(*2 * [", bandwidth_mbit_s: 2"]), carriers(6, kb=0.1, reply_kb=20))
    solution = plan_factory(declared, PROFILE, None)
    assert solution.feasible and max(link.out_mbit_s for link in solution.links) > 1.0 > max(
        link.in_mbit_s for link in solution.links
    )
    assert faults(declared, fleet_of(declared, solution, declared.robots, PROFILE, None, epoch=1).schedule) == []


def test_the_link_of_robots_own_host_counts_and_what_stays_there_does_not() -> None:
    """A floor of robots behind 2 Mbit/s; with GPUs of its own there is nothing to be sent."""
    floor = "  floor: {address: 10.0.0.9, robots: [carry], bandwidth_mbit_s: 2%s}"
    far = factory(f"{floor % ''}\n{two_hosts()}", carriers(5))
    solution = plan_factory(far, PROFILE, None)
    (link,) = solution.links
    assert solution.feasible and link.host == "floor" and 1.5 < link.out_mbit_s <= 1.8 * ROUNDING and link.in_mbit_s == 0
    near = factory(floor % ", gpus: {GPU: 4}", carriers(5))
    assert plan_factory(near, PROFILE, None).links[0].out_mbit_s == 0


def test_a_standby_behind_a_narrow_link_is_none_and_the_note_says_so() -> None:
    """Host a carries everybody's System 1; the reserve on b could by its GPU, not by its link. With no reserve, b hosts nothing at
    all: who is near is not kept waiting, and nobody is there whose link could be too narrow."""
    task = "carry:\n  pipeline: {action_period_ms: 400}\n  components: {system1: {model: policy, slo_ms: 900}}"
    reserve = "standby: {num_servers: 1}"
    wide = planned(factory(two_hosts(gpus=1), carriers(6), task, servers=2, more=reserve))
    assert {route.standby for route in wide.schedule.routes} == {"server_2"} and not wide.uncovered
    narrow = factory(two_hosts(b=", bandwidth_mbit_s: 1.5", gpus=1), carriers(6), task, servers=2, more=reserve)
    solution = plan_factory(narrow, PROFILE, None)
    assert any(note.startswith("no standby covers the loss of server_1") for note in solution.notes)
    assert any(note.startswith("without server_1: to host b may be sent ") for note in solution.notes)
    running = fleet_of(narrow, solution, narrow.robots, PROFILE, None, epoch=1)
    assert faults(narrow, running.schedule, solution.notes) == [] and "server_1" in running.uncovered
    without = plan_factory(narrow.model_copy(update={"standby": Standby()}), PROFILE, None)
    assert [server.server for server in without.servers] == ["server_1"] and without.objective > 14
    assert without.notes == ("no standby covers the loss of server_1",)


def test_nobody_is_admitted_whom_no_link_has_room_for() -> None:
    declared = factory(two_hosts(*2 * [", bandwidth_mbit_s: 2.5"]), carriers(4))
    running, admitted = planned(declared), 0
    with pytest.raises(ScheduleError, match=r"bandwidth_mbit_s|another robot"):
        for admitted in range(40):
            running = running.admit(RobotEntry(name=f"late_{admitted}", task="carry", index=9))
            assert faults(declared, running.schedule, hosts=False) == []
    free = planned(factory(two_hosts(), carriers(4)))
    for i in range(admitted + 1):
        free = free.admit(RobotEntry(name=f"late_{i}", task="carry", index=9))


def test_a_schedule_that_a_link_does_not_carry_any_more_is_broken() -> None:
    """The same routes under a descriptor with a narrower link."""
    before = factory(two_hosts(a=", bandwidth_mbit_s: 100"), carriers(8))
    running = planned(before)
    assert broken(running) == ()
    hosts = {name: host.model_copy(update={"bandwidth_mbit_s": 0.3}) for name, host in before.hosts.items()}
    after = before.model_copy(update={"hosts": hosts})
    narrowed = REFIT(after, running.schedule, running.robots, FactoryEstimates())
    assert any("bandwidth_mbit_s 0.3" in text for text in broken(narrowed))


def test_after_a_host_is_lost_the_next_plan_is_within_the_links_that_are_left() -> None:
    declared = factory(two_hosts(*2 * [", bandwidth_mbit_s: 3"]), carriers(6))
    lost = tuple(server for server, seat in declared.gpu_assignments.items() if seat.host == "a")
    left = plan_factory(declared, PROFILE, None, seen=FactoryEstimates(lost=lost), previous=planned(declared).schedule)
    assert left.feasible and {declared.gpu_assignments[s.gpu or s.server].host for s in left.servers} == {"b"}
    assert faults(declared, fleet_of(declared, left, declared.robots, PROFILE, None, epoch=2).schedule) == []


def test_other_policies_are_judged_by_links() -> None:
    declared = factory(two_hosts(*2 * [", bandwidth_mbit_s: 1"]), carriers(6))
    for policy in ("rosa", "baseline3"):
        solution = plan_factory(declared, PROFILE, None, policy=policy, explained=False)
        assert not solution.feasible and any("bandwidth_mbit_s" in text for text in solution.problems)


def test_wide_links_change_nothing() -> None:
    """What no link is too narrow for is planned as if there were none."""
    for seed in range(6):
        narrow = drawn(seed)
        hosts = {name: host.model_copy(update={"bandwidth_mbit_s": wide}) for name, host in narrow.hosts.items() for wide in (1e5,)}
        free = {name: host.model_copy(update={"bandwidth_mbit_s": None}) for name, host in narrow.hosts.items()}
        one, other = (
            plan_factory(narrow.model_copy(update={"hosts": h}), PROFILE, None, work=0.05, explained=False) for h in (hosts, free)
        )
        assert one.servers == other.servers and one.standby_of == other.standby_of and one.problems == other.problems


@pytest.mark.parametrize("names", [2, 3])
def test_the_worst_loss_is_shown(names: int) -> None:
    """Each host takes over what another one loses."""
    hosts = "\n".join(f"  h{i}: {{address: 10.0.0.{i + 1}, gpus: {{GPU: 2}}, bandwidth_mbit_s: 100}}" for i in range(names))
    declared = factory(hosts, carriers(4), servers=2 * names)
    solution = plan_factory(declared, PROFILE, None)
    schedule = fleet_of(declared, solution, declared.robots, PROFILE, None, epoch=1).schedule
    covered = [*servers_with_standbys(schedule), *hosts_with_standbys(declared, schedule, solution.notes)]
    worst: dict[str, float] = {}
    for lost in covered:
        for (host, _), mbit_s in on_links(declared, schedule, lost).items():
            worst[host] = max(worst.get(host, 0.0), mbit_s)
    assert covered and {link.host: link.worst_in_mbit_s for link in solution.links if link.worst_in_mbit_s} == pytest.approx(
        {host: mbit_s for host, mbit_s in worst.items() if mbit_s}
    )
    assert solution.to_json()["links"][0].keys() >= {"host", "takes_mbit_s", "in_mbit_s", "worst"}


@pytest.mark.parametrize("seed", [4779, 4702, 4714])
def test_what_a_newcomer_fills_to_the_brim_or_finds_idle_stays_promised(seed: int) -> None:
    """A link that is full by a rounding error is not over, or the next newcomer breaks what was promised; and a server that all
    robots have left keeps its standby, and the next robot there counts on it."""
    test_no_sequence_of_changes_asks_more_of_a_link_than_it_takes.hypothesis.inner_test(seed)  # type: ignore[attr-defined]


def test_links_of_many_servers_are_looked_at_once() -> None:
    """An admission is on the scheduler's executor: it may not go over all servers for every loss and every server anew."""
    gpus, counted = 16, 0
    hosts = "\n".join(f"  h{i}: {{address: 10.0.0.{i + 1}, gpus: {{GPU: {gpus}}}, bandwidth_mbit_s: 1000}}" for i in range(4))
    declared = factory(hosts, carriers(64, 20, 1), servers=4 * gpus)
    running = fleet_of(declared, plan_factory(declared, PROFILE, work=0.0), declared.robots, PROFILE, None, epoch=1)
    of_request = NetworkLinkLoads.of_request

    def counting(self: NetworkLinkLoads, task: str, host: str) -> tuple[tuple[LinkDirection, float], ...]:
        nonlocal counted
        counted += 1
        return of_request(self, task, host)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(NetworkLinkLoads, "of_request", counting)
        running.admit(running.newcomer("more", "carry"))
    assert counted < 40 * len(declared.servers)  # 4 million where everything is counted anew
