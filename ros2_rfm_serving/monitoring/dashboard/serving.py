"""Server of the page on a port, on a thread of its own."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.dashboard.app import LOOPBACK, Dashboard
from ros2_rfm_serving.monitoring.dashboard.connection import Connection
from ros2_rfm_serving.security.doorstep import ACCEPTED_AT_ONCE, Doorstep, listen
from ros2_rfm_serving.security.tls import ServerTls

STARTS_WITHIN_S, ENDS_WITHIN_S = 10.0, 2.0


def is_loopback(address: str) -> bool:
    return address in LOOPBACK or address.startswith("127.")


@contextmanager
def serving(dashboard: Dashboard, address: str, port: int, tls: ServerTls | None = None) -> Iterator[str]:
    """Serve the page until the context ends; yield its URL. port: 0 chooses any.
    Raises: `ConfigurationError` when the port cannot be opened."""
    door = _listen(address, port)
    hosts = [*LOOPBACK, "[::1]", address] if is_loopback(address) else ["*"]
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    config = uvicorn.Config(
        dashboard.app(hosts),
        backlog=ACCEPTED_AT_ONCE,
        access_log=False,
        log_config=None,
        lifespan="on",
        server_header=False,
        http=type("Met", (Connection,), {"step": door}),
        proxy_headers=False,  # otherwise a local client could claim a new address for each guess of a token
        timeout_graceful_shutdown=int(ENDS_WITHIN_S),
        ws="none",
    )
    if tls is not None:
        config.load()
        config.ssl = tls.context
    server = _Server(config, dashboard)
    thread = threading.Thread(target=server.run, args=([door],), name="dashboard", daemon=True)
    thread.start()
    try:
        server.up.wait(STARTS_WITHIN_S)
        shown = f"[{address}]" if ":" in address else address
        yield f"{'https' if tls else 'http'}://{shown}:{door.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(timeout=2 * ENDS_WITHIN_S)
        door.close()


class _Server(uvicorn.Server):
    """Server that ends the streams of open pages before it waits for them."""

    def __init__(self, config: uvicorn.Config, dashboard: Dashboard) -> None:
        super().__init__(config)
        self._dashboard, self.up = dashboard, threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._dashboard.end()
        await super().shutdown(sockets)


def _listen(address: str, port: int) -> Doorstep:
    try:
        return listen(address, port)
    except OSError as error:
        problem = f"{address}:{port} cannot be listened on: {error.strerror or error}"
        raise ConfigurationError(problem, key="dashboard", fix="choose another port, or 0 for any") from None
