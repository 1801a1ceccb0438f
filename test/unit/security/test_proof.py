"""Proofs and seals by themselves: whatever is changed, repeated, too old or somebody else's is refused."""

from __future__ import annotations

import os
import timeit
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ros2_rfm_serving.errors import ConfigurationError, UnprovenError
from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.factory.dynamic_robot import dynamic_robot_entry
from ros2_rfm_serving.security.authority import utc_now
from ros2_rfm_serving.security.folder import REVOKED
from ros2_rfm_serving.security.members import askers, may_ask, members_of_robot
from ros2_rfm_serving.security.proof import CHALLENGE_S, PUBLIC_KEY_BYTES, SEAL_BYTES, Challenges, Proof, is_sealed, seal, text_of
from ros2_rfm_serving.security.signing import Prover, Verifier
from test.enclaves import Enclaves

FIELDS = ["OpenSession_Request", "arm_1", "system1", 20.0, ["a", "b"]]
CHALLENGE = b"c" * 16


@pytest.fixture
def plant(tmp_path: Path) -> Enclaves:
    return Enclaves(tmp_path)


def refuses(verifier: Verifier, proof: Proof, asked: str = "s1", fields: list[object] = FIELDS) -> str:
    with pytest.raises(UnprovenError) as refused:
        verifier.check(proof, text_of(asked, fields, proof))
    return str(refused.value)


def test_whoever_signs_is_known_and_both_have_a_key_that_did_not_travel(plant: Enclaves) -> None:
    verifier, asking = Verifier(plant.make("s1")), Prover(plant.make("arm_1")).sign("s1", CHALLENGE, FIELDS)
    text = text_of("s1", FIELDS, asking.proof)
    assert verifier.check(asking.proof, text).name == "arm_1"
    public_key, keys = verifier.answer(asking.proof, text)
    assert asking.keys(public_key) == keys and [len(key) for key in keys] == [32, 32]
    assert keys.asks != keys.answers, "what one has said is nothing that the other can have said"
    assert not any(key in b"".join(asking.proof) + public_key for key in keys)
    again = verifier.answer(asking.proof, text)
    assert not {*again[1]} & {*keys}, "each session has its own"
    with pytest.raises(UnprovenError):
        asking.keys(b"")
    successor = Prover(plant.make("arm_2.3")).sign("s1", CHALLENGE, FIELDS).proof
    assert verifier.check(successor, text_of("s1", FIELDS, successor)).name == "arm_2", "issued after a revocation"


def test_an_answer_is_of_whoever_was_asked_and_to_what_was_asked(plant: Enclaves, tmp_path: Path) -> None:
    """Else whoever is heard first would be that server, and have the session's keys."""
    verifier, prover = Verifier(plant.make("s1")), Prover(plant.make("arm_1"))
    asking, other = (prover.sign("s1", CHALLENGE, FIELDS) for _ in range(2))
    text, granted = text_of("s1", FIELDS, asking.proof), ["OpenSession_Response", 7]
    public_key, keys = verifier.answer(asking.proof, text)

    def answer(by: Path, to: str = "arm_1", asked: Proof = asking.proof, fields: list[object] = granted) -> Proof:
        return Prover(by).answer(asked, to, public_key, fields)

    def problem(proof: Proof) -> str:
        with pytest.raises(UnprovenError) as refused:
            asking.answered("s1", "arm_1", granted, proof, verifier)
        return str(refused.value)

    genuine = answer(plant.root / "s1")
    who, found = asking.answered("s1", "arm_1", granted, genuine, verifier), asking.keys(genuine.public_key)
    assert (who.name, found) == ("s1", keys)
    assert "arm_2 answers in the name of 's1'" in problem(answer(plant.make("arm_2")))
    assert "another authority's" in problem(answer(Enclaves(tmp_path / "else").make("s1")))
    assert "none to what was asked" in problem(answer(plant.root / "s1", asked=other.proof)), "replayed"
    taken_over = plant.make("arm_2")
    with pytest.raises(UnprovenError, match="no server's"):  # as a forged schedule may have it
        asking.answered("arm_2", "arm_1", granted, answer(taken_over), verifier)
    assert "not what was signed" in problem(answer(plant.root / "s1", to="arm_2"))
    assert "not what was signed" in problem(answer(plant.root / "s1", fields=["OpenSession_Response", 8]))
    assert "not what was signed" in problem(genuine._replace(public_key=prover.sign("s1", CHALLENGE, []).proof.public_key))
    asked_by_itself = asking.proof._replace(challenge=asking.proof.public_key)
    assert "not what was signed" in problem(asked_by_itself), "what was asked is no answer"
    assert "no certificate" in problem(genuine._replace(certificate=b""))


