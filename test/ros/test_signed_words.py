"""What servers and schedulers say to everybody, where there are certificates: by their own alone, once, and of now."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import rclpy
from rclpy.node import Node
from rclpy.serialization import serialize_message
from rfm_serving import msg, srv

from ros2_rfm_serving.errors import BadMessageError, UnprovenError
from ros2_rfm_serving.ros.node.doorkeeper import Signing, check_answer, digest_of, screen, sign_answer, sign_ordered
from ros2_rfm_serving.ros.node.said import Hearer
from ros2_rfm_serving.ros.node.scheduled import MOST_NAMED, Contemporaries, Processes, ScheduleHearer, ScheduleSpeaker
from ros2_rfm_serving.ros.robot.vouched import HOLD_S, PATIENCE_S, SILENT_S, VOUCHED_S, Vouched
from ros2_rfm_serving.ros.wire import bounded
from ros2_rfm_serving.ros.wire.bounded import REMEMBERED, Repeated
from ros2_rfm_serving.security.signing import Prover, Verifier
from test.enclaves import Enclaves

from .herald import Herald, speaker

S1, S2, GHOST = 11, 12, 13
"""Schedulers."""
OLD, NEW, OTHER = 101, 102, 103
"""Processes of a server."""


def test_without_a_certificate_a_word_has_no_byte_behind_its_message() -> None:
    """rclpy serializes to more than that, where fields are aligned so, and readers of recordings refuse it."""
    longer = 0
    for names in range(1, 9):
        for robots in range(3):
            schedule = msg.Schedule(factory="x" * names, released=["arm"] * robots)
            speaker = ScheduleSpeaker(None)
            longer += len(serialize_message(schedule)) > len(word := speaker.put(schedule))
            assert len(word) == bounded.check(word, msg.Schedule) == len(speaker.word(schedule.header.stamp))
            assert bounded.read(word, msg.Schedule) == schedule
    assert longer


@pytest.fixture
def enclaves(tmp_path: Path) -> Enclaves:
    return Enclaves(tmp_path / "enclaves")


@pytest.fixture
def node() -> Iterator[Node]:
    rclpy.init()
    made = Node("herald")
    yield made
    made.destroy_node()
    rclpy.try_shutdown()


def plan(epoch: int = 1, robots: int = 3, scheduler: int = S1) -> Any:
    routes = [msg.Route(robot=f"arm_{i + 1}", component="system1", server="s1", max_rate_hz=1.0) for i in range(robots)]
    placement = msg.Placement(server="s1", model="m", gpu_type="GPU", batch_size=1, max_sessions=9)
    return msg.Schedule(epoch=epoch, scheduler=scheduler, placements=[placement], routes=routes)


def ear(enclaves: Enclaves) -> Repeated:
    return Repeated(msg.Schedule, ScheduleHearer(Verifier(enclaves.make("s1"))).check)


def problem(read: Callable[[bytes], Any], data: bytes) -> str:
    with pytest.raises(BadMessageError) as refused:
        read(data)
    assert refused.value.kind in ("unproven", "bad_message", "stale_schedule", "stale_status")
    return str(refused.value)


# --- schedules ---


def test_a_word_of_a_scheduler_counts_once_and_by_its_own_certificate(enclaves: Enclaves, node: Node) -> None:
    herald, read = Herald(enclaves.make("scheduler"), node, plan()), ear(enclaves)
    first, second = herald.word(), herald.word()
    heard = read(first)
    assert heard.epoch == 1 and len(heard.routes) == 3 and heard.number == 0, "what differs in every word is not read"
    assert read(second) is heard, "it says the same, and is the same object"
    for old in (first, second):
        assert "said before" in problem(read, old)
    herald.put(plan(2))
    assert read(herald.word()).epoch == 2
    assert "said before" in problem(read, second), "of the schedule before"
    assert "no certificate" in problem(read, serialize_message(plan()))
    for other, why in ((Enclaves(enclaves.root / "else"), "another authority's"), (enclaves, "no scheduler's")):
        forged = Herald(other.make("scheduler" if other is not enclaves else "arm_1"), node, plan(9, scheduler=GHOST))
        assert why in problem(read, forged.word())
    assert read(herald.word()).epoch == 2, "nothing of that has used it up"
    for check in (None, ScheduleHearer(None).check):
        assert Repeated(msg.Schedule, check)(serialize_message(plan(7))).epoch == 7, "without a certificate nobody asks for one"


def test_every_byte_of_a_word_is_signed_but_its_stamp(enclaves: Enclaves, node: Node) -> None:
    word = Herald(enclaves.make("scheduler"), node, plan(robots=1)).word()
    assert bounded.check(word, msg.Schedule) == len(word)
    known, stamp = Verifier(enclaves.make("s1")), range(bounded.HEADER_BYTES, bounded.STAMP_ENDS)

    def counts(data: bytes) -> bool:
        try:
            Repeated(msg.Schedule, ScheduleHearer(known).check)(data)
        except BadMessageError:
            return False
        return True

    assert counts(word)
    for at in range(bounded.HEADER_BYTES, len(word)):
        spoilt = bytearray(word)
        spoilt[at] ^= 1
        assert counts(bytes(spoilt)) == (at in stamp), at
    assert not counts(word + bytes(4)) and not counts(word[:-1])


def test_recordings_and_forgeries_neither_cost_a_verification_nor_push_out_what_is_known(
    enclaves: Enclaves, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    herald, read = Herald(enclaves.make("scheduler"), node, plan()), ear(enclaves)
    recorded = herald.word()
    heard = read(recorded)
    for epoch in range(2, 4 * REMEMBERED):
        problem(read, serialize_message(plan(epoch)))
    assert read(herald.word()) is heard
    monkeypatch.setattr(Verifier, "check", lambda *_: pytest.fail("verified"))
    for _ in range(10):
        assert "said before" in problem(read, recorded)


def test_a_rotated_certificate_is_in_the_next_word(enclaves: Enclaves, node: Node) -> None:
    enclave = enclaves.make("scheduler")
    herald, read = Herald(enclave, node, plan()), ear(enclaves)
    before = read(herald.word())
    enclaves.make("scheduler")
    after = read(herald.word())
    assert bytes(after.certificate) != bytes(before.certificate) and after.routes == before.routes
    (enclave / "key.pem").unlink()
    assert problem(read, herald.word()), "it is followed by nobody who demands more"


# --- who lives ---


def test_a_server_follows_whom_it_has_been_named_by() -> None:
    """A recording of a scheduler that has gone names no process that began after it."""
    known = Contemporaries(NEW)
    assert known.meet(msg.Schedule(scheduler=GHOST, hears=[OLD])) and known.named == [GHOST] and not known.lives(GHOST)
    assert known.meet(msg.Schedule(scheduler=S1)) and not known.meet(msg.Schedule(scheduler=S1)) and not known.lives(S1)
    known.meet(msg.Schedule(scheduler=S1, hears=[OLD, NEW]))
    assert known.lives(S1) and not known.lives(GHOST)
    known.meet(msg.Schedule(scheduler=S1))
    assert known.lives(S1), "it was named once: a number counts once"
    for number in range(100):
        known.meet(msg.Schedule(scheduler=1000 + number))
    assert len(known.named) == MOST_NAMED and known.lives(S1)


def test_a_scheduler_hears_the_newest_process_of_a_server_alone() -> None:
    heard = Processes()
    assert heard.hear("s1", OLD) and not heard.hear("s1", OLD) and heard.hear("s2", OTHER)
    assert heard.newest == [OLD, OTHER] and heard.hear("s1", NEW) and heard.newest == [NEW, OTHER]
    assert heard.is_gone("s1", OLD) and not heard.is_gone("s1", NEW) and not heard.is_gone("s3", OLD)
    heard.keep(["s2"])
    assert heard.newest == [OTHER]


def test_a_robot_believes_the_scheduler_that_its_server_follows() -> None:
    """The session is of now, and so is what the process says that opened it."""
    vouched = Vouched()
    assert not vouched.takes(GHOST, [OLD], -HOLD_S), "somebody may know better"
    assert vouched.takes(GHOST, [OLD], 0.0), "of whoever is heard first"
    assert vouched.lives("s1", OLD, 0.0) and not vouched.follows("s1", OLD, GHOST, 0.0), "nobody vouches for whoever names it"
    assert not vouched.takes(S1, [NEW], 1.0)
    assert not vouched.may_live("s1", SILENT_S) and vouched.may_live("s1", SILENT_S + 0.1), "the one that is named is silent"
    vouched.opened("s1", NEW)
    assert vouched.lives("s1", NEW, 4.0) and vouched.follows("s1", NEW, S1, 4.0) and not vouched.follows("s1", NEW, S1, 4.5)
    assert not vouched.takes(GHOST, [OLD], 5.0) and vouched.takes(S1, [NEW, OTHER], 5.0)
    assert not vouched.lives("s1", OLD, 5.0) and vouched.lives("s2", OTHER, 5.0)
    assert not vouched.follows("s1", OLD, GHOST, 5.0), "a recording of it"
    assert vouched.follows("s1", NEW, S2, 6.0) and vouched.takes(S2, [NEW], 6.0), "its server has turned to a successor"


def test_a_robot_that_has_just_started_believes_no_recording_where_a_server_says_who_lives() -> None:
    """It has asked, and has no session yet."""
    vouched = Vouched()
    assert not vouched.takes(GHOST, [OLD], 0.0) and not vouched.takes(S1, [NEW], 0.5) and not vouched.has_vouched(0.5)
    assert not vouched.lives("s1", OLD, 0.6), "whom a schedule names that was not taken"
    vouched.opened("s1", NEW)
    assert vouched.follows("s1", NEW, S1, 1.0) and vouched.has_vouched(1.0) and vouched.takes(S1, [NEW], 1.0)
    assert not vouched.takes(GHOST, [OLD], HOLD_S + 1.0)
    at_s = 1.0 + VOUCHED_S + 0.1
    assert not vouched.has_vouched(at_s) and not vouched.takes(GHOST, [OLD], at_s), "and for a while, while it is asked again"


def test_a_robot_for_which_nobody_vouches_is_not_stranded() -> None:
    """All servers have gone with their scheduler; or what was heard first was a recording."""
    vouched = Vouched()
    vouched.opened("s1", OLD)
    vouched.follows("s1", OLD, S1, 0.0)
    assert vouched.takes(S1, [OLD], 1.0) and not vouched.takes(S2, [NEW], VOUCHED_S)
    at_s = VOUCHED_S + 1.0
    assert vouched.takes(S1, [OLD], at_s) and not vouched.takes(S2, [NEW], at_s), "it is believed as long as it speaks, for a while"
    assert vouched.takes(S2, [NEW], 1.0 + PATIENCE_S + 0.1) and vouched.lives("s1", NEW, 30.0)
    assert not vouched.takes(S1, [OLD], 31.0)


def test_a_servers_status_counts_once_and_by_its_own_certificate(enclaves: Enclaves) -> None:
    own, hearer = speaker(enclaves.make("s1")), Hearer(Verifier(enclaves.make("arm_1")))

    def status(**fields: Any) -> Any:
        made = msg.ServerStatus(state=msg.ServerStatus.READY, scheduler=S1, refused=[msg.Counter(name="late", count=1)], **fields)
        made.header.frame_id = "s1"
        return made

    def read(data: bytes) -> Any:
        found, end = bounded.measured(data, msg.ServerStatus)
        hearer.check_own("s1", found, memoryview(data)[:end])
        return found

    first = own.numbered(status(hears=[S2]))
    assert read(first).number == 1 and "said before" in problem(read, first)
    assert hearer.is_of_now(read(own.numbered(status())), S1) and hearer.is_of_now(read(own.numbered(status(hears=[S2]))), S2)
    assert not hearer.is_of_now(status(), S2)
    for at in range(bounded.HEADER_BYTES, len(own.numbered(status()))):
        spoilt = bytearray(own.numbered(status()))
        spoilt[at] ^= 1
        problem(read, bytes(spoilt))
    assert "no certificate" in problem(read, serialize_message(status()))
    assert "s2 tells how 's1' is" in problem(read, speaker(enclaves.make("s2")).numbered(status()))
    foreign = Enclaves(enclaves.root / "else").make("s1")
    assert "another authority's" in problem(read, speaker(foreign).numbered(status()))
    read(own.numbered(status()))
    ended = enclaves.make("s1", begun_days=9, days=3)
    assert "has ended" in problem(read, speaker(ended).numbered(status()))


# --- answers ---


class Client:
    """Of a service whose answers the test gives."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Any]] = []

    def call_async(self, request: Any) -> Any:
        future: Any = Future()
        self.asked.append((request, future))
        return future


