"""Dashboard of a board and a node that fills it, for the verbs that offer it."""

from __future__ import annotations

import logging
import os
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.plain import plain
from ros2_rfm_serving.operate.enclaves import members
from ros2_rfm_serving.operate.extras import needing
from ros2_rfm_serving.operate.file_check import check_file
from ros2_rfm_serving.operate.page_why import causes_of
from ros2_rfm_serving.operate.running import console

if TYPE_CHECKING:
    from rclpy.node import Node

    from ros2_rfm_serving.monitoring.board import Board

DASHBOARD_PORT = 8088
PERSON = "operator"
"""Owner of the token that is drawn at random."""


class Door(NamedTuple):
    address: str
    port: int


def read_door(text: str) -> Door:
    """Parse [ADDRESS:]PORT. Raises: `ConfigurationError`."""
    address, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        fix = "write a port, or address:port, such as 8088 or 0.0.0.0:8088"
        raise ConfigurationError(f"{text!r} is no port", key="--dashboard", fix=fix)
    return Door(address.strip("[]") or "127.0.0.1", int(port))


@contextmanager
def dashboard_page(
    board: Board, node: Node, namespace: str, address: str, port: int, token_file: Path | None, enclave: Path | None = None
) -> Iterator[str]:
    """Serve the dashboard until the end of the context, print its address, and yield the URL. enclave: its certificate, with
    which it also sends commands where that is one of `rfm security`; None: no TLS. Raises: `ConfigurationError`."""
    with needing("dashboard", "dashboard"):
        from ros2_rfm_serving.monitoring.dashboard.app import Dashboard
        from ros2_rfm_serving.monitoring.dashboard.serving import serving
    from ros2_rfm_serving.ros.monitor.eyes import Eyes
    from ros2_rfm_serving.ros.monitor.hands import Hands
    from ros2_rfm_serving.ros.monitor.words import Words
    from ros2_rfm_serving.ros.wire.qos import Names
    from ros2_rfm_serving.security.tls import ServerTls
    from ros2_rfm_serving.security.tokens import TokenFile, Tokens, new_token

    names = Names(namespace)
    drawn = "" if token_file else new_token()
    tokens = TokenFile(token_file, "--token-file") if token_file else Tokens({PERSON: drawn})
    tls = ServerTls(enclave, "--tls") if enclave else None
    member = members(enclave)
    with closing(Words(node, names)) as words:

        def note(kind: str, **body: object) -> None:
            log_order(kind, **body)
            words.note(body)

        why = partial(causes_of, namespace=namespace, enclave=member)
        page = Dashboard(board, Eyes(node, names), Hands(node, names, member), tokens, note, check_file, why)
        with serving(page, address, port, tls) as url:
            _tell(url, address, drawn)
            yield url


def show_in_browser(url: str) -> None:
    """Open a page in the browser of this desktop, if there is one: a browser for terminals would take over this terminal."""
    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(url)


def _tell(url: str, address: str, token: str) -> None:
    """Print the address. token: empty when users have their own."""
    from ros2_rfm_serving.monitoring.dashboard.serving import is_loopback

    console.print(plain(f"dashboard: {url}"))
    if token:
        console.print(plain(f"to act through it: {url}#token={token}"), soft_wrap=True)
    if not is_loopback(address) and url.startswith("http:"):
        warning = "anybody who reaches this address may look, and tokens travel without TLS: --tls encrypts them"
        console.print(plain(f"warning: {warning}"), style="yellow")


def log_order(kind: str, **body: object) -> None:
    """Log every command that a user gives."""
    logging.getLogger("rfm_serving.audit").warning("%s %s", kind, " ".join(f"{key}={value!r}" for key, value in body.items()))
