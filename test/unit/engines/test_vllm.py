"""The `vllm` engine on a stub of vLLM, and the stub against what vLLM's source says."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.registry import build_engine
from ros2_rfm_serving.errors import ConfigurationError, ModelError, UnusableAnswerError
from ros2_rfm_serving.types import MONITOR, SAFETY, SYSTEM2, InferenceRequest
from test.unit.engines.chat_server import only, request, spec
from test.unit.engines.vllm_signatures import STUB, signatures

RECORDED = Path(__file__).parent / "vllm_0_33_0.json"
"""As `vllm_signatures.py` reads it from the source of that release."""


# --- the stub ---------------------------------------------------------------------------------------------------------------


def test_the_stub_has_nothing_that_vllm_has_not() -> None:
    real = json.loads(RECORDED.read_text())
    for file, symbols in signatures(STUB).items():
        for symbol, stub in symbols.items():
            _is_like(f"{file}: {symbol}", stub, real[file][symbol])


def _is_like(what: str, stub: Any, real: Any) -> None:
    assert real is not None, f"{what}: vLLM has none"
    if "is" in stub or "members" not in stub:
        return _takes(what, stub, real) if "positional" in stub else _same(what, stub, real)
    assert not stub["bases"] or stub["bases"] == real["bases"], what
    assert "Exception" not in str(real["bases"]) or stub["bases"] == real["bases"], what
    for name, member in stub["members"].items():
        there = real["members"][name]
        assert there is not None, f"{what}.{name}: vLLM has none"
        if isinstance(member, dict):
            _takes(f"{what}.{name}", member, there)
    return None


def _same(what: str, stub: Any, real: Any) -> None:
    assert stub == real, what


def _takes(what: str, stub: dict[str, Any], real: dict[str, Any]) -> None:
    """What is called on the stub can be called on vLLM, and nothing is left out that vLLM needs."""
    for kind in ("async", "yields", "property"):
        assert stub[kind] == real[kind], f"{what}: {kind}"
    assert list(stub["positional"]) == list(real["positional"])[: len(stub["positional"])], what
    assert stub["keyword"].keys() <= real["keyword"].keys(), what
    needed = [name for arguments in (real["positional"], real["keyword"]) for name, optional in arguments.items() if not optional]
    assert {*needed} <= {*stub["positional"], *stub["keyword"]}, f"{what} needs {needed}"


def test_a_check_that_sees_nothing_would_be_none() -> None:
    real = json.loads(RECORDED.read_text())
    generate = real["vllm/v1/engine/async_llm.py"]["AsyncLLM"]["members"]["generate"]
    with pytest.raises(AssertionError, match="needs"):
        _takes("generate", {**generate, "positional": {"self": False, "prompt": False}}, generate)
    with pytest.raises(AssertionError, match="yields"):
        _takes("generate", {**generate, "yields": False}, generate)
    assert real["vllm/exceptions.py"]["VLLMClientError"]["bases"] == ["VLLMError"], "no ValueError"


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(STUB))
    yield
    for name in [name for name in list(sys.modules) if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


@contextmanager
def started(**options: Any) -> Iterator[tuple[Engine, Any]]:
    """The engine, and the stub's `AsyncLLM` in it."""
    engine = build_engine(spec("vllm", **options))
    from vllm.v1.engine.async_llm import AsyncLLM

    try:
        yield engine, AsyncLLM.stub_made[-1]
    finally:
        engine.close()


def decoded(component: str, instruction: str) -> InferenceRequest:
    return replace(request(component, instruction), images={"front": np.zeros((16, 24, 3), np.uint8)})


# --- the engine -------------------------------------------------------------------------------------------------------------


def test_each_component_has_its_own_words_and_its_own_urgency(stubbed: None) -> None:
    with started(model="Qwen/Qwen2.5-VL-3B-Instruct", llm={"max_model_len": 4096}, max_concurrent=7) as (model, llm):
        model.warm_up()
        answers = model.infer([decoded(SAFETY, "say:safe"), decoded(MONITOR, "say:safe"), decoded(SYSTEM2, 'say:["go", "stop"]')])
        safety, monitor, plan = (only([answer]) for answer in answers)
    assert (safety.verdict, safety.score, monitor.verdict, plan.text) == ("safe", pytest.approx(0.5), "", "go\nstop")
    kept = [p.structured_outputs.choice or p.structured_outputs.json["required"] for p in llm.stub_sampling[-3:]]
    assert kept == [["safe", "unsafe"], ["ongoing", "done", "failed"], ["subgoals"]], "a plan is asked for by schema"
    assert not any(p.skip_special_tokens for p in llm.stub_sampling), "marks of thoughts may be special tokens"
    assert llm.stub_priorities[-3:] == [0, 1, 3], "safety before the monitor before plans"
    arguments = vars(llm.stub_arguments)
    assert (arguments["model"], arguments["max_num_seqs"], arguments["max_model_len"]) == ("Qwen/Qwen2.5-VL-3B-Instruct", 7, 4096)
    assert (arguments["limit_mm_per_prompt"], arguments["scheduling_policy"]) == ({"image": 1}, "priority")
    assert model.max_concurrent == model.max_batch_size == 7
    assert llm.renderer.stub_chats[-1][1]["content"][1]["image_pil"].size == (24, 16)


