"""Compose: a file for each host, a service per process, and one on each host that reports the state of its servers."""

from __future__ import annotations

from typing import Any

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.deploy.files import Document, dump, slug
from ros2_rfm_serving.operate.deploy.needs import NEEDS, PROBE_NEED, SHARED_MEMORY_MIB, TEMPORARY_MIB, Need, image
from ros2_rfm_serving.operate.deploy.options import CACHE, ETC, PREFIX, USER_ID
from ros2_rfm_serving.operate.deploy.processes import Plan, Process, Role

SECRETS = "secrets.env"
"""File beside the compose file that the user has to provide."""
ENCLAVES = "enclaves"
"""Folder beside the compose file that the user has to provide."""
METRICS = "metrics"
KEPT = "cache"
"""Volume of a machine's servers, for what the next start finds again."""
PROBE_PERIOD_S, STARTS_WITHIN_S = 10, 1800


def manifests(plan: Plan) -> dict[str, str]:
    """Return the files by name. Raises: `ConfigurationError`."""
    if any(plan.hosts) and not plan.options.host_network:
        problem = "the descriptor's hosts reach each other under their own addresses, and a network of Compose's own has others"
        raise ConfigurationError(problem, file=plan.factory.file, key="hosts", fix="--host-network")
    about = f"Of {plan.title}, written by `rfm deploy --compose`: change the descriptor, and write it anew."
    files: dict[str, str] = {}
    for host in plan.hosts:
        folder, here = f"{host}/" if host else "", plan.on(host)
        files[f"{folder}compose.yaml"] = dump([_project(plan, here)], about)
        files |= {f"{folder}etc/{name}": text for name, text in plan.files.items()}
        files |= {f"{folder}etc/parameters/{process.name}.yaml": process.parameters for process in here}
    return files


def _project(plan: Plan, processes: list[Process]) -> Document:
    services = {process.name: _service(plan, process) for process in processes}
    if any(process.role in (Role.SCHEDULER, Role.SERVER) for process in processes):
        services[METRICS] = _metrics(plan, plan.beside(processes[0].host))
    project: Document = {"name": slug(plan.factory.name) or "rfm", "services": services}
    return {**project, "volumes": {KEPT: {}}} if any(process.role is Role.SERVER for process in processes) else project


def _service(plan: Plan, process: Process) -> Document:
    service = _container(plan, process, process.command, NEEDS[process.role])
    service["stop_grace_period"] = f"{process.stop_s}s"
    if process.drain:
        service["pre_stop"] = [{"command": process.drain}]
    if process.secrets:
        service["env_file"] = [SECRETS]
    if process.role is Role.SERVER:
        service["healthcheck"] = _health(plan, f"readyz/{process.name}")
        service["environment"]["XDG_CACHE_HOME"] = CACHE
        service["volumes"].append({"type": "volume", "source": KEPT, "target": CACHE})
    elif process.role is Role.SCHEDULER:
        service["healthcheck"] = _health(plan, "readyz")
    if process.gpu:
        device = {"driver": "nvidia", "device_ids": [process.device], "capabilities": ["gpu"]}
        service["deploy"]["resources"]["reservations"]["devices"] = [device]
    if process.door and not plan.options.host_network:
        service["ports"] = [f"{process.door}"]
    return service


def _metrics(plan: Plan, beside: Process) -> Document:
    """Return the metrics service, which has what any process of its host has except secrets."""
    address = "127.0.0.1" if plan.options.host_network else "0.0.0.0"
    command = plan.metrics(address, plan.options.metrics, "/tmp")
    service = _container(plan, plan.watching(beside), command, PROBE_NEED)
    service["image"] = f"{plan.options.image}/robot:{plan.options.tag}"
    service["healthcheck"] = _health(plan, "healthz")
    port = plan.options.metrics
    return service if plan.options.host_network else {**service, "ports": [f"127.0.0.1:{port}:{port}"]}


def _container(plan: Plan, process: Process, command: list[str], need: Need) -> Document:
    whose = process.enclave
    reservations = {"cpus": f"{need.cpu_millicores / 1000:g}", "memory": f"{need.memory_mib}M"}
    shared = {"network_mode": "host", "ipc": "host"} if plan.options.host_network else {"shm_size": f"{SHARED_MEMORY_MIB}m"}
    return {
        "image": image(plan.options, process),
        "command": [_literal(word) for word in command],
        "environment": {
            name: _literal(value) for name, value in {"HOME": "/tmp", "ROS_LOG_DIR": "/tmp/ros", **process.environment}.items()
        },
        "user": f"{USER_ID}:{USER_ID}",
        "read_only": True,
        "tmpfs": [f"/tmp:size={TEMPORARY_MIB}m,mode=1777"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "volumes": [_bind("./etc", ETC), *([_bind(f"./{ENCLAVES}/{whose}", plan.options.enclave(whose))] if whose else [])],
        "restart": "unless-stopped",
        **shared,
        "deploy": {"resources": {"reservations": reservations}},
    }


def _bind(source: str, target: str) -> Document:
    return {"type": "bind", "source": source, "target": target, "read_only": True}


def _health(plan: Plan, path: str) -> dict[str, Any]:
    url = f"http://{'127.0.0.1' if plan.options.host_network else METRICS}:{plan.options.metrics}/{path}"
    ask = f"import urllib.request; urllib.request.urlopen('{url}', timeout=4)"
    period = {"interval": f"{PROBE_PERIOD_S}s", "timeout": "10s", "retries": 3, "start_period": f"{STARTS_WITHIN_S}s"}
    return {"test": ["CMD", f"{PREFIX}/bin/python", "-c", ask], **period}


def _literal(text: str) -> str:
    """Return text in which Compose finds no variable."""
    return text.replace("$", "$$")
