"""Client of an OpenAI-compatible server's chat completions over HTTP, with limits of time, retries and size.

The server's own text in a refusal stays in the cause of the error, for the log of this process: errors name a status, never an
address, a key or a text.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import os
import random
import re
import socket
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import to_json

from ros2_rfm_serving.engines.text.completion import Completion, was_cut_off
from ros2_rfm_serving.errors import ModelError

MAX_ANSWER_BYTES = 1 << 20
MAX_QUOTED_CHARACTERS, MAX_READ_CHARACTERS = 500, 4000
BACKOFF_S = 0.05
"""Pause before the first retry, in seconds; doubled with each."""

MEANINGS = {
    401: "it wants another key: see `api_key_env`",
    403: "the key may not use it: see `api_key_env`",
    404: "it has no such path or model: see `base_url` and `model`",
    413: "the images are too large for it",
    407: "a proxy of the environment wants a password: see `proxy`",
    429: "it has too much to do",
}
_NOT_TAKEN = (
    "(?:(?:un|not |n't )(?:supported?|permitted|allowed|recogni[sz]ed|known)|only the default|extra (?:inputs|fields)|deprecat"
    "|must be|should be|invalid)"
)
NO_IMAGES = "the model takes no images: write `cameras: []` in its entry"
_IMAGES = "(?:images?|vision|multi-?modal|mmproj)"


def _says(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE | re.DOTALL)


HINTS = (
    (_says(r"max_tokens.{0,120}use .{0,6}max_completion_tokens"), "write `token_limit: max_completion_tokens`"),
    (_says(rf"max_completion_tokens.{{0,120}}{_NOT_TAKEN}"), "write `token_limit: max_tokens`"),
    (_says(rf"temperature.{{0,120}}{_NOT_TAKEN}", rf"{_NOT_TAKEN}.{{0,40}}temperature"), "write `temperature: null`"),
    (_says(rf"\bseed\b.{{0,120}}{_NOT_TAKEN}", rf"{_NOT_TAKEN}.{{0,40}}\bseed\b"), "write `seed: null`"),
    (_says(r"system.{0,10} (?:role|message)s?.{0,40}not supported", "roles must alternate"), "write `system_role: false`"),
    (
        _says(
            rf"{_IMAGES}.{{0,80}}(?:not support|unsupported|disabled)",
            rf"(?:not support|no|not a) ?{_IMAGES}",
            "content must be a string",
        ),
        NO_IMAGES,
    ),
    (_says("chat_template_kwargs"), "leave `chat_template_kwargs` out"),
)
"""Option of the catalogue's entry that helps, by the text of a refusal.

OpenAI and Azure name the parameter, and its replacement; llama.cpp says "image input is not supported"
(`tools/server/server-common.cpp`); vLLM, SGLang and Mistral answer with pydantic's messages; Gemma's chat template says "System
role not supported".
"""


class RequestRefusedError(ModelError):
    """Refusal of a request that the server understood: a retry does not help."""

    is_public = True

    def __init__(self, status: int, said: str = "", fix: str = "") -> None:
        """Create the error. said: text of the server, searched for a fix and never repeated. fix: one that was found otherwise."""
        self.status = status
        self.fix = fix or (next((fix for pattern, fix in HINTS if pattern.search(said)), "") if status not in MEANINGS else "")
        super().__init__(f"the server answers with status {status}; {self.fix or MEANINGS.get(status, 'its log says why')}")


class _ServerMessageError(Exception):
    """Text of the server's refusal."""


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    base_url: str
    api_key: str = ""
    connect_timeout_s: float = 1.0
    max_retries: int = 2
    max_connections: int = 64
    proxy: bool = True
    """True if the environment's proxies (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY) apply, except for a server on this
    machine."""


