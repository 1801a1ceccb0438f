"""Rendering of a chat template with one question."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ros2_rfm_serving.engines.architectures.importers.files import Json, read_json
from ros2_rfm_serving.errors import ModelError

CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
MOST_CPU_S, MOST_S, MOST_BYTES = 10, 120, 1 << 30
FILLED = """
import json, resource, sys
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
given = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_CPU, (given["cpu_s"], given["cpu_s"]))
resource.setrlimit(resource.RLIMIT_AS, (given["bytes"], given["bytes"]))
try:
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(given["template"])
    messages = [{"role": "user", "content": given["question"]}]
    filled = template.render(messages=messages, add_generation_prompt=True, **given["special"])
except TemplateError as error:
    sys.exit(str(error))
except MemoryError:
    sys.exit("it takes more than %d MiB" % (given["bytes"] >> 20))
json.dump(filled, sys.stdout)
"""
"""Program of the process that renders the template."""


def files(folder: Path) -> tuple[Path, ...]:
    """Return the files that hold the template."""
    return tuple(folder / name for name in (CONFIG, TEMPLATE) if (folder / name).is_file())


def asked(folder: Path, question: str) -> str:
    """Return a question with the start of the answer, rendered with the chat template.

    The template is `chat_template.jinja`, or that in `tokenizer_config.json`. It is rendered in Jinja's sandbox, as in
    `transformers`, in which a template can loop and slice but access nothing; and in a process of its own, whose time and memory
    are limited. Raises: `ModelError`.
    """
    config, own = read_json(folder / CONFIG), folder / TEMPLATE
    template = own.read_text(encoding="utf-8") if own.is_file() else config.text("chat_template")
    file, special = own if own.is_file() else config.file, {name: _content(config, name) for name in ("bos_token", "eos_token")}
    given = json.dumps({"template": template, "question": question, "special": special, "cpu_s": MOST_CPU_S, "bytes": MOST_BYTES})
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", FILLED], input=given, capture_output=True, text=True, timeout=MOST_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ModelError(f"{file}: chat_template: it was not filled within {MOST_S} s") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"it took more than {MOST_CPU_S} s or {MOST_BYTES >> 20} MiB"])[-1]
        raise ModelError(f"{file}: chat_template: {said}")
    filled: str = json.loads(done.stdout)
    if filled.count(question) != 1:
        raise ModelError(f"{file}: chat_template: it makes a robot's words {filled.count(question)} times, not once")
    return filled


def _content(config: Json, name: str) -> str:
    token: Any = config.get(name)
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")
