"""The `openai` engine against llama.cpp's own server with a tiny random model that sees: every part but sense is real."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import xllamacpp

from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.engines.text.openai import OpenAIEngine
from ros2_rfm_serving.errors import ModelError
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
    JudgeVerdict,
    ObservationRequest,
    RequestId,
    SessionRequest,
    empty,
)
from test.engines import tiny_gguf

KEY = "right"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    language, vision = tiny_gguf.write(tmp_path_factory.mktemp("model"))
    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.mmproj.path = str(language), str(vision)
    parameters.mmproj_use_gpu = parameters.warmup = False
    parameters.n_ctx, parameters.n_parallel = 8192, 4
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.hostnames, parameters.port, parameters.api_keys = ["127.0.0.1"], 0, [KEY]
    server = xllamacpp.Server(parameters)
    yield f"{server.listening_address}/v1"
    del server


Make = Callable[..., OpenAIEngine]


@pytest.fixture
def make(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setenv("RIGHT_KEY", KEY)
    monkeypatch.setenv("WRONG_KEY", "wrong")
    made: list[OpenAIEngine] = []

    def engine(output: str = "judgement", **options: Any) -> OpenAIEngine:
        options = {"base_url": address, "api_key_env": "RIGHT_KEY", "timeout_s": 60.0, **options}
        entry = CatalogueEntry(engine="openai", output=output, cameras=("front", "wrist"), options=options)
        spec = EngineSpec(model="tiny", entry=entry, models_folder=Path(), profile=Profile({}), gpu_type="CPU", wait=time.sleep)
        built = build_engine(spec)
        assert isinstance(built, OpenAIEngine)
        made.append(built)
        return built

    yield engine
    for built in made:
        built.close()


def images(seed: int) -> tuple[EncodedImage, ...]:
    pixels = np.random.default_rng(seed).integers(0, 255, (96, 128, 3), np.uint8)
    jpeg = simplejpeg.encode_jpeg(pixels, quality=90, colorspace="RGB")
    return tuple(EncodedImage(camera=camera, format="jpeg", data=jpeg) for camera in ("wrist", "front"))


def request(
    component: str = SAFETY, seed: int = 0, instruction: str = "Stack the boxes. Is the workcell safe?"
) -> InferenceRequest:
    return InferenceRequest(
        id=RequestId(robot="r1", component=component, session_epoch=1, episode=1, sequence=1),
        instruction=instruction,
        state=empty(0),
        images={image.camera: image for image in images(seed)},
        inference_delay_steps=0,
        prefix_model=empty(0, 0),
    )


def replies(answers: list[EngineReply | ModelError]) -> list[EngineReply]:
    assert all(isinstance(answer, EngineReply) for answer in answers), answers
    return [answer for answer in answers if isinstance(answer, EngineReply)]


def test_a_real_grammar_keeps_a_random_model_to_each_components_words(make: Make) -> None:
    judge = make()
    judge.warm_up()
    assert (judge.dialect.constraint, judge.dialect.logprobs) == ("json_schema", True)
    components = [SAFETY, MONITOR] * 4
    for component, reply in zip(
        components, replies(judge.infer([request(c, seed) for seed, c in enumerate(components)])), strict=True
    ):
        assert reply.verdict in (("safe", "unsafe") if component == SAFETY else ("ongoing", "done", "failed")), reply.text
        assert 0.0 < reply.score <= 1.0


def test_calls_from_several_threads_get_each_its_own_answer(make: Make) -> None:
    """As a model server asks: `max_concurrent` calls of one request each, and so more than llama.cpp runs at once."""
    judge = make()
    judge.warm_up()
    asked = [request(component, seed) for seed in (1, 2, 3, 4) for component in (SAFETY, MONITOR)]
    alone = [replies(judge.infer([each]))[0] for each in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        together = [replies(answer)[0] for answer in pool.map(lambda each: judge.infer([each]), asked)]
    for each, one, other in zip(asked, alone, together, strict=True):
        assert other.verdict in (("safe", "unsafe") if each.id.component == SAFETY else ("ongoing", "done", "failed"))
        assert (other.verdict, other.score) == (one.verdict, pytest.approx(one.score, rel=0.05))


def test_what_the_cameras_show_reaches_the_model(make: Make) -> None:
    judge = make()
    judge.warm_up()
    scores = [replies(judge.infer([request(seed=seed)]))[0].score for seed in (1, 2, 1)]
    assert scores[0] == pytest.approx(scores[2], rel=1e-3)
    assert scores[0] != pytest.approx(scores[1], rel=1e-3)


def test_left_to_itself_it_says_none_of_the_words(make: Make) -> None:
    (reply,) = replies(make(constraint="none", logprobs=False, max_tokens=16).infer([request()]))
    assert reply.verdict == ""


def test_a_plan_comes_as_subgoals(make: Make) -> None:
    grammar = r'root ::= "1. open the drawer\n2. put the cube in"'
    (reply,) = replies(make(constraint="none", extra={"grammar": grammar}).infer([request(SYSTEM2)]))
    assert reply.text == "open the drawer\nput the cube in"
    with pytest.raises(ModelError, match="cut off"):
        make(constraint="none", extra={"grammar": grammar}, max_tokens=5).infer([request(SYSTEM2)])


@pytest.mark.parametrize("thought", ["hm", "", "1. drop it"])
def test_thoughts_are_no_plan_with_the_real_servers_own_reading_of_them(make: Make, thought: str) -> None:
    """llama.cpp takes thoughts out of the text where it knows the model's template, and leaves them in where it does not."""
    planner = make(constraint="none", extra={"grammar": rf'root ::= "<think>{thought}</think>1. open the drawer"'})
    assert replies(planner.infer([request(SYSTEM2)]))[0].text == "open the drawer"
    for unclosed in (f"<think>{thought}", f"<think>{thought}\\n1. drop it"):
        with pytest.raises(ModelError, match=r"thoughts|no text"):
            make(constraint="none", extra={"grammar": rf'root ::= "{unclosed}"'}).infer([request(SYSTEM2)])


