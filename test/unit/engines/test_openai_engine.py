"""The `openai` engine and a server that misbehaves."""

from __future__ import annotations

import base64
import math
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import simplejpeg

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.registry import build_engine
from ros2_rfm_serving.engines.text.chat_client import MAX_ANSWER_BYTES
from ros2_rfm_serving.errors import ConfigurationError, ModelError
from ros2_rfm_serving.factory.catalogue import FootprintEntry, ServiceEntry
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.types import (
    MONITOR,
    SAFETY,
    SYSTEM2,
    EncodedImage,
    EngineReply,
    ObservationRequest,
    RequestId,
    SessionRequest,
    empty,
)
from test.unit.engines.chat_server import JPEG, Turn, engine, only, request, says, server, spec

KEY = "sk-secret"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"base_ulr": "x"}, r"models\.yaml: models\.judge\.options\.base_ulr: unknown key; did you mean `base_url`"),
        ({"base_url": "gpu-2:8000"}, r"options\.base_url: is no address"),
        ({"base_url": f"http://me:{KEY}@gpu-2/v1"}, r"options\.base_url: holds a secret.*api_key_env"),
        ({"api_key_env": "NO_SUCH_VARIABLE"}, r"options\.api_key_env: the environment has no 'NO_SUCH_VARIABLE'"),
        ({"timeout_s": 0}, r"options\.timeout_s: .*greater than 0"),
        ({"verdicts": ["safe", "Safe."]}, r"options\.verdicts: .*two words or more"),
        ({"extra": {"messages": []}}, r"options\.extra: .*messages: not through"),
    ],
)
def test_options_that_are_wrong_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as raised:
        build_engine(spec(**options))
    assert KEY not in str(raised.value)


def test_an_action_model_is_no_text_model() -> None:
    with pytest.raises(ConfigurationError, match=r"models\.judge\.output: .*output: judgement"):
        build_engine(spec(output="action_chunk"))


def test_the_hash_is_of_what_shapes_an_answer() -> None:
    one, moved, other = spec(), spec(base_url="http://gpu-3/v1", timeout_s=1.0), spec(temperature=1.0)
    hashes = [build_engine(each).contract.model_hash for each in (one, moved, other)]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(("options", "at_once"), [({}, 64), ({"max_concurrent": 5}, 5)])
def test_the_descriptor_says_how_many_run_at_once(options: dict[str, Any], at_once: int) -> None:
    engine = build_engine(spec(**options))
    assert engine.max_concurrent == engine.max_batch_size == at_once
    engine.close()


def test_the_live_server_runs_as_many_at_once_as_the_simulated_one() -> None:
    service = ServiceEntry(batching="continuous", base_ms=100, per_request_ms=10, max_concurrent=7)
    footprint = FootprintEntry(memory_gb=1, load_s=1, source="said", service=service, derivation="said")

    def build(**options: Any) -> Engine:
        plain = spec(**options)
        return build_engine(replace(plain, entry=plain.entry.model_copy(update={"gpus": {"CPU": footprint}})))

    assert build().max_concurrent == build(max_concurrent=7).max_concurrent == 7
    with pytest.raises(ConfigurationError, match=r"options\.max_concurrent: is 8, gpus\.CPU\.service\.max_concurrent is 7"):
        build(max_concurrent=8)


def test_calls_run_side_by_side() -> None:
    """A verdict is answered while a plan is being thought over."""
    thought = threading.Event()

    def script(body: dict[str, Any], number: int) -> Turn:
        if "Answer with exactly one of" in body["messages"][1]["content"][-1]["text"]:
            return says("safe")
        thought.wait(30.0)
        return says('{"subgoals": ["lift"]}')

    with server(script) as (url, asked), engine(url, timeout_s=30.0) as model:
        plans: list[EngineReply] = []
        planning = threading.Thread(target=lambda: plans.append(only(model.infer([request(SYSTEM2)]))))
        planning.start()
        try:
            assert only(model.infer([request(SAFETY)])).verdict == "safe"
            assert not plans
        finally:
            thought.set()
            planning.join()
        assert plans[0].text == "lift" and len(asked) == 2


