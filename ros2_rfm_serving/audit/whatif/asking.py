"""Questions to a recording."""

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
    """Changes for a replay, applied together, the descriptor first. Without any, a replay shows its own accuracy."""

    settings: str = ""
    """Text for `changes.with_settings`."""
    horizon: str = ""
    """Text for `changes.with_horizon`."""
    factory: Factory | None = None

    @property
    def words(self) -> str:
        """Return a description of the changes."""
        factory = f"factory {self.factory.file}" if self.factory else ""
        return ", ".join(part for part in (factory, self.settings, self.horizon) if part)

    def of(self, case: Case, known: Knowledge) -> Case | None:
        """Return the changed case; None without changes. Raises: `ConfigurationError`, `ScheduleError` for an impossible change."""
        if not self.words:
            return None
        changed = with_factory(case, self.factory, known) if self.factory else case
        changed = with_settings(changed, self.settings) if self.settings else changed
        return with_horizon(changed, self.horizon) if self.horizon else changed


def what_if(bag: Bag, question: Question, known: Knowledge, seeds: int = SEEDS) -> Comparison:
    """Return the comparison of a recording with its replays. Raises: `RfmError` when the recording lacks inputs of a replay, or a
    change is impossible."""
    recorded = recording(bag)
    changed = question.of(recorded.case, known)
    return compare(recorded, changed, question.words, seeds, known.service_s)
