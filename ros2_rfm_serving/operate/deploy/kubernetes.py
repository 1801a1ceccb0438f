"""Kubernetes: a Deployment per process, a StatefulSet per robot, with configuration, probes and a network policy."""

from __future__ import annotations

import hashlib

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.discovery import DiscoveryMode
from ros2_rfm_serving.operate.deploy.files import Document, distinct, distinct_types, dump, slug
from ros2_rfm_serving.operate.deploy.pods import FILES, GPU, key_of, name_of, pod
from ros2_rfm_serving.operate.deploy.processes import Plan, Process, Role

MAX_FILES_BYTES = 1_000_000
"""Maximum size of a ConfigMap, less a margin."""
ROBOTS = (Role.ROBOT, Role.WORLD)


def manifests(plan: Plan) -> dict[str, str]:
    """Return the files by name. Raises: `ConfigurationError`."""
    if plan.factory.discovery.mode is DiscoveryMode.PEERS and not plan.options.host_network:
        problem, fix = "pods have addresses of their own, which no descriptor knows", "--host-network, or `mode: server`"
        raise ConfigurationError(problem, file=plan.factory.file, key="discovery.mode", fix=fix)
    distinct((process.name for process in plan.processes), plan.factory.file)
    distinct_types((process.gpu for process in plan.processes if process.gpu and not process.host), plan.factory.file)
    _require_one_type(plan)
    if sum(len(text.encode()) for text in plan.files.values()) > MAX_FILES_BYTES:
        fix = "leave out of --profiles what the factory does not need"
        raise ConfigurationError("descriptor and profiles are too much for a ConfigMap", file=str(plan.options.profiles), fix=fix)
    about = f"Of {plan.title}, written by `rfm deploy --kubernetes`: change the descriptor, and write it anew."
    common = [_config_map(plan, FILES, {key_of(name): text for name, text in plan.files.items()})]
    common += [] if plan.options.host_network else [_policy(plan)]
    files = {"manifests/common.yaml": dump(common, about)}
    for number, process in enumerate(plan.processes):
        folder = f"manifests/{process.host}/" if process.host else "manifests/"
        files[f"{folder}{slug(process.name)}.yaml"] = dump(_documents(plan, process, number), about)
    return files


def _require_one_type(plan: Plan) -> None:
    """Raise `ConfigurationError` when a host has GPUs of several types: its pods request a GPU, and get any."""
    for host in filter(None, plan.hosts):
        if len({process.gpu for process in plan.on(host) if process.gpu}) > 1:
            problem = f"has GPUs of several types, and a node's {GPU} is any of them"
            key, fix = f"hosts.{host}.gpus", "make a host of each type's nodes"
            raise ConfigurationError(problem, file=plan.factory.file, key=key, fix=fix)


def _documents(plan: Plan, process: Process, number: int) -> list[Document]:
    documents = [_config_map(plan, name_of(process), {"parameters.yaml": process.parameters}), _workload(plan, process, number)]
    if process.role is Role.DISCOVERY and not plan.options.host_network:
        documents.append(_discovery(plan, process))
    return [*documents, _door(plan, process)] if process.door else documents


def _workload(plan: Plan, process: Process, number: int) -> Document:
    spec: Document = {
        "replicas": 1,
        "selector": {
            "matchLabels": {"app.kubernetes.io/name": name_of(process), "app.kubernetes.io/instance": slug(plan.factory.name)}
        },
        "template": {
            "metadata": {"labels": _labels(plan, process), "annotations": {"rfm-serving/configuration": _digest(plan, process)}},
            "spec": pod(plan, process, number),
        },
    }
    metadata = {"name": name_of(process), "labels": _labels(plan, process)}
    if process.role in ROBOTS:  # never two pods that command one robot, even when its node is unreachable
        spec = {"serviceName": name_of(process), **spec}
        return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}
    spec["strategy"] = {"type": "Recreate"}  # two pods of one name would disturb each other
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def _config_map(plan: Plan, name: str, data: dict[str, str]) -> Document:
    labels = {"app.kubernetes.io/instance": slug(plan.factory.name), "app.kubernetes.io/part-of": "rfm-serving"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": data}


def _door(plan: Plan, process: Process) -> Document:
    selector = {"app.kubernetes.io/name": name_of(process), "app.kubernetes.io/instance": slug(plan.factory.name)}
    spec = {"selector": selector, "ports": [{"name": "door", "port": process.door, "targetPort": "door"}]}
    metadata = {"name": f"{name_of(process)}-door", "labels": _labels(plan, process)}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _discovery(plan: Plan, process: Process) -> Document:
    """Return a service with a known name, and an address that stays, before and after its pod exists."""
    selector = {"app.kubernetes.io/name": name_of(process), "app.kubernetes.io/instance": slug(plan.factory.name)}
    ports = [{"name": "discovery", "protocol": "UDP", "port": plan.factory.discovery.port}]
    spec = {"selector": selector, "publishNotReadyAddresses": True, "ports": ports}
    metadata = {"name": name_of(process), "labels": _labels(plan, process)}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _policy(plan: Plan) -> Document:
    """Return the network policy: pods of the factory reach each other, and others only their metrics and gateways."""
    mine = {"matchLabels": {"app.kubernetes.io/instance": slug(plan.factory.name), "app.kubernetes.io/part-of": "rfm-serving"}}
    open_ports = [{"protocol": "TCP", "port": port} for port in ("metrics", *(["door"] if plan.options.door else []))]
    spec = {"podSelector": mine, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": mine}]}, {"ports": open_ports}]}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "rfm-factory"}, "spec": spec}


def _labels(plan: Plan, process: Process) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": name_of(process),
        "app.kubernetes.io/instance": slug(plan.factory.name),
        "app.kubernetes.io/component": process.component,
        "app.kubernetes.io/part-of": "rfm-serving",
    }


def _digest(plan: Plan, process: Process) -> str:
    """Return the digest of a pod's configuration, by which it is replaced after a change."""
    whole = "\0".join([process.parameters, *plan.files.values()])
    return hashlib.sha256(whole.encode()).hexdigest()[:16]
