"""Text models on any OpenAI-compatible server (vLLM, SGLang, llama.cpp, OpenAI ...): System 2, safety, monitor.

Requests run concurrently, and each is answered when it is done. Images are forwarded as they arrived. A request that fails does not
affect the others.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import httpx
import numpy as np
import simplejpeg
from pydantic import Field, field_validator

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.reasoning import parts_of
from ros2_rfm_serving.engines.registry import EngineSpec, checked_options
from ros2_rfm_serving.engines.text import answers as text
from ros2_rfm_serving.engines.text import plans as plan_text
from ros2_rfm_serving.engines.text.chat_client import (
    MEANINGS,
    NO_IMAGES,
    ChatClient,
    ClientConfig,
    RequestRefusedError,
    proxy_variable,
)
from ros2_rfm_serving.engines.text.completion import Completion
from ros2_rfm_serving.errors import ConfigurationError, ModelError, UnusableAnswerError
from ros2_rfm_serving.loop_thread import LoopThread
from ros2_rfm_serving.types import EncodedImage, EngineReply, Image, InferenceRequest, ModelContract

_log = logging.getLogger(__name__)
SLACK_S = 5.0
"""Seconds beyond a request's own time limit, within which it has ended."""
JPEG_QUALITY = 90
"""JPEG quality of images that arrived uncompressed."""

Constraint = Literal["json_schema", "choice", "none"]
OURS = frozenset(
    {
        "model",
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "seed",
        "stream",
        "n",
        "logprobs",
        "response_format",
    }
)
MAX_SHOWN_CHARACTERS = 120
"""Number of characters of a model's answer at warm-up that an error shows."""


class OpenAIOptions(text.TextOptions):
    """`options` of a model with `engine: openai`."""

    base_url: str
    """Address up to and with the version: http://gpu-2:8000/v1"""
    api_key_env: str = ""
    """Environment variable with the key; empty if the server needs none."""
    timeout_s: float = Field(default=2.0, gt=0.0, le=600.0)
    """Seconds from a request to its answer, all retries included: the component's SLO."""
    connect_timeout_s: float = Field(default=1.0, gt=0.0, le=60.0)
    warm_up_timeout_s: float = Field(default=60.0, gt=0.0, le=600.0)
    """Time limit of the first request in seconds, for which the server may have to compile."""
    max_retries: int = Field(default=2, ge=0, le=10)
    """Retries without a connection, or with status 429 or 5xx."""
    constraint: Literal["auto", "json_schema", "choice", "none"] = "auto"
    """Constraint that restricts a judge to its words and a planner to a list of subgoals.

    It is a JSON schema, vLLM's `choice` (for a plan: the prompt alone), or the prompt alone. `auto` selects the first of JSON
    schema and prompt that the server accepts and honours when it is tried at start-up.
    """
    logprobs: bool | None = None
    """Whether to ask for the probability of the verdict; by default, if the server accepts that."""
    token_limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Server's name of `max_tokens`."""
    system_role: bool = True
    """False puts the system prompt at the head of the user's message, for models whose chat template has no system role."""
    proxy: bool = True
    """False connects to the server without the proxies of the environment. A server on this machine never has a proxy."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every request, with the server's names (`mm_processor_kwargs`, `top_k`)."""

    @field_validator("extra")
    @classmethod
    def _leaves_ours_alone(cls, extra: dict[str, Any]) -> dict[str, Any]:
        return text.without(OURS, extra, "not through `extra`")


TRANSPORT = frozenset(
    {"base_url", "api_key_env", "timeout_s", "connect_timeout_s", "warm_up_timeout_s", "max_retries", "max_concurrent", "proxy"}
)
"""Options that do not change an answer: the same model at another address is the same model."""


@dataclass(frozen=True, kw_only=True)
class OpenAIDialect:
    """Features that requests to a server use beyond plain completions."""

    constraint: Constraint
    logprobs: bool