class ChatClient:
    """Client of one server. It belongs to one event loop."""

    def __init__(self, config: ClientConfig, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._max_retries = config.max_retries
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}  # the size of unpacked data has no limit
        if config.api_key:
            headers["Authorization"] = f"Bearer {config.api_key}"
        limits = httpx.Limits(max_connections=config.max_connections)
        if transport is None and not (config.proxy and proxy_variable(config.base_url)):
            # With a transport httpx reads no proxy from the environment; without TLS there is nothing to verify.
            transport = httpx.AsyncHTTPTransport(limits=limits, verify=httpx.URL(config.base_url).scheme == "https")
        self._way = "" if transport is not None else f", asked through the proxy of {proxy_variable(config.base_url)}: see `proxy`"
        self._http = httpx.AsyncClient(
            base_url=config.base_url,
            headers=headers,
            timeout=httpx.Timeout(None, connect=config.connect_timeout_s),  # `complete` limits the rest
            limits=limits,
            transport=transport,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def complete(self, body: Mapping[str, Any], timeout_s: float) -> Completion:
        """Return the completion of a request.
        timeout_s: limit for everything, retries included. Raises: `ModelError`; `RequestRefusedError` is one."""
        return completion_of(await self.post("chat/completions", body, timeout_s))

    async def post(self, path: str, body: Mapping[str, Any], timeout_s: float) -> bytes:
        try:
            return await asyncio.wait_for(self._persist(path, body, timeout_s), timeout_s)
        except asyncio.TimeoutError:
            raise ModelError(f"no answer within {timeout_s:g} s") from None

    async def _persist(self, path: str, body: Mapping[str, Any], timeout_s: float) -> bytes:
        """Retry a request if that may help: no connection, an overloaded server, or an error of the server."""
        for attempt in range(self._max_retries + 1):
            pause_s = BACKOFF_S * 2**attempt * random.uniform(0.5, 1.0)  # spreads rows of one batch
            try:
                return await self._post(path, body)
            except httpx.TransportError as error:
                failure: Exception = ModelError(f"the connection failed: {type(error).__name__}{self._way}")
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
        refused = RequestRefusedError(response.status_code, content[:MAX_READ_CHARACTERS].decode(errors="replace"))
        refused.__cause__ = _ServerMessageError(content[:MAX_QUOTED_CHARACTERS].decode(errors="replace"))
        if response.status_code == httpx.codes.TOO_MANY_REQUESTS or response.is_server_error:
            raise _Busy(refused, response.headers.get("Retry-After", ""))
        raise refused


class _Busy(Exception):
    """Refusal that may end after a while."""

    def __init__(self, refused: RequestRefusedError, retry_after: str) -> None:
        self.refused = refused
        self.retry_after_s = float(retry_after) if retry_after.isdecimal() else 0.0
        super().__init__()


# --- proxies ----------------------------------------------------------------------------------------------------------------


def proxy_variable(base_url: str) -> str:
    """Return the environment variable whose proxy is used for a server.
    It is empty if there is none, if the server is on this machine, or if NO_PROXY exempts it."""
    url = httpx.URL(base_url)
    if is_loopback(url.host) or urllib.request.proxy_bypass_environment(url.netloc.decode()):  # type: ignore[attr-defined]
        return ""
    names = (f"{url.scheme}_proxy", "all_proxy")
    return next((found for name in names for found in (name, name.upper()) if os.environ.get(found)), "")


_NAMES_OF_THIS_MACHINE = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, which needs no proxy."""
    plain = host.strip("[]").rstrip(".").lower()
    if plain in _NAMES_OF_THIS_MACHINE or plain.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(plain)
    except ValueError:
        return _is_short_for_loopback(plain)
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def _is_short_for_loopback(host: str) -> bool:
    """Return whether a host is an address of this machine in a form that only the C library reads, such as `127.1`."""
    try:
        return host[:1].isdigit() and socket.inet_aton(host)[0] == 127
    except OSError:
        return False


# --- form of an answer ------------------------------------------------------------------------------------------------------


class _Choice(BaseModel):
    message: dict[str, Any]
    finish_reason: Any = None
    native_finish_reason: Any = None
    """Reason of the server behind OpenRouter."""
    stop_reason: Any = None
    logprobs: Any = None


class _Answer(BaseModel):
    choices: tuple[_Choice, ...] = Field(min_length=1)


_OF_THOUGHT = re.compile(r"^(?!.*signature).*(?:think|reasoning|thought|analysis|\bcot\b|summary)", re.IGNORECASE)
"""Pattern of the names of fields and kinds of parts that hold thoughts.

`reasoning_content` (llama.cpp, SGLang, LMDeploy, DeepSeek), `reasoning` (vLLM, Ollama), `reasoning_details` (OpenRouter),
`thinking_blocks` (LiteLLM), `thought` (Gemini), `reasoningContent` (Bedrock). The last two belong to native interfaces, as a
gateway may forward them; Gemini's was read in public clients, Bedrock's was not read. Gemini's answers also have a
`thoughtSignature`, which is no thought.
"""


def completion_of(content: bytes) -> Completion:
    """Return the completion in a server's answer. Raises: `ModelError`."""
    try:
        choice = _Answer.model_validate_json(content).choices[0]
    except ValidationError as error:
        raise ModelError("the server's answer is no chat completion") from error
    message, reasons = choice.message, [_reason(choice.finish_reason), _reason(choice.native_finish_reason)]
    if not any(reasons):
        reasons = [_reason(choice.stop_reason)]  # beside a `finish_reason`, vLLM has the string that ended the text there
    reason = next(filter(was_cut_off, reasons), reasons[0])
    parts = list(_parts(message.get("content")))
    fields = [name for name in message if name != "content" and _OF_THOUGHT.search(name)]
    return Completion(
        text="".join(text for kind, text in parts if kind == "text"),
        ended=not was_cut_off(reason),
        tokens=tuple(_tokens(choice.logprobs)),
        has_reasoning=any(_says_something(message[name]) for name in fields) or any(kind == "thought" for kind, _ in parts),
        refusal=bool(message.get("refusal")) or any(kind == "refusal" for kind, _ in parts),
        reason=reason[:40],
    )


def _says_something(thoughts: Any) -> bool:
    """Return whether a field holds more than the line ends between the marks of a model whose thoughts are turned off."""
    return bool(thoughts.strip() if isinstance(thoughts, str) else thoughts)


def _reason(finish: Any) -> str:
    """Return a server's name for the end. SGLang's own interface has an object with a `type`; of a list, the first counts."""
    if isinstance(finish, list):
        finish = finish[0] if finish else None
    found = finish.get("type", finish.get("reason")) if isinstance(finish, dict) else finish
    return found if isinstance(found, str) else ""


def _parts(content: Any) -> Iterator[tuple[str, str]]:
    """Yield the kind (`text`, `thought`, `refusal`) and the text of each part of a message.

    Mistral's content is a list of parts with thoughts among them (mistralai/client-python 05629d2, `ThinkChunk`); OpenAI's has
    refusals among them; Gemini's parts are of one kind, and thoughts have the flag `thought`.
    """
    strings = 0
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            yield "text", part if not strings else f"\n{part}"
            strings += 1
        elif isinstance(part, dict):
            yield from _part(part)


def _part(part: dict[str, Any]) -> Iterator[tuple[str, str]]:
    kind, text = str(part.get("type") or "text").lower(), part.get("text")
    if isinstance(text, dict):  # {"value": ..., "annotations": [...]}
        text = text.get("value")
    marked = any(_OF_THOUGHT.search(name) and (value is True or text is None) for name, value in part.items())
    if kind == "refusal":
        yield "refusal", ""
    elif marked or _OF_THOUGHT.search(kind):
        yield "thought", ""
    elif kind in ("text", "output_text") and isinstance(text, str):
        yield "text", text


def _tokens(logprobs: Any) -> Iterator[tuple[str, float]]:
    """Yield tokens with their log-probabilities; nothing if the server does not report them, or in a form of its own."""
    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    found = []
    for entry in entries if isinstance(entries, list) else ():
        token, logprob = (entry.get("token"), entry.get("logprob")) if isinstance(entry, dict) else (None, None)
        if not isinstance(token, str) or not isinstance(logprob, int | float) or math.isnan(logprob):
            return
        found.append((token, float(logprob)))
    yield from found
