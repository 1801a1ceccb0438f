"""Check of a recording before its use, so that changed content is neither played nor used for training."""

from __future__ import annotations

from collections.abc import Iterable

from ros2_rfm_serving.audit.bag import Bag
from ros2_rfm_serving.audit.chain import Flaw
from ros2_rfm_serving.audit.findings import Finding, in_words
from ros2_rfm_serving.audit.verify_bag import Verdict, verify_bag
from ros2_rfm_serving.errors import ConfigurationError

MOST_NAMED = 5
ANYWAY = "--unverified"


def check_unchanged(bag: Bag, verb: str, *, anyway: bool) -> list[str]:
    """Return lines for people about changes and missing evidence of completeness; empty for an intact recording. A missing end,
    because a process was killed, is not a change. verb: intended use, such as `export`. anyway: do not refuse.

    Raises: `ConfigurationError` for a recording that was changed.
    """
    verdict = verify_bag(bag)
    lines = flaws_of(verdict)
    if verdict.is_changed and not anyway:
        fix = f"`rfm audit verify {bag.path}` names all of it; {ANYWAY} does it all the same"
        raise ConfigurationError(f"it is not as it was written: {'; '.join(lines)}", file=str(bag.path), key=verb, fix=fix)
    doubts = [f"NOT PROVEN TO BE WHOLE: {doubt}" for doubt in verdict.doubts]
    return [*(f"NOT AS IT WAS WRITTEN: {line}" for line in lines), *doubts]


def flaws_of(verdict: Verdict, around_s: tuple[float, float] | None = None) -> list[str]:
    """Return descriptions of the first few changes, and the number of further ones. around_s: only messages of that period, and
    changes without a time."""
    found: list[Finding | Flaw] = [flaw for flaw in verdict.chains.flaws if not flaw.is_open_end]
    found += [
        one for one in verdict.findings if around_s is None or not one.time_ns or around_s[0] <= one.time_ns / 1e9 <= around_s[1]
    ]
    more = [f"and {len(found) - MOST_NAMED} more"] if len(found) > MOST_NAMED else []
    return [*_lines(found[:MOST_NAMED]), *more]


def _lines(found: Iterable[Finding | Flaw]) -> Iterable[str]:
    for one in found:
        yield in_words(one) if isinstance(one, Finding) else f"{one.writer}, record {one.number}: {one.problem}"
