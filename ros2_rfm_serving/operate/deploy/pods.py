"""Kubernetes pod of one process, with a container that probes it, and without privileges."""

from __future__ import annotations

import re
from typing import Any

from ros2_rfm_serving.operate.deploy.files import Document, slug
from ros2_rfm_serving.operate.deploy.hearing import service_of
from ros2_rfm_serving.operate.deploy.needs import CACHE_MIB, NEEDS, PROBE_NEED, SHARED_MEMORY_MIB, TEMPORARY_MIB, Need, image
from ros2_rfm_serving.operate.deploy.options import CACHE, ETC, USER_ID
from ros2_rfm_serving.operate.deploy.processes import Plan, Process, Role

FILES, SECRETS = "rfm-files", "rfm-secrets"
"""Names of the ConfigMap that all pods read, and of the Secret that the user has to provide."""
HOST_LABEL, GPU_LABEL = "rfm-serving/host", "rfm-serving/gpu-type"
"""Labels of nodes."""
GPU = "nvidia.com/gpu"
STARTS_WITHIN_S, PROBE_PERIOD_S = 1800, 10
"""Startup time of a server, which loads its model within 30 min (`load_timeout_s`), and of a scheduler, which plans for 15 min."""
PROBED = (Role.SCHEDULER, Role.SERVER)


def pod(plan: Plan, process: Process, number: int) -> Document:
    options = plan.options
    probe_port = options.metrics + (number if options.host_network else 0)
    volumes: list[Document] = [
        {"name": "etc", "projected": {"sources": _sources(plan, process)}},
        {"name": "tmp", "emptyDir": {"sizeLimit": f"{TEMPORARY_MIB}Mi"}},
    ]
    if process.role is Role.SERVER:
        volumes.append({"name": "cache", **_cache(options.cache_claim)})
    volumes += [_enclave(member) for member in enclaves_of(plan, process)]
    if not options.host_network:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHARED_MEMORY_MIB}Mi"}})
    made: Document = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": process.stop_s,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": volumes,
        "containers": [_main(plan, process, probe_port)],
    }
    if process.role in PROBED:
        made["initContainers"] = [_probe(plan, process, probe_port)]
    if options.host_network:
        # Processes with the same address communicate through shared memory, so they must share that, too.
        made |= {"hostNetwork": True, "hostIPC": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if selector := _selector(process):
        made["nodeSelector"] = selector
    if process.gpu:
        made["tolerations"] = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
    return made


def _main(plan: Plan, process: Process, probe_port: int) -> Document:
    container = _container(plan, process, process.component, process.command)
    resources = _requests(NEEDS[process.role])
    container["resources"] = {**resources, "limits": {GPU: 1}} if process.gpu else resources
    if process.door:
        container["ports"] = [{"name": "door", "containerPort": process.door}]
    if process.role is Role.SERVER:
        container["env"].append({"name": "XDG_CACHE_HOME", "value": CACHE})
        container["volumeMounts"].append({"name": "cache", "mountPath": CACHE})
    if process.drain:
        container["lifecycle"] = {"preStop": {"exec": {"command": process.drain}}}
    if process.role in PROBED:
        container |= _probes(probe_port)
    return container


def _container(plan: Plan, process: Process, name: str, command: list[str]) -> Document:
    environment = {"HOME": "/tmp", "ROS_LOG_DIR": "/tmp/ros", **process.environment}
    secrets = [_secret(name) for name in process.secrets]
    return {
        "name": name,
        "image": image(plan.options, process),
        "command": command,
        "env": [{"name": name, "value": value} for name, value in environment.items()] + secrets,
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "etc", "mountPath": ETC, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            *(
                [{"name": enclave_of(whose), "mountPath": plan.options.enclave(whose), "readOnly": True}]
                if (whose := process.enclave)
                else []
            ),
            *([] if plan.options.host_network else [{"name": "shm", "mountPath": "/dev/shm"}]),
        ],
    }


def _probe(plan: Plan, process: Process, port: int) -> Document:
    """Return the container beside a process that receives its status on the graph, as robots do, and reports it over HTTP.
    It starts before the process, and ends after it."""
    command = plan.metrics("0.0.0.0", port, "/tmp", process.name if process.role is Role.SERVER else "")
    container = _container(plan, plan.watching(process), "probe", command)
    container["env"] = [one for one in container["env"] if "value" in one]
    ports = [{"name": "metrics", "containerPort": port}]
    return {**container, "restartPolicy": "Always", "ports": ports, "resources": _requests(PROBE_NEED)}


def _probes(port: int) -> Document:
    """Return the probes. A server that loads, or has no model, is alive: only a process without any status is restarted. A
    process that answers requests is ready."""

    def asked(path: str, failures: int) -> Document:
        get = {"path": path, "port": port}
        return {"httpGet": get, "periodSeconds": PROBE_PERIOD_S, "timeoutSeconds": 5, "failureThreshold": failures}

    return {
        "startupProbe": asked("/livez", STARTS_WITHIN_S // PROBE_PERIOD_S),
        "livenessProbe": asked("/livez", 3),
        "readinessProbe": asked("/readyz", 1),
    }


def _secret(name: str) -> Document:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": SECRETS, "key": name}}}


def enclaves_of(plan: Plan, process: Process) -> list[str]:
    """Return the members whose certificates a pod has."""
    probed = [plan.watching(process).enclave] if process.role in PROBED else []
    return [member for member in (process.enclave, *probed) if member]


def enclave_of(member: str) -> str:
    """Return the name of a member's Secret."""
    return f"rfm-enclave-{slug(member)}"


def _enclave(member: str) -> Document:
    """Return the volume of a certificate, which the pod's own group alone can read."""
    return {"name": enclave_of(member), "secret": {"secretName": enclave_of(member), "defaultMode": 0o440}}


def _cache(claim: str) -> Document:
    """Return the volume of the cache: a restarted container finds it again, and with a claim the next pod does, too."""
    return {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {"sizeLimit": f"{CACHE_MIB}Mi"}}


def _requests(need: Need) -> Document:
    return {"requests": {"cpu": f"{need.cpu_millicores}m", "memory": f"{need.memory_mib}Mi"}}


def _selector(process: Process) -> Document:
    if process.host:
        return {HOST_LABEL: process.host}
    return {GPU_LABEL: slug(process.gpu)} if process.gpu else {}


def _sources(plan: Plan, process: Process) -> list[Any]:
    items = [{"key": key_of(name), "path": name} for name in plan.files]
    own = [{"key": "parameters.yaml", "path": f"parameters/{process.name}.yaml"}]
    return [{"configMap": {"name": FILES, "items": items}}, {"configMap": {"name": name_of(process), "items": own}}]


def name_of(process: Process) -> str:
    return service_of(process.name)


def key_of(name: str) -> str:
    """Return the key of a file in a ConfigMap, which has no folders."""
    return re.sub(r"[^\w.-]", "-", name.replace("/", "_"), flags=re.ASCII)
