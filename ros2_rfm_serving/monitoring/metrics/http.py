"""HTTP server for probes and scrapers: a thread for each connection, with limits on their number and duration."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, cast
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client.exposition import ThreadingWSGIServer

from ros2_rfm_serving.security.doorstep import BACKLOG
from ros2_rfm_serving.security.tls import ServerTls

MAX_CONNECTIONS = 64
WITHIN_S, GIVES_WAY_WITHIN_S = 10.0, 1.0
"""Time limits, s: from a connection to the end of its answer, so that a client that sends a byte now and then gains no time; and
for a closed connection to make room."""


class _Handler(WSGIRequestHandler):
    timeout = WITHIN_S

    def parse_request(self) -> bool:
        is_asked: bool = super().parse_request()
        if is_asked:
            cast("BoundedServer", self.server).asked()
        return is_asked

    def log_message(self, format: str, *args: Any) -> None:
        """Drop the line that each request would log."""


class BoundedServer(ThreadingWSGIServer):
    daemon_threads = True
    request_queue_size = BACKLOG

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.turned_away: Counter[str] = Counter()
        self.tls: ServerTls | None = None
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._answering: dict[int, socket.socket] = {}
        """Thread -> connection, oldest first."""
        self._asked: set[int] = set()
        """Threads of these whose request has been read."""

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False) and not self._make_room():
            self.turned_away["full"] += 1
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._room.release()
            raise

    def asked(self) -> None:
        """Record that a request has been read; it runs on the connection's thread."""
        self._asked.add(threading.get_ident())

    def _make_room(self) -> bool:
        """Close the oldest connection without a request, so that probes get in even if idle connections fill the server. Return
        whether a place is free."""
        silent = next((thread for thread in list(self._answering) if thread not in self._asked), None)
        if silent is None:
            return False
        self._shut(silent, "gave_way")
        return self._room.acquire(timeout=GIVES_WAY_WITHIN_S)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        mine = threading.get_ident()
        self._answering[mine] = request
        ending = threading.Timer(WITHIN_S, self._end, [mine])
        ending.daemon = True
        try:
            ending.start()
            super().process_request_thread(request, client_address)
        except RuntimeError:  # no timer can be started, and no connection may stay without a time limit
            self.handle_error(request, client_address)
            self.shutdown_request(request)
        finally:
            ending.cancel()
            self._answering.pop(mine, None)
            self._asked.discard(mine)
            self._room.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(WITHIN_S)
        with self.tls.context.wrap_socket(request, server_side=True, do_handshake_on_connect=False) as encrypted:
            self._answering[threading.get_ident()] = encrypted
            encrypted.do_handshake()
            super().finish_request(encrypted, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Count a broken connection instead of logging a traceback for each."""
        self.turned_away["broken"] += 1

    def _end(self, thread: int) -> None:
        self._shut(thread, "slow")

    def _shut(self, thread: int, why: str) -> None:
        self.turned_away[why] += 1
        with contextlib.suppress(OSError, KeyError):
            socket.socket.shutdown(self._answering[thread], socket.SHUT_RDWR)  # below TLS, because a TLS shutdown would wait


def bounded_server(address: str, port: int, app: Callable[..., Any], tls: ServerTls | None) -> BoundedServer:
    """Return a server on a port. Raises: `OSError` if the port cannot be opened."""
    made = make_server(address, port, app, BoundedServer, handler_class=_Handler)
    made.tls = tls
    return made
