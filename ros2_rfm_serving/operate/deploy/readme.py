"""The README.md beside manifests: which commands put them in force, and what nobody but the reader can put in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ros2_rfm_serving.operate.deploy import compose, pods, systemd
from ros2_rfm_serving.operate.deploy.files import slug
from ros2_rfm_serving.operate.deploy.images import server_extras, targets
from ros2_rfm_serving.operate.deploy.options import ACCOUNT, Kind
from ros2_rfm_serving.operate.deploy.processes import Plan, Role


def readme(plan: Plan) -> str:
    kind = plan.options.kind
    body = {Kind.KUBERNETES: _kubernetes, Kind.COMPOSE: _compose, Kind.SYSTEMD: _systemd}[kind]
    title = f"# {plan.title}: {len(plan.factory.robots)} robots, {len(plan.factory.servers)} servers\n"
    about = (
        f"Written by `rfm deploy --{kind.value}` from the descriptor, which is in here, too. Change that, and write it all anew.\n"
    )
    images = _images(plan) if plan.options.in_containers else ()
    return "\n".join([title, about, *images, *body(plan)])


def _images(plan: Plan) -> Iterator[str]:
    yield "## Images\n\nIn a checkout of rfm_serving; then push them to where your machines find them.\n"
    yield from _commands(
        *(
            f"docker build -f <this folder>/Dockerfile --target {name} -t {plan.options.image}/{name}:{plan.options.tag} ."
            for name in targets(plan)
        )
    )


def _kubernetes(plan: Plan) -> Iterator[str]:
    yield "## Put in place\n\nA namespace of its own for each factory.\n"
    yield from _commands("kubectl create namespace rfm", "kubectl config set-context --current --namespace rfm")
    if plan.secrets:
        yield from _secrets(f"Its secrets, from a file `{compose.SECRETS}`", plan.secrets)
        yield from _commands(f"kubectl create secret generic {pods.SECRETS} --from-env-file={compose.SECRETS}")
    if labels := list(dict.fromkeys(_labels(plan))):
        yield "Labels that say which node is which:\n"
        yield from _commands(*labels)
    if any(process.gpu for process in plan.processes):
        yield f"NVIDIA's device plugin, which makes `{pods.GPU}` of a node's GPUs. It chooses among them.\n"
    port = plan.options.metrics
    yield "## Start, look, end\n"
    yield from _commands(
        "kubectl apply -R -f manifests/",
        "kubectl rollout status deployment/rfm-scheduler      # done when every server of the schedule is ready",
        f"kubectl port-forward deployment/rfm-scheduler {port}   # then: curl localhost:{port}/readyz, /metrics",
        "kubectl delete -R -f manifests/",
    )
    yield _discovery(plan)


def _labels(plan: Plan) -> Iterator[str]:
    for process in plan.processes:
        if process.host:
            yield f"kubectl label node <node> {pods.HOST_LABEL}={process.host}"
        elif process.gpu:
            yield f"kubectl label node <node> {pods.GPU_LABEL}={slug(process.gpu)}      # every node with a {process.gpu}"


def _discovery(plan: Plan) -> str:
    if plan.options.host_network:
        return "Pods have their nodes' addresses, and find each other as processes without containers do.\n"
    return (
        "Pods find each other by multicast unless the descriptor says `discovery:`. Many pod networks let none through: then\n"
        "declare `discovery: {mode: server}`, or write this with `--host-network`, which robots outside the cluster need anyway.\n"
    )


def _compose(plan: Plan) -> Iterator[str]:
    yield from _secrets(f"## Put in place\n\n`{compose.SECRETS}` beside `compose.yaml`, of mode 600,", plan.secrets)
    if any(process.gpu for process in plan.processes):
        yield "NVIDIA's container toolkit on each machine with a GPU.\n"
    yield "## Start, look, end\n"
    for host in plan.hosts:
        file = f"{host}/compose.yaml" if host else "compose.yaml"
        yield f"On {host}:\n" if host else ""
        yield from _commands(
            f"docker compose -f {file} up --detach --wait",
            f"curl localhost:{plan.options.metrics}/readyz",
            f"docker compose -f {file} down",
        )
    yield "Draining before the end (`pre_stop`) needs Compose 2.30; older ones drain on SIGTERM alone, within the same time.\n"


def _systemd(plan: Plan) -> Iterator[str]:
    prefix, etc = plan.options.prefix, plan.options.etc
    if prefix:
        extras = ",".join(sorted({*server_extras(plan), *(["metaworld"] if plan.has(Role.WORLD) else [])}))
        yield f"rfm_serving is expected at `{prefix}` on each machine, from the wheel that `make wheel` makes in a checkout:\n"
        yield from _commands(f"python3 -m venv {prefix}", f'{prefix}/bin/pip install "$(echo dist/*.whl)[{extras}]"')
    for host in plan.hosts:
        here = f"{host}/" if host else ""
        yield f"## On {host}\n" if host else "## Put in place\n"
        yield from _commands(
            f"sudo install -D -m 644 -t /etc/sysusers.d {here}sysusers.d/*.conf && sudo systemd-sysusers",
            f"sudo mkdir -p {etc} && sudo cp -r {here}etc/. {etc}/",
            f"sudo install -m 644 -t /etc/systemd/system {here}units/* && sudo systemctl daemon-reload",
        )
        secrets = sorted({name for process in plan.on(host) for name in process.secrets})
        yield from _secrets(f"`{etc}/{systemd.SECRETS}`, of root and mode 600,", secrets)
        units = " ".join(f"rfm-{process.name}" for process in plan.on(host))
        yield from _commands(
            f"sudo systemctl enable --now {systemd.TARGET} rfm-metrics {units}",
            f"curl localhost:{plan.options.metrics}/readyz",
            "journalctl -u 'rfm-*' --follow",
            f"sudo systemctl stop {systemd.TARGET}      # servers finish what they have",
        )
    yield f"Units run as the user `{ACCOUNT}`; a GPU's device files have to be open to it.\n"


def _secrets(where: str, names: Sequence[str]) -> Iterator[str]:
    if names:
        yield f"{where} with a line for each of these:\n"
        yield from _commands(*(f"{name}=..." for name in names))


def _commands(*lines: str) -> Iterator[str]:
    yield "".join(f"    {line}\n" for line in lines)
