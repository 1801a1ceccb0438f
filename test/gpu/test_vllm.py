"""vLLM in process, with a tiny random vision-language model: verdicts, plans, a request that it does not take, an engine that dies.

What the engine asks of vLLM is held against vLLM's source by `test/unit/engines/test_vllm.py`, everywhere.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from lab.benchmarks.gpu import vlm
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.types import MONITOR, SAFETY, SYSTEM2, EngineReply, InferenceRequest, RequestId, empty

needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed here (its wheel wants CUDA)")
VERDICTS = {SAFETY: ["safe", "unsafe"], MONITOR: ["ongoing", "done", "failed"]}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vlm.save(tmp_path_factory.mktemp("tiny_vlm"))


def test_the_tiny_model_sees_an_image_and_speaks(checkpoint: Path, device: str) -> None:
    """Without vLLM: that its files are whole."""
    from PIL import Image
    from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration, Qwen2VLImageProcessor

    tokenizer, processor = AutoTokenizer.from_pretrained(checkpoint), Qwen2VLImageProcessor.from_pretrained(checkpoint)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(checkpoint).to(device)
    seen = processor(images=[Image.new("RGB", (112, 84), "red")], return_tensors="pt").to(device)
    places = int(seen["image_grid_thw"].prod()) // 4
    said = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "safe?"}]}]
    text = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    assert text.count("<|image_pad|>") == 1
    tokens = tokenizer(text.replace("<|image_pad|>", "<|image_pad|>" * places), return_tensors="pt").to(device)
    out = model.generate(
        **tokens, pixel_values=seen["pixel_values"].to(model.dtype), image_grid_thw=seen["image_grid_thw"], max_new_tokens=4
    )
    assert out.shape[1] > tokens["input_ids"].shape[1]


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[Engine]:
    made = _built(checkpoint)
    yield made
    made.close()


def _built(checkpoint: Path) -> Engine:
    options = {
        "model": str(checkpoint),
        "verdicts": VERDICTS,
        "max_tokens": 16,
        "timeout_s": 60.0,
        "llm": {"max_model_len": 2048, "gpu_memory_utilization": 0.2, "enforce_eager": True},
    }
    entry = CatalogueEntry(engine="vllm", output="judgement", cameras=("front",), options=options)
    spec = EngineSpec(
        model="tiny", entry=entry, models_folder=checkpoint.parent, profile=Profile({}), gpu_type="GPU", wait=time.sleep
    )
    made = build_engine(spec)
    made.warm_up()
    return made


def _request(component: str, instruction: str, number: int = 1) -> InferenceRequest:
    return InferenceRequest(
        id=RequestId(robot="r", component=component, session_epoch=1, episode=1, sequence=number),
        instruction=instruction,
        state=np.zeros(0, np.float32),
        images={"front": np.full((84, 112, 3), 40 * number % 255, np.uint8)},
        inference_delay_steps=0,
        prefix_model=empty(0, 0),
    )


@needs_vllm
def test_verdicts_are_words_and_plans_are_text(engine: Engine) -> None:
    answers = engine.infer([_request(SAFETY, "is it safe?"), _request(MONITOR, "done?"), _request(SYSTEM2, "what next?")])
    assert all(isinstance(answer, EngineReply) for answer in answers), answers
    safety, monitor, plan = answers
    assert isinstance(safety, EngineReply) and safety.verdict in VERDICTS[SAFETY] and 0 <= safety.score <= 1
    assert isinstance(monitor, EngineReply) and monitor.verdict in ("", *VERDICTS[MONITOR])
    assert isinstance(plan, EngineReply) and plan.text.strip() and not plan.verdict, "random words, and some"


@needs_vllm
def test_a_request_that_it_does_not_take_costs_itself_alone(engine: Engine) -> None:
    answers = engine.infer([_request(SAFETY, "safe?"), _request(SAFETY, "much too long " * 2000, 2), _request(SAFETY, "safe?", 3)])
    assert isinstance(answers[1], ModelError) and "does not take" in str(answers[1])
    assert isinstance(answers[0], EngineReply) and isinstance(answers[2], EngineReply) and not engine.is_dead


@needs_vllm
def test_an_engine_whose_core_is_killed_is_dead_and_says_so(checkpoint: Path) -> None:
    before = {child.pid for child in multiprocessing.active_children()}
    made = _built(checkpoint)
    try:
        cores = [child.pid for child in multiprocessing.active_children() if child.pid not in before and child.pid]
        assert cores and not made.is_dead
        for core in cores:
            os.kill(core, signal.SIGKILL)
        ends_s = time.monotonic() + 60
        while not made.is_dead and time.monotonic() < ends_s:
            time.sleep(0.1)
        assert made.is_dead
        (answer,) = made.infer([_request(SAFETY, "safe?")])
        assert isinstance(answer, ModelError) and "dead" in str(answer)
    finally:
        made.close()
