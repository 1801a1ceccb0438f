"""Comparison of a recording, its replay and a changed replay, with the limits of such a replay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ros2_rfm_serving.audit.whatif.case import Case
from ros2_rfm_serving.audit.whatif.figures import NAMES, Figures
from ros2_rfm_serving.audit.whatif.reading import Recording
from ros2_rfm_serving.audit.whatif.replay import Outcome, ServiceTime, replay
from ros2_rfm_serving.errors import RfmError

SEEDS = 5
LOAD_CHANGES = 0.2
"""Smallest relative difference of the requests on the network that is reported."""
NEVER_KNOWN = (
    "other actions would have shown the cameras something else: models are not run again, judges say what they said then at the "
    "same age of an attempt, and tasks end as they ended; success is not predicted",
)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Distribution of one figure over the seeds, which draw delays and batch times from those recorded near the same time."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    recorded: float
    replayed: Spread
    changed: Spread | None
    """Figure of the changed replay; None without a change."""

    @property
    def error(self) -> float:
        """Return the relative error of the unchanged replay; for shares the difference, NaN without a value to compare with."""
        if self.name in SHARES:
            return self.replayed.median - self.recorded
        return self.replayed.median / self.recorded - 1.0 if self.recorded else math.nan

    @property
    def ratio(self) -> float:
        """Return the effect of the change as changed over replayed, because both have the replay's error."""
        return self.changed.median / self.replayed.median if self.changed and self.replayed.median else math.nan


SHARES = frozenset({"held_share", "slo_attainment"})


@dataclass(frozen=True, kw_only=True)
class Comparison:
    change: str
    """Description of the change; empty without one."""
    seconds: float
    """Duration that figures include."""
    seeds: int
    rows: tuple[Row, ...]
    unknown: tuple[str, ...]
    """Sentences about the limits of the replay."""

    def to_json(self) -> dict[str, Any]:
        return {
            "change": self.change,
            "seconds": self.seconds,
            "seeds": self.seeds,
            "figures": {row.name: _row_json(row) for row in self.rows},
            "unknown": list(self.unknown),
        }


def compare(
    recorded: Recording, changed: Case | None, change: str, seeds: int = SEEDS, service_s: ServiceTime | None = None
) -> Comparison:
    """Return the comparison. changed: None shows only the accuracy of a replay.

    Raises: `ModelError` when the service time of a server is unknown; `RfmError` when the unchanged replay has no replies.
    """
    case = recorded.case
    same = [replay(case, seed, service_s) for seed in range(seeds)]
    _refuse_idle(recorded, same)
    other = [replay(changed, seed, service_s) for seed in range(seeds)] if changed is not None else []
    rows = tuple(
        Row(
            name=name,
            recorded=getattr(recorded.figures, name),
            replayed=_spread(name, [o.figures for o in same]),
            changed=_spread(name, [o.figures for o in other]) if other else None,
        )
        for name in NAMES
    )
    unknown = (*NEVER_KNOWN, *case.gaps, *_guesses(other or same, changed or case), *_load(rows))
    return Comparison(change=change, seconds=case.seconds - case.warm_up_s, seeds=seeds, rows=rows, unknown=unknown)


def _refuse_idle(recorded: Recording, same: Sequence[Outcome]) -> None:
    """Check that the replay has chunks where the recording has them, because otherwise it cannot show the effect of a change."""
    was_hz = recorded.figures.chunks_hz
    if was_hz > 0.0 and not any(outcome.figures.chunks_hz for outcome in same):
        why = "; ".join(recorded.case.gaps) or "`rfm replay` without a change says whether its journals are whole"
        raise RfmError(f"{was_hz:.1f} chunks/s were recorded, and a replay of the same has none, so that no change tells: {why}")


def _spread(name: str, found: Sequence[Figures]) -> Spread:
    values = [getattr(one, name) for one in found]
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return Spread(median=math.nan, low=math.nan, high=math.nan)
    return Spread(median=float(np.median(known)), low=min(known), high=max(known))


def _guesses(outcomes: Sequence[Outcome], case: Case) -> list[str]:
    guessed: dict[str, set[int]] = {}
    for outcome in outcomes:
        for server, sizes in outcome.guessed.items():
            guessed.setdefault(server, set()).update(sizes)
    return [_guess(server, sorted(sizes), case) for server, sizes in sorted(guessed.items())]


def _guess(server: str, sizes: Sequence[int], case: Case) -> str:
    known = sorted({batch.padded for batch in case.servers[server].batches})
    what = (
        f"{_listed(sizes)} requests at once"
        if case.servers[server].config.max_concurrent > 1
        else f"batches of {_listed(sizes)} rows"
    )
    alone = ", of one size alone: by the profile's ratio, or else as long" if len(known) == 1 else ""
    from_what = f"extrapolated from those of {_listed(known)}{alone}" if known else "the profile's: its model never ran there"
    return f"{server} never ran {what}: how long they take is {from_what}"


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))


def _load(rows: Sequence[Row]) -> list[str]:
    chunks = next(row for row in rows if row.name == "chunks_hz")
    if math.isnan(chunks.ratio) or abs(chunks.ratio - 1.0) <= LOAD_CHANGES:
        return []
    return [f"the network carries {chunks.ratio:.2f} times as many chunks, with the delays that were recorded at the other load"]


def _row_json(row: Row) -> Mapping[str, Any]:
    changed = row.changed
    return {
        "recorded": _finite(row.recorded),
        "replayed": _spread_json(row.replayed),
        "error": _finite(row.error),
        **({"changed": _spread_json(changed), "ratio": _finite(row.ratio)} if changed else {}),
    }


def _spread_json(spread: Spread) -> dict[str, float | None]:
    return {"median": _finite(spread.median), "low": _finite(spread.low), "high": _finite(spread.high)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