def test_a_judge_is_asked_with_its_words_and_the_images_as_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    logprobs = {"content": [{"token": "un", "logprob": -0.1}, {"token": "safe", "logprob": -0.1}]}
    with (
        server(lambda body, i: says("unsafe", logprobs=logprobs)) as (url, asked),
        engine(url, api_key_env="JUDGE_KEY", extra={"top_k": 1}) as judge,
    ):
        reply = only(judge.infer([request()]))
    ((body, headers),) = asked
    assert (reply.verdict, reply.score) == ("unsafe", pytest.approx(math.exp(-0.2)))
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert body["response_format"]["json_schema"]["schema"]["properties"]["verdict"]["enum"] == ["safe", "unsafe"]
    assert (body["model"], body["logprobs"], body["top_k"]) == ("judge", True, 1)
    name, picture, question = body["messages"][1]["content"]
    assert name["text"] == "Camera front:"
    assert base64.b64decode(picture["image_url"]["url"].removeprefix("data:image/jpeg;base64,")) == JPEG
    assert question["text"].startswith("stack the boxes. Is the workcell safe?") and "safe, unsafe" in question["text"]


def test_raw_images_are_compressed_once() -> None:
    raw = np.full((16, 24, 3), 200, np.uint8)
    encoded = EncodedImage(camera="front", format="rgb8", data=raw.tobytes(), height_px=16, width_px=24)
    with server(lambda body, i: says("safe")) as (url, asked), engine(url) as judge:
        for image in (raw, encoded):
            judge.infer([replace(request(), images={"front": image})])
    for body, _ in asked:
        data = body["messages"][1]["content"][1]["image_url"]["url"].partition(",")[2]
        np.testing.assert_allclose(simplejpeg.decode_jpeg(base64.b64decode(data)), raw, atol=3)


def test_system_2_plans_by_schema() -> None:
    plan = '{"subgoals": ["open the drawer", "close it"]}'
    with server(lambda body, i: says(plan)) as (url, asked), engine(url) as planner:
        assert only(planner.infer([request(SYSTEM2)])).text == "open the drawer\nclose it"
    body = asked[0][0]
    schema = body["response_format"]["json_schema"]["schema"]
    assert schema["properties"] == {"subgoals": {"type": "array", "items": {"type": "string"}}} and "logprobs" not in body
    assert '{"subgoals": [' in body["messages"][1]["content"][-1]["text"], "the prompt asks for what the schema allows"


def test_a_wrong_word_is_a_violation_and_keeps_its_text() -> None:
    with server(lambda body, i: says("perfectly fine")) as (url, _), engine(url) as judge:
        reply = only(judge.infer([request()]))
    assert (reply.verdict, reply.text) == ("", "perfectly fine")
    assert math.isnan(reply.score)


@pytest.mark.parametrize(
    "passing", [Turn(status=500), Turn(status=503), Turn(status=429, headers={"Retry-After": "0"}), Turn(status=0)]
)
def test_what_may_pass_is_tried_again(passing: Turn) -> None:
    with server(lambda body, i: passing if i < 2 else says("safe")) as (url, asked), engine(url) as judge:
        assert only(judge.infer([request()])).verdict == "safe"
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("turn", "tries", "problem"),
    [
        (Turn(status=401, body=f"wrong key {KEY}".encode()), 1, "status 401.*api_key_env"),
        (Turn(status=404), 1, "status 404.*base_url.*model"),
        (Turn(status=500, body=b"Traceback /srv/model.py"), 3, "status 500"),
        (Turn(status=302, headers={"Location": "http://127.0.0.1:9/elsewhere"}), 1, "status 302"),
        (Turn(status=429, headers={"Retry-After": "3600"}), 1, "status 429"),
        (Turn(b"<html>busy</html>"), 1, "no chat completion"),
        (Turn(b'{"choices": []}'), 1, "no chat completion"),
        (Turn(b"[" * 100_000), 1, "no chat completion"),
        (Turn(b"x" * (MAX_ANSWER_BYTES + 1)), 1, "larger than 1 MB"),
    ],
)
def test_what_will_not_pass_fails_at_once_and_says_nothing_of_the_server(turn: Turn, tries: int, problem: str) -> None:
    with server(lambda body, i: turn) as (url, asked), engine(url) as judge, pytest.raises(ModelError, match=problem) as raised:
        judge.infer([request()])
    assert len(asked) == tries
    assert not any(secret in str(raised.value) for secret in (KEY, "127.0.0.1", "Traceback", "html"))


def test_without_a_server_it_says_so() -> None:
    with engine("http://127.0.0.1:9/v1") as judge, pytest.raises(ModelError, match="the connection failed"):
        judge.infer([request()])


@pytest.mark.parametrize("slow", [Turn(first_s=1.0), Turn(body=b" " * 50, byte_s=0.02), Turn(status=503, first_s=0.15)])
def test_no_answer_is_waited_for_longer_than_its_timeout(slow: Turn) -> None:
    """Be it slow to begin, slow to end, or slow to fail, again and again."""
    late = pytest.raises(ModelError, match=r"no answer within 0\.2 s")
    with server(lambda body, i: slow) as (url, _), engine(url, timeout_s=0.2) as judge, late:
        judge.infer([request()])


