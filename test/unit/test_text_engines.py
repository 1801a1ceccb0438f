"""Text models: words and plans, an OpenAI-compatible server that misbehaves, and vLLM behind its import."""

from __future__ import annotations

import base64
import json
import math
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

from ros2_rfm_serving.engines import text
from ros2_rfm_serving.engines.chat_client import MAX_ANSWER_BYTES
from ros2_rfm_serving.engines.openai import OpenAIEngine
from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.engines.text import Completion, TextOptions, probability_of, reply_of, verdict_of
from ros2_rfm_serving.errors import ConfigurationError, ModelError
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.types import (
    MONITOR,
    SAFETY,
    SYSTEM2,
    EncodedImage,
    EngineReply,
    InferenceRequest,
    ObservationRequest,
    RequestId,
    SessionRequest,
    empty,
)

WORDS = ("safe", "unsafe")
JPEG = simplejpeg.encode_jpeg(np.full((16, 24, 3), 90, np.uint8), colorspace="RGB")
KEY = "sk-secret"


# --- words and plans --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said", ["safe", "Safe.", "  SAFE\n", "**safe.**", '"safe"', "<safe>", '{"verdict": "safe"}', '{ "verdict" : "Safe" }']
)
def test_a_word_is_known_by_itself_whatever_its_case_and_wrapping(said: str) -> None:
    assert verdict_of(said, WORDS) == "safe"


@pytest.mark.parametrize(
    "said",
    [
        "",
        "not safe",
        "safe, I think",
        "unsafe or safe",
        "safe unsafe",
        "!safe",
        "-safe",
        "~safe",
        "safe?",
        "safe*",
        "safe...",
        "<safe",
        "un(safe)",
        "safest",
        "in safe",
        '{"verdict": "safe", "but": "unsafe"}',
        '{"verdict": "unsafe", "verdict": "safe"}',
        '{"verdict": ["safe"]}',
        '{"verdict": "fine"}',
        "[" * 100_000,
    ],
)
def test_anything_else_is_no_verdict(said: str) -> None:
    assert verdict_of(said, WORDS) == ""


def test_a_verdict_that_was_cut_off_is_none() -> None:
    """It may have been about to become "safe only if nobody comes nearer"."""
    reply = reply_of(TextOptions(), SAFETY, Completion(text="safe", ended=False))
    assert (reply.verdict, reply.text) == ("", "safe")


def test_the_score_is_the_probability_of_the_words_own_tokens() -> None:
    tokens = (('{"', -9.0), ("verdict", -9.0), ('": "', -9.0), ("un", math.log(0.5)), ("safe", math.log(0.5)), ('"}', -9.0))
    assert probability_of("unsafe", tokens) == pytest.approx(0.25)
    assert math.isnan(probability_of("unsafe", ()))
    assert math.isnan(probability_of("", tokens))


def test_a_plan_has_one_bare_subgoal_per_line() -> None:
    said = "Here is the plan:\n\n1. Open the drawer\n 2) **pick up the 2 red cubes**\n- move 1.5 cm left\nStep 4: close it"
    reply = reply_of(TextOptions(), SYSTEM2, Completion(text=said, ended=True))
    assert reply.text.splitlines() == ["Open the drawer", "pick up the 2 red cubes", "move 1.5 cm left", "close it"]


def test_a_subgoal_that_was_cut_off_never_reaches_a_robot() -> None:
    said = "open the drawer\nput the knife into the"
    assert reply_of(TextOptions(), SYSTEM2, Completion(text=said, ended=False)).text == "open the drawer"
    with pytest.raises(ModelError, match="cut off"):
        reply_of(TextOptions(), SYSTEM2, Completion(text="put the knife into the", ended=False))
    with pytest.raises(ModelError, match="no subgoal"):
        reply_of(TextOptions(), SYSTEM2, Completion(text=" \n", ended=True))
    endless = reply_of(TextOptions(), SYSTEM2, Completion(text="go on\n" * 10_000, ended=True))
    assert len(endless.text) <= text.MAX_TEXT_CHARACTERS


# --- options ----------------------------------------------------------------------------------------------------------------


def entry(engine: str = "openai", output: str = "judgement", cameras: tuple[str, ...] = ("front",), **options: Any) -> EngineSpec:
    if engine == "openai":
        options = {"base_url": "http://127.0.0.1:9/v1", "timeout_s": 5.0, **options}
    return EngineSpec(
        model="judge",
        entry=CatalogueEntry(engine=engine, output=output, cameras=cameras, options=options),
        models_folder=Path(),
        profile=Profile({}),
        gpu_type="CPU",
        wait=time.sleep,
    )


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
        build_engine(entry(**options))
    assert KEY not in str(raised.value)


