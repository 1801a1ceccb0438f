"""Pages that their writers' certificates have signed, told from what anybody else puts on the graph in their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ros2_rfm_serving.audit.bag import PAGE, Bag
from ros2_rfm_serving.audit.chain import Chain, Page, records
from ros2_rfm_serving.audit.findings import Kind
from ros2_rfm_serving.audit.manifest import MANIFEST, Sign, Signature, read_manifest
from ros2_rfm_serving.audit.page_bytes import page_bytes
from ros2_rfm_serving.audit.recording.intake import Sample, Topic
from ros2_rfm_serving.audit.recording.ledger import Ledger
from ros2_rfm_serving.audit.recording.recorder import Limits, Recorder
from ros2_rfm_serving.audit.signatures import problem_of, sign_chain
from ros2_rfm_serving.audit.verify_bag import verify_bag
from ros2_rfm_serving.security.authority import utc_now
from ros2_rfm_serving.security.signing import Prover, Verifier
from test.enclaves import Enclaves
from test.unit.audit import recorded
from test.unit.audit.recording.test_recorder import validate

T = 1_790_000_000_000_000_000
OWN = Topic("/rfm/recorder/audit", PAGE, recorded.definition(PAGE))
AUDIT = Topic("/arm_1/rfm/audit", PAGE, recorded.definition(PAGE))


@pytest.fixture
def enclaves(tmp_path: Path) -> Enclaves:
    return Enclaves(tmp_path / "enclaves")


def signer(enclave: Path) -> Sign:
    prover = Prover(enclave)
    return lambda text: Signature(prover.certificate(), prover.say(text))


def pages(sign: Sign | None, writer: str = "robot/arm_1", run: int = 7, count: int = 4) -> list[Page]:
    chain, made = Chain(writer, run), []
    for number in range(count):
        chain.note("tick", float(number), {"command": [float(number)]})
        if number == count - 1:
            chain.seal(float(number), closed=True)
        sign_chain(chain, float(number), sign)
        page = chain.page()
        assert page is not None
        made.append(page)
    return made


def test_a_page_is_its_writers_alone(enclaves: Enclaves) -> None:
    check = Verifier(enclaves.make("observer")).check_said
    own = pages(signer(enclaves.make("arm_1")))
    assert [problem_of(page, check) for page in own] == [""] * 4
    others = pages(signer(enclaves.make("arm_2")))
    assert {problem_of(page, check) for page in others} == {"arm_2 has signed it, and not arm_1"}
    assert {problem_of(page, check) for page in pages(None)} == {"nobody has signed it"}
    strange = pages(signer(Enclaves(enclaves.root / "else").make("arm_1")))
    assert all("another authority" in problem_of(page, check) for page in strange)


CHANGES: dict[str, Callable[[Page], Page]] = {
    "a record": lambda page: replace(page, lines=(page.lines[0].replace(b"1.0", b"2.0"), *page.lines[1:])),
    "the writer": lambda page: replace(page, writer="robot/arm_2"),
    "the run": lambda page: replace(page, run=8),
    "the number": lambda page: replace(page, first=page.first + 1),
    "the hash before": lambda page: replace(page, previous="f" * 32),
    "the signature": lambda page: replace(
        page, lines=(*page.lines[:-1], page.lines[-1].replace(b'"signature":"', b'"signature":"A'))
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_page_that_was_changed_is_nobodys(enclaves: Enclaves, what: str) -> None:
    page = pages(signer(enclaves.make("arm_1")))[1]
    assert problem_of(CHANGES[what](page), Verifier(enclaves.make("observer")).check_said)


def recording(folder: Path, enclaves: Enclaves, heard: list[Page]) -> Path:
    """By a recorder with a certificate, which judges what it hears."""
    sign, check = signer(enclaves.make("recorder")), Verifier(enclaves.make("recorder")).check_said
    ledger = Ledger("vm", 5, 0.0, {"stamp": 0.0}, sign)
    one = Recorder(folder, Limits(), ledger, OWN, sign=sign, prove=lambda page: problem_of(page, check))
    for number, page in enumerate(heard):
        one.work([Sample(AUDIT, T + number * 10**9, page_bytes(page, T))], {}, float(number), T + number * 10**9 + 1)
    one.close(float(len(heard)), T + len(heard) * 10**9)
    return folder


def test_forged_and_repeated_pages_make_no_honest_recording_fail(enclaves: Enclaves, tmp_path: Path) -> None:
    """Whoever is on the graph: a page from far ahead, one in place of the next, a chain's end, an unsigned page, and repeats."""
    own = pages(signer(enclaves.make("arm_1")))
    forged = pages(signer(enclaves.make("arm_2")), count=9)
    heard = [own[0], replace(forged[8], run=7), own[1], own[0], forged[2], *pages(None)[2:3], own[2], own[1], own[3], own[3]]
    bag = Bag(recording(tmp_path / "bag", enclaves, heard))
    kinds = {one["kind"] for page in bag.pages() for one in records(page) if page.writer == "recorder/vm" and validate(one) is None}
    assert kinds == {"began", "split", "messages", "aside", "sealed", "signed", "closed"}
    found = verify_bag(bag)
    assert found.is_good, (found.chains.flaws, found.findings)
    assert found.chains.num_repeats == 3 and found.chains.num_unproven == 3
    assert [page.first for page in bag.pages() if page.writer == "robot/arm_1"] == [page.first for page in own], "for replays, too"
    check = Verifier(enclaves.make("observer")).check_said
    proven = verify_bag(bag, lambda page, time_ns: problem_of(page, check))
    assert proven.is_good and sum("set aside by the recorder" in note for note in proven.notes) == 2, proven.notes


