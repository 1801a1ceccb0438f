"""Systems of `rfm bench serving`, with the commands of their servers and clients."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from lab.benchmarks.processes import module_command
from lab.benchmarks.serving.environments import LEROBOT, OPENPI, RAY, PeerEnvironment, python_of
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.shipped import shipped

SERVER, MODEL, GPU_TYPE = "bench", "bench/sleep", "EMULATED"
MAX_BATCH_SIZE = 32
RUN = str(Path(__file__).resolve().parent / "peers" / "run.py")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Settings that all systems share."""

    images: Path
    """Folder with one JPEG per camera."""
    scratch: Path
    environments: Path
    port: int
    most_clients: int
    """Largest number of concurrent clients."""
    model_s: float
    warm_up_s: float
    seconds: float
    rate_hz: float = 0.0
    """Rate of each client's requests; 0: it sends again once it is answered."""
    openpi: Path | None
    """Checkout of openpi, or its `websocket_policy_server.py`."""
    say: Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class System:
    """Commands of two processes, both of which may start others."""

    title: str
    server: tuple[str, ...]
    ready: str
    """Text that the server prints when it serves."""
    clients: tuple[str, ...]
    """Command without the number of clients."""
    environment: Mapping[str, str] = field(default_factory=dict)


def make(name: str, setup: Setup) -> System:
    """Return a system. Raises: `ConfigurationError` when it does not exist, or cannot be installed."""
    if name not in SYSTEMS:
        raise ConfigurationError(f"no system is named {name!r}", key="--systems", fix=did_you_mean(name, SYSTEMS))
    return SYSTEMS[name](setup)


def _load(setup: Setup, python: Path, peer: str) -> tuple[str, ...]:
    common = (str(python), RUN, "load", peer, "--port", str(setup.port), "--images", str(setup.images))
    return (*common, *_times(setup))


def _times(setup: Setup) -> tuple[str, ...]:
    return "--warm-up-s", str(setup.warm_up_s), "--seconds", str(setup.seconds), "--rate-hz", str(setup.rate_hz)


def _peer(
    setup: Setup,
    title: str,
    environment: PeerEnvironment,
    peer: str,
    variables: Mapping[str, str] | None = None,
    *,
    decode: bool = False,
) -> System:
    python = python_of(environment, setup.environments, setup.say)
    serve = (str(python), RUN, "serve", peer, "--port", str(setup.port), "--images", str(setup.images))
    return System(
        title=f"{title}, decoding JPEG" if decode else title,
        server=(*serve, "--model-s", str(setup.model_s), *(("--decode",) if decode else ())),
        ready="READY",
        clients=_load(setup, python, peer),
        environment=variables or {},
    )


def _openpi(setup: Setup, *, decode: bool = False) -> System:
    if setup.openpi is None:
        return _peer(setup, "openpi (its loop)", OPENPI, "openpi", decode=decode)
    file = setup.openpi
    if file.is_dir():
        file = file / "src" / "openpi" / "serving" / "websocket_policy_server.py"
    if not file.is_file():
        raise ConfigurationError("is no openpi server", file=str(file), key="--openpi", fix="give a checkout of openpi")
    return _peer(setup, "openpi", OPENPI, "openpi", {"OPENPI_SERVER_FILE": str(file.resolve())}, decode=decode)


def _lerobot_each(setup: Setup) -> System:
    """Return servers with one thread of PyTorch each: as many as cores in every server would be slower."""
    variables = {"LEROBOT_ROBOTS": str(setup.most_clients), "OMP_NUM_THREADS": "1"}
    return _peer(setup, "LeRobot, a server per robot, decoding JPEG", LEROBOT, "lerobot_each", variables)


