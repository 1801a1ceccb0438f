"""Every cause of docs/runbook.md, made on a floor that works, and mended afterwards."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from rfm_serving.msg import RobotStatus, ServerStatus

from lab.benchmarks.network.run import module_of
from ros2_rfm_serving.security.own import ENCLAVE
from test.enclaves import Enclaves
from test.unit.engines.chat_server import Turn, says, server

from .floor import MODEL, PROFILED_S, ROBOT, SERVER, Floor, write_profiles
from .sensor import CAMERA

GUESTS = [f"guest_{i}" for i in range(1, 8)]
SEEN_S = 5.0
"""Longer than the windows of statuses."""


def _other_server(floor: Floor, profiles: Path, **parameters: object) -> None:
    floor.kill("model_server_node")
    floor.node("model_server_node", profiles_folder=str(profiles), **parameters)
    floor.client.server = None
    floor.wait(lambda: floor.client.server)


def _right_server(floor: Floor) -> None:
    _other_server(floor, floor.profiles)
    floor.work_again()


def _other_robot(floor: Floor, **parameters: object) -> None:
    floor.kill("robot_node")
    floor.node("robot_node", **parameters)


def _right_robot(floor: Floor) -> None:
    _other_robot(floor)
    floor.work()


def _crowd_goes(floor: Floor) -> None:
    floor.kill("crowd", signal.SIGINT)  # it takes leave of the graph: its sessions end soon
    floor.wait(lambda: floor.client.server.sessions == 1)


@contextmanager
def overloaded_server(floor: Floor) -> Iterator[None]:
    floor.start("crowd", "test.operate.crowd", SERVER, "10", *GUESTS)
    floor.wait(lambda: floor.client.server.load > 0.95)
    yield
    _crowd_goes(floor)


@contextmanager
def one_robot_asks_too_much(floor: Floor) -> Iterator[None]:
    floor.start("crowd", "test.operate.crowd", SERVER, "200", GUESTS[0])
    floor.wait(lambda: any(counter.name == "over_quota" for counter in floor.client.server.refused))
    floor.watch(SEEN_S)
    yield
    _crowd_goes(floor)


@contextmanager
def unusable_answers(floor: Floor) -> Iterator[None]:
    """A judge whose model thinks, and is cut off, as soon as it sees something."""

    def script(body: dict[str, Any], number: int) -> Turn:
        if body["messages"][1]["content"][-1]["text"].startswith("Stand still."):  # the warm-up's
            return says("safe")
        return says("Okay, the user asks whether the cell is clear.", "length")

    with server(script) as (url, _):
        folder = write_profiles(floor.folder / "judges")
        options = {"base_url": url, "constraint": "none", "timeout_s": 5.0}
        entry = {"engine": "openai", "output": "judgement", "cameras": [CAMERA], "options": options}
        gpus = {"TEST": {"memory_gb": 1, "load_s": 0, "source": "chosen for tests"}}
        (folder / "models.yaml").write_text(yaml.safe_dump({"models": {"runbook/judge": {**entry, "gpus": gpus}}}))
        judge = {"server": "judge_1", "profiles_folder": str(folder), "model": "runbook/judge", "gpu_type": "TEST"}
        floor.node("model_server_node", "judge_server", **judge)
        floor.wait(lambda: "ready in" in (floor.folder / "judge_server.log").read_text())
        floor.start("judged", "test.operate.crowd", "judge_1", "5", f"{GUESTS[0]}/safety")
        floor.watch(2 * SEEN_S)
        yield
        floor.kill("judged", signal.SIGINT)
        floor.kill("judge_server", signal.SIGINT)
        floor.watch(SEEN_S)


@contextmanager
def lossy_network(floor: Floor) -> Iterator[None]:
    _other_robot(floor, faults="drop=0.2", faults_seed=1)
    floor.client.robot = None
    floor.wait(lambda: floor.client.robot)
    floor.give_task()
    floor.wait(lambda: floor.client.robot.state == RobotStatus.STREAMING)
    yield
    _right_robot(floor)


@contextmanager
def hung_engine(floor: Floor) -> Iterator[None]:
    floor.pace(3600.0)
    floor.wait(lambda: floor.client.server.waiting)
    yield
    floor.pace(PROFILED_S)
    _right_server(floor)


@contextmanager
def changed_model(floor: Floor) -> Iterator[None]:
    others = write_profiles(floor.folder / "others", f"{MODEL}-2")
    _other_server(floor, others, model=f"{MODEL}-2", gpu_type="TEST")
    floor.wait(lambda: floor.client.robot.state == RobotStatus.DEAD)
    yield
    _other_server(floor, floor.profiles)
    floor.work()


@contextmanager
def drifted_profile(floor: Floor) -> Iterator[None]:
    floor.pace(5 * PROFILED_S)
    floor.watch(SEEN_S)
    yield
    floor.pace(PROFILED_S)
    floor.watch(SEEN_S)


def _dead(sensor: str) -> Callable[[Floor], AbstractContextManager[None]]:
    """Its process ends, and another one begins. One that was stopped for 20 s and continued may stay undiscovered (Fast DDS)."""

    @contextmanager
    def cause(floor: Floor) -> Iterator[None]:
        floor.kill(sensor)
        try:
            floor.wait(lambda: floor.client.robot.state == RobotStatus.STALLED)
            yield
        finally:  # the causes after it are made on the same floor
            floor.start(sensor, "test.operate.sensor", sensor, ROBOT)
        floor.work_again()

    return cause


@contextmanager
def full_disk(floor: Floor) -> Iterator[None]:
    """A small file system for the logs, a server's own among them, which are written until it is full. Needs root."""
    logs = floor.folder / "logs"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "runbook", logs], check=True)
    try:
        floor.kill("model_server_node")
        floor.node("model_server_node", environment={"ROS_LOG_DIR": str(logs)})
        floor.streams()
        with (logs / "robot.log").open("wb") as log:
            try:
                while True:
                    log.write(b"a line of a log\n" * 1000)
                    log.flush()
            except OSError as error:
                assert error.errno == errno.ENOSPC
            os.truncate(log.fileno(), 2_000_000)
        floor.watch(SEEN_S)
        yield
        _right_server(floor)
    finally:
        subprocess.run(["umount", "--lazy", logs], check=True)


