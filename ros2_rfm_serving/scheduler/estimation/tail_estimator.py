"""Tail estimator: the share of a server's services that take several times as long as the others, and their factor, which a mean
does not show reliably.

Servers count service times of replies in ranges. *Late* replies are at least one range beyond every batch of the profile, at any
size, at the pace in use and with the scatter of the model. Batches change and whole servers drift, which is not straggling. An
event is a lot of one second with late replies and more normal ones, or a row of any length of lots in which many are late. Where
full batches take much longer than small ones, a slower server has some replies in time; there an event is a lot with late replies
among four without any, or beside some that are faster than a slower server ever is.

Servers are assumed to straggle alike until some surely do not; then those that do are evaluated together. Only batches that begin
and end together are evaluated: the duration of a request that shares its server depends on the other requests.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from itertools import accumulate, pairwise, takewhile
from typing import NamedTuple

from ros2_rfm_serving.factory.cluster import StragglerConfig
from ros2_rfm_serving.scheduler.estimation.status_samples import ServerStatusSample

LOT_S, LONGEST_LOT_S = 1.0, 10.0
"""Seconds between two reports that make a lot."""
KEPT_S = 120.0
"""Time that lots are remembered."""
SETTLED_S = 5.0
"""Time after a placement or restart of a server that is skipped: the first batches compile and warm up."""
TIMES, SCATTERS, LEAST_LATE_S = 1.5, 4.0, 0.02
"""Limits of a late reply: factor over the longest batch, standard deviations beyond it, and excess in s."""
ENOUGH, MANY, FEWEST = 16, 64, 6
"""Events that show stragglers; that show another share; and least number over all remembered lots."""
SURE, DIFFERENT = 2.6, 1.3
"""Standard errors of an interval (99 %); and ratio from which a figure differs from the one in use."""
LEAST_SHARE, MOST_SHARE, MOST_TIMES = 0.005, 0.3, 10.0
"""Limits of stragglers: a lower share is not worth a plan, a higher one is the server's pace, and a higher factor is a fault."""
FEW, NONE = 5.0, 8.0
"""Expected events of a server that straggles like others: with at most a fifth of the first it does not; with at most one of the
second it no longer does."""
HELD_S = 300.0
"""Time during which a finding is not reduced."""
WIDE, APART = 1.3, 2
"""Ratio of full batches to those of one row from which on a slower server has some in time and others late; and distance in lots
from which on late ones count there."""
CLEAN, SOME, MOSTLY, SLOW = range(4)
"""Kinds of lots: none late; some late; many late; the whole server is slow, which hides its batches."""
UNBOUNDED = 2.0
"""Assumed end of the last range, relative to its lower bound."""


class ServiceBaseline(NamedTuple):
    """Normal service times of one server, by its profile and the pace in use."""

    longest_s: float
    """Duration of a full batch."""
    scatter: float
    """Relative standard deviation."""
    shortest_s: float
    """Duration of a batch of one row."""

    @property
    def quick_s(self) -> float:
        """Return a time that every batch exceeds on a server that is so slow that full batches are late."""
        return TIMES * self.shortest_s / (1.0 + SCATTERS * self.scatter)

    @property
    def is_wide(self) -> bool:
        return self.longest_s > WIDE * self.shortest_s

    def ranges(self, bounds_s: tuple[float, ...]) -> tuple[int, int]:
        """Return the number of ranges with normal times, and the first late range. At least one range is between them, which
        exceeds a server's scatter: one that drifts is never in both."""
        times = 1.0 + SCATTERS * self.scatter
        usual = bisect_left(bounds_s, times * self.longest_s) + 1
        beyond_s = times * bounds_s[usual - 1] if usual <= len(bounds_s) else math.inf
        late_s = max(TIMES * self.longest_s, beyond_s, self.longest_s + LEAST_LATE_S)
        return usual, max(bisect_left(bounds_s, late_s), usual) + 1


class TailSample(NamedTuple):
    at_s: float
    replies: tuple[int, ...]
    """Replies by range."""
    seconds: float
    """Total service time."""


class _Sum(NamedTuple):
    """Sums over the newest lots of one server."""

    late: float = 0
    replies: float = 0
    late_s: float = 0.0
    """Total of late replies, each at the middle of its range."""
    seconds: float = 0.0
    clean: float = 0
    """Replies in lots without any late one."""
    clean_s: float = 0.0
    least_s: float = 0.0
    """Total of late replies by the lower bounds of their ranges."""
    events: float = 0

    @property
    def times(self) -> float:
        """Return the ratio of a late reply's duration to the others'."""
        others = self.replies - self.late
        sharp = self.clean > 0 and self.clean >= others / 4
        usual_s = self.clean_s / self.clean if sharp else (self.seconds - self.late_s) / max(others, 1)
        late_s = self.seconds - others * usual_s if sharp else self.late_s
        late_s = min(max(late_s, self.least_s), self.late_s * UNBOUNDED)
        return late_s / self.late / usual_s if self.late and usual_s > 0 else 1.0


