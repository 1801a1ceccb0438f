"""Which servers are there, which are waited for, and which are lost."""

from __future__ import annotations

from dataclasses import replace

from ros2_rfm_serving.robot.client.server_clients import ServerClients
from ros2_rfm_serving.robot.client.server_liveness import LOADING_TIMEOUT_FACTOR, ServerLiveness
from ros2_rfm_serving.robot.config import RobotConfig
from ros2_rfm_serving.types import SYSTEM1, Route, Schedule

CONFIG = RobotConfig(name="r1", action_names=("x",), cameras=(), state_size=1, control_rate_hz=20.0, server_timeout_s=2.0)
ROUTE = Route(robot="r1", component=SYSTEM1, server="home", standby="spare", max_rate_hz=1.0, slo_s=0.0)


def starting() -> ServerClients:
    links = ServerClients(CONFIG)
    links.follow(Schedule(epoch=1, placements=(), routes=(ROUTE,), predicted_actions_hz=1.0, policy="test"), 0.0, newer=True)
    links.check_deadlines(0.0)
    return links


def used(links: ServerClients) -> str:
    assert links.system1
    return links.system1.server


def test_a_standby_that_is_ready_sooner_waits_with_the_robot_for_the_server_that_still_loads() -> None:
    links = starting()
    for step in range(40):  # far beyond the timeout
        now_s = 0.5 * step
        links.on_server_status("spare", now_s)
        assert links.on_server_loading("home", now_s)
        links.check_deadlines(now_s)
        assert used(links) == "home" and not links.opens(now_s)
    links.on_server_status("home", 20.0)
    assert [server for server, _ in links.opens(20.0)] == ["home"] and links.failovers == 0


def test_a_server_that_was_slow_to_say_anything_is_waited_for_once_it_loads() -> None:
    links = starting()
    links.check_deadlines(2.5)  # silent for too long, and no standby yet
    assert links.on_server_loading("home", 2.6)
    links.on_server_status("spare", 2.7)
    assert used(links) == "home"


def test_silence_while_loading_is_a_loss_but_not_soon() -> None:
    links = starting()
    links.on_server_status("spare", 0.0)
    links.on_server_loading("home", 0.5)
    lost_s = 0.5 + 2.0 * LOADING_TIMEOUT_FACTOR
    links.on_server_status("spare", lost_s - 1.0)
    links.check_deadlines(lost_s - 0.1)
    assert used(links) == "home"
    links.check_deadlines(lost_s)
    assert used(links) == "spare"


def test_a_server_whose_process_lives_is_loading_until_it_was_ready() -> None:
    links = starting()
    links.on_server_alive("home", 0.5)
    links.on_server_status("spare", 2.5)
    links.check_deadlines(3.0)
    assert used(links) == "home", "it has said nothing yet, and is waited for"
    links.on_server_status("home", 4.0)
    links.on_server_alive("home", 4.1)
    links.on_server_status("spare", 6.5)
    links.check_deadlines(6.6)
    assert used(links) == "spare", "one that was ready has to say that it is"


def test_a_server_that_was_ready_and_loads_again_is_lost_meanwhile() -> None:
    links = starting()
    links.on_server_status("home", 0.0)
    links.on_server_status("spare", 0.0)
    assert not links.on_server_loading("home", 1.0)
    links.on_server_lost("home", "home loads a model", 1.0)
    assert used(links) == "spare" and links.failovers == 1


def test_a_timeout_that_became_shorter_counts_from_the_next_word_on() -> None:
    links = ServerClients(replace(CONFIG, server_timeout_s=60.0))
    links.follow(Schedule(epoch=1, placements=(), routes=(ROUTE,), predicted_actions_hz=1.0, policy="test"), 0.0, newer=True)
    for server in ("home", "spare"):
        links.on_server_status(server, 0.0)
    links.check_deadlines(0.0)
    links.reconfigure(CONFIG)
    links.check_deadlines(0.5)
    for server in ("home", "spare"):
        links.on_server_status(server, 1.0)
    links.on_server_status("spare", 2.9)
    links.check_deadlines(3.0)
    assert used(links) == "spare", "home has been silent for two seconds"


def asked_at(links: ServerClients, seconds: float) -> list[tuple[float, str]]:
    """Of servers that are both there and both full: when which one is asked for a session."""
    asked, step_s = [], 0.05
    for step in range(int(seconds / step_s)):
        now_s = step * step_s
        for server in ("home", "spare"):
            links.on_server_status(server, now_s)
        for server, request in links.opens(now_s):
            asked.append((now_s, server))
            links.on_session_refused(request.component, server, "8 of 8 sessions are open", now_s, full=True)
    return asked


def test_a_robot_refused_for_capacity_asks_the_standby_at_once_and_both_ever_less_often() -> None:
    asked = asked_at(starting(), 60.0)
    assert asked[0][1] == "home" and asked[1][1] == "spare" and asked[1][0] - asked[0][0] < 0.1
    assert [server for _, server in asked] == ["home", "spare"] * (len(asked) // 2) + ["home"] * (len(asked) % 2)
    assert len(asked) < 60, "no storm of requests"


def test_a_robot_refused_for_capacity_stays_where_there_is_no_standby_or_it_is_not_there() -> None:
    links = starting()
    links.on_server_status("home", 0.0)
    (opening,) = links.opens(0.0)
    links.on_session_refused(SYSTEM1, opening[0], "full", 0.0, full=True)
    assert used(links) == "home" and not links.opens(0.05)


def test_servers_that_are_lost_together_are_lost_in_the_order_of_their_names() -> None:
    """Not in that of a set: another process that is told the same must fail over to the same servers."""
    names = [f"server_{i}" for i in range(30)]
    presence = ServerLiveness(timeout_s=2.0)
    for name in reversed(names):
        presence.expect(name)
    presence.silent(0.0)
    assert presence.silent(2.0) == sorted(names)
