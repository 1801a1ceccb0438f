"""Scenario of one robot and one server in network namespaces, with an emulated model, over a network that is bad and then cut."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lab.benchmarks.network.netlink import EmulatedNetwork, emulated_network
from lab.benchmarks.processes import module_command
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.ros.node.process import SUPERVISED
from ros2_rfm_serving.shipped import shipped

STAND_IN = "stand_in_node"
HOSTS = {"robot": "10.77.0.1/24", "server": "10.77.0.2/24"}
MODEL, ROBOT, SERVER = "emulated/arm-policy", "arm_1", "server_1"
CHUNK_S = 1.5
"""Duration of control per chunk."""
WINDOW_TICKS = 2048
"""Window of the robot's own figures of punctuality."""
STOP_S = 20.0
FACTORY = """\
server_cluster: {num_servers: 1, gpu_type: EMULATED}
robot_fleet: [{task: arm, num_robots: 1}]
arm:
  pipeline: {action_period_ms: 300}
  components:
    system1: {model: emulated/arm-policy, prompt: stay, slo_ms: 500}
"""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    control_rate_hz: float = 30.0
    faults: str = "delay_ms=25 jitter_ms=10 drop=0.05"
    """Faults of every frame, each way."""
    profile: str = "wan.xml"
    """Fast DDS profile in config/dds; empty: none."""
    reliable_observations: bool = True
    """Whether the server requests missing parts of an observation."""
    steady_s: float = 20.0
    """Time at work before the first cut, and after each."""
    cuts_s: tuple[float, ...] = (2.0,)
    one_way_cuts_s: tuple[float, ...] = ()
    """Later cuts, in which messages of the robot are lost and those of the server arrive."""
    image_size_px: int = 96
    robot: dict[str, Any] = field(default_factory=dict)
    """More parameters of the robot node."""
    patience_s: float = 90.0
    """Time limit for the robot to be at work, before the first cut and after each."""
    domain: int = 79


@dataclass(frozen=True, kw_only=True)
class Heard:
    """All records of the robot's stand-in, and the times of cuts, in seconds of the monotonic clock."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    cuts: list[tuple[float, float]] = field(default_factory=list)
    """(cut, joined) times."""

    def of(self, kind: str, since_s: float = -math.inf, until_s: float = math.inf) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["kind"] == kind and since_s <= line["s"] < until_s]

    @property
    def state(self) -> str:
        """Return the robot's last reported state."""
        return next((line["state"] for line in reversed(self.lines) if line["kind"] == "status"), "")

    def states(self) -> list[tuple[float, str, str]]:
        """Return (time, state, reason) of each change."""
        changes: list[tuple[float, str, str]] = []
        for line in self.of("status"):
            if not changes or changes[-1][1] != line["state"]:
                changes.append((line["s"], line["state"], line["reason"]))
        return changes

    def recoveries_s(self) -> list[float]:
        """Return the times from the end of each cut to the first chunk of a request that was sent after it; NaN: there was none."""
        firsts = []
        for _, joined_s in self.cuts:
            fresh = (line["s"] for line in self.of("chunk", joined_s) if line["s"] - line["round_trip_s"] >= joined_s)
            firsts.append(next(fresh, math.nan) - joined_s)
        return firsts

    def figures(self) -> dict[str, Any]:
        """Return figures of the whole run; chunks per second and round trips are from the first chunk to the first cut."""
        chunks = self.of("chunk")
        began_s = chunks[0]["s"] if chunks else math.nan
        steady = self.of("chunk", began_s, self.cuts[0][0] if self.cuts else math.inf)
        trips_ms = [1e3 * line["round_trip_s"] for line in steady] or [math.nan]
        statuses = self.of("status")
        return {
            "states": [(round(s - began_s, 2), state, reason) for s, state, reason in self.states()],
            "cuts": [(round(a - began_s, 2), round(b - began_s, 2)) for a, b in self.cuts],
            "chunks_per_s": (len(steady) - 1) / (steady[-1]["s"] - began_s) if len(steady) > 1 else 0.0,
            "round_trip_p50_ms": float(np.quantile(trips_ms, 0.5)),
            "round_trip_p99_ms": float(np.quantile(trips_ms, 0.99)),
            "recoveries_s": [round(s, 2) for s in self.recoveries_s()],
            "executed": self.of("commands")[-1]["total"] if self.of("commands") else 0,
            "held": statuses[-1]["held"] if statuses else 0,
            "refused": statuses[-1]["refused"] if statuses else {},
            **_punctuality(self.of("punctuality", began_s)),
            "bare_timer": _punctuality(self.of("bare_timer", began_s)),
            "results": [(line["code"], line["why"]) for line in self.of("result")],
        }