class OpenAIEngine(Engine):
    """Engine for an OpenAI-compatible server. It owns an event loop on a thread of its own until it is closed."""

    takes_encoded = True

    def __init__(self, contract: ModelContract, options: OpenAIOptions, client: ChatClient, max_concurrent: int) -> None:
        self._contract, self._options, self._client = contract, options, client
        self.max_concurrent, self.timeout_s = max_concurrent, options.timeout_s
        self._thread = LoopThread(contract.model)
        self.dialect = _dialects(options)[0]
        self._honours_schemas = False
        """True if the answer at warm-up was JSON of the requested schema, so that lines of text are no plan."""

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def max_batch_size(self) -> int:
        return self.max_concurrent

    def warm_up(self) -> None:
        """Send requests with images until it is known which features the server accepts and honours.
        Raises: `ModelError` if that is too little, or if the model gave no usable answer at all."""
        request = text.first_request(self._contract, encoded=True)
        problems: list[str] = []
        ignored: set[Constraint] = set()
        for dialect in (dialects := _dialects(self._options)):
            if dialect.constraint in ignored:
                continue
            try:
                body = _body(self._options, self._contract, request, dialect)
                asked = self._client.complete(body, self._options.warm_up_timeout_s)
                completion = self._thread.call(asked, self._options.warm_up_timeout_s + SLACK_S)
            except RequestRefusedError as refused:
                if not _may_be_a_form(refused.status):
                    raise
                if dialect == dialects[-1]:
                    raise self._with_a_fix(refused, request, dialect) from refused.__cause__
                problems.append(f"status {refused.status} to {_described(dialect)}")
                continue
            problem = self._problem_with(dialect, request.id.component, completion)
            if not problem:
                self._settle(dialect, completion, problems)
                return
            problems.append(problem)
            ignored.add(dialect.constraint)
        raise UnusableAnswerError(self._not_ready(request.id.component, problems))

    def _with_a_fix(self, refused: RequestRefusedError, request: InferenceRequest, dialect: OpenAIDialect) -> RequestRefusedError:
        """Return a refusal with the options that would have helped, if its text names none.
        The options are tried, each by itself and two at a time, whatever the server's text is."""
        remedies = [] if refused.fix else [remedy for remedy in _REMEDIES if remedy.changes(self._options, self._contract)]
        deadline_s = time.monotonic() + self._options.warm_up_timeout_s
        for chosen in itertools.chain(itertools.combinations(remedies, 1), itertools.combinations(remedies, 2)):
            if self._is_taken(self._remedied(request, dialect, chosen), deadline_s):
                if self._is_taken(self._remedied(request, dialect, ()), deadline_s):
                    break  # the refusal was not about the form, and does not occur any more
                return RequestRefusedError(refused.status, fix=" and ".join(remedy.fix for remedy in chosen))
        return refused

    def _is_taken(self, body: dict[str, Any], deadline_s: float) -> bool:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0.0:
            return False
        try:
            self._thread.call(self._client.complete(body, left_s), left_s + SLACK_S)
        except ModelError:
            return False
        return True

    def _remedied(self, request: InferenceRequest, dialect: OpenAIDialect, remedies: Sequence[_Remedy]) -> dict[str, Any]:
        options, contract = self._options, self._contract
        for remedy in remedies:
            options = options.model_copy(update=remedy.options)
            contract = replace(contract, cameras=()) if remedy.without_cameras else contract
        return _body(options, contract, request, dialect)

    def _settle(self, dialect: OpenAIDialect, completion: Completion, problems: Sequence[str]) -> None:
        self.dialect = dialect
        self._honours_schemas = dialect.constraint == "json_schema" and _begins_with_json(completion)
        if text.is_thinking(completion):
            _log.warning(text.thinking_warning(self._contract.model))
        if problems and dialect.constraint == "none" and self._options.constraint != "none":
            _log.warning(
                f"{self._contract.model}: answers are held to their form by the prompt alone, for the server gave {problems[0]}"
            )

    def _problem_with(self, dialect: OpenAIDialect, component: str, completion: Completion) -> str:
        """Return the reason why a first answer rules out a dialect; empty if it does not.
        Some servers accept a constraint and ignore it."""
        problem, shown = "", completion.text
        try:
            problem = text.reply_of(self._options, component, completion).violation
        except UnusableAnswerError as error:
            problem = str(error)
        if text.plans(component):
            # Of a plan for blank images only the form counts: JSON if it was asked for, and an answer at all.
            if dialect.constraint == "json_schema":
                problem = "" if _begins_with_json(completion) else problem or "it is not of the schema that was asked for"
            elif completion.ended and not text.is_thinking(completion):
                problem = ""
        return f"{shown[:MAX_SHOWN_CHARACTERS]!r}: {problem}" if problem else ""

    def _not_ready(self, component: str, problems: Sequence[str]) -> str:
        """Return the reason why no answer at warm-up could be used."""
        wanted = "a plan" if text.plans(component) else f"one of the words {', '.join(self._options.words(component))}"
        shown = "; ".join(dict.fromkeys(problems))
        return f"no answer at warm-up is {wanted}: {shown}; see `constraint` and `max_tokens`; if it thinks, {text.THINKING_OFF}"

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply | ModelError]:
        answers = self._thread.call(self._answer_all(requests), self._options.timeout_s + SLACK_S)
        if all(isinstance(answer, ModelError) for answer in answers):
            raise next(answer for answer in answers if isinstance(answer, ModelError))
        return answers

    def close(self) -> None:
        """Close all connections and end the thread; requests in progress fail."""
        self._thread.call(self._client.close(), SLACK_S)
        self._thread.stop()

    async def _answer_all(self, requests: Sequence[InferenceRequest]) -> list[EngineReply | ModelError]:
        return list(await asyncio.gather(*(self._answer(request) for request in requests)))

    async def _answer(self, request: InferenceRequest) -> EngineReply | ModelError:
        try:
            body = _body(self._options, self._contract, request, self.dialect)
            completion = await self._client.complete(body, self._options.timeout_s)
            return text.reply_of(self._options, request.id.component, completion, as_json=self._honours_schemas)
        except ModelError as error:
            return error


