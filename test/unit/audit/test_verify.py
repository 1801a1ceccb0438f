"""Whatever is done to a recording's pages is found, and nothing is found where nothing was done."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from ros2_rfm_serving.audit.chain import COULD_NOT_GO_ON, HASH_KEY, Chain, Page, chained
from ros2_rfm_serving.audit.recording.ledger import Ledger
from ros2_rfm_serving.audit.verify import Verified, verify

Damage = Callable[[list[Page], random.Random], list[Page]]


def writer(name: str, run: int, pages: int, *, closed: bool = True, rng: random.Random) -> list[Page]:
    """A chain of records that differ, some pages long."""
    chain, made = Chain(name, run), []
    for number in range(pages):
        for _ in range(rng.randint(1, 6)):
            chain.note("tick", 0.05 * chain.number, {"command": [rng.random()], "why": "row"})
        if number % 3 == 2:
            chain.seal(0.05 * chain.number)
        if closed and number == pages - 1:
            chain.seal(0.05 * chain.number, closed=True)
        page = chain.page()
        assert page is not None
        made.append(page)
    return made


def recording(seed: int = 0, *, recorder_ends: bool = True) -> list[Page]:
    """Two robots, one of which was killed, as a recorder heard them; with its own pages in between."""
    rng = random.Random(seed)
    chains = [writer("robot/r1", 11, 8, rng=rng), writer("robot/r2", 12, 6, closed=False, rng=rng)]
    ledger, pages, now_s = Ledger("one", 13, 0.0, {"bag": "x"}), [], 0.0
    while any(chains):
        chain = rng.choice([chain for chain in chains if chain])
        page = chain.pop(0)
        ledger.hear(page, now_s)
        pages.append(page)
        now_s += 1.5
        pages += [own] if (own := ledger.page(now_s, now_s)) else []
    return [*pages, own] if (own := ledger.page(now_s, now_s, closed=recorder_ends)) else pages


def verified(pages: list[Page]) -> Verified:
    return verify(lambda: pages)


@pytest.mark.parametrize("seed", range(20))
def test_what_nobody_touched_has_no_flaw(seed: int) -> None:
    pages = recording(seed)
    found = verified(pages)
    assert not found.flaws and found.num_lost == 0
    assert found.num_records == sum(len(page.lines) for page in pages)


# --- what may be done to it ---


def line_of(pages: list[Page], rng: random.Random) -> tuple[int, int]:
    index = rng.randrange(len(pages))
    return index, rng.randrange(len(pages[index].lines))


def with_lines(pages: list[Page], index: int, lines: list[bytes]) -> list[Page]:
    """As bytes are read again: no line is empty."""
    lines = [line for joined in lines for line in joined.split(b"\n") if line]
    return [*pages[:index], replace(pages[index], lines=tuple(lines)), *pages[index + 1 :]]


def flip_a_byte(pages: list[Page], rng: random.Random) -> list[Page]:
    index, number = line_of(pages, rng)
    lines = list(pages[index].lines)
    line = bytearray(lines[number])
    line[rng.randrange(len(line))] ^= 1 << rng.randrange(8)
    lines[number] = bytes(line)
    return with_lines(pages, index, lines)


def remove_a_record(pages: list[Page], rng: random.Random) -> list[Page]:
    index, number = line_of(pages, rng)
    lines = list(pages[index].lines)
    del lines[number]
    return with_lines(pages, index, lines)


def swap_two_records(pages: list[Page], rng: random.Random) -> list[Page]:
    (index, number), (other, last) = line_of(pages, rng), line_of(pages, rng)
    if (index, number) == (other, last):
        return swap_two_records(pages, rng)
    lines = [list(page.lines) for page in pages]
    lines[index][number], lines[other][last] = lines[other][last], lines[index][number]
    return [replace(page, lines=tuple(line)) for page, line in zip(pages, lines, strict=True)]


def repeat_a_record(pages: list[Page], rng: random.Random) -> list[Page]:
    index, number = line_of(pages, rng)
    lines = list(pages[index].lines)
    return with_lines(pages, index, [*lines[: number + 1], lines[number], *lines[number + 1 :]])


def remove_a_page(pages: list[Page], rng: random.Random) -> list[Page]:
    index = rng.randrange(len(pages))
    return [*pages[:index], *pages[index + 1 :]]


def swap_two_pages(pages: list[Page], rng: random.Random) -> list[Page]:
    """Of one writer: in between those of others lie in any order."""
    index, other = rng.sample(range(len(pages)), 2)
    if pages[index].writer != pages[other].writer:
        return swap_two_pages(pages, rng)
    pages = list(pages)
    pages[index], pages[other] = pages[other], pages[index]
    return pages


def cut_the_tail_off(pages: list[Page], rng: random.Random) -> list[Page]:
    return pages[: rng.randrange(1, len(pages))]


def cut_the_tail_of_one_off(pages: list[Page], rng: random.Random) -> list[Page]:
    """The last records of a writer, by whole pages or not."""
    name = rng.choice(pages).writer
    own = [index for index, page in enumerate(pages) if page.writer == name]
    keep = rng.randrange(len(own))
    lines = pages[own[keep]].lines
    left = replace(pages[own[keep]], lines=lines[: rng.randrange(len(lines))])
    gone = set(own[keep + 1 :])
    return [left if index == own[keep] else page for index, page in enumerate(pages) if index not in gone]


def remove_a_chain(pages: list[Page], rng: random.Random) -> list[Page]:
    name = rng.choice(["robot/r1", "robot/r2"])
    return [page for page in pages if page.writer != name]


def rename_a_writer(pages: list[Page], rng: random.Random) -> list[Page]:
    index = rng.randrange(len(pages))
    return [*pages[:index], replace(pages[index], writer=pages[index].writer + "x"), *pages[index + 1 :]]


def write_the_rest_anew(pages: list[Page], rng: random.Random) -> list[Page]:
    """By somebody who knows how: a record is changed, and every hash of its chain after it is made to fit."""
    name = rng.choice(["robot/r1", "robot/r2"])
    own = [page for page in pages if page.writer == name]
    chain = Chain(name, own[0].run)
    index = rng.randrange(len(own))
    made = []
    for number, page in enumerate(own):
        for line in page.lines:
            plain = line.rpartition(b',"hash":"')[0]
            chain._lines.append(_again(chain, plain.replace(b'"row"', b'"rung"') if number >= index else plain))
            chain.number += 1
        again = chain.page()
        assert again is not None
        made.append(again)
    found = iter(made)
    return [next(found) if page.writer == name else page for page in pages]


def _again(chain: Chain, plain: bytes) -> bytes:
    chain.hash = chained(chain.hash, plain)
    return plain + HASH_KEY + chain.hash.encode() + b'"}'


DAMAGES: tuple[Damage, ...] = (
    flip_a_byte,
    remove_a_record,
    swap_two_records,
    repeat_a_record,
    remove_a_page,
    swap_two_pages,
    cut_the_tail_off,
    cut_the_tail_of_one_off,
    remove_a_chain,
    rename_a_writer,
    write_the_rest_anew,
)


def test_a_thousand_damages_are_found() -> None:
    counts: Counter[str] = Counter()
    for seed in range(1000):
        rng = random.Random(seed)
        damage = DAMAGES[seed % len(DAMAGES)]
        pages = recording(seed % 50)
        damaged = damage(pages, rng)
        assert damaged != pages, f"{damage.__name__}, seed {seed}: nothing was done"
        assert verified(damaged).flaws, f"{damage.__name__}, seed {seed}: not found"
        counts[damage.__name__] += 1
    assert len(counts) == len(DAMAGES)


def test_it_says_where() -> None:
    pages = recording(3)
    index = next(number for number, page in enumerate(pages) if page.writer == "robot/r1" and page.first > 0)
    lines = list(pages[index].lines)
    lines[0] = lines[0].replace(b'"row"', b'"rung"')
    (flaw,) = verified(with_lines(pages, index, lines)).flaws
    page = sum(one.writer == "robot/r1" for one in pages[:index])
    assert (flaw.writer, flaw.run, flaw.number, flaw.page) == ("robot/r1", 11, pages[index].first, page)


def test_what_was_lost_on_the_way_is_no_flaw_and_is_said() -> None:
    """The recorder notes a gap; what is removed after that is more than it noted."""
    rng = random.Random(1)
    own, ledger = writer("robot/r1", 11, 9, rng=rng), Ledger("one", 13, 0.0, {})
    arrived = [page for number, page in enumerate(own) if number not in (3, 4)]
    for page in arrived:
        ledger.hear(page, 1.0)
    end = ledger.page(9.0, 9.0, closed=True)
    assert end is not None
    found = verified([*arrived, end])
    assert not found.flaws and found.num_lost == len(own[3].lines) + len(own[4].lines)
    (flaw, *_) = verified([*arrived[:2], *arrived[3:], end]).flaws
    assert flaw.number == own[2].first and f"{len(own[2].lines)} records are missing" in flaw.problem


@pytest.mark.parametrize("arrived", [True, False], ids=["its last record arrived", "its last record is lost"])
def test_a_chain_that_broke_off_is_named_once(arrived: bool) -> None:
    """Decisions are missing between the two, though nobody changed either of them."""
    why, ledger, pages = f"{COULD_NOT_GO_ON}: TypeError: a hat cannot be recorded", Ledger("one", 13, 0.0, {}), []
    first, second = Chain("robot/r1", 7), Chain("robot/r1", 8)
    first.note("tick", 0.1, {})
    ahead = first.page()
    first.seal(0.2, closed=True, why=why)
    second.note("begin", 1.2, {"after": {"run": 7, "records": first.number, "hash": first.hash, "why": why}})
    second.seal(1.3, closed=True, why="there is no subscriber")
    for page in (ahead, first.page() if arrived else None, second.page()):
        if page is not None:
            ledger.hear(page, 1.0)
            pages.append(page)
    own = ledger.page(2.0, 2.0, closed=True)
    assert own is not None
    (flaw,) = verified([*pages, own]).flaws
    assert (flaw.run, flaw.number) == ((7, 1) if arrived else (8, 0)) and flaw.problem.endswith(why)


def test_a_recorder_that_was_killed_leaves_open_ends() -> None:
    flaws = verified(recording(2, recorder_ends=False)).flaws
    assert {flaw.writer for flaw in flaws} == {"robot/r2", "recorder/one"}
    assert all(flaw.problem.startswith("not closed") for flaw in flaws)


def test_the_head_tells_recordings_apart() -> None:
    heads = {verified(recording(seed)).head for seed in range(5)}
    assert len(heads) == 5 and verified(recording(0)).head in heads


def test_without_its_recorders_chain_a_recording_proves_less_and_that_is_said() -> None:
    """Whoever removes a whole chain removes the only other one that knows of it as well."""
    left = [page for page in recording(2) if page.writer == "robot/r1"]
    (flaw,) = verified(left).flaws
    assert "no recorder's chain" in flaw.problem


@pytest.mark.parametrize("change", [{"run": "1"}, {"writer": 7}, {"next": 1 << 63}, {"next": "x"}, {"run": None}])
def test_a_recorder_that_nobody_wrote_is_judged_and_harms_nobody(change: dict[str, object]) -> None:
    chain = Chain("recorder/one", 13)
    chain.seal(1.0, closed=True, heads=[{"writer": "robot/r1", "run": 1, "first": 0, "next": 5, "hash": "x", **change}])
    own = chain.page()
    assert own is not None
    far = Page(writer="robot/r1", run=1, first=(1 << 64) - 1, previous="", lines=())
    flaws = verified([Page(writer="robot/r1", run=1, first=0, previous="", lines=(b"{}",)), far, own]).flaws
    assert flaws and all(isinstance(flaw.run, int) and isinstance(flaw.writer, str) for flaw in flaws)
