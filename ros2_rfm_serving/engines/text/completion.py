"""What a text model wrote, whichever server it came from, and why it stopped writing."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A text and its end."""

    text: str
    ended: bool
    """By itself; false: by its limit of tokens, a filter, an abort."""
    tokens: tuple[tuple[str, float], ...] = ()
    """Each with its log-probability; empty: not known."""
    has_reasoning: bool = False
    """Thoughts came in a field or a content part of their own."""
    refusal: bool = False
    """The model refused in a field of its own."""
    reason: str = ""
    """The server's word for the end; empty: it gave none."""


_FROM_OUTSIDE = (
    "length max maximum limit exceeded overflow window truncated incomplete unfinished partial context budget repetition "
    "filter filtered blocked blocklist prohibited safety recitation spii guardrail moderation refusal sensitive abort "
    "aborted cancel canceled cancelled interrupted timeout time error failed failure insufficient"
)
_CUT_OFF = frozenset(_FROM_OUTSIDE.split())
"""Words of the names for an end that came from outside. Names that were read: `length` (OpenAI, llama.cpp, Ollama, TGI db931fc),
`abort`, `error`, `repetition` (vLLM 0.33.0), `model_length`, `error` (Mistral 05629d2), `parse_error`, `abort` (LMDeploy 1263d5c),
`content_filter` (OpenAI e43b422), `max_tokens`, `refusal`, `model_context_window_exceeded` (Anthropic), `MAX_TOKENS`, `SAFETY`,
`RECITATION` (Gemini), `insufficient_system_resource` (DeepSeek), `token_limit`, `time_limit`, `cancelled` (watsonx)."""


def was_cut_off(reason: str) -> bool:
    """Whether a name for the end of a completion means that it was cut off. All others mean that it ended: `stop`, `eos`,
    `eos_token`, `stop_sequence`, `end_turn`, `COMPLETE`, and names that nobody has seen yet."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", reason)
    return not _CUT_OFF.isdisjoint(re.split(r"[^a-z]+", spaced.lower()))
