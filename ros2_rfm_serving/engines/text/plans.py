"""Reading of plans: the subgoals in a model's answer, or the reason why it cannot be read as a plan.

Planners are asked for JSON by schema (`SCHEMA`) where the server honours one. Every answer is read strictly: a robot executes each
subgoal, so that a sentence about the task, an apology or a thought must never become one.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ros2_rfm_serving.engines.text.subgoals import CODE, NO_IMPERATIVE, NOTHING, THOUGHT, UnreadablePlan, checked, is_end

KEY = "subgoals"
SCHEMA = {
    "type": "object",
    "properties": {KEY: {"type": "array", "items": {"type": "string"}}},
    "required": [KEY],
    "additionalProperties": False,
}
MAX_SUBGOALS = 64
MAX_DEPTH = 4
"""Largest depth of nested lists and objects."""
_BLANK = " \t\r\n\ufeff\u200b"


def read_plan(text: str, *, as_json: bool = False) -> tuple[str, ...]:
    """Return the remaining subgoals, in order; empty if nothing is left to do.

    as_json: the server was asked for `SCHEMA` and honoured it before, so that lines of text are no plan. Raises: `UnreadablePlan`.
    """
    text = _without_fence(text.replace("\u2019", "'").strip(_BLANK))
    if not text:
        raise UnreadablePlan("there is no text")
    if as_json and not _holds_json(text):
        raise UnreadablePlan("it is not of the schema that was asked for")
    subgoals = list(_from_json(text) if _holds_json(text) else _from_lines(text))
    while subgoals and is_end(subgoals[-1]):
        del subgoals[-1]
    if len(subgoals) > MAX_SUBGOALS:
        raise UnreadablePlan(f"it has {len(subgoals)} subgoals, more than {MAX_SUBGOALS}")
    return tuple(checked(subgoal) for subgoal in subgoals)


_BULLETS = "-*+•‣▪◦●→\u2013—✓✔✅➤►"
_TICKS = ("✓", "✔", "✅")
_NUMBER = r"(?:\d{1,3}|one|two|three|four|five|six|seven|eight|nine|ten)"
_MARK = re.compile(
    rf"^(?:[{_BULLETS}]\s+"
    r"|[-•\u2013—](?=[^\W\d_])|[①-⑳]\s*|\d\ufe0f?\u20e3\s+"
    r"|[(\[<]?\d{1,3}\s*[.):\]>](?:\s+|(?=[^\W\d_]))|\d{1,3}\s*-\s+|\d{1,3}[、\uff0e\uff1a]\s*|第[一二三四五六七八九十\d]{1,3}步\s*[\uff0c\uff1a:、]?\s*"
    rf"|\(?(?:sub-?goal|step|task|action|phase|goal|stage)\s*#?\s*{_NUMBER}\s*[.):\-\u2013—]\s+|(?:sub-?goal|step)\s*#?\s*\d{{1,3}}\s+"
    r"|(?:sub-?goal|step|action)\s*:\s+|[STG]\d{1,2}\s*[.):]\s+|\(?(?:[a-h]|[ivx]{1,4})[.)]\s+)",
    re.IGNORECASE,
)
"""Number, label or bullet before an item."""
_TICKED_OFF = re.compile(
    r"^\[[xX✓✔✅]\]\s|^[☑☒]|^\s*~~.*~~\s*[.,]?$|^\[(?:done|completed?|finished)\]\s"
    r"|[\s(\[](?:already )?(?:done|completed|finished)[)\]][.!]?$"
    r"|\s[-\u2013—:]\s*(?:already )?(?:done|completed|finished|✓|✔|✅)[.!]?$",
    re.IGNORECASE,
)
"""Sign that an item is done: a ticked box, a line through it, `(done)`."""
_ORDER = re.compile(
    r"^(?:(?:first|second|third|fourth|last)(?:ly)?|then|next|finally|after that|afterwards|and then)\s*[,:]\s+", re.IGNORECASE
)
_EMPHASIS = " \t`*_\"'“”«»"


def _is_item(line: str) -> bool:
    return _MARK.match(_without_emphasis(line)) is not None


def _is_ticked_off(line: str) -> bool:
    """Return whether an item is marked as done."""
    plain = _without_emphasis(line).strip()
    return _TICKED_OFF.search(_MARK.sub("", plain)) is not None or _TICKED_OFF.search(plain) is not None


def _without_emphasis(line: str) -> str:
    return line.replace("**", "").replace("__", "").lstrip("# \t")


def _bare(line: str) -> str:
    """Return a line without its number, bullet, check box, emphasis and quotes, on one line."""
    line = " ".join(_without_emphasis(line).split())
    while True:
        shorter = re.sub(r"^\[[ xX]?\]\s+", "", _MARK.sub("", line))
        shorter = _ORDER.sub("", shorter.strip(_EMPHASIS).rstrip(","))
        if shorter == line:
            return line
        line = shorter


# --- JSON --------------------------------------------------------------------------------------------------------------------

_PLAN_KEYS = (
    "subgoals subgoal plan plans steps subtasks tasks actions goals instructions sequence todo list items remaining "
    "output answer result response final finalanswer finalplan actionplan taskplan"
)
_PLANS = frozenset(_PLAN_KEYS.split())
"""Keys of a plan, in lower case and without marks; `remaining_subgoals` and the like as well."""
_QUALIFIED = re.compile(
    r"(?:remaining|ordered|next|left|new|updated|revised|robot|high_?level)"
    r"(?:sub-?goals?|plan|steps|sub-?tasks|tasks|actions|goals|instructions|sequence)"
)
"""Key of a plan with a word before it. `left_arm_actions`, `left_objects` and `remaining_risks` do not match."""
_TEXTS = ("subgoal", "instruction", "action", "description", "task", "step", "goal", "text", "content", "command", "title", "name")
"""Keys of an object that is one subgoal, the most specific first."""
_OTHER_KEYS = (
    "id index number no order step stepnumber priority status state done completed complete finished reason reasoning "
    "reasons rationale explanation why note notes comment comments thought thoughts thinking analysis confidence score "
    "duration type"
)
_ABOUT = frozenset(_OTHER_KEYS.split())
"""Keys that describe a plan or a subgoal, and are none."""
_DONE = ("done", "completed", "complete", "finished")
_IS_DONE = (
    *_DONE,
    *("success", "successful", "succeeded", "achieved", "accomplished", "executed", "skipped", "cancelled", "canceled", "obsolete"),
    *("true", "yes", "1", "x"),
    *_TICKS,
)
"""Statuses of a subgoal that is done."""
_BEHIND = (*_DONE, "previous", "past", "history", "executed", "object", "scene", "observ", "constraint", "avoid", "assumption")
"""Beginnings of keys below which there are no remaining steps of a plan."""


def _holds_json(text: str) -> bool:
    return (
        (text[0] in '[{"' and not re.match(r"\[[ xX]?\]\s", text))
        or "{" in text
        or re.search(r"^\s*\[\s*(?:\"|'|\]|$)", text, re.M) is not None
    )


def _from_json(text: str) -> list[str]:
    """Return the subgoals in a JSON text. Raises: `UnreadablePlan`."""
    begins = min((at for mark in '{["' if (at := text.find(mark)) >= 0), default=0)
    values, rest = _values(text[begins:])
    if not values:
        raise UnreadablePlan("its JSON cannot be read")
    if not (_is_polite(text[:begins]) and _is_polite(rest)):
        raise UnreadablePlan("other text stands around its JSON")
    return [subgoal for value in values for subgoal in _subgoals(value, 0)]


def _values(text: str) -> tuple[list[Any], str]:
    """Return consecutive JSON values, and the text after them."""
    decoder, values = json.JSONDecoder(object_pairs_hook=_object), list[Any]()
    while text[:1] and text[0] in '{["':
        try:
            value, end = decoder.raw_decode(text)
        except RecursionError:
            raise UnreadablePlan("its JSON is nested too deeply") from None
        except UnreadablePlan:
            raise
        except ValueError:
            return (values, text) if values else (_literal(text), "")
        values.append(value)
        text = text[end:].lstrip(" \t\r\n,;")
    return values, text


def _literal(text: str) -> list[Any]:
    """Return the one value of a text in Python's notation, with single quotes; empty if it has none."""
    if "\\" in text:  # unknown escapes would put a warning into the log
        return []
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return []
    return [value] if isinstance(value, list | dict) else []


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise UnreadablePlan("a key stands twice in its JSON")
    return made


