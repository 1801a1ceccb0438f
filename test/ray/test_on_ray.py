"""A factory whose scheduler and servers a real Ray cluster of three nodes keeps: nodes, processes and drivers are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ros2_rfm_serving.shipped import shipped
from test.ray.ray_rig import (
    HOSTS,
    UP,
    RayNodes,
    StartedNodes,
    environment,
    everybody,
    is_alive,
    kill,
    left,
    line,
    parent,
    rfm_up,
    servers,
    short_folder,
    started_nodes,
    three_nodes,
    wait,
    watching,
)
from test.system.hosts import IDLE_ARMS
from test.system.test_hosts import MAX_ACTION_AGE_S, Watched

ROBOTS = ("idle_arm_1", "idle_arm_2")
SERVERS = ("server_1", "server_2")
AT_WORK = "both robots at work, and both servers"
CLUSTER = """\
server_cluster: {num_servers: 2, gpu_type: EMULATED}
hosts:
  gpu_a: {address: 10.79.0.2, gpus: {EMULATED: 1}}
  gpu_b: {address: 10.79.0.3, gpus: {EMULATED: 1}}
"""
FACTORY = CLUSTER + IDLE_ARMS
WITH_GPUS = """\
server_cluster:
  - {num_servers: 1, gpu_type: H200, hosts: [gpu_b]}
  - {num_servers: 1, gpu_type: H200, hosts: [gpu_a, gpu_b]}
hosts:
  gpu_a: {address: 10.79.0.2, gpus: {H200: 1}}
  gpu_b: {address: 10.79.0.3, gpus: {H200: 1}}
robot_fleet: [{task: arm, num_robots: 2}]
arm:
  robot: metaworld_arm.yaml
  pipeline: {action_period_ms: 300}
  components: {system1: {model: rfm/metaworld-flow}}
"""


@pytest.fixture
def nodes() -> Iterator[RayNodes]:
    with three_nodes() as made:
        yield made


@pytest.fixture(scope="module")
def lasting() -> Iterator[RayNodes]:
    """For those who kill nothing."""
    with three_nodes() as made:
        yield made


@pytest.fixture
def factory(tmp_path: Path) -> Path:
    (tmp_path / "factory.yaml").write_text(FACTORY)
    return tmp_path / "factory.yaml"


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("ros_domain")
def test_nothing_outlives_whoever_kept_it(nodes: RayNodes, factory: Path, tmp_path: Path) -> None:
    """A server's owner is killed, then a node's part of Ray alone, then the driver, none of which can say a word."""
    with at_work(nodes, factory, tmp_path, "outlives") as (driver, _, logs):
        (served,) = nodes.servers("server_1")
        kill(parent(served))
        wait(lambda: not is_alive(served), "the process ends with its owner", logs, 30.0)
        wait(lambda: nodes.servers("server_1") not in ([], [served]), "Ray starts both again", logs)

        away = next(server for server in SERVERS if nodes.node_of(nodes.servers(server)[0]) != nodes.raylets[0])
        (served,) = nodes.servers(away)
        kill(nodes.node_of(served))
        wait(lambda: not is_alive(served), "the process ends with its node's part of Ray", logs, 30.0)
        wait(lambda: nodes.servers(away) not in ([], [served]), "Ray starts it elsewhere", logs)

        kill(driver.pid)
        driver.wait()
        wait(lambda: not nodes.left, f"all ends with the driver: {nodes.left}", logs, 60.0)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("ros_domain")
def test_a_node_is_killed_and_its_server_comes_up_on_another_while_robots_go_on(
    nodes: RayNodes, factory: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Both servers lie apart, before and after. What the moved one is there for is then shown: the other one is killed."""
    with at_work(nodes, factory, tmp_path, "killed") as (driver, watched, logs):
        homes = {server: nodes.node_of(nodes.servers(server)[0]) for server in SERVERS}
        assert len(set(homes.values())) == 2, "both servers are on one node"
        lost = next(server for server in SERVERS if homes[server] != nodes.raylets[0])
        (stays,) = set(SERVERS) - {lost}
        (mine,) = [robot for robot in ROBOTS if watched.server_of(robot) == lost]
        (other,) = set(ROBOTS) - {mine}

        log = logs / f"{lost}.log"
        wait(lambda: " ready in " in log.read_text(), "what it writes comes here", logs, 30.0)
        loaded = log.read_text().count(" ready in ")
        killed_s = time.monotonic()
        nodes.kill(homes[lost])
        watched.wait(lambda: watched.server_of(mine) == stays, "the robot served by the other server", 60.0)
        again_s = next(chunk.s for chunk in watched.lines("chunk", mine, killed_s) if chunk.what == stays)
        nothing_moved_wrongly(watched, mine, lost, killed_s, again_s)
        states = {state.what for state in watched.lines("state", other, killed_s)}
        assert states == {"STREAMING"}, f"the other robot noticed: {states}"

        wait(lambda: nodes.servers(lost), "the lost server somewhere else", logs)
        up_s = time.monotonic()
        assert nodes.node_of(nodes.servers(lost)[0]) not in homes.values(), "beside its standby, or on a node that is gone"
        wait(lambda: log.read_text().count(" ready in ") > loaded, "its model", logs, 60.0)
        ready_s = time.monotonic()

        # The other one is killed, so that nothing but the moved one can serve.
        wait(lambda: f"{lost}: started again on" in said(logs), "that it is told", logs, 30.0)
        time.sleep(5.0)  # of the moved server's status, for robots and the scheduler
        second_s = time.monotonic()
        for pid in nodes.servers(stays):
            kill(pid)
        watched.wait(lambda: all(chunk_since(watched, robot, second_s, lost) for robot in ROBOTS), "the moved server serves", 60.0)
        wait(lambda: f"{stays}: ended (SIGKILL), Ray starts it again" in said(logs), "that it is told", logs, 30.0)
        figures = {"standby_s": again_s - killed_s, "process_again_s": up_s - killed_s, "ready_again_s": ready_s - killed_s}
        record_property("killed", figures)
        print(json.dumps(figures))

        ends_in_order(driver)
    nothing_was_left(nodes, logs)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("ros_domain")