def _body(options: OpenAIOptions, contract: ModelContract, request: InferenceRequest, dialect: OpenAIDialect) -> dict[str, Any]:
    component = request.id.component
    judges = not text.plans(component)
    as_json = dialect.constraint == "json_schema"
    chat = text.messages(options, contract, request, _picture, as_json=as_json)
    return {
        "model": options.model or contract.model,
        "messages": chat if options.system_role else _without_system_role(chat),
        options.token_limit: options.max_tokens,
        **({} if options.temperature is None else {"temperature": options.temperature}),
        **({} if options.seed is None else {"seed": options.seed}),
        **({"chat_template_kwargs": options.chat_template_kwargs} if options.chat_template_kwargs else {}),
        **(_constrained(dialect.constraint, options.words(component)) if judges else {}),
        **(_by_schema("plan", plan_text.SCHEMA) if as_json and not judges else {}),
        **({"logprobs": True} if judges and dialect.logprobs else {}),
        **options.extra,
    }


def _without_system_role(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    system, user = chat
    return [{**user, "content": [{"type": "text", "text": system["content"]}, *user["content"]]}]


@dataclass(frozen=True, kw_only=True)
class _Remedy:
    """Option of the model's entry that may help with a server that refuses every request."""

    fix: str
    options: dict[str, Any] = field(default_factory=dict)
    without_cameras: bool = False

    def changes(self, options: OpenAIOptions, contract: ModelContract) -> bool:
        return any(getattr(options, key) != value for key, value in self.options.items()) or (
            self.without_cameras and bool(contract.cameras)
        )


_REMEDIES = (
    _Remedy(fix="write `token_limit: max_completion_tokens`", options={"token_limit": "max_completion_tokens"}),
    _Remedy(fix="write `token_limit: max_tokens`", options={"token_limit": "max_tokens"}),
    _Remedy(fix="write `temperature: null`", options={"temperature": None}),
    _Remedy(fix="write `seed: null`", options={"seed": None}),
    _Remedy(fix="write `system_role: false`", options={"system_role": False}),
    _Remedy(fix="leave `chat_template_kwargs` out", options={"chat_template_kwargs": {}}),
    _Remedy(fix="leave `extra` out", options={"extra": {}}),
    _Remedy(fix=NO_IMAGES, without_cameras=True),
)


def _begins_with_json(completion: Completion) -> bool:
    return parts_of(completion.text[: text.MAX_WRITTEN_CHARACTERS]).answer.startswith("{")


def _may_be_a_form(status: int) -> bool:
    """Return whether a status may be about the form of a request.

    llama.cpp and others fail (500) in a form that they do not know, and a gateway reports the same (502) of the server behind it.
    OpenRouter answers 404 if no provider accepts the request's parameters.
    """
    if status >= httpx.codes.INTERNAL_SERVER_ERROR:
        return status <= httpx.codes.BAD_GATEWAY
    return status == httpx.codes.NOT_FOUND or status not in {*MEANINGS, httpx.codes.REQUEST_TIMEOUT}


def _described(dialect: OpenAIDialect) -> str:
    asked = [f"`constraint: {dialect.constraint}`"] if dialect.constraint != "none" else []
    return " with ".join([*asked, *(["`logprobs`"] if dialect.logprobs else [])]) or "a plain request"


def _dialects(options: OpenAIOptions) -> list[OpenAIDialect]:
    """Return the dialects that may be used with this server, the most exact first."""
    constraints: list[Constraint] = ["json_schema", "none"] if options.constraint == "auto" else [options.constraint]
    logprobs = [True, False] if options.logprobs is None else [options.logprobs]
    return [OpenAIDialect(constraint=constraint, logprobs=known) for constraint in constraints for known in logprobs]


def _constrained(constraint: Constraint, words: Sequence[str]) -> dict[str, Any]:
    if constraint == "choice":  # vLLM's, in its form since 0.12 and the one before
        return {"structured_outputs": {"choice": list(words)}, "guided_choice": list(words)}
    if constraint == "json_schema":
        verdict = {"type": "string", "enum": list(words)}
        schema = {"type": "object", "properties": {"verdict": verdict}, "required": ["verdict"], "additionalProperties": False}
        return _by_schema("judgement", schema)
    return {}


def _by_schema(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": schema}}}


def _picture(image: Image | EncodedImage) -> dict[str, Any]:
    data = base64.b64encode(_jpeg(image)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}}


def _jpeg(image: Image | EncodedImage) -> bytes | memoryview:
    """Return an image as it arrived; raw pixels are compressed."""
    if isinstance(image, EncodedImage):
        if image.format != "rgb8":
            return image.data
        image = np.frombuffer(image.data, np.uint8).reshape(image.height_px, image.width_px, 3)
    encoded: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality=JPEG_QUALITY, colorspace="RGB")
    return encoded


