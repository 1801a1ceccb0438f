"""What a chat's template makes of one question."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ros2_rfm_serving.engines.architectures.importers.files import Json, read_json
from ros2_rfm_serving.errors import ModelError

CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"


def files(folder: Path) -> tuple[Path, ...]:
    """That say it."""
    return tuple(folder / name for name in (CONFIG, TEMPLATE) if (folder / name).is_file())


def asked(folder: Path, question: str) -> str:
    """With the start of the answer, by `chat_template.jinja`, or what `tokenizer_config.json` says. Raises: `ModelError`.

    Filled in Jinja's sandbox, as `transformers` does it: a template can loop and cut, and reach nothing.
    """
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    config, own = read_json(folder / CONFIG), folder / TEMPLATE
    template = own.read_text(encoding="utf-8") if own.is_file() else config.text("chat_template")
    special = {name: _content(config, name) for name in ("bos_token", "eos_token")}
    try:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        messages = [{"role": "user", "content": question}]
        return environment.from_string(template).render(messages=messages, add_generation_prompt=True, **special)
    except TemplateError as error:
        raise ModelError(f"{own if own.is_file() else config.file}: chat_template: {error}") from error


def _content(config: Json, name: str) -> str:
    token: Any = config.get(name)
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")