def test_an_action_model_is_no_text_model() -> None:
    with pytest.raises(ConfigurationError, match=r"models\.judge\.output: .*output: judgement"):
        build_engine(entry(output="action_chunk"))


def test_the_hash_is_of_what_shapes_an_answer() -> None:
    one, moved, other = entry(), entry(base_url="http://gpu-3/v1", timeout_s=1.0), entry(temperature=1.0)
    hashes = [build_engine(spec).contract.model_hash for spec in (one, moved, other)]
    assert hashes[0] == hashes[1] != hashes[2]


# --- a server that misbehaves -----------------------------------------------------------------------------------------------


@dataclass
class Turn:
    """What the server does with one request."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    first_s: float = 0.0
    """Before it answers."""
    byte_s: float = 0.0
    """Between bytes."""


def says(content: str | None, finish: str = "stop", **more: Any) -> Turn:
    return Turn(json.dumps({"choices": [{"message": {"content": content}, "finish_reason": finish, **more}]}).encode())


Script = Callable[[dict[str, Any], int], Turn]


@contextmanager
def server(script: Script) -> Iterator[tuple[str, list[tuple[dict[str, Any], dict[str, str]]]]]:
    """Its address, and what it was asked: body and headers. `script` sees the body and how many requests came before."""
    asked: list[tuple[dict[str, Any], dict[str, str]]] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(asked)
                asked.append((body, dict(self.headers)))
            turn = script(body, number)
            time.sleep(turn.first_s)
            try:
                self._send(turn)
            except OSError:
                self.close_connection = True  # the client gave up

        def _send(self, turn: Turn) -> None:
            if turn.status == 0:
                self.close_connection = True
                return
            self.send_response(turn.status)
            for name, value in {"Content-Length": str(len(turn.body)), **turn.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            for i in range(0, len(turn.body), step := 1 if turn.byte_s else max(len(turn.body), 1)):
                self.wfile.write(turn.body[i : i + step])
                self.wfile.flush()
                time.sleep(turn.byte_s)

        def log_message(self, format: str, *args: Any) -> None: ...

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/v1", asked
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


@contextmanager
def engine(url: str, **options: Any) -> Iterator[OpenAIEngine]:
    built = build_engine(entry(base_url=url, **options))
    assert isinstance(built, OpenAIEngine)
    try:
        yield built
    finally:
        built.close()


def request(component: str = SAFETY, instruction: str = "stack the boxes. Is the workcell safe?") -> InferenceRequest:
    return InferenceRequest(
        id=RequestId(robot="r1", component=component, session_epoch=1, episode=1, sequence=1),
        instruction=instruction,
        state=empty(0),
        images={"front": EncodedImage(camera="front", format="jpeg", data=JPEG)},
        inference_delay_steps=0,
        prefix_model=empty(0, 0),
    )


def only(answers: list[EngineReply | ModelError]) -> EngineReply:
    (answer,) = answers
    assert isinstance(answer, EngineReply)
    return answer


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
            judge.infer(
                [InferenceRequest(**{**{n: getattr(request(), n) for n in request().__slots__}, "images": {"front": image}})]
            )
    for body, _ in asked:
        data = body["messages"][1]["content"][1]["image_url"]["url"].partition(",")[2]
        np.testing.assert_allclose(simplejpeg.decode_jpeg(base64.b64decode(data)), raw, atol=3)


def test_system_2_plans_without_constraint() -> None:
    with server(lambda body, i: says("1. open the drawer\n2. close it")) as (url, asked), engine(url) as planner:
        assert only(planner.infer([request(SYSTEM2)])).text == "open the drawer\nclose it"
    assert "response_format" not in asked[0][0] and "logprobs" not in asked[0][0]


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
        together.wait(timeout=4.0)  # broken, and the request fails, unless all four are here
        return says("safe")

    with server(script) as (url, _), engine(url) as judge:
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
    with server(lambda body, i: says("let me see ...")) as (url, _), engine(url) as judge:
        judge.warm_up()
        assert judge.dialect.constraint == "none"
    kept = pytest.raises(ModelError, match=r"none of the words.*constraint")
    with server(lambda body, i: says("let me see ...")) as (url, _), engine(url, constraint="choice") as judge, kept:
        judge.warm_up()


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
            replies += model_server.step(lambda: 10.0)
    assert [reply.verdict for reply in replies] == ["safe", ""]  # type: ignore[union-attr]
    assert dict(model_server.refused) == {"verdict_violation": 1, "engine_error": 1}
    assert "400" in model_server.last_engine_error


# --- vLLM -------------------------------------------------------------------------------------------------------------------


@dataclass
class Parameters:
    """`SamplingParams` and `StructuredOutputsParams` of the fake."""

    max_tokens: int = 0
    temperature: float = 0.0
    seed: int = 0
    logprobs: int | None = None
    structured_outputs: Any = None
    choice: list[str] | None = None


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A `vllm` module whose model says what stands after `say:` in the question."""

    class LLM:
        def __init__(self, **arguments: Any) -> None:
            fake.arguments = arguments  # type: ignore[attr-defined]

        def chat(self, chats: list[Any], sampling: list[Parameters], use_tqdm: bool) -> list[Any]:
            fake.chats, fake.sampling = chats, sampling  # type: ignore[attr-defined]
            questions = [chat[1]["content"][-1]["text"] for chat in chats]
            if any("too long" in question for question in questions):
                raise ValueError("The decoder prompt is longer than the maximum model length")
            said = [question.partition("say:")[2].partition("\nAnswer")[0] for question in questions]
            return [types.SimpleNamespace(outputs=[self._written(word, p)]) for word, p in zip(said, sampling, strict=True)]

        def _written(self, word: str, sampling: Parameters) -> Any:
            entry = types.SimpleNamespace(logprob=math.log(0.5), decoded_token=word)
            logprobs = [{7: entry}] if sampling.logprobs is not None else None
            return types.SimpleNamespace(text=word, finish_reason="stop", token_ids=[7], logprobs=logprobs)

    fake, parameters = types.ModuleType("vllm"), types.ModuleType("vllm.sampling_params")
    fake.LLM, fake.SamplingParams = LLM, Parameters  # type: ignore[attr-defined]
    parameters.StructuredOutputsParams = Parameters  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", fake)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", parameters)
    return fake