def test_whoever_answers_an_order_first_is_passed_over(enclaves: Enclaves) -> None:
    robot, intruder, asker = Prover(enclaves.make("r1")), Prover(enclaves.make("r2")), enclaves.make("operator")
    client, order = Client(), srv.Order.Request(what="pause")
    later: list[Callable[[], object]] = []
    signing = Signing(Prover(asker), "r1", Verifier(asker))
    future = signing.call(client, order, lambda seconds, callback: later.append(callback))
    assert len(order.proof.public_key) == 32 and not len(order.proof.certificate)
    forged = srv.Order.Response(success=True, message="done", challenge=bytes(16))
    client.asked[0][1].set_result(forged)
    sign_ordered(intruder, order, forged)
    client.asked[0][1].set_result(forged)
    other = srv.Order.Request(what="pause")
    Signing(Prover(asker), "r1", Verifier(asker)).call(client, other)
    sign_ordered(robot, other, recorded := srv.Order.Response(success=True))
    client.asked[0][1].set_result(recorded)  # of another asking
    assert not future.done() and len(later) == 3
    answer = srv.Order.Response(message="ask with a proof", challenge=b"c" * 16)
    sign_ordered(robot, order, answer)
    changed = srv.Order.Response(message="ask with a proof", challenge=b"d" * 16, proof=answer.proof)
    client.asked[0][1].set_result(changed)
    assert not future.done()
    client.asked[0][1].set_result(answer)
    assert future.result() is answer and later[0]() and future.result() is answer

    bare_digest = digest_of(order)
    assert signing.is_anew(order, answer) and digest_of(order) != bare_digest
    again = signing.call(client, order, lambda seconds, callback: later.append(callback))
    (_, waiting) = client.asked[-1]
    copied = srv.Order.Request(what="pause")
    copied.proof.public_key = order.proof.public_key  # asked by an intruder, for a refusal with whoever is asked's signature
    sign_ordered(robot, copied, refused := srv.Order.Response(message="ask with a proof"))
    waiting.set_result(refused)
    assert not again.done()
    later[-1]()
    assert again.result() is refused, "nobody else has answered: it may have no certificate"