def test_a_real_grammar_keeps_a_random_planner_to_the_schema(make: Make) -> None:
    """Its subgoals are noise: each answer is a list of them, or was refused. llama.cpp itself answers with 500 where noise does not
    fit the form in which it reads a chat's answers."""
    planner = make(output="plan")
    planner.warm_up()
    assert planner.dialect.constraint == "json_schema"
    for seed in range(6):
        try:
            (answer,) = planner.infer([request(SYSTEM2, seed)])
        except ModelError as error:
            answer = error
        assert isinstance(answer, EngineReply) or re.search("the answer is no plan|status 500", str(answer))


def test_a_key_that_is_wrong_is_said_at_start_up(make: Make) -> None:
    with pytest.raises(ModelError, match=r"status 401.*api_key_env"):
        make(api_key_env="WRONG_KEY").warm_up()


def test_a_path_that_is_wrong_is_said_at_start_up(make: Make, address: str) -> None:
    with pytest.raises(ModelError, match=r"status 404.*base_url"):
        make(base_url=f"{address}/nowhere").warm_up()


def test_one_request_that_is_too_long_does_not_lose_the_others(make: Make) -> None:
    judge = make()
    judge.warm_up()
    first, second, third = judge.infer([request(), request(instruction="word " * 2000), request(MONITOR)])
    assert isinstance(first, EngineReply) and isinstance(third, EngineReply)
    assert isinstance(second, ModelError) and "status 400" in str(second)


def test_after_a_timeout_the_next_request_is_answered(make: Make) -> None:
    endless = make(constraint="none", logprobs=False, max_tokens=2000, timeout_s=0.2, extra={"ignore_eos": True})
    with pytest.raises(ModelError, match="no answer within"):
        endless.infer([request()])
    judge = make()
    judge.warm_up()
    assert replies(judge.infer([request()]))[0].verdict


def test_a_robots_verdict_through_the_model_server(make: Make) -> None:
    judge = make()
    judge.warm_up()
    server = ModelServer(ServerConfig(name="s1", batch_size=2), judge)
    for robot in ("r1", "r2"):
        grant = server.open_session(SessionRequest(robot=robot, component=SAFETY, cameras=("front", "wrist")))
        identity = replace(request().id, robot=robot, session_epoch=grant.session_epoch)
        asked = ObservationRequest(id=identity, stamp_ns=0, instruction="Safe?", state=empty(0), images=images(3))
        server.submit(asked, 1.0)
    verdicts = [reply.verdict for reply in server.loop.step(lambda: 2.0) if isinstance(reply, JudgeVerdict)]
    assert len(verdicts) == 2 and set(verdicts) <= {"safe", "unsafe"}
    assert not server.refused
