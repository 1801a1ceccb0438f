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
    "length maxlength max maximum limit exceeded exhausted overflow full window truncated truncation cutoff cut incomplete "
    "unfinished partial context budget quota predict out repetition loop language malformed filter filtered blocked "
    "blocklist prohibited safety recitation spii guardrail moderation moderated refusal rejected flagged policy violation "
    "harmful toxic toxicity nsfw armor jailbreak sensitive abort aborted cancel canceled cancelled interrupted preempted "
    "evicted killed terminated disconnected shutdown overloaded unload expired deadline timeout time network oom memory "
    "user error failed failure insufficient pause paused"
)
_CUT_OFF = frozenset(_FROM_OUTSIDE.split())
"""Words of the names for an end that came from outside.

Names that were read in sources: `length` (OpenAI, llama.cpp, Ollama, TGI db931fc), `abort`, `error`, `repetition` (vLLM 0.33.0),
`model_length`, `error` (Mistral 05629d2), `parse_error`, `abort` (LMDeploy 1263d5c), `content_filter` (OpenAI e43b422),
`max_tokens`, `refusal`, `model_context_window_exceeded` (Anthropic), `MAX_TOKENS`, `SAFETY`, `RECITATION` (Gemini),
`insufficient_system_resource` (DeepSeek), `token_limit`, `time_limit`, `cancelled` (watsonx). Names that were read in public
clients of a service, or in its reference: `LANGUAGE`, `MALFORMED_FUNCTION_CALL`, `MODEL_ARMOR` (Gemini), `ERROR_TOXIC`,
`USER_CANCEL`, `TIMEOUT` (Cohere), `guardrail_intervened` (Bedrock), `pause_turn` (Anthropic), `unload` (Ollama). The other words
are here for what they mean; no server was seen to use them."""


def was_cut_off(reason: str) -> bool:
    """Whether a name for the end of a completion means that it was cut off. All others mean that it ended: `stop`, `eos`,
    `eos_token`, `stop_sequence`, `end_turn`, `COMPLETE`, and names that nobody has seen yet."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", reason)
    return not _CUT_OFF.isdisjoint(re.split(r"[^a-z]+", spaced.lower()))