def _ours(
    setup: Setup, title: str, *, takes_encoded: bool = True, image_px: int = 0, clients: tuple[str, ...] = (), port: int = 0
) -> System:
    from ros2_rfm_serving.factory.nodes import parameter_file

    folder = setup.scratch / title.replace(" ", "_").replace(",", "")
    folder.mkdir(exist_ok=True)
    (folder / "models.yaml").write_text(_catalogue(setup, takes_encoded, image_px), encoding="utf-8")
    (folder / "sleeping.csv").write_text(_profile(1e3 * setup.model_s), encoding="utf-8")
    parameters = {
        "server": SERVER,
        "model": MODEL,
        "gpu_type": GPU_TYPE,
        "profiles_folder": str(folder),
        "batch_size": MAX_BATCH_SIZE,
        "max_sessions": 64,
        "max_request_rate_hz": 0.0,  # these clients send again once they are answered
        "decode_threads": max(1, (os.cpu_count() or 2) // 2),
        "gateway_port": port,
    }
    (folder / "server.yaml").write_text(parameter_file(parameters), encoding="utf-8")
    robots = module_command("lab.benchmarks.serving.clients", "--server", SERVER)
    node = (sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.ros.model_server_node")
    return System(
        title=title,
        server=(*node, "--ros-args", "--params-file", str(folder / "server.yaml")),
        ready=" ready in ",
        clients=clients or (*robots, "--images", str(setup.images), *_times(setup)),
        environment={
            "FASTDDS_DEFAULT_PROFILES_FILE": str(shipped("config", "dds", "one_machine.xml")),
            "ROS_AUTOMATIC_DISCOVERY_RANGE": "SYSTEM_DEFAULT",  # as in the profile: shared memory alone, whose datagrams are whole
            "OMP_NUM_THREADS": "1",
        },
    )


def _catalogue(setup: Setup, takes_encoded: bool, image_px: int) -> str:
    entry = {
        "engine": "ros2_rfm_serving.engines.fixed_latency:build",
        "action_names": [f"joint_{i}" for i in range(14)],
        "cameras": sorted(file.stem for file in setup.images.glob("*.jpg")),
        "state_size": 14,
        "chunk_length": 50,
        "options": {"seconds": setup.model_s, "takes_encoded": takes_encoded, "image_px": image_px},
    }
    return yaml.safe_dump({"models": {MODEL: entry}})


def _profile(model_ms: float) -> str:
    figures = ",".join([f"{max(model_ms, 1e-3):g}"] * 5)  # a profile requires a positive time
    rows = [f"{MODEL},{GPU_TYPE},fixed,{size},1,{figures}" for size in (1, MAX_BATCH_SIZE)]
    return "\n".join(["model,gpu_type,batching,batch_size,rate_hz,mean_ms,p50_ms,p90_ms,p95_ms,p99_ms", *rows, ""])


def _ours_websocket(setup: Setup) -> System:
    python = python_of(OPENPI, setup.environments, setup.say)
    return _ours(setup, "rfm_serving, websocket", clients=_load(setup, python, "openpi"), port=setup.port)


SYSTEMS: dict[str, Callable[[Setup], System]] = {
    "ours": lambda setup: _ours(setup, "rfm_serving, DDS"),
    "ours-decoding": lambda setup: _ours(setup, "rfm_serving, DDS, decoding JPEG", takes_encoded=False),
    "ours-scaled": lambda setup: _ours(setup, "rfm_serving, DDS, decoding JPEG for 224 px", takes_encoded=False, image_px=224),
    "ours-websocket": _ours_websocket,
    "openpi": _openpi,
    "openpi-decoding": lambda setup: _openpi(setup, decode=True),
    "ray": lambda setup: _peer(setup, "Ray Serve, handle", RAY, "ray"),
    "ray-decoding": lambda setup: _peer(setup, "Ray Serve, handle", RAY, "ray", decode=True),
    "ray-http": lambda setup: _peer(setup, "Ray Serve, HTTP", RAY, "ray_http"),
    "lerobot": lambda setup: _peer(setup, "LeRobot", LEROBOT, "lerobot"),
    "lerobot-decoding": lambda setup: _peer(setup, "LeRobot, decoding JPEG", LEROBOT, "lerobot_jpeg"),
    "lerobot-each": _lerobot_each,
}