class _Server:
    def __init__(self) -> None:
        self.lots: deque[TailSample] = deque()
        self._bounds_s: tuple[float, ...] = ()
        self._word: ServerStatusSample | None = None
        self._word_s = self._since_s = -math.inf

    def hear(self, word: ServerStatusSample, now_s: float) -> None:
        before, passed_s = self._word, now_s - self._word_s
        anew = (
            before is None
            or word.bounds_s != before.bounds_s
            or any(n < b for n, b in zip(word.counts, before.counts, strict=True))
        )
        if not anew and 0.0 <= passed_s < LOT_S:
            return
        self._word, self._word_s = word, now_s
        if anew or passed_s < 0.0:
            self._since_s = now_s + SETTLED_S
            self.lots.clear()
        elif before is not None and passed_s <= LONGEST_LOT_S and now_s >= self._since_s:
            replies = tuple(n - b for n, b in zip(word.counts, before.counts, strict=True))
            seconds = word.inference_s - before.inference_s
            if any(replies) and seconds > 0.0:
                self._bounds_s = word.bounds_s
                self.lots.append(TailSample(now_s, replies, seconds))
        while self.lots and not now_s - KEPT_S <= self.lots[0].at_s <= now_s:
            self.lots.popleft()

    def sums(self, usual: ServiceBaseline) -> dict[float, _Sum]:
        """Return time of each lot, the newest first -> sums since then."""
        most, first = usual.ranges(self._bounds_s)
        quick = bisect_right(self._bounds_s, usual.quick_s)
        lower_s = (0.0, *self._bounds_s)
        middle_s = [*(math.sqrt(a * b) for a, b in pairwise(lower_s)), lower_s[-1] * UNBOUNDED]
        lots = list(reversed(self.lots))
        kinds = [_kind(lot, most, first) for lot in lots]
        found, total, before = dict[float, _Sum](), _Sum(), CLEAN
        for i, (lot, kind) in enumerate(zip(lots, kinds, strict=True)):
            if kind == SLOW:
                continue
            late, replies = sum(lot.replies[first:]), sum(lot.replies)
            late_s = sum(n * s for n, s in zip(lot.replies[first:], middle_s[first:], strict=True))
            least_s = sum(n * s for n, s in zip(lot.replies[first:], lower_s[first:], strict=True))
            clean = (0, 0.0) if late else (replies, lot.seconds)
            around = (*kinds[max(i - APART, 0) : i], *kinds[i + 1 : i + 1 + APART])
            clear = sum(lot.replies[:quick]) > 0 or not any(around) if usual.is_wide else not kind == before == MOSTLY
            event = bool(late) and clear
            more = (late, replies, late_s, lot.seconds, *clean, least_s, event)
            total, before = _Sum(*(a + b for a, b in zip(total, more, strict=True))), kind
            found[lot.at_s] = total
        return found


def _kind(lot: TailSample, most: int, first: int) -> int:
    """Return the kind of a lot. most, first: as `ServiceBaseline.ranges` returns them."""
    late, replies = sum(lot.replies[first:]), sum(lot.replies)
    if late > MOST_SHARE * replies:
        return MOSTLY
    return SLOW if sum(lot.replies[:most]) < replies / 2 else SOME if late else CLEAN