def test_what_is_not_what_was_signed_is_refused(plant: Enclaves) -> None:
    verifier = Verifier(plant.make("s1"))
    proof, other = (Prover(plant.make(name)).sign("s1", CHALLENGE, FIELDS).proof for name in ("arm_1", "arm_2"))
    for number, value in enumerate(FIELDS):
        changed = [*FIELDS[:number], value * 2, *FIELDS[number + 1 :]]  # type: ignore[operator]
        assert "not what was signed" in refuses(verifier, proof, fields=changed)
    assert "not what was signed" in refuses(verifier, proof, asked="s2")
    for part, value in {"challenge": bytes(16), "public_key": other.public_key, "signature": other.signature}.items():
        assert "not what was signed" in refuses(verifier, proof._replace(**{part: value}))
    assert "by whose certificate" in refuses(verifier, proof._replace(certificate=other.certificate))
    assert "no certificate" in refuses(verifier, Proof(b"", b"", b""))
    assert "no certificate" in refuses(verifier, proof._replace(certificate=bytes(1 << 20)))


def test_certificates_of_others_too_old_or_revoked_are_refused(plant: Enclaves, tmp_path: Path) -> None:
    server = plant.make("s1")
    verifier = Verifier(server)
    foreign = Prover(Enclaves(tmp_path / "else", "somebody").make("arm_1")).sign("s1", CHALLENGE, FIELDS)
    of_no_version = foreign.proof.certificate.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020107"), 1)
    assert "no certificate" in refuses(verifier, foreign.proof._replace(certificate=of_no_version))
    assert "another authority's" in refuses(verifier, foreign.proof)
    assert "has ended" in refuses(verifier, Prover(plant.make("old", 9, 1)).sign("s1", CHALLENGE, FIELDS).proof)
    assert "this machine's clock says" in refuses(verifier, Prover(plant.make("new", -2)).sign("s1", CHALLENGE, FIELDS).proof)
    proof = Prover(plant.make("arm_1")).sign("s1", CHALLENGE, FIELDS).proof
    who = verifier.check(proof, text_of("s1", FIELDS, proof))
    assert verifier.is_good(who)
    Enclaves(tmp_path / "else", "somebody").revoke(server, who.serial)
    assert verifier.is_good(who), "only the authority revokes"
    plant.revoke(server, who.serial)
    assert not verifier.is_good(who) and "is revoked" in refuses(verifier, proof)
    (server / REVOKED).write_bytes(b"half a li")
    assert not verifier.is_good(who), "a list that cannot be read pardons nobody"
    (server / REVOKED).unlink()
    assert not verifier.is_good(who)


def test_whoever_verifies_does_not_begin_with_revocations_that_are_spoilt(plant: Enclaves, tmp_path: Path) -> None:
    server = plant.make("s1")
    proof = Prover(plant.make("arm_1")).sign("s1", CHALLENGE, FIELDS).proof
    serial = Verifier(server).check(proof, text_of("s1", FIELDS, proof)).serial
    plant.revoke(server, serial)
    whole = (server / REVOKED).read_bytes()
    for spoilt in (b"", whole[:100]):
        (server / REVOKED).write_bytes(spoilt)
        with pytest.raises(ConfigurationError, match="is no list of revocations"):
            Verifier(server)
    Enclaves(tmp_path / "else", "somebody").revoke(server, serial)
    with pytest.raises(ConfigurationError, match="of this authority"):
        Verifier(server)


