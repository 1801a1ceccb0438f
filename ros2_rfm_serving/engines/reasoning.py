"""Separation of a model's thoughts from its answer, for every form in which thoughts are published.

A server with a reasoning parser puts thoughts into fields or content parts of their own (`chat_client.py`). Without one they are in
the text, between marks that differ from model to model. The marks were read in the parsers of vLLM 0.33.0 (`vllm/reasoning`,
`vllm/parser`), SGLang 002e9bf (`srt/parser/reasoning_parser.py`) and LMDeploy 1263d5c (`docs/en/llm/api_server_reasoning.md`), and
in the chat templates of models without a parser there. `<details type="reasoning">` is Open WebUI's, and one public client drops
`<antthinking>`: both were read in public code, not in that of their makers. Other names of tags (`<rationale>`, `<begin_think>`)
are included because of their meaning; no model was seen to write them.

Four rules hold for all of them. A closing mark without an opening one ends thoughts that the chat template has opened: the text
before it is no answer. An opening mark without its closing one begins thoughts that were cut off. The last of two answers counts.
Thoughts after an answer may take it back, so that there is no answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_THOUGHT = (
    r"(?:think(?:ing)?|thoughts?|reason(?:ing)?|reflect(?:ion)?|analysis|scratch_?pad|cot|chain_of_thoughts?|monologue|rationale"
    r"|deliberation|planning|internal|思考(?:过程)?)"
)
_TAG = rf"(?:[a-z]{{1,20}}[:_-]|ant|inner|self|my)?{_THOUGHT}(?:[:_-][\w:.-]{{1,60}}|process)?"
"""Names of tags: `think`, `seed:think`, `mm:think`, `longcat_think`, `think:opensource`, `thought` (EXAONE Deep), `REASONING`
(LLaVA-CoT), `antThinking`, `inner_monologue`."""
_BEGIN, _END = r"(?:begin|start)(?:_of)?[_ -]", r"(?:end|stop|close)(?:_of)?[_ -]"
_LEFT, _RIGHT = r"(?:<|&lt;)\s{0,3}", r"\s{0,3}(?:>|&gt;)"
_OF_THOUGHT = r"(?:think(?:ing)?|thoughts?|reasoning)"

_MARKS = re.compile(
    "(?=[<&[◁`~Hh])(?:"  # characters that begin a mark: nothing is tried elsewhere
    + "|".join(
        (
            # Harmony (gpt-oss): every message has a channel, and `final` alone is the answer.
            r"(?P<final><\|channel\|>\s{0,3}final\b[^<\n]{0,40}(?:<\|constrain\|>\s{0,3}\w{0,20}\s{0,3})?<\|message\|>"
            r"|<\|channel\|>\s{0,3}final\b)",
            r"(?P<channel><\|channel\|>)",
            # Cohere Command, Open Thoughts, Inkling, Kimi K3, Solar, Granite: marks that begin the answer, whatever is open.
            r"(?P<answer><\|START_(?:RESPONSE|TEXT)\|>|<\|(?:begin|start)_of_(?:solution|answer|response)\|>|<\|content_text\|>|<\|content\|>"
            r"|<\|(?:response|answer|solution|final(?:_answer)?)\|>"
            r"|<\|open\|>\s{0,3}response\s{0,3}<\|sep\|>|\bHere(?: is|['\u2019]s) my response:)",
            r"(?P<k3_open><\|open\|>\s{0,3}think\s{0,3}<\|sep\|>)|(?P<k3_close><\|close\|>\s{0,3}think\s{0,3}<\|sep\|>)",
            r"(?P<gemma_open><\|channel>\s{0,3}\w{0,20})|(?P<gemma_close><channel\|>)",
            r"(?P<inner_open><\|inner_prefix\|>)|(?P<inner_close><\|inner_suffix\|>)",
            rf"(?P<token_close><\|[\w:]{{0,20}}(?:/|end_|stop_|close_)[\w:]{{0,12}}{_OF_THOUGHT}[\w:]{{0,20}}\|>"
            rf"|<\|[\w:]{{0,20}}{_OF_THOUGHT}_(?:end|stop|close)\|>)",
            rf"(?P<token_open><\|[\w:]{{0,40}}{_OF_THOUGHT}[\w:]{{0,20}}\|>)",
            r"(?P<token_end><\|end(?:_message)?\|>)",
            r"(?P<granite_open>\bHere(?: is|['\u2019]s) my thought process:)",
            rf"(?P<bracket_open>\[(?:(?:{_BEGIN})?{_THOUGHT}|unused16)\])|(?P<bracket_close>\[(?:(?:/|{_END}){_THOUGHT}|unused17)\])",
            r"(?P<kimi_open>◁\s{0,3}think(?:ing)?\s{0,3}▷)|(?P<kimi_close>◁\s{0,3}/\s{0,3}think(?:ing)?\s{0,3}▷)",
            rf"(?P<fence_open>(?:```|~~~)[ \t]{{0,3}}{_THOUGHT}[ \t]{{0,3}}\n)",
            # Open WebUI folds thoughts up: `<details type="reasoning" done="true">`.
            rf"(?P<details_open>{_LEFT}details\b[^<>\n]{{0,120}}{_RIGHT})|(?P<details_close>{_LEFT}/details{_RIGHT})",
            rf"(?P<tag_empty>{_LEFT}{_TAG}\s{{0,3}}/{_RIGHT})",
            rf"{_LEFT}(?:/\s{{0,3}}|{_END})(?P<tag_close>{_TAG}){_RIGHT}",
            rf"{_LEFT}(?:{_BEGIN})?(?P<tag_open>{_TAG})(?:\s[^<>\n]{{0,80}})?{_RIGHT}",
            rf"(?P<box_open>{_LEFT}(?:answer|response|output|final|final_answer|conclusion|solution|plan|subgoals|steps){_RIGHT})",
            rf"(?P<box_close>{_LEFT}/\s{{0,3}}(?:answer|response|output|final|final_answer|conclusion|solution|plan|subgoals|steps){_RIGHT})",
        )
    )
    + ")",
    re.IGNORECASE,
)
_FENCE_END = re.compile(r"\n[ \t]*(?:```|~~~)")
_LOOKALIKES = str.maketrans("\uff1c\uff1e⟨⟩〈〉\uff3b\uff3d【】\uff5c▁", "<><><>[][]|_")
"""Characters with which some models write their marks; each stands for one character, so that positions stay the same."""

_ENDS_OF_TURN = re.compile(
    r"<\|(?:im_end|eot|eot_id|eom|eom_id|endoftext|end_of_text|return|end_of_turn|end_of_msg|end_of_response|endofresponse"
    r"|content_model_end_sampling)\|>|</s>|<eos>|<end_of_turn>|<end_of_utterance>|<turn\|>|<\uff5cend\u2581of\u2581sentence\uff5c>|\[EO[ST]\]"
)
_SPECIAL_TOKENS = re.compile(
    r"<\|(?:open|close)\|>\s{0,3}\w{1,20}\s{0,3}<\|sep\|>|<\|(?:start_header_id|im_start|start|begin|turn)\|>\s{0,3}(?:assistant|model)?\b|<start_of_turn>\s{0,3}(?:model)?\b"
    r"|<\|[^|<>\n]{1,60}\|>|<\uff5c[^\uff5c<>\n]{1,60}\uff5c>|<\|\w{1,30}>|<\w{1,30}\|>|</?s>|<(?:bos|eos|pad|unk)>|\[/?INST\]|\[(?:BOS|PAD)\]"
)
# A server that leaves special tokens out of its text leaves the bare names of channels: gpt-oss and Gemma.
_BARE_FINAL = re.compile(r"assistant\s?final(?:json\b)?")
_BARE_CHANNEL = re.compile(r"\s*(?:assistant)?(?:analysis|commentary)(?=[A-Z\"'(]|\s+[A-Z]|\Z)|\s*thought\n")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Parts of a model's text."""

    answer: str
    """Answer without thoughts and special tokens."""
    has_reasoning: bool
    """True if the text has marks of thoughts, even empty ones."""
    is_cut_off: bool = False
    """True if the text ends within its thoughts."""
    has_second_thoughts: bool = False
    """True if thoughts follow the answer, which they may take back."""


