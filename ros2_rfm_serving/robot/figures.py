"""How a robot's components answer: in time or late, and with which words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ros2_rfm_serving.types import Plan, Reply, Verdict
from ros2_rfm_serving.types.histogram import Histogram
from ros2_rfm_serving.types.state import keep

MAX_WORDS, MAX_WORD_CHARACTERS = 16, 60
OTHER = "(other)"
"""What a component says once it has used that many different words."""


@dataclass
class ComponentFigures:
    """Since the start."""

    in_time: int = 0
    """Answers that counted, within the SLO; without one, all of them."""
    late: int = 0
    """Later than the SLO, or given up."""
    round_trips: Histogram = field(default_factory=Histogram)
    """Of every answer to a request, s, late ones too."""
    words: Counter[str] = field(default_factory=Counter)
    """Of those in time: verdicts, or the first subgoal of plans; none for action chunks."""

    def answered(self, reply: Reply) -> None:
        self.in_time += 1
        if word := _word(reply):
            known = word in self.words or len(self.words) < MAX_WORDS
            self.words[word if known else OTHER] += 1


keep(ComponentFigures, "in_time", "late", round_trips_s="round_trips", answers="words")


def _word(reply: Reply) -> str:
    said = reply.verdict if isinstance(reply, Verdict) else reply.subgoals[0] if isinstance(reply, Plan) and reply.subgoals else ""
    return said[:MAX_WORD_CHARACTERS]
