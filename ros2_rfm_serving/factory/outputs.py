"""Check that the models of a descriptor give answers that robots can use; a robot counts and drops all others."""

from __future__ import annotations

from collections.abc import Iterator

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.catalogue import Catalogue
from ros2_rfm_serving.factory.descriptor import Factory
from ros2_rfm_serving.types import MONITOR, SAFETY, SYSTEM1, OutputKind

USABLE = {SYSTEM1: (OutputKind.ACTION_CHUNK,), SAFETY: (OutputKind.JUDGEMENT,), MONITOR: (OutputKind.JUDGEMENT,)}
"""Component -> usable outputs. All others accept text: a model of judgements can also plan, but a model of plans never judges."""
TEXT = (OutputKind.JUDGEMENT, OutputKind.PLAN)


def unusable(factory: Factory, catalogue: Catalogue) -> Iterator[ConfigurationError]:
    """Yield an error for each unusable model of any task, since robots may join any task. Models that are not in the catalogue are
    not checked."""
    for name, task in factory.tasks.items():
        for component, spec in task.components.items():
            entry, usable = catalogue.models.get(spec.model), USABLE.get(component, TEXT)
            if entry and OutputKind(entry.output) not in usable:
                wanted = " or ".join(f"`output: {kind.value}`" for kind in usable)
                yield ConfigurationError(
                    f"{spec.model!r} has `output: {entry.output}` in the catalogue: nothing that {component} could use",
                    file=factory.file,
                    key=f"{name}.components.{component}.model",
                    fix=f"name a model of {wanted}",
                )
