"""Completion of a text model, from any server, and the reason why it ended."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Completion:
    """Text of a completion and its end."""

    text: str
    ended: bool
    """True if the model ended the text by itself; false if a limit of tokens, a filter or an abort did."""
    tokens: tuple[tuple[str, float], ...] = ()
    """Tokens with their log-probabilities; empty if they are not known."""
    has_reasoning: bool = False
    """True if thoughts came in a field or a content part of their own."""
    refusal: bool = False
    """True if the model refused in a field of its own."""
    reason: str = ""
    """Server's name for the end; empty if it gave none."""


_FROM_OUTSIDE = (
    "length maxlength max maximum limit exceeded exhausted overflow full window truncated truncation cutoff cut incomplete "
    "unfinished partial context budget quota predict out repetition loop language malformed filter filtered blocked "
    "blocklist prohibited safety recitation spii guardrail moderation moderated refusal rejected flagged policy violation "
    "harmful toxic toxicity nsfw armor jailbreak sensitive abort aborted cancel canceled cancelled interrupted preempted "
    "evicted killed terminated disconnected shutdown overloaded unload expired deadline timeout time network oom memory "
    "user error failed failure insufficient pause paused"
)
_CUT_OFF = frozenset(_FROM_OUTSIDE.split())
"""Words in the names for an end that came from outside.

Names that were read in sources: `length` (OpenAI, llama.cpp, Ollama, TGI db931fc), `abort`, `error`, `repetition` (vLLM 0.33.0),
`model_length`, `error` (Mistral 05629d2), `parse_error`, `abort` (LMDeploy 1263d5c), `content_filter` (OpenAI e43b422),
`max_tokens`, `refusal`, `model_context_window_exceeded` (Anthropic), `MAX_TOKENS`, `SAFETY`, `RECITATION` (Gemini),
`insufficient_system_resource` (DeepSeek), `token_limit`, `time_limit`, `cancelled` (watsonx). Names that were read in public
clients of a service, or in its reference: `LANGUAGE`, `MALFORMED_FUNCTION_CALL`, `MODEL_ARMOR` (Gemini), `ERROR_TOXIC`,
`USER_CANCEL`, `TIMEOUT` (Cohere), `guardrail_intervened` (Bedrock), `pause_turn` (Anthropic), `unload` (Ollama). The other words
are included because of their meaning; no server was seen to use them.
"""


def was_cut_off(reason: str) -> bool:
    """Return whether a name for the end of a completion means that it was cut off. All other names mean that it ended by itself:
    `stop`, `eos`, `eos_token`, `stop_sequence`, `end_turn`, `COMPLETE`, and unknown ones."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", reason)
    return not _CUT_OFF.isdisjoint(re.split(r"[^a-z]+", spaced.lower()))