class TailEstimator:
    """Tail estimator for the servers of a schedule."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._held_s: dict[str, float] = {}
        """Server -> time of the finding in use."""
        self.used: dict[str, StragglerConfig] = {}
        """Stragglers that plans use in place of the declared ones; equal for all servers in it."""
        self.found: dict[str, tuple[StragglerConfig, int]] = {}
        """Servers that surely straggle -> present measurement and number of events."""

    def place(self, servers: Collection[str], anew: Collection[str]) -> None:
        """Follow a placement. anew: servers with another model or batch size than before. Findings on their hardware stay."""
        for name in [name for name in self._servers if name not in servers or name in anew]:
            del self._servers[name]
        for name in servers:
            self._servers.setdefault(name, _Server())

    def declare(self, servers: Collection[str]) -> None:
        self.used = {name: some for name, some in self.used.items() if name in servers}

    def hear(self, word: ServerStatusSample, now_s: float) -> None:
        if word.counts and (server := self._servers.get(word.server)):
            server.hear(word, now_s)

    def look(
        self, usual: Mapping[str, ServiceBaseline], gpu_types: Mapping[str, str], declared: StragglerConfig | None, now_s: float
    ) -> bool:
        """Adopt findings that surely differ from those in use, and return whether there are any.

        usual: normal times of servers whose batching allows a judgement. gpu_types: of all servers; where several straggle alike,
        servers of their types without a judgement are assumed to be like them. declared: for all servers. A declaration is a
        caution, which a quiet hour does not refute.
        """
        self._held_s = {name: min(self._held_s.get(name, now_s), now_s) for name in self.used}  # the clock may be set back
        every = {name: server.sums(usual[name]) for name, server in self._servers.items() if name in usual}
        sums = {name: own for name, own in every.items() if own}
        common, those = _common(sums, ENOUGH)
        self.found = dict.fromkeys(those, common) if common else {}
        used = {name: some for name, some in self.used.items() if not self._is_over(name, sums.get(name), now_s)}
        if used != self.used and sums.keys().isdisjoint(used):
            used = {}  # the only evidence for the remaining ones was their likeness to these
        if common and any(name not in used and _is_more(*common, declared) for name in those):
            types = {gpu_types[name] for name in those if len(those) > 1 and name in gpu_types}
            alike = (name for name, gpu_type in gpu_types.items() if gpu_type in types and name not in sums)
            used |= dict.fromkeys({*those, *alike} - used.keys(), next(iter(used.values()), common[0]))
        elif used and (newer := _common({name: sums[name] for name in used if name in sums}, MANY)[0]):
            one = next(iter(used.values()))
            held = any(now_s - self._held_s.get(name, now_s) < HELD_S for name in used)
            if _is_more(*newer, one) or (not held and _is_less(*newer, one)):
                used = dict.fromkeys(used, newer[0])
        self._held_s |= {name: now_s for name, some in used.items() if some != self.used.get(name)}
        changed, self.used = used != self.used, used
        return changed

    def _is_over(self, name: str, sums: Mapping[float, _Sum] | None, now_s: float) -> bool:
        if not sums or now_s - self._held_s[name] < HELD_S:
            return False
        whole = sums[min(sums)]
        lots = len(sums)
        expected = lots * (1.0 - (1.0 - self.used[name].share) ** (whole.replies / lots / 2))
        return expected >= NONE and whole.events <= 1


def _is_more(some: StragglerConfig, events: int, than: StragglerConfig | None) -> bool:
    """Return whether a measurement surely exceeds the one in use."""
    low = some.share * (1.0 - SURE / math.sqrt(events))
    return than is None or low > DIFFERENT * than.share or some.factor > DIFFERENT * than.factor


def _is_less(some: StragglerConfig, events: int, than: StragglerConfig) -> bool:
    """Return whether a measurement is surely below the one in use."""
    high = some.share * (1.0 + SURE / math.sqrt(events))
    return high * DIFFERENT < than.share or some.factor * DIFFERENT < than.factor


def _common(sums: Mapping[str, Mapping[float, _Sum]], events: int) -> tuple[tuple[StragglerConfig, int] | None, list[str]]:
    """Return the common stragglers of servers without those that surely have fewer, and the servers; None: they do not straggle."""
    those = list(sums)
    while those:
        since_s, enough = _since((sums[name] for name in those), events)
        newest = {name: _at(sums[name], since_s) for name in those}
        whole = _Sum(*map(sum, zip(*newest.values(), strict=True)))
        if not whole.late:
            return None, []
        rate = whole.events / whole.replies
        fewer = [name for name, one in newest.items() if one.replies * rate >= FEW and one.events < one.replies * rate / 5]
        if not fewer:
            break
        those = [name for name in those if name not in fewer]
    else:
        return None, []
    those = [name for name in those if newest[name].late]
    whole = _Sum(*map(sum, zip(*(newest[name] for name in those), strict=True)))
    share = whole.late / whole.replies
    times = sum(one.late * one.times for one in newest.values() if one.late) / whole.late
    if not enough or not LEAST_SHARE <= share <= MOST_SHARE or times < TIMES:
        return None, []
    return (StragglerConfig(share=float(f"{share:.2g}"), factor=round(min(times, MOST_TIMES), 1)), int(whole.events)), those


def _since(sums: Iterable[Mapping[float, _Sum]], most: int) -> tuple[float, bool]:
    """Return the time since which there are this number of events, or the start of memory; and whether they suffice."""
    steps = sorted(
        ((at_s, one.events - before) for own in sums for (at_s, one), before in zip(own.items(), _before(own), strict=True)),
        reverse=True,
    )
    counts = list(accumulate(events for _, events in steps))
    short = len(list(takewhile(lambda count: count < most, counts)))
    return steps[min(short, len(steps) - 1)][0], counts[-1] >= FEWEST


def _before(own: Mapping[float, _Sum]) -> Iterable[float]:
    return (0, *(one.events for one in list(own.values())[:-1]))


def _at(own: Mapping[float, _Sum], since_s: float) -> _Sum:
    """Return the sums of lots since then."""
    return next((one for at_s, one in reversed(list(own.items())) if at_s >= since_s), _Sum())