def _subgoals(value: Any, depth: int) -> list[str]:
    """Return the subgoals in a JSON value. Raises: `UnreadablePlan`."""
    if depth > MAX_DEPTH:
        raise UnreadablePlan("its JSON is nested too deeply")
    if isinstance(value, str):
        return list(_from_lines(value)) if value.strip() else []
    if isinstance(value, list):
        return [subgoal for item in value for subgoal in _item(item)]
    if not isinstance(value, dict):
        raise UnreadablePlan("its JSON holds no list of subgoals")
    plans = [key for key in value if _is_plan_key(key)]
    lists = [key for key in plans if isinstance(value[key], list | dict)] or plans
    if len(lists) == 1:
        if _plain_key(lists[0]) != KEY and (other := _other_list(value, lists[0])):
            raise UnreadablePlan(f"its JSON has another list beside its plan: {other}")
        return _subgoals(value[lists[0]], depth + 1)
    if lists:
        raise UnreadablePlan("its JSON has several plans")
    return _numbered(value)


def _other_list(value: dict[Any, Any], plan: object) -> str:
    """Return a key beside a plan that may hold another plan, such as that of a second arm; empty if there is none.
    The key that was asked for (`KEY`) holds the plan, whatever other keys there are."""
    for key, other in value.items():
        plain = _plain_key(key)
        about = plain in _ABOUT or plain.startswith(_BEHIND)
        if key != plan and not about and isinstance(other, list | dict) and any(map(_may_be_a_subgoal, _texts_in(other))):
            return repr(str(key)[:40])
    return ""