@contextmanager
def scheduler_gone(floor: Floor) -> Iterator[None]:
    followed = floor.client.robot.scheduler
    floor.kill("scheduler_node")
    yield
    floor.node("scheduler_node")
    floor.wait(lambda: followed not in (floor.client.robot.scheduler, floor.client.server.scheduler))
    floor.streams()


@contextmanager
def clock_step(floor: Floor) -> Iterator[None]:
    assert floor.wall_clock is not None
    floor.wall_clock.step(-3600.0)
    yield
    floor.wall_clock.step(0.0)


@contextmanager
def two_factories(floor: Floor) -> Iterator[None]:
    """Of the second one the scheduler runs; its server finds the name taken, and ends."""
    floor.node("scheduler_node", "other_scheduler")
    floor.node("model_server_node", "other_server")
    floor.wait(lambda: floor.ended("other_server"))
    floor.watch(SEEN_S)
    yield
    floor.kill("other_scheduler")


@contextmanager
def server_gone(floor: Floor) -> Iterator[None]:
    floor.kill("model_server_node")
    yield
    floor.node("model_server_node")
    floor.work_again()


@contextmanager
def model_not_loaded(floor: Floor) -> Iterator[None]:
    broken = write_profiles(floor.folder / "broken")
    file = broken / "models.yaml"
    file.write_text(file.read_text().replace("paced_engine", "missing_engine"))
    _other_server(floor, broken)
    floor.wait(lambda: floor.client.server.state == ServerStatus.FAILED)
    yield
    _right_server(floor)


@contextmanager
def robot_gone(floor: Floor) -> Iterator[None]:
    floor.kill("robot_node")
    yield
    floor.node("robot_node")
    floor.work()