def parts_of(text: str) -> Parts:
    """Return the answer in a text, and whether thoughts stood before it."""
    kept: list[str] = []
    inside = ""  # the kind of mark that ends the skipped text; empty while an answer is read
    has_reasoning = False
    answered = 0  # number of pieces of an answer when the last thoughts ended
    start = position = 0
    plain = text.translate(_LOOKALIKES)
    while found := _MARKS.search(plain, position):
        kind, position = str(found.lastgroup), found.end()
        if not inside:
            kept.append(text[start : found.start()])
        name, _, side = kind.rpartition("_")
        key = f"tag {_stem(found[kind])}" if name == "tag" else name
        if kind in ("final", "answer"):
            has_reasoning, inside, kept, answered = has_reasoning or bool("".join(kept).strip()), "", [], 0
        elif kind == "box_open":
            kept, answered = (kept, answered) if inside else ([], 0)
        elif kind == "tag_empty":
            has_reasoning = True
        elif kind == "channel" or (side == "open" and not inside):
            has_reasoning, inside = True, key or kind
            if kind == "fence_open":
                position = _end_of_fence(text, position)
                inside, answered = "" if position < len(text) else inside, len(kept)
        elif side == "close" and kind != "box_close" and inside in ("", key):
            has_reasoning, kept, inside = True, kept if inside else [], ""
            answered = len(kept)
        elif kind == "token_end" and inside == "token":
            inside = "end of a message"
        start = position
    if not inside:
        kept.append(text[start:])
    second = bool(_plain("".join(kept[:answered]))) and not _plain("".join(kept[answered:]))
    return _bare(
        Parts(answer=_plain("\n".join(kept)), has_reasoning=has_reasoning, is_cut_off=bool(inside), has_second_thoughts=second)
    )


def _stem(tag: str) -> str:
    """Return the stem of a tag, such as `think` for `Thinking`: models mix the two."""
    return tag.casefold().removesuffix("ing").removesuffix("s")


def _end_of_fence(text: str, position: int) -> int:
    end = _FENCE_END.search(text, position - 1)
    return end.end() if end else len(text)


def _plain(text: str) -> str:
    """Return a text without special tokens. A turn that the model began after its own is no part of its answer."""
    text = text.strip()
    if end := _ENDS_OF_TURN.search(text):
        before = _SPECIAL_TOKENS.sub("", text[: end.start()])
        text = before if before.strip() else text[end.end() :]
    return _SPECIAL_TOKENS.sub("", text).strip()


def _bare(parts: Parts) -> Parts:
    """Return the answer behind the names of channels whose marks the server left out."""
    named = _BARE_CHANNEL.match(parts.answer)
    finals = list(_BARE_FINAL.finditer(parts.answer))
    if finals and (named or finals[0].start() == 0):
        return Parts(answer=parts.answer[finals[-1].end() :].strip(), has_reasoning=True, is_cut_off=parts.is_cut_off)
    if named:
        return Parts(answer="", has_reasoning=True, is_cut_off=True)
    return parts


def has_marks(text: str) -> bool:
    """Return whether a text has marks of thoughts."""
    return any(
        found.lastgroup not in ("box_open", "box_close", "token_end") for found in _MARKS.finditer(text.translate(_LOOKALIKES))
    )
