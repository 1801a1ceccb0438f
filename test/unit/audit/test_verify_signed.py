"""Changes of a recording whose pages and manifest are signed, by somebody who has no key of its recorder, and swaps of two such
recordings."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ros2_rfm_serving.audit.bag import PAGE, Bag
from ros2_rfm_serving.audit.bag_metadata import METADATA
from ros2_rfm_serving.audit.chain import CLOSED, SEALED, Chain, records
from ros2_rfm_serving.audit.findings import Kind
from ros2_rfm_serving.audit.manifest import MANIFEST, Sign, Signature, read_manifest
from ros2_rfm_serving.audit.page_bytes import page_bytes, page_of
from ros2_rfm_serving.audit.recording.intake import Sample
from ros2_rfm_serving.audit.recording.recorder import Limits
from ros2_rfm_serving.audit.signatures import NAMES, problem_of, sign_chain
from ros2_rfm_serving.audit.verify_bag import Verdict, verify_bag
from ros2_rfm_serving.errors import RfmError, UnprovenError
from ros2_rfm_serving.security.signing import Prover, Verifier
from test.enclaves import Enclaves
from test.unit.audit.genuine import OWN, Raw, of, pages_of, record, rewritten, samples
from test.unit.audit.test_verify_bag import COMMAND, PAGES, RAW

LIMITS = Limits(split_s=2.0)


class Plant:
    """One authority, and two recordings of the same robots and server by the same recorder."""

    def __init__(self, root: Path) -> None:
        self.enclaves = Enclaves(root / "enclaves")
        self.signs = {name: self._signer(name) for name in ("arm_1", "arm_2", "server_1", "scheduler", "recorder")}
        self.check = Verifier(self.enclaves.make("observer")).check_said
        self.one, self.other = (
            record(root / name / "bag", heard=self.heard(number), **self.as_recorder)
            for number, name in enumerate(("one", "other"))
        )

    @property
    def as_recorder(self) -> dict[str, Any]:
        sign = self.signs["recorder"]
        return {"limits": LIMITS, "sign": sign, "prove": lambda page: problem_of(page, self.check)}

    def heard(self, number: int = 0, signs: Callable[[str], Sign | None] | None = None) -> Iterator[Sample]:
        """Yield what travelled, each page signed by its writer. number: of the recording; each has other runs. signs: by name."""
        signs, chains = signs or self.signs.__getitem__, dict[tuple[str, int], Chain]()
        for sample in samples():
            if sample.topic.type != PAGE:
                yield sample
                continue
            page = page_of(sample.data)
            chain = chains.setdefault((page.writer, page.run), Chain(page.writer, page.run + number))
            for told in records(page):
                body = {name: value for name, value in told.items() if name not in ("n", "t", "kind", "hash", "records")}
                if told["kind"] in (SEALED, CLOSED):
                    chain.seal(told["t"], closed=told["kind"] == CLOSED, **body)
                else:
                    chain.note(told["kind"], told["t"], body)
            name = page.writer.partition("/")[2] or page.writer
            sign_chain(chain, told["t"], signs(name))
            made = chain.page()
            assert made is not None
            yield sample._replace(data=page_bytes(made, sample.time_ns))

    def verified(self, folder: Path) -> tuple[Verdict, str]:
        """Return the verdict, and why its manifest is no recorder's."""
        found = verify_bag(Bag(folder), lambda page, time_ns: problem_of(page, self.check))
        try:
            if found.manifest is None or found.manifest.signature is None:
                return found, "nobody has signed it"
            who = self.check(*found.manifest.signature, found.manifest.text)
        except UnprovenError as error:
            return found, str(error)
        return found, "" if who.name in NAMES["recorder"] else f"{who.name} has signed it"

    def _signer(self, name: str) -> Sign:
        prover = Prover(self.enclaves.make(name))
        return lambda text: Signature(prover.certificate(), prover.say(text))


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Plant:
    return Plant(tmp_path_factory.mktemp("plant"))


def test_honest_signed_recordings_are_as_they_were_written(plant: Plant) -> None:
    for folder in (plant.one, plant.other):
        found, manifest = plant.verified(folder)
        assert found.is_good and not manifest and not found.doubts, (found.chains.flaws, found.findings)
    assert plant.verified(plant.one)[0].chains.head != plant.verified(plant.other)[0].chains.head