@contextmanager
def robot_waits(floor: Floor) -> Iterator[None]:
    floor.call("pause")
    floor.wait(lambda: floor.client.robot.paused)
    yield
    floor.call("resume")
    floor.streams()


@contextmanager
def commands_not_taken(floor: Floor) -> Iterator[None]:
    _other_robot(floor, sink_topic="elsewhere")
    floor.work()
    floor.watch(SEEN_S)
    yield
    _right_robot(floor)


@contextmanager
def reported_trouble(floor: Floor) -> Iterator[None]:
    """A server on which no schedule places a model."""
    floor.node("model_server_node", "spare", server="server_2")
    floor.watch(2 * SEEN_S)
    yield
    floor.kill("spare", signal.SIGINT)
    floor.watch(2 * SEEN_S)


@contextmanager
def refused_readings(floor: Floor) -> Iterator[None]:
    """A robot that needs velocities of joints that publish none."""
    _other_robot(floor, joint_fields=["velocity"])
    floor.client.robot = None
    floor.wait(lambda: floor.client.robot and "has no velocity" in floor.client.robot.reason)
    floor.watch(SEEN_S)
    yield
    _right_robot(floor)


@contextmanager
def old_readings(floor: Floor) -> Iterator[None]:
    floor.kill("camera")
    floor.start("camera", "test.operate.sensor", "stuck", ROBOT)
    floor.wait(lambda: floor.client.robot.state == RobotStatus.STALLED)
    floor.watch(SEEN_S)
    yield
    floor.kill("camera")
    floor.start("camera", "test.operate.sensor", "camera", ROBOT)
    floor.streams()


def _recorder(floor: Floor, environment: Mapping[str, str] = MappingProxyType({})) -> None:
    parameters = ["-p", f"folder:={floor.folder / 'recordings' / '20260131-140312'}"]
    floor.start("recorder", module_of("recorder_node"), "--ros-args", *parameters, environment=environment)
    floor.wait(lambda: list(floor.folder.glob("recordings/*/*.mcap")))
    floor.watch(SEEN_S)


def _certificate(days: float) -> Callable[[Floor], AbstractContextManager[None]]:
    """Of a recorder: robots and servers of this floor have none. days: until it ends."""

    @contextmanager
    def cause(floor: Floor) -> Iterator[None]:
        enclave = Enclaves(floor.folder / f"enclaves_{days:g}").make("recorder", 10.0, 10.0 + days, "recorder")
        _recorder(floor, {ENCLAVE: str(enclave)})
        yield
        floor.kill("recorder", signal.SIGINT)

    return cause


@contextmanager
def incomplete_recording(floor: Floor) -> Iterator[None]:
    """It ends while somebody looks."""
    _recorder(floor)
    end = threading.Timer(12.0, floor.kill, ["recorder"])
    end.start()
    yield
    end.join()


MAKES: dict[str, Callable[[Floor], AbstractContextManager[None]]] = {
    "overloaded server": overloaded_server,
    "lossy network": lossy_network,
    "one robot asks too much": one_robot_asks_too_much,
    "unusable answers": unusable_answers,
    "hung engine": hung_engine,
    "changed model": changed_model,
    "drifted profile": drifted_profile,
    "dead camera": _dead("camera"),
    "dead joint states": _dead("joints"),
    "commands not taken": commands_not_taken,
    "refused readings": refused_readings,
    "old readings": old_readings,
    "full disk": full_disk,
    "incomplete recording": incomplete_recording,
    "invalid certificate": _certificate(-1.0),
    "certificate ends soon": _certificate(5.0),
    "scheduler gone": scheduler_gone,
    "server gone": server_gone,
    "model not loaded": model_not_loaded,
    "robot gone": robot_gone,
    "robot waits for a person": robot_waits,
    "reported trouble": reported_trouble,
    "clock step": clock_step,
    "two factories in one domain": two_factories,
}
"""By the entry's heading. People are told of the last two for a while after they are over."""