def test_pages_from_before_the_recorder_make_no_honest_recording_fail(enclaves: Enclaves, tmp_path: Path) -> None:
    """Somebody has kept signed ones, of this chain and of one before it, and publishes them once more, in any order."""
    own, old = pages(signer(enclaves.make("arm_1")), count=6), pages(signer(enclaves.make("arm_1")), run=3)
    heard = [own[2], own[0], own[3], own[1], old[2], old[1], own[0], own[4], own[3], old[0], own[5]]
    bag = Bag(recording(tmp_path / "bag", enclaves, heard))
    check = Verifier(enclaves.make("observer")).check_said
    for found in (verify_bag(bag), verify_bag(bag, lambda page, time_ns: problem_of(page, check))):
        assert found.is_good and found.chains.num_repeats == 6, (found.chains.flaws, found.findings)
    assert [page.first for page in bag.pages() if page.run == 7] == [page.first for page in own[2:]]


def test_without_its_certificate_a_chain_that_was_written_anew_is_found(enclaves: Enclaves, tmp_path: Path) -> None:
    """Every hash fits, and so do recorder and manifest, which somebody without a certificate wrote anew as well."""
    chain = pages(None)
    ledger = Ledger("vm", 5, 0.0, {"stamp": 0.0})
    one = Recorder(tmp_path / "bag", Limits(), ledger, OWN)
    one.work([Sample(AUDIT, T + number, page_bytes(page, T)) for number, page in enumerate(chain)], {}, 1.0, T + 10**9)
    one.close(2.0, T + 2 * 10**9)
    bag, check = Bag(tmp_path / "bag"), Verifier(enclaves.make("observer")).check_said
    assert verify_bag(bag).is_good
    found = verify_bag(bag, lambda page, time_ns: problem_of(page, check))
    assert {(one.kind, "nobody has signed it" in one.problem) for one in found.findings if one.type} == {(Kind.UNPROVEN, True)}
    assert not found.is_good and {one.topic for one in found.findings if one.type} == {AUDIT.name, OWN.name}


def test_the_manifest_is_signed_by_the_recorder(enclaves: Enclaves, tmp_path: Path) -> None:
    folder = recording(tmp_path / "bag", enclaves, pages(signer(enclaves.make("arm_1"))))
    found, verifier = read_manifest(folder / MANIFEST), Verifier(enclaves.make("observer"))
    assert found is not None and not found.problem and found.signature is not None
    assert verifier.check_said(*found.signature, found.text).name == "recorder"
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace('"size": ', '"size": 1'))
    changed = read_manifest(folder / MANIFEST)
    assert changed is not None and changed.problem


def test_a_certificate_counts_that_was_good_when_the_page_was_recorded(enclaves: Enclaves) -> None:
    own, observer = pages(signer(enclaves.make("arm_1", begun_days=9, days=3))), enclaves.make("observer")
    then = Verifier(observer, lambda: utc_now() - timedelta(days=8)).check_said
    assert problem_of(own[0], then) == "" and "has ended" in problem_of(own[0], Verifier(observer).check_said)