def test_revocations_that_are_written_in_two_halves_are_read_when_they_are_whole(plant: Enclaves) -> None:
    server = plant.make("s1")
    verifier, proof = Verifier(server), Prover(plant.make("arm_1")).sign("s1", CHALLENGE, FIELDS).proof
    who = verifier.check(proof, text_of("s1", FIELDS, proof))
    plant.revoke(server, who.serial)
    whole = (server / REVOKED).read_bytes()
    (server / REVOKED).write_bytes(whole[:100])
    half = (server / REVOKED).stat()
    assert verifier.is_good(who)
    (server / REVOKED).write_bytes(whole)
    os.utime(server / REVOKED, ns=(half.st_atime_ns, half.st_mtime_ns))  # a file system's clock ticks a few hundred times a second
    assert not verifier.is_good(who)


def test_a_certificate_that_ends_meanwhile_is_good_no_more(plant: Enclaves) -> None:
    now: list[datetime] = [utc_now()]
    verifier = Verifier(plant.make("s1"), lambda: now[0])
    proof = Prover(plant.make("arm_1", days=1)).sign("s1", CHALLENGE, FIELDS).proof
    who = verifier.check(proof, text_of("s1", FIELDS, proof))
    now[0] += timedelta(hours=25)
    assert not verifier.is_good(who)


def made(challenge: bytes, number: int) -> Proof:
    return Proof(b"somebody's", challenge, bytes([number]) * PUBLIC_KEY_BYTES)


def refused(challenges: Challenges, proof: Proof, now_s: float) -> bool:
    try:
        challenges.check(proof, now_s)
    except UnprovenError as error:
        assert error.is_stale
        return True
    return False


def test_a_proof_is_good_once_and_for_as_long_as_its_challenge(plant: Enclaves) -> None:
    challenges = Challenges()
    assert refused(challenges, made(b"", 3), 99.0), "no challenge is none of ours"
    first = challenges.current(99.0 + CHALLENGE_S)
    told_s = 99.0 + CHALLENGE_S
    assert challenges.current(told_s + CHALLENGE_S - 0.1) == first and len(first) == 16
    challenges.check(made(first, 1), told_s + 1.0)
    challenges.take(made(first, 1))
    assert refused(challenges, made(first, 1), told_s + 1.0), "replayed"
    second = challenges.current(told_s + CHALLENGE_S + 1.0)
    assert second != first and refused(challenges, made(first, 1), told_s + CHALLENGE_S + 2.0), "nor after another one"
    challenges.check(made(first, 2), told_s + CHALLENGE_S + 2.0)  # who was told shortly before may still ask
    assert refused(challenges, made(first, 3), told_s + 2 * CHALLENGE_S + 2.0)
    much_later_s = told_s + 9 * CHALLENGE_S
    assert refused(challenges, made(second, 3), much_later_s) and refused(challenges, made(b"", 3), much_later_s)


@pytest.mark.parametrize("size", [0, PUBLIC_KEY_BYTES - 1, PUBLIC_KEY_BYTES + 1, 10 << 20])
def test_no_key_of_another_size_is_kept(size: int) -> None:
    """Of a robot with a certificate, that fills the memory with what was taken."""
    challenges = Challenges()
    with pytest.raises(UnprovenError, match="none of X25519"):
        challenges.check(Proof(b"somebody's", challenges.current(0.0), bytes(size)), 0.0)