def test_the_head_is_lost_and_comes_back_and_robots_go_on_with_servers_that_are_started_anew(
    factory: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """By `ray start`, on three nodes that a service manager starts again. The new head knows nobody; nodes of the old one end."""
    with started_nodes() as nodes:
        with at_work(nodes, factory, tmp_path, "head") as (driver, watched, logs):
            robots = {line(pid): pid for pid in everybody() if f"{logs}/" in line(pid) and "robot_node" in line(pid)}
            before = {pid for server in SERVERS for pid in servers(nodes.folder, server)}
            lost_s = time.monotonic()
            nodes.kill_head()
            wait(lambda: "It is waited for, 300 s (--ray-patience)" in said(logs), "that it is told", logs, 30.0)
            told_s = time.monotonic()
            wait(lambda: f"a Ray cluster is there again at {nodes.address}" in said(logs), "the new one", logs)
            back_s = time.monotonic()
            wait(lambda: not any(map(is_alive, before)), "the end of the old servers", logs)
            gone_s = time.monotonic()
            watched.wait(lambda: all(chunk_since_any(watched, robot, gone_s) for robot in ROBOTS), "robots go on", 120.0)
            again_s = max(chunk_since_any(watched, robot, gone_s) for robot in ROBOTS)
            wait(lambda: are_at_work(nodes, watched), AT_WORK, logs)
            for robot in ROBOTS:
                num_executed, oldest_s = watched.executed(robot)
                assert num_executed and oldest_s <= MAX_ACTION_AGE_S, f"executed an action of {oldest_s} s"
            assert all(line(pid) == command for command, pid in robots.items()), "a robot's process was started again"
            figures = {"told_s": told_s, "back_s": back_s, "old_servers_gone_s": gone_s, "robots_go_on_s": again_s}
            figures = {name: round(at_s - lost_s, 1) for name, at_s in figures.items()}
            record_property("head", figures)
            print(json.dumps(figures))
            ends_in_order(driver)
        assert left(nodes.folder) == [], "processes were left behind"


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("ros_domain")
def test_without_its_head_all_goes_on_and_ctrl_c_ends_it_in_order(nodes: RayNodes, factory: Path, tmp_path: Path) -> None:
    """The head alone is lost: `gcs_server`, and not its machine's part of Ray."""
    with at_work(nodes, factory, tmp_path, "headless") as (driver, watched, logs):
        kill(nodes.gcs)
        lost_s = time.monotonic()
        wait(lambda: "does not answer: what runs goes on, for 60 s by Ray's own word" in said(logs), "that it is told", logs, 30.0)
        watched.wait(lambda: all(chunk_since_any(watched, robot, lost_s + 6.0) for robot in ROBOTS), "robots go on", 30.0)
        ends_in_order(driver, 60.0)
    nothing_was_left(nodes, logs)


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("ros_domain")
def test_a_head_that_stays_away_is_given_up_and_told(nodes: RayNodes, factory: Path, tmp_path: Path) -> None:
    with at_work(nodes, factory, tmp_path, "given_up", "--ray-patience", "3") as (driver, _, logs):
        kill(nodes.gcs)
        assert driver.wait(60.0) == 1
    assert f"no head of the Ray cluster at {nodes.address} for 3 s, given up" in said(logs)
    assert "gave up on: scheduler, server_1, server_2" in said(logs)


@contextmanager
def at_work(
    nodes: RayNodes | StartedNodes, factory: Path, tmp_path: Path, name: str, *more: str
) -> Iterator[tuple[subprocess.Popen[bytes], Watched, Path]]:
    """`rfm up`, what is seen of its robots, and its logs, when all of it is at work. more: options."""
    logs = nodes.folder / name
    with rfm_up(nodes.address, logs, factory, *more) as driver, watching(tmp_path, *ROBOTS) as watched:
        wait(lambda: are_at_work(nodes, watched), AT_WORK, logs)
        yield driver, watched, logs


def are_at_work(nodes: RayNodes | StartedNodes, watched: Watched) -> bool:
    """Both robots may be at work with one server, while the other one is still starting."""
    return all(map(watched.works, ROBOTS)) and all(servers(nodes.folder, server) for server in SERVERS)


def ends_in_order(driver: subprocess.Popen[bytes], seconds: float = 90.0) -> None:
    """After Ctrl-C."""
    driver.send_signal(signal.SIGINT)
    assert driver.wait(seconds) == 0


def nothing_was_left(nodes: RayNodes, logs: Path) -> None:
    assert nodes.left == [], "processes were left behind"
    assert "had to be killed" not in said(logs)


def said(logs: Path) -> str:
    """By `rfm up`, in one line."""
    return re.sub(r"\s+", " ", (logs / "up.txt").read_text())


def chunk_since(watched: Watched, robot: str, since_s: float, server: str) -> bool:
    return any(chunk.what == server for chunk in watched.lines("chunk", robot, since_s))


def chunk_since_any(watched: Watched, robot: str, since_s: float) -> float:
    """When the first came, of whichever server; 0: none."""
    return next((chunk.s for chunk in watched.lines("chunk", robot, since_s)), 0.0)


def nothing_moved_wrongly(watched: Watched, robot: str, lost: str, killed_s: float, again_s: float) -> None:
    """As of a host that is unplugged: nothing that is too old was executed, nor anything commanded when all was."""
    num_executed, oldest_s = watched.executed(robot)
    assert num_executed and oldest_s <= MAX_ACTION_AGE_S, f"executed an action of {oldest_s} s"
    last_s = max(chunk.s for chunk in watched.lines("chunk", robot) if chunk.what == lost)
    commands = watched.lines("command", robot, last_s + MAX_ACTION_AGE_S)
    assert not [command for command in commands if command.s < again_s], "commanded when every action was too old"


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("ros_domain")
def test_ctrl_c_at_a_terminal_ends_all_in_order_and_the_cluster_that_was_started_for_it(factory: Path, tmp_path: Path) -> None:
    """A terminal's Ctrl-C reaches Ray's own processes as well."""
    with short_folder() as folder:
        with rfm_up("", logs := folder / "local", factory) as driver, watching(tmp_path, *ROBOTS) as watched:
            wait(lambda: all(map(watched.works, ROBOTS)), "both robots at work", logs)
            os.killpg(driver.pid, signal.SIGINT)
            assert driver.wait(90.0) == 0
        told = said(logs)
        assert "summary" in told and "had to be killed" not in told, told[-3000:]
        assert "one machine is all hosts of the descriptor" in told
        wait(lambda: not any(f"{folder}/" in line(pid) for pid in everybody()), "nothing is left", logs, 30.0)


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("ros_domain")
def test_a_server_sees_the_gpu_that_ray_gave_it_on_a_host_that_it_is_bound_to(lasting: RayNodes, tmp_path: Path) -> None:
    """No GPU is here; the nodes say that they have one each, or there would be nothing to give."""
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    for name in ("models.yaml", "cpu.csv"):
        text = shipped("config", "profiles", name).read_text()
        (profiles / name).write_text(text.replace(",CPU,", ",H200,").replace("CPU:", "H200:"))
    (tmp_path / "factory.yaml").write_text(WITH_GPUS)
    logs = lasting.folder / "gpus"
    with rfm_up(lasting.address, logs, tmp_path / "factory.yaml", "--profiles", str(profiles)):
        wait(lambda: all(map(lasting.servers, SERVERS)), "both servers", logs)
        pids = [lasting.servers(server)[0] for server in SERVERS]
        assert [environment(pid)["CUDA_VISIBLE_DEVICES"] for pid in pids] == ["0", "0"]
        assert [lasting.node_of(pid) for pid in pids] == [lasting.raylets[HOSTS.index(host)] for host in ("gpu_b", "gpu_a")]
    assert lasting.left == []


@pytest.mark.timeout(120)
def test_what_no_node_has_room_for_is_refused(lasting: RayNodes, tmp_path: Path, ros_domain: int) -> None:
    def refused(text: str, *more: str) -> str:
        (tmp_path / "factory.yaml").write_text(text)
        options = ["--domain", str(ros_domain), "--logs", str(tmp_path / "logs"), "--ray-address", *more]
        command = [*UP, str(tmp_path / "factory.yaml"), "--on", "ray", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=os.environ)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
        return re.sub(r"\s+", " ", done.stderr)

    crowded = FACTORY.replace("EMULATED: 1", "EMULATED: 3").replace("num_servers: 2", "num_servers: 6")
    assert "no node of the Ray cluster has room for gpu_a (3 CPU)" in refused(crowded, lasting.address)
    assert "no Ray cluster at '127.0.0.1:9'" in refused(FACTORY, "127.0.0.1:9")
