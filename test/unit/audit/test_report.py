"""A shift on one page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import simplejpeg

from ros2_rfm_serving.audit.bag_writer import BagWriter
from ros2_rfm_serving.audit.chain import Page
from ros2_rfm_serving.audit.log import AuditLog
from ros2_rfm_serving.audit.report.around import around
from ros2_rfm_serving.audit.report.causes import causes
from ros2_rfm_serving.audit.report.figures import attained, success
from ros2_rfm_serving.audit.report.incidents import Incident, incidents
from ros2_rfm_serving.audit.report.report import report
from ros2_rfm_serving.audit.report.tracks import ROBOT, SCORE, SERVER, Tracks
from ros2_rfm_serving.errors import RfmError
from test.unit.audit import recorded, story
from test.unit.audit.story import EPOCH_S, Log

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
JPEG = simplejpeg.encode_jpeg(np.full((16, 16, 3), 90, np.uint8))


def status(name: str = "push_1", **more: Any) -> SimpleNamespace:
    header = SimpleNamespace(frame_id=name)
    told = {"state": 1, "phase": 2, "paused": False, "reason": "", "stop_reason": "", "server": "server_1", "staleness_s": 0.2}
    counts = {"refused": [], "held_ticks": 0, "components": [], "task": "push", "verdict": "", "episode": 1}
    return SimpleNamespace(header=header, **(told | counts | more))


def server(name: str = "server_1", **more: Any) -> SimpleNamespace:
    told = {"state": 1, "detail": "", "load": 0.5, "refused": [], "served": 0, "superseded": 0, "model": "m", "emulated": False}
    return SimpleNamespace(header=SimpleNamespace(frame_id=name), **(told | more))


def count(name: str, number: int) -> SimpleNamespace:
    return SimpleNamespace(name=name, count=number)


def read(*told: tuple[str, float, Any]) -> Tracks:
    return Tracks().add(told)


def of(tracks: Tracks, *pages: Page, ends_s: float = 100.0) -> list[Incident]:
    return incidents(tracks, AuditLog(pages), lambda: pages, ends_s)


# --- figures ---------------------------------------------------------------------------------------------------------------


def test_success_is_the_worlds_word_or_else_the_monitors() -> None:
    def score(name: str, episode: int, won: bool) -> SimpleNamespace:
        header = SimpleNamespace(frame_id=name)
        return SimpleNamespace(header=header, task="push", episode=episode, success=won, finished=True)

    tracks = read(
        (ROBOT, 1.0, status(verdict="done")),
        (SCORE, 2.0, score("push_1", 1, False)),
        (SCORE, 3.0, score("push_1", 2, True)),
        (ROBOT, 1.0, status("arm_1", task="sort", verdict="done")),
        (ROBOT, 5.0, status("arm_1", task="sort", verdict="failed", episode=2)),
        (ROBOT, 6.0, status("arm_1", task="sort", verdict="ongoing", episode=3)),
    )
    assert [one[:3] + one[5:] for one in success(tracks, by_task=True)] == [("push", 2, 1, "world"), ("sort", 2, 1, "monitor")]
    assert [one.who for one in success(tracks, by_task=False)] == ["arm_1", "push_1"]


def test_slos_count_what_was_recorded_even_where_a_robot_began_anew() -> None:
    def component(in_time: int, late: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(component="system1", slo_s=0.4, in_time=in_time, late=late)]

    told = [(ROBOT, float(at), status(components=component(*counts))) for at, counts in enumerate([(100, 5), (140, 5), (10, 2)])]
    (found,) = attained(read(*told))
    assert (found.in_time, found.late, found.slo_s) == (50, 2, 0.4) and found.share == pytest.approx(50 / 52)


# --- incidents -------------------------------------------------------------------------------------------------------------


def test_what_a_robot_says_becomes_stretches_with_their_reasons() -> None:
    tracks = read(
        (ROBOT, 1.0, status()),
        (ROBOT, 2.0, status(state=3, reason="server_1 is lost")),
        (ROBOT, 2.5, status(state=3, reason="server_1 is lost", held_ticks=9)),
        (ROBOT, 3.0, status(server="server_2")),
        (ROBOT, 4.0, status(phase=5, stop_reason="safety objects")),
        (ROBOT, 5.0, status(paused=True, server="server_2")),
        (ROBOT, 6.0, status(server="server_2")),
        (ROBOT, 7.0, status(state=0, phase=0, server="server_2")),
    )
    found = [(one.kind, one.at_s, one.until_s, one.what, one.why) for one in of(tracks)]
    assert ("held", 2.0, 3.0, "STALLED", "server_1 is lost") in found
    assert ("stopped", 4.0, 5.0, "waits for a person", "safety objects") in found
    assert ("person", 5.0, 6.0, "paused", "") in found
    assert next(one[3] for one in found if one[0] == "failover") == "from server_1 to server_2"


def test_refusals_are_one_incident_per_burst() -> None:
    numbers = ((0.0, 3, 0), (1.0, 5, 0), (2.0, 9, 1), (3.0, 9, 1), (60.0, 10, 1))
    told = [(ROBOT, at, status(refused=[count("stale_episode", a), count("bad_shape", b)])) for at, a, b in numbers]
    found = [(one.at_s, one.what) for one in of(read(*told)) if one.kind == "refused"]
    assert found == [(1.0, "6 x stale_episode, 1 x bad_shape"), (60.0, "1 x stale_episode")]


def test_a_server_that_fails_or_falls_silent_is_an_incident() -> None:
    tracks = read(
        *((SERVER, at / 2, server()) for at in range(10)),
        (SERVER, 5.0, server(state=3, detail="out of memory")),
        *((SERVER, 12.0 + at / 2, server()) for at in range(4)),
    )
    found = [(one.at_s, one.until_s, one.what, one.why) for one in of(tracks, ends_s=14.0) if one.kind == "server"]
    assert found == [(5.0, 12.0, "FAILED", "out of memory"), (5.0, 12.0, "lost: it said nothing any more", "")]


def test_people_the_recorder_and_flaws_of_the_chain_are_told() -> None:
    robot, recorder = story.robot(), Log("recorder/night", "recorder")
    robot.note("operator_command", 2.0, command="pause", operator="anna", answer="paused", done=True)
    recorder.note("lost", 3.0, topic="/push_1/rfm/audit", count=7, why="the disk is too slow")
    first, second = robot.page(), recorder.page()
    lines = (first.lines[0], first.lines[1].replace(b"anna", b"otto"))
    changed = Page(writer=first.writer, run=first.run, first=0, previous=first.previous, lines=lines)
    found = [(one.kind, one.who, one.what, one.why) for one in of(Tracks(), changed, second)]
    assert ("person", "push_1", "otto: pause", "done: paused") in found
    assert ("recorder", "recorder/night", "7 messages or records of /push_1/rfm/audit lost", "the disk is too slow") in found
    assert any(kind == "audit log" and who == "robot/push_1" and "it was changed" in what for kind, who, what, _ in found)


def test_a_lost_server_may_be_why_a_robot_held_and_a_later_one_may_not() -> None:
    held = Incident(at_s=10.0, kind="held", who="push_1", what="STALLED", why="server_1 is lost", robot="push_1")
    lost = Incident(at_s=8.5, kind="server", who="server_1", what="lost", server="server_1")
    later = Incident(at_s=20.0, kind="server", who="server_1", what="lost", server="server_1")
    other = Incident(at_s=9.0, kind="person", who="door_1", what="anna: pause", robot="door_1")
    assert causes(held, [held, lost, later, other]) == [lost]
    assert causes(lost, [held, lost]) == []


def test_a_server_that_was_killed_is_told_from_one_that_ended() -> None:
    first, second = Log("server/server_1", "server"), Log("server/server_1", "server", run=8, begins_s=20.0)
    first.note("transition", 14.0, **{"from": "READY", "to": "HUNG", "reason": "inference does not come back"})
    lost = Incident(at_s=EPOCH_S + 15.0, kind="server", who="server_1", what="lost", server="server_1")
    killed = around(AuditLog([first.page(), second.page()]), lost)
    assert "READY to HUNG: inference does not come back" in killed[1] and "begins" in killed[2] and "killed" in killed[0]
    later = Log("robot/push_1", "robot", begins_s=30.0)
    first = Log("server/server_1", "server")
    first.note("transition", 14.0, **{"from": "READY", "to": "HUNG", "reason": "inference does not come back"})
    assert "killed" in around(AuditLog([first.page(), later.page()]), lost)[0], "also where it is never started again"
    ended = Log("server/server_1", "server")
    ended.note("closed", 15.0, stamp=EPOCH_S + 15.0, records=1, why="the end of the process")
    second = Log("server/server_1", "server", run=8, begins_s=20.0)
    assert "the end of the process" in (told := around(AuditLog([ended.page(), second.page()]), lost))[0] and len(told) == 2


# --- the page --------------------------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def shift(folder: Path, words: str = "server_1 is lost") -> Path:
    """Ten seconds of a robot that holds for two of them, as a recording."""
    log, sent = story.robot(), (story.picture("front", JPEG),)
    for step in range(100):
        t_s = step / 10
        why = {"source": "fallback", "fallback": "hold", "reason": words} if 50 <= step < 70 else story.row(step % 6, 1 + step // 6)
        asked = {"sensors": story.readings(t_s, t_s, sent), "requests": [story.request(1 + step // 6, instruction=words)]}
        story.tick(log, t_s, [0.1, 0.2], why, **(asked if step % 6 == 0 else {}))
        if step in (50, 70):
            story.transition(log, t_s, "STALLED" if step == 50 else "STREAMING", words)
    log.note("operator_command", 5.5, command=words, operator=words, answer=words, done=True)

    def header(name: str) -> Any:
        return recorded.made("std_msgs/msg/Header", frame_id=name)

    with BagWriter(folder) as bag:
        image = recorded.made("sensor_msgs/msg/CompressedImage", format="jpeg", data=np.frombuffer(JPEG, np.uint8))
        begin = int(EPOCH_S * 1e9)
        recorded.write(bag, "/rfm/servers/server_1/observation", "rfm_serving/msg/Observation", begin, images=[image])
        for half in range(20):
            at = begin + half * 500_000_000
            held = 10 <= half < 14
            told = {"state": 3 if held else 1, "reason": words if held else "", "phase": 2, "task": words, "staleness_s": 0.2}
            recorded.write(
                bag, "/push_1/rfm/status", "rfm_serving/msg/RobotStatus", at, header=header("push_1"), server=words, **told
            )
            if half < 9:
                more = {"state": 1, "load": 0.4, "model": words}
                recorded.write(bag, "/rfm/servers/s/status", "rfm_serving/msg/ServerStatus", at, header=header("server_1"), **more)
        page = "rfm_serving/msg/AuditPage"
        bag.write("/push_1/rfm/audit", page, recorded.definition(page), recorded.page(log.page()), begin + 10_000_000_000)
    return folder


def test_each_incident_is_linked_to_its_explanation_and_to_what_may_be_why(tmp_path: Path) -> None:
    text = report(shift(tmp_path / "shift"))
    page = Reader(text)
    words = " ".join(page.words)
    ids = {attrs.get("id") for _, attrs in page.tags}
    links = {str(attrs["href"])[1:] for tag, attrs in page.tags if tag == "a"}
    assert links and links <= ids
    assert "held (hold): server_1 is lost" in words and "20 control periods" not in words
    assert "May be why:" in words and "May be the cause of:" in words and "server_1: lost: it said nothing any more" in words
    assert any(tag == "img" and str(attrs["src"]).startswith("data:image/png") for tag, attrs in page.tags)
    assert "not closed" in words  # of the audit log's chain


def test_nothing_of_the_graph_is_markup_and_nothing_comes_from_elsewhere(tmp_path: Path) -> None:
    text = report(shift(tmp_path / EVIL.replace("/", "_"), EVIL))
    page = Reader(text)
    assert not [tag for tag, _ in page.tags if tag in ("script", "link", "iframe", "object", "base", "form")]
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert EVIL in "".join(page.words)
    sources = [str(value) for _, attrs in page.tags for name, value in attrs.items() if name in ("src", "href")]
    assert all(source.startswith(("data:image/png;base64,", "#incident-")) for source in sources)
    assert not re.search(r"https?:|url\(|@import", text)


def test_an_empty_recording_is_said_to_be_empty(tmp_path: Path) -> None:
    BagWriter(tmp_path / "empty").close()
    with pytest.raises(RfmError):
        report(tmp_path / "empty")
