"""Contract of a model: from the catalogue, from a bundle, or from a server that serves it."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.errors import ConfigurationError, ModelError
from ros2_rfm_serving.factory import Catalogue, CatalogueEntry
from ros2_rfm_serving.operate.rates import demonstrated_hz
from ros2_rfm_serving.operate.running import ros_domain, spinning
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.profiles.files import read_rows
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.types import ModelContract, OutputKind

if TYPE_CHECKING:
    from ros2_rfm_serving.ros.wire.qos import Names

POLL_S = 0.1
EMULATED = "emulated "
"""Prefix with which an emulated engine names its model."""


def catalogue_contract(model: str, catalogue: Catalogue, profile: Profile, gpu_type: str) -> ModelContract:
    """Return the contract of a model of the catalogue, which is loaded for that on the CPU.
    Raises: `ModelError` when the catalogue does not have the model, or when its output is no actions."""
    return _acting(loaded_contract(model, catalogue[model], profile, gpu_type))


def bundle_contract(folder: Path, catalogue: Catalogue) -> ModelContract:
    """Return the contract of a bundle, which is loaded for that on the CPU.
    Its model has the catalogue's name, or the folder's where the catalogue does not have it. Raises: `ModelError`."""
    entry = CatalogueEntry(engine="bundle", bundle=str(folder.resolve()))
    models = shipped("models")
    own = [name for name, one in catalogue.models.items() if one.bundle and (models / one.bundle).resolve() == folder.resolve()]
    return _acting(loaded_contract(own[0] if own else folder.resolve().name, entry, Profile({}), "CPU"))


def loaded_contract(model: str, entry: CatalogueEntry, profile: Profile, gpu_type: str) -> ModelContract:
    """Return the contract of a model that is loaded for that. Raises: `ModelError`, `ConfigurationError`, `ProfileError`."""
    spec = EngineSpec(
        model=model, entry=entry, models_folder=shipped("models"), profile=profile, gpu_type=gpu_type, wait=time.sleep
    )
    engine = build_engine(spec)
    try:
        contract = engine.contract
    finally:
        engine.close()
    return replace(contract, model=model, control_rate_hz=contract.control_rate_hz or demonstrated_hz(entry))


def _acting(contract: ModelContract) -> ModelContract:
    if contract.output is not OutputKind.ACTION_CHUNK:
        raise ModelError(f"{contract.model!r} gives no actions but a {contract.output.value}: name a System 1 model")
    return contract


def profiled_gpu(model: str, profiles: Path) -> str:
    """Return the first type of GPU on which a model was profiled; empty: none."""
    rows = (row for file in sorted(profiles.glob("*.csv")) for row in read_rows(file))
    return next((row.gpu_type for row in rows if row.model == model), "")


def server_contract(server: str, names: Names, within_s: float, stop: threading.Event) -> ModelContract:
    """Return the contract of the model that a running server serves. Raises: `ConfigurationError` when it does not answer."""
    from rclpy.node import Node
    from rfm_serving import srv

    from ros2_rfm_serving.ros.wire import qos, session_messages

    def make() -> Node:
        node = Node("rfm_describe_client", start_parameter_services=False)
        node.describe = node.create_client(srv.DescribeServer, names.server(server, "describe"), qos_profile=qos.CONTROL)
        return node

    end_s = time.monotonic() + within_s
    with spinning(make) as node:
        client: Any = node.describe
        future: Any = None
        while time.monotonic() < end_s and not stop.wait(POLL_S):
            if future is None and client.service_is_ready():
                future = client.call_async(srv.DescribeServer.Request())
            if future is not None and future.done():
                return _described(server, future.result(), session_messages)
    fix = "start it, or name its --domain and --namespace"
    raise ConfigurationError(f"{server!r} does not answer in ROS domain {ros_domain()}", key="--server", fix=fix)


def _described(server: str, response: Any, session_messages: Any) -> ModelContract:
    if not response.model:
        raise ConfigurationError(f"{server!r} has loaded no model yet", key="--server", fix="wait until it is ready")
    contract = _acting(session_messages.contract_from(response))
    return replace(contract, model=contract.model.removeprefix(EMULATED))
