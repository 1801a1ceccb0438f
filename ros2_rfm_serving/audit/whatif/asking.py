"""What somebody asks of a recording."""

from __future__ import annotations

from dataclasses import dataclass

from ros2_rfm_serving.audit.bag import Bag
from ros2_rfm_serving.audit.whatif.case import Case
from ros2_rfm_serving.audit.whatif.changes import with_horizon, with_settings
from ros2_rfm_serving.audit.whatif.comparison import SEEDS, Comparison, compare
from ros2_rfm_serving.audit.whatif.factories import Knowledge, with_factory
from ros2_rfm_serving.audit.whatif.reading import recording
from ros2_rfm_serving.factory import Factory


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be otherwise; all of it together, the declaration first. Nothing: how close a replay comes to what was."""

    settings: str = ""
    """As `changes.with_settings` reads it."""
    horizon: str = ""
    """As `changes.with_horizon` reads it."""
    factory: Factory | None = None

    @property
    def words(self) -> str:
        """As it was asked."""
        factory = f"factory {self.factory.file}" if self.factory else ""
        return ", ".join(part for part in (factory, self.settings, self.horizon) if part)

    def of(self, case: Case, known: Knowledge) -> Case | None:
        """The case that it makes of one. Raises: `ConfigurationError`, `ScheduleError`."""
        if not self.words:
            return None
        changed = with_factory(case, self.factory, known) if self.factory else case
        changed = with_settings(changed, self.settings) if self.settings else changed
        return with_horizon(changed, self.horizon) if self.horizon else changed


def what_if(bag: Bag, question: Question, known: Knowledge, seeds: int = SEEDS) -> Comparison:
    """Raises: `RfmError` for a recording that lacks what it takes, or a change that cannot be made."""
    recorded = recording(bag)
    changed = question.of(recorded.case, known)
    return compare(recorded, changed, question.words, seeds, known.service_s)