def test_thoughts_in_this_process_are_no_plan_and_the_log_says_what_turns_them_off(
    stubbed: None, caplog: pytest.LogCaptureFixture
) -> None:
    """A reasoning parser in `llm` lets the model think before the grammar holds; its marks stand in the text."""
    thought = "Okay, the user wants order. " * 4
    with started(llm={"reasoning_parser": "qwen3"}, chat_template_kwargs={"preserve": True}) as (model, llm):
        plan, cut_off, verdict = model.infer(
            [
                decoded(SYSTEM2, f'say:<thought>{thought}</thought>{{"subgoals": ["lift"]}}'),
                decoded(SYSTEM2, f"say:<thought>{thought}"),
                decoded(SAFETY, f"say:{thought}</thought>safe"),
            ]
        )
        assert llm.renderer.stub_chat_params.chat_template_kwargs["preserve"] is True
    assert only([plan]).text == "lift" and only([verdict]).verdict == "safe"
    assert isinstance(cut_off, UnusableAnswerError) and cut_off.is_cut_off
    assert caplog.text.count("thinks before it answers") == 1 and "enable_thinking: false" in caplog.text


@pytest.mark.parametrize(("spoiling", "said"), [("too long", "does not take.*VLLMValidationError"), ("break", "failed with")])
def test_one_request_that_fails_does_not_lose_the_others(stubbed: None, spoiling: str, said: str) -> None:
    with started() as (model, _):
        fits, spoilt, nobody = model.infer(
            [decoded(SAFETY, "say:unsafe"), decoded(SAFETY, spoiling), decoded("nobody", "say:safe")]
        )
    assert only([fits]).verdict == "unsafe"
    with pytest.raises(ModelError, match=said):
        raise spoilt  # type: ignore[misc]
    assert isinstance(nobody, ModelError) and "'nobody'" in str(nobody)


def test_a_verdict_waits_for_no_plan_and_a_late_plan_is_aborted(stubbed: None) -> None:
    late: list[Any] = []
    with started(timeout_s=1.0) as (model, llm):
        thread = threading.Thread(target=lambda: late.extend(model.infer([decoded(SYSTEM2, "think")])))
        thread.start()
        _until(lambda: llm.stub_sampling)
        assert only(model.infer([decoded(SAFETY, "say:safe")])).verdict == "safe" and not late
        thread.join()
    assert "no answer within 1 s" in str(late[0]) and len(llm.stub_aborted) == 1


def test_a_dead_engine_core_fails_what_it_had_and_is_told_before_anybody_asks(stubbed: None) -> None:
    lost: list[Any] = []
    with started(timeout_s=30.0) as (model, llm):
        thread = threading.Thread(target=lambda: lost.extend(model.infer([decoded(SYSTEM2, "think")])))
        thread.start()
        _until(lambda: llm.stub_sampling)
        assert not model.is_dead
        llm.stub_core.kill()
        _until(lambda: model.is_dead)
        thread.join(10.0)
        (after,) = model.infer([decoded(SAFETY, "say:safe")])
    for failed in (*lost, after):
        assert isinstance(failed, ModelError) and "core is dead" in str(failed)
    assert len(lost) == 1


def test_closing_ends_the_engine_core(stubbed: None) -> None:
    with started() as (_, llm):
        assert llm.stub_core.is_alive()
    assert not llm.stub_core.is_alive()


OWNER = """
import os, sys
sys.path[:0] = [{stub!r}, {root!r}]
from ros2_rfm_serving.engines.registry import build_engine
from test.unit.engines.chat_server import spec
engine = build_engine(spec("vllm"))
from vllm.v1.engine.async_llm import AsyncLLM
print(AsyncLLM.stub_made[-1].stub_core.pid, flush=True)
sys.stdin.read(1)
os._exit(70)
"""


@pytest.mark.parametrize("killed", [False, True])
def test_the_engine_core_does_not_outlive_a_process_that_a_watchdog_ends(repository: Path, killed: bool) -> None:
    """It would hold the GPU's memory, and the next process would find none."""
    code = OWNER.format(stub=str(STUB), root=str(repository))
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=repository)
    assert owner.stdin and owner.stdout
    core = int(owner.stdout.readline())
    assert _runs(core)
    if killed:
        owner.kill()
    else:
        owner.stdin.write("x")
        owner.stdin.flush()
    assert owner.wait(30) == (-9 if killed else 70)
    _until(lambda: not _runs(core))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _until(condition: Any, seconds: float = 30.0) -> None:
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_arguments_that_vllm_has_not_or_that_are_ours_are_named(stubbed: None) -> None:
    with pytest.raises(ConfigurationError, match=r"models\.judge\.options\.llm: .*max_modell_len"):
        build_engine(spec("vllm", llm={"max_modell_len": 1}))
    with pytest.raises(ConfigurationError, match=r"options\.llm: .*max_num_seqs: follows from other options"):
        build_engine(spec("vllm", llm={"max_num_seqs": 1}))


def test_vllm_that_is_missing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ModelError, match=r"pip install 'ros2-rfm-serving\[vllm\]'"):
        build_engine(spec("vllm"))