def test_one_request_that_fails_does_not_lose_the_others() -> None:
    def script(body: dict[str, Any], number: int) -> Turn:
        return Turn(status=400) if "poison" in body["messages"][1]["content"][-1]["text"] else says("safe")

    with server(script) as (url, _), engine(url) as judge:
        first, second, third, fourth = judge.infer([request(), request(instruction="poison"), request("nobody"), request(MONITOR)])
    assert isinstance(first, EngineReply) and first.verdict == "safe"
    assert isinstance(second, ModelError) and "400" in str(second)
    assert isinstance(third, ModelError) and "'nobody'" in str(third)
    assert isinstance(fourth, EngineReply) and fourth.verdict == ""  # "safe" is none of the monitor's words


def test_a_batch_is_asked_at_once() -> None:
    together = threading.Barrier(4)

    def script(body: dict[str, Any], number: int) -> Turn:
        together.wait(timeout=60.0)  # broken, and the request fails, unless all four are here
        return says("safe")

    with server(script) as (url, _), engine(url, timeout_s=120.0) as judge:
        assert [only([answer]).verdict for answer in judge.infer([request()] * 4)] == ["safe"] * 4


@pytest.mark.parametrize(
    ("unknown", "settled"),
    [
        (set(), ("json_schema", True)),
        ({"logprobs"}, ("json_schema", False)),
        ({"response_format"}, ("none", True)),
        ({"response_format", "logprobs"}, ("none", False)),
    ],
)
def test_it_settles_on_what_the_server_understands(unknown: set[str], settled: tuple[str, bool]) -> None:
    with server(lambda body, i: Turn(status=400) if unknown & body.keys() else says("safe")) as (url, asked), engine(url) as judge:
        judge.warm_up()
        assert (judge.dialect.constraint, judge.dialect.logprobs) == settled
        num_warming = len(asked)
        judge.infer([request()])
        assert len(asked) == num_warming + 1
        assert not unknown & asked[-1][0].keys()


def test_a_server_that_takes_a_constraint_and_pays_no_heed_is_found_out() -> None:
    def script(body: dict[str, Any], number: int) -> Turn:
        return says("let me see ..." if "response_format" in body else "safe")

    with server(script) as (url, _), engine(url) as judge:
        judge.warm_up()
        assert judge.dialect.constraint == "none"
    kept = pytest.raises(ModelError, match=r"'let me see \.\.\.'.*none of safe, unsafe.*constraint")
    with server(lambda body, i: says("let me see ...")) as (url, _), engine(url, constraint="choice") as judge, kept:
        judge.warm_up()


def test_a_judge_none_of_whose_first_answers_is_a_word_is_not_ready() -> None:
    """With what it answered in the message, which names what helps."""
    kept = pytest.raises(ModelError, match=r"no answer at warm-up is one of the words safe, unsafe: 'The cell is clear'")
    with server(lambda body, i: says("The cell is clear")) as (url, _), engine(url) as judge, kept as raised:
        judge.warm_up()
    assert raised.value.is_public and "enable_thinking" in str(raised.value)


def test_what_was_asked_for_is_never_given_up_in_silence() -> None:
    def script(body: dict[str, Any], number: int) -> Turn:
        return Turn(status=422) if "response_format" in body else says("safe")

    refused = pytest.raises(ModelError, match="status 422")
    with server(script) as (url, _), engine(url, constraint="json_schema") as judge, refused:
        judge.warm_up()


def test_the_model_server_counts_violations_and_failures() -> None:
    turns = [says("safe"), says("all good"), Turn(status=400)]
    with server(lambda body, i: turns[i]) as (url, _), engine(url) as judge:
        model_server = ModelServer(ServerConfig(name="s1"), judge)
        grant = model_server.open_session(SessionRequest(robot="r1", component=SAFETY, cameras=("front",)))
        replies = []
        for sequence in (1, 2, 3):
            identity = RequestId(robot="r1", component=SAFETY, session_epoch=grant.session_epoch, episode=1, sequence=sequence)
            images = (EncodedImage(camera="front", format="jpeg", data=JPEG),)
            asked = ObservationRequest(id=identity, stamp_ns=0, instruction="Safe?", state=empty(0), images=images)
            model_server.submit(asked, float(sequence))
            replies += model_server.loop.step(lambda: 10.0)
    assert [reply.verdict for reply in replies] == ["safe", ""]  # type: ignore[union-attr]
    assert dict(model_server.refused) == {"verdict_violation": 1, "engine_error": 1}
    assert "400" in model_server.problems["engine_error"]
