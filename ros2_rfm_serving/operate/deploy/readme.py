"""README.md beside the manifests: the commands that apply them, and what only its reader can provide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ros2_rfm_serving.monitoring.plain import counted
from ros2_rfm_serving.operate.deploy import compose, pods, systemd
from ros2_rfm_serving.operate.deploy.files import slug
from ros2_rfm_serving.operate.deploy.images import server_extras, simulator_extras, targets
from ros2_rfm_serving.operate.deploy.options import ACCOUNT, USER_ID, Kind
from ros2_rfm_serving.operate.deploy.processes import OBSERVER, Plan, Process, Role


def readme(plan: Plan) -> str:
    kind = plan.options.kind
    body = {Kind.KUBERNETES: _kubernetes, Kind.COMPOSE: _compose, Kind.SYSTEMD: _systemd}[kind]
    robots, servers = counted(len(plan.factory.robots), "robot"), counted(len(plan.factory.servers), "server")
    title = f"# {plan.title}: {robots}, {servers}\n"
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
    if enclaves := list(dict.fromkeys(one for process in plan.processes for one in pods.enclaves_of(plan, process))):
        yield "Each process' certificate and key, from the folder of `rfm security init`:\n"
        routers = _routers(plan, plan.processes)
        yield from _commands(
            *(
                f"kubectl create secret generic {pods.enclave_of(one)} --from-file={plan.options.security}/enclaves/{one}"
                + "".join(f" --from-file={rules}" for whose, rules in routers if whose == one)
                for one in enclaves
            )
        )
    if labels := list(dict.fromkeys(_labels(plan))):
        yield "Labels that say which node is which:\n"
        yield from _commands(*labels)
    if any(process.gpu for process in plan.processes):
        yield f"NVIDIA's device plugin, which makes `{pods.GPU}` of a node's GPUs. It chooses among them.\n"
    if plan.options.cache_claim:
        claim = plan.options.cache_claim
        yield f"The PersistentVolumeClaim `{claim}`, which every node with a server can write to (`ReadWriteMany`).\n"
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
    for host in plan.hosts if plan.options.security else ():
        folder = f"{host}/{compose.ENCLAVES}" if host else compose.ENCLAVES
        yield f"Certificates and keys, which the containers' user alone reads{f', on {host}' if host else ''}:\n"
        yield from _enclaves(plan, host, folder, str(USER_ID))
    if any(process.gpu for process in plan.processes):
        yield "NVIDIA's container toolkit on each machine with a GPU.\n"
    yield "## Start, look, end\n"
    for title, here in _machines(plan, "On {}:\n", ""):
        yield title
        yield from _commands(
            f"docker compose -f {here}compose.yaml up --detach --wait",
            f"curl localhost:{plan.options.metrics}/readyz",
            f"docker compose -f {here}compose.yaml down",
        )
    yield "Draining before the end (`pre_stop`) needs Compose 2.30; older ones drain on SIGTERM alone, within the same time.\n"


def _systemd(plan: Plan) -> Iterator[str]:
    prefix, etc = plan.options.prefix, plan.options.etc
    if prefix:
        extras = ",".join(sorted({*server_extras(plan), *(simulator_extras(plan) if plan.has(Role.WORLD) else [])}))
        yield f"rfm_serving is expected at `{prefix}` on each machine, from the wheel that `make wheel` makes in a checkout:\n"
        yield from _commands(f"python3 -m venv {prefix}", f'{prefix}/bin/pip install "$(echo dist/*.whl)[{extras}]"')
    for host, (title, here) in zip(plan.hosts, _machines(plan, "## On {}\n", "## Put in place\n"), strict=True):
        yield title
        yield from _commands(
            f"sudo install -D -m 644 -t /etc/sysusers.d {here}sysusers.d/*.conf && sudo systemd-sysusers",
            f"sudo mkdir -p {etc} && sudo cp -r {here}etc/. {etc}/",
            f"sudo install -m 644 -t /etc/systemd/system {here}units/* && sudo systemctl daemon-reload",
        )
        if plan.options.security:
            yield "Certificates and keys, which the units' user alone reads:\n"
            yield from _enclaves(plan, host, f"{plan.options.keystore}/enclaves", ACCOUNT)
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


def _machines(plan: Plan, named: str, alone: str) -> Iterator[tuple[str, str]]:
    """Yield a title and the folder of each machine. alone: title of a single machine without a name."""
    for host in plan.hosts:
        yield (named.format(host), f"{host}/") if host else (alone, "")


def _enclaves(plan: Plan, host: str, folder: str, owner: str) -> Iterator[str]:
    members = list(dict.fromkeys([*(process.enclave for process in plan.on(host) if process.enclave), OBSERVER]))
    yield from _commands(
        f"sudo install -d -o {owner} -m 700 {folder}",
        *(f"sudo cp -r {plan.options.security}/enclaves/{member} {folder}/" for member in members),
        *(f"sudo cp {rules} {folder}/{whose}/" for whose, rules in _routers(plan, plan.on(host))),
        f"sudo chown -R {owner} {folder}",
    )


def _routers(plan: Plan, processes: Iterable[Process]) -> list[tuple[str, str]]:
    """Return each Zenoh router's member, and the file of its rules."""
    return [(one.enclave, f"{plan.options.security}/zenoh/router.json5") for one in processes if one.role is Role.ROUTER]


def _secrets(where: str, names: Sequence[str]) -> Iterator[str]:
    if names:
        yield f"{where} with a line for each of these:\n"
        yield from _commands(*(f"{name}=..." for name in names))


def _commands(*lines: str) -> Iterator[str]:
    yield "".join(f"    {line}\n" for line in lines)