def decoded(component: str, instruction: str) -> InferenceRequest:
    made = request(component, instruction)
    return InferenceRequest(
        id=made.id,
        instruction=instruction,
        state=made.state,
        images={"front": np.zeros((16, 24, 3), np.uint8)},
        inference_delay_steps=0,
        prefix_model=made.prefix_model,
    )


def test_vllm_runs_a_batch_with_each_components_own_words(fake_vllm: Any) -> None:
    model = build_engine(entry("vllm", model="Qwen/Qwen2.5-VL-3B-Instruct", llm={"max_model_len": 4096}))
    model.warm_up()
    answers = model.infer([decoded(SAFETY, "say:safe"), decoded(MONITOR, "say:safe"), decoded(SYSTEM2, "say:1. go\n2. stop")])
    safety, monitor, plan = (only([answer]) for answer in answers)
    assert (safety.verdict, safety.score, monitor.verdict, plan.text) == ("safe", pytest.approx(0.5), "", "go\nstop")
    kept = [p.structured_outputs.choice if p.structured_outputs else None for p in fake_vllm.sampling]
    assert kept == [["safe", "unsafe"], ["ongoing", "done", "failed"], None]
    assert fake_vllm.arguments == {
        "model": "Qwen/Qwen2.5-VL-3B-Instruct",
        "seed": 0,
        "max_num_seqs": 64,
        "limit_mm_per_prompt": {"image": 1},
        "max_model_len": 4096,
    }
    assert fake_vllm.chats[0][1]["content"][1]["image_pil"].size == (24, 16)


def test_vllm_runs_the_others_when_one_request_does_not_fit(fake_vllm: Any) -> None:
    model = build_engine(entry("vllm"))
    fits, long, nobody = model.infer([decoded(SAFETY, "say:unsafe"), decoded(SAFETY, "too long"), decoded("nobody", "say:safe")])
    assert only([fits]).verdict == "unsafe"
    assert isinstance(long, ModelError) and "does not take" in str(long)
    assert isinstance(nobody, ModelError) and "'nobody'" in str(nobody)


def test_vllm_that_is_missing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ModelError, match=r"pip install 'ros2-rfm-serving\[vllm\]'"):
        build_engine(entry("vllm"))
