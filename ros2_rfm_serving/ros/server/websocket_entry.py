"""Authentication of websocket clients, and counts of connections without a request."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

from ros2_rfm_serving.security.doorstep import Doorstep, listen
from ros2_rfm_serving.security.tls import ServerTls
from ros2_rfm_serving.security.tokens import TokenFile
from ros2_rfm_serving.server.openpi.vllm_omni import VllmOmniTerms

SCHEMES = ("Api-Key ", "Bearer ")
"""Prefixes of a token, as the clients of openpi and of vLLM-Omni send it."""


@dataclass(frozen=True, kw_only=True)
class DoorConfig:
    """Address, credentials and limits of the gateway."""

    port: int
    """TCP port; 0: any free one."""
    host: str = "127.0.0.1"
    token: str = ""
    """Token that clients need; empty: none, unless `tokens` has them."""
    tokens: TokenFile | None = None
    """Tokens by client name."""
    tls: ServerTls | None = None
    """TLS certificate; None: plain text."""
    names: Mapping[str, str] = field(default_factory=dict)
    """A client's key -> key of this server; see `OpenpiClient`."""
    vllm_omni: VllmOmniTerms = field(default_factory=VllmOmniTerms)
    """Answers for clients that expect a server of vLLM-Omni."""
    max_connections: int = 256
    max_per_client: int = 16
    """Maximum number of connections of one name in `tokens`."""
    idle_s: float = 600.0
    """Time after which a connection without a request is closed."""
    reply_s: float = 30.0
    """Time after which a request without a reply is given up."""
    decode_threads: int = 1


class Refusal(NamedTuple):
    kind: str
    """Name of the counter."""
    status: HTTPStatus


class Entry:
    """Access control of the gateway. It runs on the event loop's thread."""

    def __init__(self, config: DoorConfig) -> None:
        """Start to listen. Raises: `OSError`."""
        self._config = config
        self.step: Doorstep = listen(config.host, config.port)
        self._asked = self._entered = self._told = 0

    def ask(self, headers: Mapping[str, str], inside: Iterable[str]) -> tuple[str, Refusal | None]:
        """Return the owner of the token, if tokens have names, and the refusal, or None. inside: owner of each open connection."""
        if "Origin" in headers:
            return "", Refusal("gateway_origin", HTTPStatus.FORBIDDEN)  # a web page, in the browser of an authorised user
        who, knows = self._identify(headers.get("Authorization", ""))
        if not knows:
            return "", Refusal("gateway_token", HTTPStatus.UNAUTHORIZED)
        open_to = list(inside)
        if len(open_to) >= self._config.max_connections:
            return who, Refusal("gateway_connections", HTTPStatus.SERVICE_UNAVAILABLE)
        if who and open_to.count(who) >= self._config.max_per_client:
            return who, Refusal("gateway_client_connections", HTTPStatus.TOO_MANY_REQUESTS)
        return who, None

    def is_known(self, who: str) -> bool:
        """Return whether the token's owner is still authorised: a token may be revoked."""
        return not who or self._config.tokens is None or self._config.tokens.knows(who)

    def on_request(self) -> None:
        """Count a request of any kind."""
        self._asked += 1

    def let_in(self, address: object) -> None:
        self.step.let_in(address)
        self._entered += 1

    def strangers(self) -> int:
        """Return the number of connections that ended without a request since the last call.
        They had no TLS, trusted another authority, were too slow, or were closed for want of room."""
        self.step.sweep()
        unasked = self.step.gone - (self._asked - self._entered) - self._told
        self._told += max(0, unasked)
        return max(0, unasked)

    def _identify(self, said: str) -> tuple[str, bool]:
        """Return the token's owner, and whether the token authorises."""
        config = self._config
        given = next((said.removeprefix(scheme) for scheme in SCHEMES if said.startswith(scheme)), "")
        if config.tokens is not None and (who := config.tokens.holder(given)):
            return who, True
        if config.token:
            return "", hmac.compare_digest(given.encode(errors="replace"), config.token.encode())
        return "", config.tokens is None
