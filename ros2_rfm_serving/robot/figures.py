"""Response statistics of a robot's components: in time or late, and their verdicts and plans."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ros2_rfm_serving.types import JudgeVerdict, Reply, SubgoalPlan
from ros2_rfm_serving.types.histogram import Histogram
from ros2_rfm_serving.types.state import keep

MAX_WORDS, MAX_WORD_CHARACTERS = 16, 60
OTHER = "(other)"
"""Entry that counts all further texts of a component that has used `MAX_WORDS` different ones."""


@dataclass
class ComponentFigures:
    """Response statistics of one component since the start."""

    in_time: int = 0
    """Accepted answers within the SLO; without an SLO, all of them."""
    late: int = 0
    """Answers later than the SLO, or given up."""
    round_trips: Histogram = field(default_factory=Histogram)
    """Round trips of every answer to a request, s, late ones included."""
    words: Counter[str] = field(default_factory=Counter)
    """Texts of the answers in time: verdicts, or the first subgoal of plans; action chunks have none."""

    def answered(self, reply: Reply) -> None:
        self.in_time += 1
        if word := _word(reply):
            known = word in self.words or len(self.words) < MAX_WORDS
            self.words[word if known else OTHER] += 1


keep(ComponentFigures, "in_time", "late", round_trips_s="round_trips", answers="words")


def _word(reply: Reply) -> str:
    said = (
        reply.verdict
        if isinstance(reply, JudgeVerdict)
        else reply.subgoals[0]
        if isinstance(reply, SubgoalPlan) and reply.subgoals
        else ""
    )
    return said[:MAX_WORD_CHARACTERS]
