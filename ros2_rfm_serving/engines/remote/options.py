"""`options` of a model with `engine: remote`."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ros2_rfm_serving.errors import ConfigurationError

Sizes = dict[str, int]
"""Numbers that each name stands for, in order."""
Self = TypeVar("Self", bound="RemoteOptions")


class RemoteOptions(BaseModel):
    """Address of a server, and the description of a model that the server does not describe itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    url: str = Field(pattern="^wss?://")
    dialect: Literal["openpi", "vllm_omni"] = "openpi"
    """Messages of the server: openpi's own, which a server of ours speaks too, or vLLM-Omni's."""
    token_env: str = ""
    """Environment variable with the token; empty if the server needs none."""
    token_file: str = ""
    """File (mode 600) that holds the token and nothing else; instead of `token_env`."""
    ca_file: str = ""
    """Authority that signed a wss:// server's certificate; if empty, those that this machine trusts."""
    timeout_s: float = Field(default=2.0, gt=0, le=600)
    """Seconds from a request to its reply, connecting included."""
    connections: int = Field(default=8, ge=1, le=64)
    """Number of concurrent requests, and so the largest batch."""
    action_names: tuple[str, ...] = ()
    """Action names. A server that is not ours needs this and the following options."""
    chunk_length: int = Field(default=0, ge=0)
    """Chunk length; 0 with `vllm_omni` for the `action_horizon` that the server announces."""
    state_size: int = Field(default=0, ge=0)
    cameras: tuple[str, ...] = ()
    control_rate_hz: float = Field(default=0, ge=0)
    names: dict[str, str] = Field(default_factory=dict)
    """Server's key for ours (`state`, `prompt`, a camera), if it is not `state`, `prompt`, `images/<camera>`."""
    nested: bool = False
    """vllm_omni: observations in GR00T's form, maps `video`, `state` and `language` with a batch of one and one frame."""
    state_parts: Sizes = Field(default_factory=dict)
    """vllm_omni: the server's names of parts of the state, in its order, with their sizes."""
    action_parts: Sizes = Field(default_factory=dict)
    """vllm_omni: named chunks of a reply, in the order of `action_names`, with their numbers of columns; empty for one array."""
    padded_actions: int = Field(default=0, ge=0)
    """vllm_omni: columns of a reply, of which those after `action_names` are padding; 0 for as many as there are names."""
    embodiment: str = ""
    """vllm_omni: robot type, sent with each observation of a model that has several."""

    @model_validator(mode="after")
    def _agrees(self: Self) -> Self:
        if problem := self._problem():
            raise ValueError(problem)
        return self

    def _problem(self) -> str:
        """Return the problem of the options, with the key; empty if there is none."""
        of_vllm = ("nested", "state_parts", "action_parts", "padded_actions", "embodiment")
        if self.dialect == "openpi" and (said := [key for key in of_vllm if getattr(self, key)]):
            return f"{', '.join(said)}: only with `dialect: vllm_omni`"
        if self.token_env and self.token_file:
            return "token_env and token_file: give one of them"
        for key, size, count in (
            ("state_parts", self.state_size, "state_size"),
            ("action_parts", len(self.action_names), "number of action_names"),
        ):
            parts: Sizes = getattr(self, key)
            if parts and (min(parts.values()) < 1 or sum(parts.values()) != size):
                return f"{key}: sizes of {sum(parts.values())} in all, each at least 1, must be the {count}, {size}"
        return self._nesting_problem() or self._padding_problem()

    def _nesting_problem(self) -> str:
        if self.nested and "prompt" not in self.names:
            return "nested: names.prompt must be the server's language key, such as annotation.human.task_description"
        if self.nested and self.state_size and not self.state_parts:
            return "nested: state_parts must name the parts of the state, such as {joint_position: 7}"
        return ""

    def _padding_problem(self) -> str:
        if self.padded_actions and self.action_parts:
            return "padded_actions: named chunks have no padding"
        if self.padded_actions and self.padded_actions < len(self.action_names):
            return f"padded_actions: {self.padded_actions} columns cannot hold {len(self.action_names)} action_names"
        return ""


def token_of(model: str, options: RemoteOptions) -> str:
    """Return the token; empty if none is needed.
    Errors say where it should be, never its value. Raises: `ConfigurationError` if it cannot be read."""
    if options.token_file:
        return _read_token(Path(options.token_file), f"models.{model}.options.token_file")
    token = os.environ.get(options.token_env, "") if options.token_env else ""
    if options.token_env and not _is_header(token):
        wrong = "has characters that no header can have" if token else "is empty"
        key = f"models.{model}.options.token_env"
        raise ConfigurationError(f"${options.token_env} {wrong}", key=key, fix="set it, or leave the key out")
    return token


def _read_token(file: Path, key: str) -> str:
    """Return the token in a file. Raises: `ConfigurationError` if it cannot be read, or others may read it."""
    try:
        mode, token = file.stat().st_mode, file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        problem = f"cannot be read: {type(error).__name__}"
        raise ConfigurationError(problem, file=str(file), key=key, fix="name a text file with the token") from None
    if mode & 0o077:
        raise ConfigurationError("others on this machine may read it", file=str(file), key=key, fix=f"chmod 600 {file}")
    if not _is_header(token):
        raise ConfigurationError("it must hold one token and nothing else", file=str(file), key=key, fix="write one line")
    return token


def _is_header(token: str) -> bool:
    return bool(token) and token.isascii() and token.isprintable() and " " not in token


def trusted_by(model: str, options: RemoteOptions) -> ssl.SSLContext | None:
    """Return the TLS context; None for the authorities that this machine trusts.
    Raises: `ConfigurationError` if the file cannot be used."""
    if not options.ca_file:
        return None
    try:
        return ssl.create_default_context(cafile=options.ca_file)
    except (OSError, ssl.SSLError) as error:
        key, fix = f"models.{model}.options.ca_file", "name a PEM file of certificates, such as ca.cert.pem of `rfm security init`"
        raise ConfigurationError(f"{options.ca_file!r} cannot be used: {error}", key=key, fix=fix) from None
