"""A Ray cluster of three nodes on this machine, each of which can be killed with all that runs on it; and a factory on it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from ros2_rfm_serving.operate.deploy.pods import HOST_LABEL
from test.system.test_hosts import Watched

UP = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "up"]
HOSTS = ("head", "gpu_a", "gpu_b")
"""What the nodes are labelled."""
STORE_BYTES = 80 << 20
NOTICES = {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3"}
"""Of the head: a lost node is noticed after some 3 s, in place of Ray's 15."""
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1", "RAY_AUTH_MODE": "disabled"}
"""Without a word on tokens a head asks for one where an earlier cluster has left one in this user's folder, and nodes show none."""
READY_S = 120.0


class RayNodes:
    """The first node is the head, which is not killed: the driver is beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        own = {"num_cpus": 2, "num_gpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        labelled = [{**own, "labels": {HOST_LABEL: host}} for host in HOSTS]
        self._cluster = Cluster(initialize_head=True, head_node_args=labelled[0])
        self._nodes = [self._cluster.head_node, *(self._cluster.add_node(**node) for node in labelled[1:])]
        self.address = self._cluster.address

    def shutdown(self) -> None:
        self._cluster.shutdown()

    @property
    def raylets(self) -> list[int]:
        return [node.all_processes["raylet"][0].process.pid for node in self._nodes]

    def node_of(self, pid: int) -> int:
        """The raylet that a process belongs to."""
        while pid not in self.raylets:
            pid = parent(pid)
            assert pid > 1, "it is on no node"
        return pid

    @property
    def gcs(self) -> int:
        """What the head is, beside its own part of Ray."""
        return int(self._cluster.head_node.all_processes["gcs_server"][0].process.pid)

    def kill(self, raylet: int) -> None:
        """As if its power were cut."""
        for pid in [raylet, *below(raylet)]:
            kill(pid)

    def servers(self, name: str) -> list[int]:
        return servers(self.folder, name)

    @property
    def left(self) -> list[str]:
        return left(self.folder)


class StartedNodes:
    """`ray start` for each node, as a user types it, whose service manager starts again what has ended."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, f"{ray.util.get_node_ip_address()}:{free_port()}"
        size = ["--num-cpus", "2", "--object-store-memory", str(STORE_BYTES), "--block"]
        port = self.address.rpartition(":")[2]
        self._commands = [
            ["start", "--head", "--port", port, "--include-dashboard", "false", *size],
            *[["start", "--address", self.address, *size]] * 2,
        ]
        self._running: list[subprocess.Popen[bytes] | None] = [None] * len(self._commands)
        self._ending = threading.Event()
        self._manager = threading.Thread(target=self._manage)
        self._manager.start()

    @property
    def are_there(self) -> bool:
        """All of them, as the head sees it; asked by a process of its own, which Ray ends when there is no head."""
        program = "import ray, sys; ray.init(sys.argv[1]); print(sum(node['Alive'] for node in ray.nodes()))"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program, self.address], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() == str(len(self._commands))

    def kill_head(self) -> None:
        """As if its power were cut."""
        (head, *_) = self._running
        assert head is not None
        for pid in [head.pid, *below(head.pid)]:
            kill(pid)

    def shutdown(self) -> None:
        self._ending.set()
        self._manager.join()
        for process in filter(None, self._running):
            for pid in [*below(process.pid), process.pid]:
                kill(pid)
            process.wait()

    def _manage(self) -> None:
        with (self.folder / "nodes.txt").open("wb") as output:
            while not self._ending.wait(1.0):
                for i, command in enumerate(self._commands):
                    process = self._running[i]
                    if process is None or process.poll() is not None:
                        line = [sys.executable, "-W", "ignore", "-m", "ray.scripts.scripts", *command]
                        self._running[i] = subprocess.Popen(line, stdout=output, stderr=output, start_new_session=True)


def servers(folder: Path, name: str) -> list[int]:
    """Processes of a node of the factory that Ray keeps."""
    return [pid for pid in everybody() if f"{folder}/rfm_ray_" in line(pid) and f"/{name}.yaml" in line(pid)]


def left(folder: Path) -> list[str]:
    """What still runs of any factory."""
    return [line(pid) for pid in everybody() if f"{folder}/" in line(pid) and "ros2_rfm_serving.ros." in line(pid)]


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def short_folder() -> Iterator[Path]:
    """Ray's sockets lie there, and so do the folders of its actors."""
    folder, before = Path(tempfile.mkdtemp(prefix="rfm_")), dict(os.environ)
    os.environ.update({**ENVIRONMENT, **NOTICES, "RAY_TMPDIR": str(folder), "TMPDIR": str(folder)})
    os.environ.pop("RAY_ADDRESS", None)
    (folder / "ray").mkdir()
    try:
        yield folder
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def three_nodes() -> Iterator[RayNodes]:
    with short_folder() as folder:
        nodes = RayNodes(folder)
        try:
            yield nodes
        finally:
            nodes.shutdown()


@contextmanager
def started_nodes() -> Iterator[StartedNodes]:
    with short_folder() as folder:
        nodes = StartedNodes(folder)
        try:
            end_s = time.monotonic() + READY_S
            while not nodes.are_there:
                assert time.monotonic() < end_s, (folder / "nodes.txt").read_text()[-3000:]
            yield nodes
        finally:
            nodes.shutdown()


@contextmanager
def rfm_up(address: str, logs: Path, file: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """As a user starts it, in a process group of its own; what it prints is in `logs`/up.txt. address: empty: none is given."""
    logs.mkdir(parents=True, exist_ok=True)
    command = [*UP, str(file), "--on", "ray", "--logs", str(logs)]
    command += [*(["--ray-address", address] if address else []), *more]
    with (logs / "up.txt").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60.0)
        finally:
            process.kill()


@contextmanager
def watching(folder: Path, *robots: str) -> Iterator[Watched]:
    file = folder / "watched.jsonl"
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-m", "test.system.hosts_watcher", str(file), *robots])
    try:
        yield Watched(file, folder)
    finally:
        process.kill()
        process.wait()


def wait(until: Callable[[], object], what: str, logs: Path, seconds: float = READY_S) -> None:
    end_s = time.monotonic() + seconds
    while not until():
        said = "\n".join(f"{file.name}: {file.read_text()[-1500:]}" for file in [*logs.glob("s*.log"), logs / "up.txt"])
        assert time.monotonic() < end_s, f"waited in vain: {what}; {said}"
        time.sleep(0.1)


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    return pid in everybody() and state(pid) != "Z"


def everybody() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def environment(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def state(pid: int) -> str:
    return _stat(pid)[0]


def parent(pid: int) -> int:
    return int(_stat(pid)[1])


def below(pid: int) -> list[int]:
    """Its children and theirs."""
    children = [one for one in everybody() if parent(one) == pid]
    return [*children, *(other for child in children for other in below(child))]


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return ["Z", "0"]
