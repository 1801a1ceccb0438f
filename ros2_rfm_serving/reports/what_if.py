"""Options and output of `rfm replay --with`, `--factory`, `--horizon`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ros2_rfm_serving.audit.bag import Bag
from ros2_rfm_serving.audit.whatif.asking import Question, what_if
from ros2_rfm_serving.audit.whatif.comparison import SEEDS, Comparison
from ros2_rfm_serving.audit.whatif.factories import Knowledge
from ros2_rfm_serving.factory import Catalogue, load_factory
from ros2_rfm_serving.operate.inputs import console, load_inputs, print_json
from ros2_rfm_serving.operate.progress import spinner
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.reports.charts import save
from ros2_rfm_serving.reports.whatif_tables import chart, tables
from ros2_rfm_serving.shipped import shipped


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Options of the command line; without any change the result shows the accuracy of a replay."""

    settings: str = ""
    horizon: str = ""
    factory: Path | None = None
    seeds: int = SEEDS
    profiles: Path | None = None
    as_json: bool = False
    plot: Path | None = None


def show_what_if(bag: Path, asked: Asked) -> Comparison:
    """Answer a what-if question and print the result. Raises: `RfmError` with the problem and the fix."""
    question = Question(
        settings=asked.settings, horizon=asked.horizon, factory=load_factory(asked.factory) if asked.factory else None
    )
    knowledge = _knowledge(asked)
    with spinner("reading the recording, and simulating"):
        found = what_if(Bag(bag), question, knowledge, asked.seeds)
    if asked.as_json:
        print_json(found.to_json())
    else:
        console.print(tables(found))
    if asked.plot:
        save(chart(found), asked.plot)
    return found


def _knowledge(asked: Asked) -> Knowledge:
    if asked.factory:
        inputs = load_inputs(asked.factory, asked.profiles)
        return Knowledge(profile=inputs.profile, catalogue=inputs.catalogue)
    folder = asked.profiles or shipped("config", "profiles")
    file = folder / "models.yaml"
    catalogue = Catalogue.load(file if file.exists() else shipped("config", "profiles", "models.yaml"))
    return Knowledge(profile=load_profiles(folder), catalogue=catalogue)