def build(spec: EngineSpec) -> OpenAIEngine:
    """Build the engine. Raises: `ConfigurationError` for options that cannot be used."""
    options = checked_options(OpenAIOptions, spec)
    at_once = text.max_concurrent(spec, options)
    config = ClientConfig(
        base_url=_address(spec, options.base_url),
        api_key=_key(spec, options.api_key_env),
        connect_timeout_s=options.connect_timeout_s,
        max_retries=options.max_retries,
        max_connections=at_once,
        proxy=options.proxy,
    )
    return OpenAIEngine(text.contract_of(spec, options, apart_from=TRANSPORT), options, _client(spec, config), at_once)


def _client(spec: EngineSpec, config: ClientConfig) -> ChatClient:
    """Return the client of a server. Raises: `ConfigurationError` for a proxy that cannot be used."""
    try:
        return ChatClient(config)
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        variable = proxy_variable(config.base_url)
        if not (variable and config.proxy):
            raise
        key, fix = f"models.{spec.model}.options.proxy", "write `proxy: false`, or add the host to NO_PROXY"
        problem = f"the proxy of {variable} cannot be used ({type(error).__name__})"
        raise ConfigurationError(problem, file=text.CATALOGUE, key=key, fix=fix) from error


def _address(spec: EngineSpec, base_url: str) -> str:
    """Return the server's address if it is valid.
    Errors do not repeat it, as it may hold a password. Raises: `ConfigurationError` if it is not valid."""
    key = f"models.{spec.model}.options.base_url"
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError("is no address", file=text.CATALOGUE, key=key, fix="write it like http://gpu-2:8000/v1")
    if "api-version" in {name.lower() for name in url.params} or "/openai/deployments/" in url.path:
        fix = "write https://NAME.openai.azure.com/openai/v1, which needs no api-version; `model` is the deployment's name"
        raise ConfigurationError("is of Azure's older interface", file=text.CATALOGUE, key=key, fix=fix)
    if url.userinfo or url.query:
        raise ConfigurationError("holds a secret or a query", file=text.CATALOGUE, key=key, fix="put the key into `api_key_env`")
    return base_url


def _key(spec: EngineSpec, variable: str) -> str:
    if variable and not os.environ.get(variable):
        key = f"models.{spec.model}.options.api_key_env"
        fix = "set it where this server starts, or leave the option out"
        raise ConfigurationError(f"the environment has no {variable!r}", file=text.CATALOGUE, key=key, fix=fix)
    return os.environ.get(variable, "") if variable else ""
