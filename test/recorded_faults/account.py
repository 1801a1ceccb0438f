"""The test's own account of what was true: lives of processes, faults, and what another subscriber received on the graph."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from test.recorded_faults.factory import KILL_ON_FULL_DISK, SAMPLE_S, Life
from test.soak.faults import DISK

STATES = ("CONNECTING", "STREAMING", "DEGRADED", "STALLED", "RECONNECTING", "DEAD")
FOUND_S = 8.0
"""From the first message that another subscriber received of a process until its first page is in the recording. How long a process
takes before that, to start, depends on the machine: 12 to 18 s with a load of eleven on two cores."""
OWN_MESSAGES = frozenset({"command", "robot", "schedule", "server", "recorder"})
"""What the process that is named published itself; a chunk names its robot, and comes from a server."""
FLUSHED_S = 3.0
"""What a recorder that is killed, or whose disk is full, had not written yet."""


@dataclass
class Account:
    began_s: float
    ended_s: float
    faults: list[tuple[str, str, float, float]]
    """Kind, process, begin and end by the wall clock."""
    lives: list[Life]
    heard: list[dict[str, Any]] = field(repr=False)

    def __post_init__(self) -> None:
        self._on_graph_s = {life: self.on_graph_s(life) for life in self.lives}

    @classmethod
    def read(cls, folder: Path) -> Account:
        found = json.loads((folder / "account.json").read_text(encoding="utf-8"))
        lives = [Life(*life) for life in found["lives"]]
        lines = (folder / "heard.jsonl").read_text(encoding="utf-8").splitlines()
        return cls(found["began_s"], found["ended_s"], [tuple(one) for one in found["faults"]], lives, list(map(json.loads, lines)))

    # --- processes ---

    def of(self, name: str) -> list[Life]:
        return sorted((life for life in self.lives if life.name == name), key=lambda life: life.began_s)

    def alive(self, name: str, at_s: float) -> Life | None:
        """The process of that name at a moment; one that has just ended counts for a sample's period more."""
        return next((life for life in self.of(name) if life.began_s <= at_s <= life.seen_s + 2 * SAMPLE_S), None)

    def on_graph_s(self, life: Life) -> float:
        """Return when the other subscriber received something of a process for the first time; infinite: it never did."""
        times_s = (one["at_s"] for one in self.heard if one["whom"] == life.name and one["what"] in OWN_MESSAGES)
        return min((at_s for at_s in times_s if life.began_s <= at_s <= life.seen_s), default=math.inf)

    def was_surely_alive(self, name: str, since_s: float, until_s: float) -> bool:
        """Return whether one process of that name was on the graph from the first to the last of these moments."""
        return any(self._on_graph_s[life] <= since_s and until_s <= life.seen_s for life in self.of(name))

    def was_alive_after(self, name: str, begins_s: float, at_s: float) -> bool:
        """Whether the process that wrote records at `begins_s` still ran at a moment."""
        return any(life.began_s <= begins_s <= life.seen_s and at_s < life.seen_s for life in self.of(name))

    def is_recorded(self, at_s: float) -> bool:
        """A recorder was at work then, since `FOUND_S` at least, and its disk had room."""
        return not self.is_disk_full(at_s) and any(
            self._on_graph_s[life] + FOUND_S <= at_s <= life.seen_s - FLUSHED_S * (life.seen_s < self.ended_s)
            for life in self.of("recorder")
        )

    def is_disk_full(self, at_s: float) -> bool:
        kinds = (DISK, KILL_ON_FULL_DISK)
        return any(
            kind in kinds and since_s - FLUSHED_S <= at_s <= until_s + FLUSHED_S for kind, _, since_s, until_s in self.faults
        )

    # --- what travelled ---

    def received(self, what: str, whom: str, since_s: float, until_s: float) -> list[dict[str, Any]]:
        named = (one for one in self.heard if one["what"] == what and one["whom"] == whom)
        return [one for one in named if since_s <= one["at_s"] <= until_s]

    def chunks(self) -> Iterable[tuple[str, tuple[int, ...], float]]:
        """Yield robot, key of the request and time of each chunk."""
        for one in self.heard:
            if one["what"] == "chunk":
                yield one["whom"], tuple(one["key"]), one["at_s"]

    def moments(self) -> Sequence[tuple[str, float]]:
        """Return twenty: one soon after each fault, and others spread over the whole time."""
        soon = [
            (f"{kind} {whom}".strip(), until_s + 0.5 + number % 5) for number, (kind, whom, _, until_s) in enumerate(self.faults)
        ]
        rest = 20 - len(soon)
        spread_s = (self.ended_s - self.began_s) / rest
        return [*soon, *(("no matter when", self.began_s + (number + 0.37) * spread_s) for number in range(rest))]
