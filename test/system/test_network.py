"""A robot and its server in network namespaces, with a bad network between them that is cut. Needs Linux, root and /dev/net/tun;
where they are missing it fails and says so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rfm_serving.action import ExecuteTask

from lab.benchmarks.network.netlink import EmulatedNetwork, emulated_network
from lab.benchmarks.network.run import Heard, Scenario, run_scenario
from lab.benchmarks.network.switch import check_machine
from ros2_rfm_serving.errors import ConfigurationError

MAX_ACTION_AGE_S, MAX_OFFLINE_S = 2.0, 3.0


def states_between(heard: Heard, start_s: float, end_s: float) -> list[str]:
    return [state for s, state, _ in heard.states() if start_s <= s < end_s]


def commands_at(heard: Heard, time_s: float) -> int:
    return max((line["total"] for line in heard.of("commands", until_s=time_s)), default=0)


@pytest.mark.alone
@pytest.mark.timeout(250)
def test_a_robot_over_a_bad_network_holds_in_a_cut_and_goes_on_after_it(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A short cut: the task goes on. One beyond `max_offline_s`: DEAD, the task ends, and the next one is taken all the same.
    One of what the robot sends alone: as bad as a whole one."""
    check_machine()
    scenario = Scenario(
        steady_s=4.0,
        cuts_s=(2.0, MAX_ACTION_AGE_S + MAX_OFFLINE_S + 2.0),
        one_way_cuts_s=(5.0,),
        robot={"failsafe.max_offline_s": MAX_OFFLINE_S, "max_action_age_s": MAX_ACTION_AGE_S},
    )
    heard = run_scenario(scenario, tmp_path)
    figures = heard.figures()
    record_property("network", figures)
    (short_cut_s, short_joined_s), (long_cut_s, long_joined_s), (half_cut_s, half_joined_s) = heard.cuts

    # 5 % of all frames are lost: with the WAN profile hardly a request is.
    assert figures["chunks_per_s"] > 1.0 and states_between(heard, 0.0, short_cut_s)[-1] == "STREAMING"

    # Cut: no server any more; back: streaming, and the same task.
    assert "RECONNECTING" in states_between(heard, short_cut_s, short_joined_s + 1.0)
    assert states_between(heard, short_joined_s, long_cut_s)[-1] == "STREAMING"

    # Cut for longer: nothing is executed that is too old, the control loop ticks on, and what cannot go on ends.
    held = states_between(heard, long_cut_s, long_joined_s)
    assert held[-2:] == ["RECONNECTING", "DEAD"], held
    assert commands_at(heard, long_cut_s + MAX_ACTION_AGE_S + 1.0) == commands_at(heard, long_joined_s)
    ticks = [line["ticks"] for line in heard.of("punctuality", long_cut_s, long_joined_s)]
    assert len(set(ticks)) > 3 and ticks == sorted(ticks)  # two reports of one tick are no standstill
    assert {code for code, _ in figures["results"]} == {ExecuteTask.Result.OFFLINE}, figures["results"]
    assert not heard.of("result", short_cut_s, long_cut_s), "the short cut ended the task"
    assert states_between(heard, long_joined_s, half_cut_s)[-1] == "STREAMING"

    # The server is heard all along and answers nothing: the session is opened anew, as soon as it can be.
    assert "RECONNECTING" in states_between(heard, half_cut_s, half_joined_s)
    assert states_between(heard, half_joined_s, float("inf"))[-1] == "STREAMING"


ECHO = """
import socket
s = socket.socket(type=socket.SOCK_DGRAM)
s.bind(("", 9))
while True:
    s.sendto(*s.recvfrom(99))
"""
ASK = """
import socket, time
s, times = socket.socket(type=socket.SOCK_DGRAM), []
s.settimeout(1.0)
for i in range(3):
    began = time.monotonic()
    s.sendto(b"%d" % i, ("10.78.0.2", 9))
    try:
        while s.recv(99) != b"%d" % i:  # one that came too late for its own turn
            pass
        times.append(time.monotonic() - began)
    except OSError:
        pass
print(len(times), min(times, default=0.0))
"""


def asked(network: EmulatedNetwork) -> tuple[int, float]:
    """(answers to three datagrams, least round trip in s)"""
    command = network.command("a", sys.executable, "-S", "-c", ASK)
    answers, least_s = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout.split()
    return int(answers), float(least_s)


def answered(network: EmulatedNetwork) -> float:
    """Least round trip of three datagrams that were all answered: once, for a busy machine may be late."""
    return next((least_s for answers, least_s in (asked(network) for _ in range(20)) if answers == 3), 0.0)


def test_the_emulated_network_delays_loses_and_cuts() -> None:
    check_machine()
    name = f"t{os.getpid()}"
    with emulated_network({"a": "10.78.0.1/24", "b": "10.78.0.2/24"}, name) as network:
        server = subprocess.Popen(network.command("b", sys.executable, "-S", "-c", ECHO))
        try:
            assert answered(network)
            network.set("delay_ms=40")
            assert answered(network) >= 0.08
            network.set("drop=1", of="b")
            assert asked(network)[0] == 0 and network.set()["b"]["happened"]["dropped"] >= 3
            network.set("")
            network.cut("b")
            assert asked(network)[0] == 0
            network.join()
            assert answered(network)
            with pytest.raises(ConfigurationError, match="no host is named 'c'; known here"):
                network.cut("c")
            with pytest.raises(ConfigurationError, match="'lag=1' is no fault"):
                network.set("lag=1")
        finally:
            server.kill()
            server.wait(timeout=30)
    assert not [*Path("/run/netns").glob(f"{name}-*"), *Path("/dev/shm").glob(f"{name}-*")], "something was left behind"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("up", "Robot"), "'Robot' is no host; write <name>=<address>/<prefix length>"),
        (("show", "--net", "nowhere"), "no network 'nowhere' is up"),
    ],
)
def test_what_cannot_be_done_is_said(repository: Path, arguments: tuple[str, ...], words: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "lab.benchmarks.network.netlink", *arguments]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr, done.stderr
