"""Parameters of a model server's websocket gateway, and its creation if they ask for one."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rclpy.node import Node

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import yaml_source
from ros2_rfm_serving.ros.node.runtime import parameter
from ros2_rfm_serving.security.tls import ServerTls
from ros2_rfm_serving.security.tokens import TokenFile
from ros2_rfm_serving.server import ModelServer
from ros2_rfm_serving.server.openpi.vllm_omni import VllmOmniTerms

if TYPE_CHECKING:
    from ros2_rfm_serving.ros.server.websocket_door import WebsocketDoor

MAP = "write it like {embodiment_tag: LIBERO_PANDA}"


class GatewayParameters(NamedTuple):
    """Parameters as given, unchecked."""

    port: int
    host: str
    token_env: str
    token_file: str
    tls: str
    names: list[str]
    announced: str
    chunks: str

    @staticmethod
    def declared(node: Node) -> GatewayParameters:
        return GatewayParameters(
            port=parameter(node, "gateway_port", 0, "Port for clients of openpi's websocket protocol; 0: none"),
            host=parameter(node, "gateway_host", "127.0.0.1", "Address that they connect to; 0.0.0.0: any of this machine"),
            token_env=parameter(
                node, "gateway_token_env", "", "Environment variable with the token that they have to know; empty: none"
            ),
            token_file=parameter(
                node, "gateway_token_file", "", "File with a line `name token` or `name sha256:...` per client; empty: none"
            ),
            tls=parameter(node, "gateway_tls", "", "Folder with cert.pem and key.pem, for TLS; empty: plain text"),
            names=parameter(node, "gateway_names", [""], "Other names of theirs: 'their/key=ours', as in docs/gateway.md"),
            announced=parameter(
                node, "gateway_announced", "", "Map in YAML that vLLM-Omni's clients expect first, such as {embodiment_tag: X}"
            ),
            chunks=parameter(
                node,
                "gateway_chunks",
                "",
                "Map in YAML of a reply's named chunks to vLLM-Omni's clients, such as {arm: 6, hand: 1}",
            ),
        )


def open_gateway(
    node: Node,
    serving: Callable[[], tuple[ModelServer, Callable[[], None]] | None],
    decode_threads: int,
    healthy: Callable[[], bool],
) -> WebsocketDoor | None:
    """Open the gateway; None: `gateway_port` is 0. healthy: whether the model progresses. Raises: `ConfigurationError`."""
    port, host, variable, file, enclave, names, announced, chunks = GatewayParameters.declared(node)
    if not port:
        return None
    try:
        from ros2_rfm_serving.ros.server.websocket_door import WebsocketDoor
        from ros2_rfm_serving.ros.server.websocket_entry import DoorConfig
    except ImportError as error:
        raise ConfigurationError(
            f"{error.name} is missing", key="gateway_port", fix="pip install 'ros2-rfm-serving[gateway]'"
        ) from error
    token = os.environ.get(variable, "") if variable else ""
    if variable and not token:
        raise ConfigurationError(f"${variable} is empty", key="gateway_token_env", fix="set it, or leave the parameter empty")
    tokens = TokenFile(Path(file), "gateway_token_file") if file else None
    tls = ServerTls(Path(enclave), "gateway_tls") if enclave else None
    if not _is_loopback(host):
        _warn(node, f"{host}:{port}", bool(token or tokens), tls is not None)
    terms = VllmOmniTerms(announced=_map("gateway_announced", announced), chunks=_chunks(chunks))
    config = DoorConfig(
        port=port,
        host=host,
        token=token,
        tokens=tokens,
        tls=tls,
        names=_names(names),
        vllm_omni=terms,
        decode_threads=decode_threads,
    )
    door = WebsocketDoor(config, serving, node.get_logger().error, healthy)
    node.get_logger().info(f"gateway: openpi clients connect to {'wss' if tls else 'ws'}://{host}:{door.port}")
    return door


def _warn(node: Node, where: str, asks: bool, encrypts: bool) -> None:
    if not asks:
        node.get_logger().warning(f"gateway: anybody who reaches {where} may use this model; gateway_token_file asks for a token")
    if not encrypts:
        node.get_logger().warning(f"gateway: tokens and images travel to {where} in plain text; gateway_tls encrypts them")


def _names(pairs: list[str]) -> dict[str, str]:
    """Parse pairs 'their/key=ours'. Raises: `ConfigurationError`."""
    names = {}
    for pair in filter(None, pairs):
        theirs, equals, ours = pair.partition("=")
        if not equals or not theirs:
            raise ConfigurationError(f"{pair!r} is no name", key="gateway_names", fix="write 'observation/image=front'")
        names[theirs.replace(".", "/")] = ours
    return names


def _map(key: str, text: str) -> dict[str, Any]:
    """Parse a YAML map. Raises: `ConfigurationError`."""
    if not text:
        return {}
    try:
        found = yaml_source.parse(text, key).data
        json.dumps(found)  # a date cannot be part of a message
    except ConfigurationError as error:
        raise ConfigurationError(f"{text!r} is no map: {error.problem}", key=key, fix=error.fix or MAP) from None
    except (TypeError, ValueError):
        raise ConfigurationError(f"{text!r} is no map of numbers and texts", key=key, fix=MAP) from None
    if all(isinstance(name, str) for name in found):
        return found
    raise ConfigurationError(f"{text!r} has keys that are no text", key=key, fix=MAP)


def _chunks(text: str) -> dict[str, int]:
    """Parse the named chunk sizes. Raises: `ConfigurationError`."""
    found = _map("gateway_chunks", text)
    if all(type(size) is int and size > 0 for size in found.values()):
        return found
    raise ConfigurationError(f"{text!r} holds no sizes", key="gateway_chunks", fix="write it like {arm: 6, hand: 1}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