def test_an_answer_that_nobody_vouches_for_does_not_count_where_a_scheduler_is_asked(enclaves: Enclaves) -> None:
    asker, client = enclaves.make("operator"), Client()
    future = Signing(Prover(asker), "scheduler", Verifier(asker)).call(client, srv.AdmitRobot.Request(robot="a", task="t"))
    client.asked[0][1].set_result(srv.AdmitRobot.Response(success=True, challenge=bytes(16)))
    assert not future.done()
    plain = Signing(None, "scheduler").call(client, srv.AdmitRobot.Request())
    client.asked[1][1].set_result(answer := srv.AdmitRobot.Response())
    assert plain.result() is answer and not len(client.asked[1][0].proof.public_key)


def test_an_answer_holds_a_whole_schedule(enclaves: Enclaves) -> None:
    server, asked = Prover(enclaves.make("s1")), srv.GetSchedule.Request()
    asked.proof.public_key = bytes(range(32))
    answer = srv.GetSchedule.Response(schedule=plan())
    sign_answer(server, asked, "scheduler", answer)
    verifier = Verifier(enclaves.make("scheduler"))
    check_answer(bytes(range(32)), verifier, "s1", "scheduler", answer)
    for spoil in (lambda a: setattr(a.schedule, "epoch", 2), lambda a: a.schedule.routes.pop()):
        forged = srv.GetSchedule.Response(schedule=plan(), proof=answer.proof)
        spoil(forged)
        with pytest.raises(UnprovenError, match="not what was signed"):
            check_answer(bytes(range(32)), verifier, "s1", "scheduler", forged)
    with pytest.raises(UnprovenError, match="none to what was asked"):
        check_answer(bytes(32), verifier, "s1", "scheduler", answer)