def _punctuality(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Return the punctuality from the first chunk on. The p99 is of the worst whole window, or else of the last one."""
    if len(lines) < 2:
        return dict.fromkeys(("ticks", "missed_periods", "tick_late_p50_ms", "tick_late_p99_ms"), math.nan)
    first, last = lines[0], lines[-1]
    whole = [line for line in lines if line["ticks"] - first["ticks"] >= WINDOW_TICKS] or [last]
    return {
        "ticks": last["ticks"] - first["ticks"],
        "missed_periods": last["missed_periods"] - first["missed_periods"],
        "tick_late_p50_ms": last["tick_late_p50_ms"],
        "tick_late_p99_ms": max(line["tick_late_p99_ms"] for line in whole),
    }


def run_scenario(
    scenario: Scenario,
    folder: Path,
    say: Callable[[str], None] = lambda _: None,
    after_cut: Callable[[Heard], bool] = lambda heard: heard.state == "STREAMING",
) -> Heard:
    """Run the scenario: the network is up, the robot is at work, and for each cut the network is cut and joined until the robot is
    at work again. Logs and files stay in `folder`.

    after_cut: condition for the robot to be at work again.

    Raises: `ConfigurationError` when this machine cannot emulate networks; `RfmError` when a node ends, or when the robot is not at
    work in time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    heard = Heard()
    with emulated_network(HOSTS, f"rfm{os.getpid()}") as network, _processes(scenario, network, folder) as processes:
        network.set(scenario.faults)
        listener = _Listener(folder / "heard.jsonl", heard, processes)
        listener.wait(lambda: heard.state == "STREAMING" and heard.of("chunk"), scenario.patience_s, "the robot at work")
        say("at work")
        listener.listen(scenario.steady_s)
        for duration_s, one_way in [(s, False) for s in scenario.cuts_s] + [(s, True) for s in scenario.one_way_cuts_s]:
            say(f"cut for {duration_s:g} s{', one way' if one_way else ''}")
            cut_s = time.monotonic()
            with _cut(network, scenario.faults, one_way=one_way):
                listener.listen(duration_s)
            heard.cuts.append((cut_s, time.monotonic()))
            listener.wait(lambda: after_cut(heard) and heard.recoveries_s()[-1] > 0, scenario.patience_s, "the robot at work again")
            say(f"at work again, {heard.recoveries_s()[-1]:.1f} s after the end of the cut")
            listener.listen(scenario.steady_s)
    return heard


@contextmanager
def _cut(network: EmulatedNetwork, faults: str, *, one_way: bool) -> Iterator[None]:
    if one_way:
        network.set(f"{faults} cut_up=0-", of="robot")
    else:
        network.cut()
    yield
    if one_way:
        network.set(faults, of="robot")
    else:
        network.join()


class _Listener:
    """Reader of the stand-in's record while it grows."""

    def __init__(self, file: Path, heard: Heard, processes: dict[str, subprocess.Popen[bytes]]) -> None:
        self._file, self._heard, self._processes, self._offset = file, heard, processes, 0

    def listen(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            time.sleep(max(0.0, min(0.1, end_s - time.monotonic())))
            self._read()

    def wait(self, until: Callable[[], object], patience_s: float, what: str) -> None:
        end_s = time.monotonic() + patience_s
        while not until():
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise RfmError(f"{name} ended; see {self._file.parent / name}.log")
            if time.monotonic() > end_s:
                states = [(round(s - end_s, 1), state, reason) for s, state, reason in self._heard.states()]
                raise RfmError(f"waited {patience_s:g} s in vain for {what}; its states {states}; logs in {self._file.parent}")
            self.listen(0.1)

    def _read(self) -> None:
        if not self._file.exists():
            return
        with self._file.open("rb") as record:
            record.seek(self._offset)
            text = record.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._heard.lines.extend(json.loads(line) for line in whole.splitlines())


@contextmanager
def _processes(scenario: Scenario, network: EmulatedNetwork, folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Yield scheduler and server on one host, and the robot with its stand-in on the other."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for host, executable, parameters in _nodes(scenario, folder):
            running[executable] = _start(scenario, network, host, executable, parameters, folder)
        yield running
    finally:
        for number, patience_s in ((signal.SIGINT, STOP_S), (signal.SIGKILL, STOP_S)):
            for process in running.values():
                if process.poll() is None:
                    process.send_signal(number)
            end_s = time.monotonic() + patience_s
            while any(process.poll() is None for process in running.values()) and time.monotonic() < end_s:
                time.sleep(0.05)


def module_of(executable: str) -> str:
    return f"{'lab.benchmarks.network' if executable == STAND_IN else 'ros2_rfm_serving.ros'}.{executable}"


def _nodes(scenario: Scenario, folder: Path) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (host, executable, parameters) of each node."""
    (folder / "factory.yaml").write_text(FACTORY, encoding="utf-8")
    profiles, rate_hz = _profiles(scenario, folder), scenario.control_rate_hz
    server: dict[str, Any] = {"server": SERVER, "profiles_folder": str(profiles)}
    if scenario.reliable_observations:
        server[f"qos_overrides./rfm/servers/{SERVER}/observation.subscription.reliability"] = "reliable"
    robot = yaml.safe_load(shipped("config", "robots", "metaworld_arm.yaml").read_text(encoding="utf-8"))["/**"]["ros__parameters"]
    robot |= {"robot": ROBOT, "task": "arm", "instruction": "stay", "control_rate_hz": rate_hz, "tick": "timer"}
    robot |= {"execution_horizon": max(1, round(0.3 * rate_hz)), **scenario.robot}
    stand_in = {"robot": ROBOT, "image_size_px": scenario.image_size_px, "state_rate_hz": rate_hz}
    stand_in |= {"record_file": str(folder / "heard.jsonl")}
    return [
        ("server", "scheduler_node", {"factory_file": str(folder / "factory.yaml"), "profiles_folder": str(profiles)}),
        ("server", "model_server_node", server),
        ("robot", "robot_node", robot),
        ("robot", STAND_IN, stand_in),
    ]


def _profiles(scenario: Scenario, folder: Path) -> Path:
    """Write the shipped emulated model with chunks of one duration at every control rate."""
    profiles = folder / "profiles"
    profiles.mkdir(parents=True, exist_ok=True)
    catalogue = yaml.safe_load(shipped("config", "profiles", "models.yaml").read_text(encoding="utf-8"))
    model = catalogue["models"][MODEL] | {"chunk_length": max(2, round(CHUNK_S * scenario.control_rate_hz))}
    (profiles / "models.yaml").write_text(yaml.safe_dump({"models": {MODEL: model}}), encoding="utf-8")
    (profiles / "emulated.csv").write_bytes(shipped("config", "profiles", "emulated.csv").read_bytes())
    return profiles


def _start(
    scenario: Scenario, network: EmulatedNetwork, host: str, executable: str, parameters: dict[str, Any], folder: Path
) -> subprocess.Popen[bytes]:
    file = folder / f"{executable}.yaml"
    file.write_text(yaml.safe_dump({"/**": {"ros__parameters": parameters}}), encoding="utf-8")
    command = module_command(module_of(executable), "--ros-args", "--params-file", str(file))
    environment = os.environ | {
        "ROS_DOMAIN_ID": str(scenario.domain),
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "SUBNET",
        "ROS_LOG_DIR": str(folder / "ros"),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        SUPERVISED: str(os.getpid()),
    }
    if scenario.profile:
        environment["FASTDDS_DEFAULT_PROFILES_FILE"] = str(shipped("config", "dds", scenario.profile))
    with (folder / f"{executable}.log").open("wb") as log:
        return subprocess.Popen(
            network.command(host, *command), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
        )
