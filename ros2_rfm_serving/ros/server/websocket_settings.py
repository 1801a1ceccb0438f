"""The parameters of a model server's websocket door, and the door if they ask for one."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rclpy.node import Node

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.ros.node.runtime import parameter
from ros2_rfm_serving.security.tls import ServerTls
from ros2_rfm_serving.security.tokens import TokenFile
from ros2_rfm_serving.server import ModelServer

if TYPE_CHECKING:
    from ros2_rfm_serving.ros.server.websocket_door import WebsocketDoor


def open_gateway(
    node: Node,
    serving: Callable[[], tuple[ModelServer, Callable[[], None]] | None],
    decode_threads: int,
    healthy: Callable[[], bool],
) -> WebsocketDoor | None:
    """healthy: what is served moves. None: `gateway_port` is 0. Raises: `ConfigurationError`."""
    port = parameter(node, "gateway_port", 0, "Port for clients of openpi's websocket protocol; 0: none")
    host = parameter(node, "gateway_host", "127.0.0.1", "Address that they connect to; 0.0.0.0: any of this machine")
    variable = parameter(node, "gateway_token_env", "", "Environment variable with the token that they have to know; empty: none")
    file = parameter(node, "gateway_token_file", "", "File with a line `name token` or `name sha256:...` per client; empty: none")
    enclave = parameter(node, "gateway_tls", "", "Folder with cert.pem and key.pem, for TLS; empty: plain text")
    names = parameter(node, "gateway_names", [""], "Other names of theirs: 'their/key=ours', as in docs/gateway.md")
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
    config = DoorConfig(
        port=port, host=host, token=token, tokens=tokens, tls=tls, names=_names(names), decode_threads=decode_threads
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
    """Raises: `ConfigurationError`."""
    names = {}
    for pair in filter(None, pairs):
        theirs, equals, ours = pair.partition("=")
        if not equals or not theirs:
            raise ConfigurationError(f"{pair!r} is no name", key="gateway_names", fix="write 'observation/image=front'")
        names[theirs.replace(".", "/")] = ours
    return names


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