def test_what_is_screened_is_taken_once() -> None:
    future: Any = Future()
    screen(future, lambda answer: answer > 1)
    for answer in (0, 1, 2, 3):
        future.set_result(answer)
    assert future.result() == 2


def test_what_it_costs(enclaves: Enclaves, node: Node) -> None:
    """No limit: a machine may be busy. With -s it says the figures of docs/measurements/security.md."""
    n, verifier = 200, Verifier(enclaves.make("s1"))
    own, hearer = speaker(enclaves.make("s1")), Hearer(verifier)
    status = msg.ServerStatus(histograms=[msg.Histogram(name="x", bounds=[1.0] * 20, counts=[1] * 21)] * 2)
    status.header.frame_id = "s1"
    bare, said = serialize_message(status), iter([own.numbered(status) for _ in range(n + 1)])

    def hear(data: bytes) -> None:
        found, end = bounded.measured(data, msg.ServerStatus)
        hearer.check_own("s1", found, memoryview(data)[:end])

    takes: dict[str, Callable[[], object]] = {
        "to write a server's status": lambda: serialize_message(status),
        "and to sign it": lambda: own.numbered(status),
        "to read it": lambda: bounded.measured(bare, msg.ServerStatus),
        "and to verify it": lambda: hear(next(said)),
    }
    for robots in (30, 1000):
        herald = Herald(enclaves.make("scheduler"), node, plan(robots=robots))
        words = iter([herald.word() for _ in range(2 * n + 2)])
        plain, read, unsigned = Repeated(msg.Schedule), Repeated(msg.Schedule, ScheduleHearer(verifier).check), herald.word()
        takes |= {
            f"to write a schedule of {robots} robots": lambda herald=herald: serialize_message(herald.schedule),
            f"to say it again, signed ({robots})": lambda herald=herald: herald.word(),
            f"to hear it again, as it is ({robots})": lambda plain=plain, unsigned=unsigned: plain(unsigned),
            f"to hear it again, verified ({robots})": lambda read=read, words=words: read(next(words)),
        }
    for what, does in takes.items():
        does()
        print(f"{what}: {1e6 * timeit.timeit(does, timer=time.process_time, number=n) / n:.0f} us")
