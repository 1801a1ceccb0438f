"""Chat completions of an OpenAI-compatible server over HTTP: bounded in time, tries and size.

What the server says of its refusals stays in the cause of the error, for the log of this process: errors name a status, never an
address, a key or a text.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import to_json

from ros2_rfm_serving.engines.text.answers import Completion
from ros2_rfm_serving.errors import ModelError

MAX_ANSWER_BYTES = 1 << 20
MAX_SAID_CHARACTERS = 500
BACKOFF_S = 0.05
"""Before the first retry; doubled with each."""

MEANINGS = {
    401: "it wants another key: see `api_key_env`",
    403: "the key may not use it: see `api_key_env`",
    404: "it has no such path or model: see `base_url` and `model`",
    413: "the images are too large for it",
    429: "it has too much to do",
}


class Refused(ModelError):
    """The server understood, and will not do it this way: asking again is no use."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"the server answers with status {status}; {MEANINGS.get(status, 'its log says why')}")


class _Said(Exception):
    """The server's own words."""


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    base_url: str
    api_key: str = ""
    connect_timeout_s: float = 1.0
    max_retries: int = 2
    max_connections: int = 64


class ChatClient:
    """Belongs to one event loop."""

    def __init__(self, config: ClientConfig, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._max_retries = config.max_retries
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}  # what is unpacked has no bound
        if config.api_key:
            headers["Authorization"] = f"Bearer {config.api_key}"
        self._http = httpx.AsyncClient(
            base_url=config.base_url,
            headers=headers,
            timeout=httpx.Timeout(None, connect=config.connect_timeout_s),  # the rest is within `complete`'s
            limits=httpx.Limits(max_connections=config.max_connections),
            transport=transport,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def complete(self, body: Mapping[str, Any], timeout_s: float) -> Completion:
        """timeout_s: of everything, retries included. Raises: `ModelError`; `Refused` is one."""
        return _completion_of(await self.post("chat/completions", body, timeout_s))

    async def post(self, path: str, body: Mapping[str, Any], timeout_s: float) -> bytes:
        try:
            return await asyncio.wait_for(self._persist(path, body, timeout_s), timeout_s)
        except asyncio.TimeoutError:
            raise ModelError(f"no answer within {timeout_s:g} s") from None

    async def _persist(self, path: str, body: Mapping[str, Any], timeout_s: float) -> bytes:
        """Tries again where that may help: no connection, too much to do, a fault of the server."""
        for attempt in range(self._max_retries + 1):
            pause_s = BACKOFF_S * 2**attempt * random.uniform(0.5, 1.0)  # rows of one batch failed together
            try:
                return await self._post(path, body)
            except httpx.TransportError as error:
                failure: Exception = ModelError(f"the connection failed: {type(error).__name__}")
                failure.__cause__ = error
            except _Busy as busy:
                failure, pause_s = busy.refused, max(pause_s, busy.retry_after_s)
            if attempt == self._max_retries or pause_s >= timeout_s:
                raise failure
            await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")

    async def _post(self, path: str, body: Mapping[str, Any]) -> bytes:
        async with self._http.stream("POST", path, content=to_json(body)) as response:
            content = bytearray()
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > MAX_ANSWER_BYTES:
                    raise ModelError(f"the server's answer is larger than {MAX_ANSWER_BYTES >> 20} MB")
        if response.is_success:
            return bytes(content)
        refused = Refused(response.status_code)
        refused.__cause__ = _Said(content[:MAX_SAID_CHARACTERS].decode(errors="replace"))
        if response.status_code == httpx.codes.TOO_MANY_REQUESTS or response.is_server_error:
            raise _Busy(refused, response.headers.get("Retry-After", ""))
        raise refused


class _Busy(Exception):
    """Worth another try, after a while."""

    def __init__(self, refused: Refused, retry_after: str) -> None:
        self.refused = refused
        self.retry_after_s = float(retry_after) if retry_after.isdecimal() else 0.0
        super().__init__()


# --- what an answer looks like ----------------------------------------------------------------------------------------------


class _Token(BaseModel):
    token: str
    logprob: float


class _Logprobs(BaseModel):
    content: tuple[_Token, ...] | None = None


class _Message(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Answer(BaseModel):
    choices: tuple[_Choice, ...] = Field(min_length=1)


def _completion_of(content: bytes) -> Completion:
    try:
        choice = _Answer.model_validate_json(content).choices[0]
    except ValidationError as error:
        raise ModelError("the server's answer is no chat completion") from error
    tokens = (choice.logprobs.content if choice.logprobs else None) or ()
    return Completion(
        text=choice.message.content or "",
        ended=choice.finish_reason in (None, "stop"),
        tokens=tuple((token.token, token.logprob) for token in tokens),
    )
