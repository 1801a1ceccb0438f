"""A factory's processes as `rfm up` starts them, on the machines of the descriptor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Catalogue, CatalogueEntry, Factory
from ros2_rfm_serving.factory.nodes import NodeSpec, merged_parameters, node_list, parameter_file
from ros2_rfm_serving.operate.carried import entries_of, files, gpu_of, moved
from ros2_rfm_serving.operate.commands import ENVIRONMENT, node_arguments
from ros2_rfm_serving.operate.deploy.hearing import Hearing
from ros2_rfm_serving.operate.deploy.options import DOOR_TOKEN, Options
from ros2_rfm_serving.operate.deploy.processes import HEARD_S, OBSERVER, Plan, Process, Role, installed, rfm
from ros2_rfm_serving.operate.enclaves import check_enclaves
from ros2_rfm_serving.ros.server.settings import SPECS as SERVER_SPECS
from ros2_rfm_serving.security.folder import Folder
from ros2_rfm_serving.security.own import member_environment
from ros2_rfm_serving.security.record import Record
from ros2_rfm_serving.shipped import shipped


def plan(factory: Factory, catalogue: Catalogue, options: Options) -> Plan:
    """Return the plan of a deployment. Raises: `ConfigurationError`."""
    work: dict[str, Any] | None = {"end_on_score": False} if options.foreman else None
    nodes = node_list(factory, shipped("config"), fleet_namespace=options.namespace, work=work, profiles=options.profiles)
    if options.security:
        check_enclaves([*(node.name for node in nodes), OBSERVER], options.security)
    if options.security and factory.zenoh_hosts:
        _check_place(options.security, options.keystore)
    hearing = Hearing.of(factory, nodes, options)
    making = _Making(factory, entries_of(factory, catalogue), options, hearing)
    return Plan(
        factory=factory,
        options=options,
        processes=tuple(making.process(node) for node in (*hearing.servers, *nodes)),
        files={**dict(files(factory, options.profiles)), **hearing.files},
        engines=making.engines,
    )


def _check_place(security: Path, keystore: str) -> None:
    """Raise `ConfigurationError` when certificates will not be where Zenoh's configurations expect them."""
    place = Record.load(Folder(security)).place
    if place != keystore:
        problem = f"Zenoh's configurations there look for certificates in {place or security.absolute()}, and not in {keystore}"
        fix = f"rfm security init ... --at {keystore}"
        raise ConfigurationError(problem, file=str(security), key="--security", fix=fix)


def elsewhere(plan: Plan, catalogue: Catalogue) -> list[str]:
    """Return warnings about files of this machine that parameters and models name, and that the deployment does not copy."""
    named = {f"{key} of {one.name}": value for one in plan.processes for key, value in merged_parameters(one.node).items()}
    named |= {f"options.{key} of {name}": value for name, entry in catalogue.models.items() for key, value in entry.options.items()}
    paths = {where: text for where, text in named.items() if isinstance(text, str) and text.startswith("/")}
    return [
        f"{where} names {text}, which has to be there, too"
        for where, text in sorted(paths.items())
        if Path(text).exists() and not text.startswith(f"{plan.options.files}/")
    ]


@dataclass
class _Making:
    """Builder of a factory's processes, one after the other."""

    factory: Factory
    entries: list[CatalogueEntry]
    """Catalogue entries of its models."""
    options: Options
    hearing: Hearing
    num_doors: int = 0
    num_gpus: int = 0

    @property
    def engines(self) -> frozenset[str]:
        return frozenset(entry.engine for entry in self.entries)

    def process(self, node: NodeSpec) -> Process:
        role, etc = Role.of(node.executable), self.options.files
        node = moved(node, etc)
        made = Process(
            node=node,
            role=role,
            command=[*installed(self.options, node.executable), *self._arguments(node, etc)],
            parameters=parameter_file(merged_parameters(node)),
            environment=self._environment(node),
        )
        made = self._with_enclave(made) if self.options.security and role is not Role.DISCOVERY else made
        return self._server(made) if role is Role.SERVER else made

    def _with_enclave(self, made: Process) -> Process:
        environment = {**made.environment, **member_environment(Path(self.options.keystore), made.name)}
        return dataclasses.replace(made, enclave=made.name, environment=environment)

    def _arguments(self, node: NodeSpec, etc: str) -> list[str]:
        file, namespace = f"{etc}/parameters/{node.name}.yaml", self.options.namespace
        return node_arguments(node, file, fleet_namespace=namespace, log_level=self.options.log_level)

    def _environment(self, node: NodeSpec) -> dict[str, str]:
        """Return the environment without the variables that the node would remove."""
        said = {**ENVIRONMENT, **self.hearing.environment(node.host), **node.environment}
        return {name: value for name, value in said.items() if value}

    def _server(self, made: Process) -> Process:
        given = merged_parameters(made.node)
        drain_s = float(given.get("drain_timeout_s", SERVER_SPECS["drain_timeout_s"].default)) + HEARD_S
        drain = rfm(self.options, "drain", made.name, "--within", f"{drain_s:g}")
        gpu = gpu_of(self.factory.gpu_types[made.name], self.engines)
        device = made.node.device or (str(self.num_gpus) if gpu else "")  # without hosts: numbered one after the other
        self.num_gpus += bool(gpu)
        secrets = tuple(sorted(self._secrets(given)))
        served = dataclasses.replace(made, drain=drain, drain_s=drain_s, gpu=gpu, device=device, secrets=secrets)
        return self._with_door(served) if self.options.door else served

    def _secrets(self, parameters: Mapping[str, Any]) -> set[str]:
        """Return the environment variables that the factory's models and the server's overflow read."""
        named = [value for entry in self.entries for key, value in entry.options.items() if key.endswith("_env")]
        return {str(name) for name in (*named, parameters.get("overflow_token_env")) if name}

    def _with_door(self, made: Process) -> Process:
        port = self.options.door + (self.num_doors if self.options.shares_addresses else 0)
        self.num_doors += 1
        if port > 65535:
            raise ConfigurationError(f"{port} is no port", key="--door", fix="begin with a lower one")
        door = {"gateway_port": port, "gateway_host": "0.0.0.0", "gateway_token_env": DOOR_TOKEN}
        node = dataclasses.replace(made.node, parameters={**made.node.parameters, **door})
        text, secrets = parameter_file(merged_parameters(node)), tuple(sorted({*made.secrets, DOOR_TOKEN}))
        return dataclasses.replace(made, node=node, parameters=text, door=port, secrets=secrets)