def _texts_in(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield the texts in lists and objects. Raises: `UnreadablePlan` if they are nested too deeply."""
    if depth > MAX_DEPTH:
        raise UnreadablePlan("its JSON is nested too deeply")
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(inner, depth + 1)


def _may_be_a_subgoal(text: str) -> bool:
    """Return whether a text reads like an imperative: `lower the arm`, but neither `cup` nor `the gripper is open`."""
    try:
        return len(checked(_bare(text)).split()) > 1
    except UnreadablePlan:
        return False


def _is_plan_key(key: object) -> bool:
    plain = _plain_key(key)
    return plain in _PLANS or _QUALIFIED.fullmatch(plain) is not None


def _plain_key(key: object) -> str:
    return re.sub(r"[^a-z]", "", str(key).lower())


def _numbered(value: dict[Any, Any]) -> list[str]:
    """Return the subgoals of `{"1": ..., "step 2": ...}`. Raises: `UnreadablePlan`."""
    found: dict[int, list[str]] = {}
    for key, item in value.items():
        number = re.fullmatch(r"(?:sub-?goal|step|task|action|goal)?[\s_#-]*(\d{1,3})", str(key).strip(), re.IGNORECASE)
        if number:
            found[int(number[1])] = _item(item)
        elif _plain_key(key) not in _ABOUT:
            raise UnreadablePlan("its JSON has no list of subgoals under a known key, such as `subgoals`")
    if not found:
        raise UnreadablePlan("its JSON has no list of subgoals under a known key, such as `subgoals`")
    return [subgoal for _, subgoals in sorted(found.items()) for subgoal in subgoals]


def _item(item: Any) -> list[str]:
    """Return one element's subgoal; empty if it is done or blank. Raises: `UnreadablePlan`."""
    if isinstance(item, dict):
        if _is_done(item):
            return []
        texts = [key for name in _TEXTS for key in item if _plain_key(key) == name and _is_words(item[key])]
        others = [key for key in item if key not in texts and _plain_key(key) not in _ABOUT and item[key] not in (None, "", [])]
        if not texts or others:
            raise UnreadablePlan("an object in its list is no plain subgoal")
        item = item[texts[0]]
    if not isinstance(item, str):
        raise UnreadablePlan("an element of its list is no text")
    if len([line for line in item.splitlines() if line.strip()]) > 1:
        raise UnreadablePlan("several subgoals stand in one")
    if not item.strip() or _is_ticked_off(item) or not (plain := _bare(item)):
        return []
    if plain.endswith(":"):
        raise UnreadablePlan("an element of its list is a heading")
    return [plain]


def _is_words(value: Any) -> bool:
    return isinstance(value, str) and any(letter.isalpha() for letter in value)


def _is_done(item: dict[Any, Any]) -> bool:
    for key, value in item.items():
        plain = _plain_key(key)
        if plain in _DONE and value in (True, 1):
            return True
        if plain in ("status", "state", *_DONE) and isinstance(value, str) and value.strip().lower() in _IS_DONE:
            return True
    return False


# --- lines -------------------------------------------------------------------------------------------------------------------


_OF_PLAN = r"(?:plan|sub-?goals?|steps?|sequence|list|answer|output|json|result|response|instructions)"
_INTERJECTIONS = "sure(?: thing)?|certainly|of course|ok(?:ay)?|yes|alright|all right|great|absolutely|understood|got it|no problem"
_GREETING = re.compile(
    rf"(?:(?:{_INTERJECTIONS})[,.!]+[ \t]+)?(?:(?:(?:the|my)\s+)?(?:[\w-]+\s+)?{_OF_PLAN}[ \t]*:[ \t]+)?",
    re.IGNORECASE,
)
_POLITE = re.compile(
    rf"(?:(?:{_INTERJECTIONS}|gladly|thanks|thank you|hello|hi)\b[\s,.!:-]*){{0,3}}"
    r"(?:(?:based on|given|considering|looking at|from|to|for)\b[^.?!:\n]{0,120},\s*)?"
    r"(?:(?:here(?:'s| is| are)|below (?:is|are)|this is|these are|the following (?:is|are))\b[^.?!\n]{0,160}[.:!]?"
    rf"|(?:my|the|a)?\s*(?:[\w-]+\s+){{0,2}}{_OF_PLAN}(?:\s+(?:that (?:is|are) left|left|for the robot|to do|is|are))?\s*[.:!]?"
    r"|i(?:'d| would) (?:be (?:happy|glad)|love) to (?:help|assist)[^.?!\n]{0,60}[.!]"
    r"|the robot (?:should|must|has to|needs to|can):)?",
    re.IGNORECASE,
)
_FAREWELL = re.compile(
    r"(?:please )?(?:let me know|i hope|hope (?:this|that|it)|feel free|good luck|is there anything|happy to"
    r"|enjoy|thank|if you (?:need|have|want|would)|this (?:plan|sequence|list)|these (?:steps|subgoals)"
    r"|that(?:'s| is) (?:it|all))[^\n]{0,240}"
    r"|done[.!]*",
    re.IGNORECASE,
)
_OF_THOUGHT = re.compile(r"think|thought|reason|analy|consider|observ|reflect|step[- ]by[- ]step", re.IGNORECASE)


def _is_polite(text: str) -> bool:
    """Return whether a text is nothing but an introduction or a farewell."""
    return all(_says_nothing(line.strip(" \t*_#`")) for line in text.splitlines())


def _says_nothing(line: str) -> bool:
    sentences = re.split(r"(?<=[.!])\s+", line)
    plain = [sentence for sentence in sentences if not (_POLITE.fullmatch(sentence) or _FAREWELL.fullmatch(sentence))]
    return (not plain or _FAREWELL.fullmatch(line) is not None) and not _OF_THOUGHT.search(line)


def _is_heading(line: str) -> bool:
    """Return whether a line heads a list: `Subgoals:`, `## Plan`, `**Phase 1:**`, `Step 2:`."""
    heads = (line.startswith("#") and not _is_item(line)) or line.strip(" *_").endswith(":")
    plain = line.strip(" #*_:")
    return heads and len(plain.split()) <= 8 and not (_OF_THOUGHT.search(plain) or THOUGHT.search(plain))


def _from_lines(text: str) -> list[str]:
    """Return the subgoals in lines of text. Raises: `UnreadablePlan`."""
    begins = 0 if _is_item(text) else _GREETING.match(text).end()  # type: ignore[union-attr]
    lines = [line for line in text[begins:].splitlines() if line.strip()]
    while lines and (_is_heading(lines[0].strip()) or _is_polite(lines[0])):
        del lines[0]
    while lines and not _is_item(lines[-1]) and (_is_polite(lines[-1]) or _FAREWELL.fullmatch(lines[-1].strip())):
        del lines[-1]
    if not lines:
        raise UnreadablePlan("it has no subgoal")
    if len(lines) == 1 and NOTHING.fullmatch(_bare(lines[0])):
        return []
    lines = [line for line in lines if not re.fullmatch(r"\s*(?:[-*_=]\s?){3,}\s*", line)]  # a horizontal rule
    is_list = any(_is_item(line) for line in lines)
    return list(_listed(lines) if is_list else _unlisted(lines))


def _begins_with_a_tick(line: str) -> bool:
    plain = _without_emphasis(line).strip()
    return _MARK.sub("", plain)[:1] in _TICKS or plain[:1] in _TICKS


def _listed(lines: Sequence[str]) -> Iterator[str]:
    """Yield the items of a list. Raises: `UnreadablePlan`."""
    first = len(lines[0]) - len(lines[0].lstrip())
    ticked = [_begins_with_a_tick(line) for line in lines if _is_item(line)]
    ticks = any(ticked) and not all(ticked)  # if all items begin with one, it is a bullet
    for line in lines:
        plain, indent = _bare(line), len(line) - len(line.lstrip())
        if not _is_item(line):
            if not _is_heading(line.strip()):
                raise UnreadablePlan("lines that are no items stand in its list")
            continue
        if plain.endswith(":") or indent > first + 1:
            raise UnreadablePlan("it has lists within its list")
        if _is_ticked_off(line) or (ticks and _begins_with_a_tick(line)):
            continue
        if (line.strip()[0] in _BULLETS and f" {line.strip()[0]} " in plain) or ";" in plain:
            raise UnreadablePlan("several subgoals stand in one")
        if CODE.search(plain):
            raise UnreadablePlan("a line of it is code or markup")
        if plain:
            yield plain


def _unlisted(lines: Sequence[str]) -> Iterator[str]:
    """Yield lines, each of which reads like one imperative. Raises: `UnreadablePlan`."""
    for line in lines:
        plain = _bare(line)
        if not plain or _is_heading(line.strip()):
            continue
        if ";" in plain:
            raise UnreadablePlan("several subgoals stand in one")
        if CODE.search(plain):
            raise UnreadablePlan("a line of it is code or markup")
        if (
            NO_IMPERATIVE.search(plain)
            or line.lstrip().startswith("#")
            or len(plain.split()) > 30
            or re.search(r"[.!?]\s+\S+\s", plain)
        ):
            raise UnreadablePlan("a line of it is no short imperative")
        yield plain


_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[ \t]*([\w+-]*)[ \t]*$", re.MULTILINE)
_PLAIN_FENCES = ("", "json", "json5", "jsonc", "text", "txt", "plaintext", "plain", "markdown", "md", "yaml", "yml", "plan")


def _without_fence(text: str) -> str:
    """Return the content of a fence around the plan, or the text. Raises: `UnreadablePlan`."""
    inline = text.strip("`").strip()
    if text.startswith("`") and text.endswith("`") and not {"`", "\n"} & set(inline):
        return inline.removeprefix("json").strip()
    fences = list(_FENCE.finditer(text))
    if not fences:
        return text
    begin, end = fences[0], fences[1] if len(fences) > 1 else None
    inside, behind = text[begin.end() : end.start() if end else len(text)], text[end.end() :] if end else ""
    if len(fences) > 2 or begin[1].lower() not in _PLAIN_FENCES or (end and end[1]):
        raise UnreadablePlan("it has several fences, or one of code")
    if not (_is_polite(text[: begin.start()]) and _is_polite(behind)):
        raise UnreadablePlan("other text stands around its fence")
    return inside.strip()
