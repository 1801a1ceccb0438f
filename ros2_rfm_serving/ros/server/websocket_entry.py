"""Who may come in through the websocket door, and who comes without being anybody."""

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
"""Before a token, as openpi's clients send it, and vLLM-Omni's."""


@dataclass(frozen=True, kw_only=True)
class DoorConfig:
    """Where it stands and what it allows."""

    port: int
    """0: one that is free."""
    host: str = "127.0.0.1"
    token: str = ""
    """That clients have to know; empty: none, unless `tokens` has them."""
    tokens: TokenFile | None = None
    """One for each client, by name."""
    tls: ServerTls | None = None
    """None: plain text."""
    names: Mapping[str, str] = field(default_factory=dict)
    """A client's key -> ours; see `OpenpiClient`."""
    vllm_omni: VllmOmniTerms = field(default_factory=VllmOmniTerms)
    """For clients that take this for a server of vLLM-Omni's."""
    max_connections: int = 256
    max_per_client: int = 16
    """Of one name in `tokens`."""
    idle_s: float = 600.0
    """A connection that asks for nothing is closed after this long."""
    reply_s: float = 30.0
    """A request without an answer is given up after this long."""
    decode_threads: int = 1


class Refusal(NamedTuple):
    kind: str
    """The counter."""
    status: HTTPStatus


class Entry:
    """On the loop's thread."""

    def __init__(self, config: DoorConfig) -> None:
        """Listens. Raises: `OSError`."""
        self._config = config
        self.step: Doorstep = listen(config.host, config.port)
        self._asked = self._entered = self._told = 0

    def ask(self, headers: Mapping[str, str], inside: Iterable[str]) -> tuple[str, Refusal | None]:
        """Whose token it is, if there are names, and why not. inside: by whom each open connection is."""
        if "Origin" in headers:
            return "", Refusal("gateway_origin", HTTPStatus.FORBIDDEN)  # a web page, in the browser of somebody who may come in
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
        """Still: a token may be taken away."""
        return not who or self._config.tokens is None or self._config.tokens.knows(who)

    def on_request(self) -> None:
        """Somebody asked, whatever for."""
        self._asked += 1

    def let_in(self, address: object) -> None:
        self.step.let_in(address)
        self._entered += 1

    def strangers(self) -> int:
        """Who came and went since the last call without asking for anything: without TLS, trusting another authority, too slow,
        or sent away for want of room."""
        self.step.sweep()
        unasked = self.step.gone - (self._asked - self._entered) - self._told
        self._told += max(0, unasked)
        return max(0, unasked)

    def _identify(self, said: str) -> tuple[str, bool]:
        """A name, and whether that is enough."""
        config = self._config
        given = next((said.removeprefix(scheme) for scheme in SCHEMES if said.startswith(scheme)), "")
        if config.tokens is not None and (who := config.tokens.holder(given)):
            return who, True
        if config.token:
            return "", hmac.compare_digest(given.encode(errors="replace"), config.token.encode())
        return "", config.tokens is None