@pytest.mark.parametrize("what", [*RAW, *PAGES])
def test_each_of_twenty_four_changes_of_a_signed_recording_is_found(what: str, plant: Plant, tmp_path: Path) -> None:
    change = RAW[what][0] if what in RAW else PAGES[what]
    whole = record(tmp_path / "made" / "bag", heard=plant.heard(), **{**plant.as_recorder, "limits": Limits()})
    found, manifest = plant.verified(rewritten(whole, tmp_path / "forged", change))
    assert found.is_changed and manifest == "nobody has signed it"


# --- who writes the recorder's whole chain anew ---


def without_a_command(heard: Iterator[Sample]) -> Iterator[Sample]:
    found = list(heard)
    del found[[place for place, one in enumerate(found) if one.topic.name == COMMAND][-8]]
    return iter(found)


@pytest.mark.parametrize("who", ["nobody", "arm_2"])
def test_a_recorders_chain_that_somebody_else_wrote_anew_is_not_signed_by_it(who: str, plant: Plant, tmp_path: Path) -> None:
    sign = plant.signs.get(who)
    folder = record(tmp_path / "bag", heard=without_a_command(plant.heard()), limits=LIMITS, sign=sign)
    found, manifest = plant.verified(folder)
    assert found.is_changed and manifest
    assert {(one.kind, one.topic) for one in found.findings if one.type} == {(Kind.UNPROVEN, OWN)}


def test_a_robots_chain_that_another_robot_wrote_anew_is_not_signed_by_it(plant: Plant, tmp_path: Path) -> None:
    def signs(name: str) -> Sign | None:
        return plant.signs["arm_2" if name == "arm_1" else name]

    folder = record(tmp_path / "bag", heard=plant.heard(signs=signs), limits=LIMITS)
    found, _ = plant.verified(folder)
    assert found.is_changed and any(
        one.topic == "/arm_1/rfm/audit" and "arm_2 has signed it" in one.problem for one in found.findings
    )


# --- swaps of two recordings of one recorder ---


def swapped(plant: Plant, folder: Path, *names: str) -> Path:
    shutil.copytree(plant.one, folder)
    for name in names:
        shutil.copy(plant.other / name, folder / name)
    return folder


@pytest.mark.parametrize(
    "names",
    [
        ["bag_0.mcap"],
        ["bag_1.mcap"],
        ["bag_2.mcap"],
        ["bag_1.mcap", MANIFEST],
        ["bag_0.mcap", "bag_1.mcap", "bag_2.mcap"],
        [MANIFEST],
        ["bag_1.mcap", METADATA, MANIFEST],
    ],
    ids=" ".join,
)
def test_files_of_another_signed_recording_are_no_part_of_this_one(names: list[str], plant: Plant, tmp_path: Path) -> None:
    try:
        found, manifest = plant.verified(swapped(plant, tmp_path / "bag", *names))
    except RfmError:
        return
    assert found.is_changed, (found.chains.flaws, manifest)


def moved_in(plant: Plant, topic: str, nth: int) -> Callable[[list[Raw]], list[Raw]]:
    """A signed page of the other recording takes the place of the one here, or stands behind it."""
    other = [Raw(one.topic, one.type, one.time_ns, one.time_ns, one.data) for one in Bag(plant.other).messages()]

    def act(messages: list[Raw]) -> list[Raw]:
        if len(of(messages, topic)) <= nth:
            return messages
        place = of(messages, topic)[nth]
        return [*messages[: place + 1], other[of(other, topic)[nth]], *messages[place + 1 :]]

    return act


@pytest.mark.parametrize("topic", [OWN, "/arm_1/rfm/audit", "/rfm/servers/server_1/audit"])
def test_a_signed_page_of_another_recording_is_no_part_of_this_one(topic: str, plant: Plant, tmp_path: Path) -> None:
    folder = rewritten(plant.one, tmp_path / "bag", moved_in(plant, topic, 2))
    found, manifest = plant.verified(folder)
    assert found.is_changed and manifest


# --- ends ---


def test_an_end_that_was_cut_off_shows_by_the_manifest_alone(plant: Plant, tmp_path: Path) -> None:
    """And a manifest from before, which somebody has kept, leaves an open end: a recorder that is killed does so, too."""
    whole = record(tmp_path / "made" / "bag", heard=plant.heard(), **{**plant.as_recorder, "limits": Limits()})
    folder = rewritten(whole, tmp_path / "cut", lambda messages: messages[: pages_of(messages, "recorder/vm")[-2]])
    found, manifest = plant.verified(folder)
    assert manifest and found.is_changed
    shutil.copy(whole / MANIFEST, folder / MANIFEST)
    found, manifest = plant.verified(folder)
    assert not manifest and found.is_changed
    told = read_manifest(whole / MANIFEST)
    assert told is not None and told.ended
