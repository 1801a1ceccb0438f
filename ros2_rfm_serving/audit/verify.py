"""Verification of all chains of a recording: their integrity, and their agreement with the recorder's reports.

The recorder is a writer itself. The reports in its chain are read first: the records that never reached it, and the last number and
hash that it received of each chain. So a chain without a closing record has a known end too, and a rewritten one differs.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ros2_rfm_serving.audit.chain import ASIDE, CLOSED, HASH_DIGITS, LATE, SEALED, Checked, Flaw, Page, identity, records
from ros2_rfm_serving.audit.recording.ledger import RECORDER
from ros2_rfm_serving.errors import RfmError

LOST, REMOVED = "lost", "removed"

NO_RECORDER = "no recorder's chain is there: whole chains may be missing"
PAGES_BEHIND = 2
"""Number of its own pages within which a recorder reports the losses before a page of another writer."""

Key = tuple[str, int]
"""Writer and run."""


@dataclass(frozen=True)
class Verified:
    chains: tuple[Checked, ...]
    """Verified chains in the order in which they begin."""
    flaws: tuple[Flaw, ...]
    num_records: int
    num_lost: int
    """Number of records that never reached the recorder, by its own report."""
    num_repeats: int = 0
    """Number of repeated pages, which have no effect."""
    num_unproven: int = 0
    """Number of pages without a signature of the writer's certificate, by the recorder's report; they have no effect."""

    @property
    def head(self) -> str:
        """Return the common hash of all chains, whose copy elsewhere reveals a recording in which all of them were rewritten."""
        heads = sorted(f"{chain.writer} {chain.run} {chain.number} {chain.hash}" for chain in self.chains)
        return hashlib.sha256("\n".join(heads).encode()).hexdigest()[:HASH_DIGITS]


@dataclass
class _Heard:
    """Reports of recorders about one chain."""

    lost: list[tuple[int, int]] = field(default_factory=list)
    heads: dict[int, str] = field(default_factory=dict)
    first: int | None = None
    last: int | None = None
    """Number after its last record, by a recorder that ended in order."""


See = Callable[[str, int, dict[str, Any]], None]
"""Callback that receives writer, run and record."""


def verify(
    pages: Callable[[], Iterable[Page]], see: See | None = None, *, alone: bool = False, has_recorder: bool = False
) -> Verified:
    """Verify all chains. pages: returns the pages of a recording in their order; called twice. see: receives every record in that
    order. alone: the input is one file of a recording, so that beginnings of chains are elsewhere, as with files that the recorder
    removed. has_recorder: this package's recorder wrote the recording, so that a missing chain of it was removed."""
    left = itertools.count()
    heard, complete, aside, retained = _heard(page for page in pages() if page.writer.startswith(RECORDER) and next(left) >= 0)
    partial, num_left = alone or retained, next(left)
    is_recorded = num_left > 0
    chains: dict[Key, Checked] = {}
    num_unproven = num_late = 0
    for page in pages():
        key = page.writer, page.run
        why = aside.get(identity(page).hex(), "") if aside else ""
        if why and (why != LATE or (key in chains and page.first < chains[key].number)):
            num_unproven += why != LATE
            num_late += why == LATE
            continue
        if key not in chains:
            chains[key] = _checked(key, heard.get(key, _Heard()), partial)
            chains[key].see = functools.partial(see, *key) if see is not None else None
        own = page.writer.startswith(RECORDER)
        num_left -= own
        chains[key].add(page, unsaid=is_recorded and not (complete or own) and num_left < PAGES_BEHIND)
    flaws = [
        *_strangers(chains, heard, complete),
        *_absent(chains, heard, partial),
        *_nobody(chains, has_recorder),
        *_broken(chains),
    ]
    for chain in chains.values():
        chain.end()
        flaws += chain.flaws
    return Verified(
        chains=tuple(chains.values()),
        flaws=tuple(sorted(flaws, key=lambda flaw: (flaw.writer, flaw.run, flaw.page, flaw.number))),
        num_records=sum(chain.number - max(chain.begins, 0) - chain.num_lost for chain in chains.values()),
        num_lost=sum(chain.num_lost for chain in chains.values()),
        num_repeats=sum(chain.repeats for chain in chains.values()) + num_late,
        num_unproven=num_unproven,
    )