@given(st.lists(st.tuples(st.floats(0.0, 2 * CHALLENGE_S), st.integers(0, 3), st.integers(0, 5)), max_size=60))
def test_no_sequence_of_askings_is_taken_twice(steps: list[tuple[float, int, int]]) -> None:
    """steps: (time that passes, which of the last challenges, which key)"""
    challenges, told, taken, now_s = Challenges(), list[tuple[bytes, float]](), set[tuple[bytes, int]](), 0.0
    for passed_s, age, number in steps:
        now_s += passed_s
        current = challenges.current(now_s)
        if not told or told[-1][0] != current:
            told.append((current, now_s))
        challenge, _ = told[max(0, len(told) - 1 - age)]
        was_refused = refused(challenges, made(challenge, number), now_s)
        if not was_refused:
            assert (challenge, number) not in taken, "replayed"
            assert challenge in {one for one, _ in told[-2:]}
            challenges.take(made(challenge, number))
            taken.add((challenge, number))


@given(st.binary(max_size=200), st.integers(0, 10_000), st.integers(1, 255))
def test_a_seal_is_of_every_byte_and_of_one_key(data: bytes, at: int, change: int) -> None:
    key, other = b"k" * 32, b"l" * 32
    mine = seal(key, data)
    assert len(mine) == SEAL_BYTES and is_sealed(key, data, mine)
    assert (
        not is_sealed(other, data, mine) and not is_sealed(key, data + b"\0", mine) and not is_sealed(key, data, bytes(SEAL_BYTES))
    )
    if data:
        spoilt = bytearray(data)
        spoilt[at % len(data)] ^= change
        assert not is_sealed(key, bytes(spoilt), mine)


def test_who_may_order_what_is_the_wire_tables() -> None:
    assert askers("rfm/admit_robot") == {"dashboard", "operator"} == askers("rfm/release_robot")
    assert askers("rfm/replan") == {"operator"}
    task, order = "<robot>/execute_task", "<robot>/rfm/order"
    assert all(may_ask(name, task) for name in ("operator", "dashboard", "foreman", "foreman_hall"))
    assert not any(may_ask(name, task) for name in ("observer", "arm_1", "foremanx", "arm_1_foreman", ""))
    assert may_ask("dashboard", order) and may_ask("foreman", order) and not may_ask("observer", order)
    assert not may_ask("foreman", "rfm/servers/<server>/order")


@pytest.mark.parametrize("name", ["foreman_1", "operator"])
def test_no_robot_is_named_like_one_who_orders(name: str, repository: Path) -> None:
    factory = load_factory(repository / "config" / "factory_quickstart.yaml")
    robot = dynamic_robot_entry(factory, name, factory.robots[0].task)
    with pytest.raises(ConfigurationError, match="of who orders"):
        members_of_robot(factory, robot, repository / "config")


def test_what_it_costs(plant: Enclaves) -> None:
    """A few signatures per session, a digest per message. Bounds are for a machine that does other things."""
    verifier, prover, key = Verifier(plant.make("s1")), Prover(plant.make("arm_1")), b"k" * 32
    server = Prover(plant.root / "s1")
    data = {size: bytes(size) for size in (4_000, 20_000, 160_000)}

    def opened() -> None:
        asking = prover.sign("s1", CHALLENGE, FIELDS)
        text = text_of("s1", FIELDS, asking.proof)
        verifier.check(asking.proof, text)
        public_key, _ = verifier.answer(asking.proof, text)
        answer = server.answer(asking.proof, "arm_1", public_key, FIELDS)
        asking.answered("s1", "arm_1", FIELDS, answer, verifier)

    took_s = {"a session, both sides": min(timeit.repeat(opened, number=20, repeat=5)) / 20}
    for size, octets in data.items():
        sealed = timeit.repeat(lambda octets=octets: seal(key, octets), number=100, repeat=5)  # type: ignore[misc]
        took_s[f"a seal of {size / 1000:g} KB"] = min(sealed) / 100
    print({what: f"{each_s * 1e6:.0f} us" for what, each_s in took_s.items()})
    assert took_s["a session, both sides"] < 0.05 and took_s["a seal of 160 KB"] < 0.01