def _heard(pages: Iterable[Page]) -> tuple[dict[Key, _Heard], bool, dict[str, str], bool]:
    """Return the reports by chain; whether a recorder ended in order, so that there are no other chains; identities of the pages
    that it set aside, with reasons; and whether it removed files because of its size limit."""
    heard: dict[Key, _Heard] = {}
    complete, aside, retained = False, dict[str, str](), False
    for page in pages:
        try:
            for record in records(page):
                complete |= record.get("kind") == CLOSED
                retained |= record.get("kind") == REMOVED
                aside |= {str(record["page"]): str(record["why"])} if record.get("kind") == ASIDE else {}
                _hear(heard, record)
        except (RfmError, ArithmeticError, AttributeError, KeyError, TypeError, ValueError):  # damaged: its chain has a flaw
            continue
    return heard, complete, aside, retained


def _hear(heard: dict[Key, _Heard], record: Mapping[str, Any]) -> None:
    """Add the reports in a record. Raises: `ArithmeticError`, `AttributeError`, `KeyError`, `TypeError` or `ValueError` for content
    that no recorder writes."""
    kind = record.get("kind")
    if kind == LOST and "writer" in record:
        told = heard.setdefault(_key(record), _Heard())
        told.lost.append((int(record["first"]), int(record["count"])))
    if kind not in (SEALED, CLOSED):
        return
    for head in record.get("heads", ()):
        told = heard.setdefault(_key(head), _Heard())
        told.heads[int(head["next"])] = str(head["hash"])
        told.first = int(head["first"]) if "first" in head else told.first
        told.last = int(head["next"]) if kind == CLOSED else told.last


def _key(found: Mapping[str, Any]) -> Key:
    writer, run = found["writer"], found["run"]
    if not (isinstance(writer, str) and isinstance(run, int)):
        raise TypeError("no recorder writes that")
    return writer, run


def _checked(key: Key, heard: _Heard, partial: bool) -> Checked:
    expected = (heard.first or 0, heard.last) if heard.last is not None else None
    return Checked(*key, lost=heard.lost, heads=heard.heads, expected=expected, partial=partial)


def _strangers(chains: Mapping[Key, Checked], heard: Mapping[Key, _Heard], complete: bool) -> list[Flaw]:
    """Return a flaw for each chain without a recorder's report, if a recorder ended in order."""
    others = [key for key in chains if key not in heard and not key[0].startswith(RECORDER)] if complete else []
    return [Flaw(writer=writer, run=run, number=0, problem="the recorder heard no such chain") for writer, run in others]


def _absent(chains: Mapping[Key, Checked], heard: Mapping[Key, _Heard], partial: bool) -> list[Flaw]:
    """Return a flaw for each missing chain that a recorder received. partial: files are missing legitimately, maybe with it."""
    missing = [(key, max(told.heads)) for key, told in heard.items() if told.heads and key not in chains]
    return [
        Flaw(
            writer=writer,
            run=run,
            number=0,
            problem=f"the recorder heard {number} records of it, and none is there",
            is_open_end=partial,
        )
        for (writer, run), number in missing
    ]


def _broken(chains: Mapping[Key, Checked]) -> list[Flaw]:
    """Return a flaw for each chain that broke off and lacks its last record, by the next chain of the same writer."""
    found = []
    for (writer, run), chain in chains.items():
        before = chains.get((writer, chain.follows[0])) if chain.follows else None
        if chain.follows and not (before and before.broke_off):
            problem = f"the chain before this one, run {chain.follows[0]:016x}, broke off: {chain.follows[1]}"
            found.append(Flaw(writer=writer, run=run, number=0, problem=problem, is_open_end=True))
    return found


def _nobody(chains: Mapping[Key, Checked], has_recorder: bool) -> list[Flaw]:
    """Return a flaw if no recorder's chain reports the chains."""
    if any(writer.startswith(RECORDER) for writer, _ in chains) or not (chains or has_recorder):
        return []
    problem = "its recorder's chain was removed" if has_recorder else NO_RECORDER
    return [Flaw(writer=RECORDER, run=0, number=0, problem=problem, is_open_end=not has_recorder)]
