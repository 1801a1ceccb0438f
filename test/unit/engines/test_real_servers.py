"""Answers of real text-model servers, as their sources write them, through the `openai` engine.

Read in: vLLM 0.33.0 (`vllm/entrypoints/openai/chat_completion/protocol.py`: `reasoning`; `v1/engine/__init__.py`: finish
reasons), llama.cpp (`tools/server/server-common.cpp`, `common/chat.cpp`: `reasoning_content`), SGLang 002e9bf
(`srt/parser/reasoning_parser.py`), Ollama fb30760 (`openai/openai.go`: `reasoning`, no `finish_reason` where it has none), TGI
db931fc (`router/src/lib.rs`: `eos_token`, `stop_sequence`), LMDeploy 1263d5c, Mistral's client 05629d2 (`ThinkChunk`,
`model_length`), OpenAI's client e43b422 (`refusal`, `content_filter`); LM Studio's tracker, issue 1773 (the answer stands in
the thoughts), public code that asks Gemini, Bedrock, Cohere and OpenRouter (reasons; `native_finish_reason`; Gemini's parts
with `thought`; the parts of Bedrock, a text with annotations and kinds in other letters were not read, they are variations);
messages of refusals as the trackers of OpenHands (1083), holoviz/lumen (1087) and LM Studio (169) have them.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from ros2_rfm_serving.engines.registry import build_engine
from ros2_rfm_serving.engines.text.chat_client import is_loopback
from ros2_rfm_serving.engines.text.completion import was_cut_off
from ros2_rfm_serving.engines.text.openai import OpenAIEngine
from ros2_rfm_serving.errors import ConfigurationError, ModelError, UnusableAnswerError
from ros2_rfm_serving.types import SAFETY, SYSTEM2, EngineReply
from test.unit.engines.chat_server import Script, Turn, engine, only, request, says, server, spec

THOUGHT = "Okay, the user wants the cup on the shelf."
SAFE, PLAN = '{"verdict": "safe"}', '{"subgoals": ["open the drawer", "put the cube in"]}'
SUBGOALS = "open the drawer\nput the cube in"


def completes(message: dict[str, Any], finish: Any = "stop", **choice: Any) -> Turn:
    answer = {"id": "1", "object": "chat.completion", "usage": {"total_tokens": 3}, "timings": {}}
    choices = [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish, **choice}]
    return Turn(json.dumps({**answer, "choices": choices}).encode())


def part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def asked(turn: Turn, component: str) -> EngineReply | ModelError:
    with server(lambda body, i: turn) as (url, _), engine(url) as model:
        try:
            (reply,) = model.infer([request(component)])
        except ModelError as error:
            return error
    return reply


def judged(turn: Turn) -> EngineReply:
    reply = asked(turn, SAFETY)
    assert isinstance(reply, EngineReply)
    return reply


ANSWERING: dict[str, Callable[[str], Turn]] = {
    "llama.cpp, SGLang, LMDeploy": lambda a: completes({"content": a, "reasoning_content": THOUGHT}),
    "vLLM": lambda a: completes({"content": a, "reasoning": THOUGHT, "refusal": None, "tool_calls": []}, stop_reason=None),
    "Ollama": lambda a: completes({"content": a, "reasoning": THOUGHT}, None),
    "OpenRouter": lambda a: completes({"content": a, "reasoning_details": [{"type": "reasoning.text", "text": THOUGHT}]}),
    "Mistral": lambda a: completes({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]}, part(a)]}),
    "Mistral, an older form": lambda a: completes({"content": [{"type": "thinking", "thinking": THOUGHT}, part(a)]}),
    "parts with thoughts of other names": lambda a: completes(
        {"content": [{"type": "reasoning", "text": THOUGHT}, {"type": "redacted_thinking"}, {**part(a), "type": "output_text"}]}
    ),
    "Gemini's own parts, handed on by a gateway": lambda a: completes(
        {"content": [{**part(THOUGHT), "thought": True}, {**part(a), "thoughtSignature": "x"}]}
    ),
    "Bedrock's own parts, handed on by a gateway": lambda a: completes(
        {"content": [{"reasoningContent": {"reasoningText": {"text": THOUGHT}}}, {"text": a}]}
    ),
    "parts whose kinds are of other letters": lambda a: completes(
        {"content": [{"type": "Thinking", "text": THOUGHT}, {"type": "TEXT", "text": a}, {"type": None, "text": ""}]}
    ),
    "a text with annotations": lambda a: completes({"content": [{"type": "text", "text": {"value": a, "annotations": []}}]}),
    "an answer in several parts": lambda a: completes({"content": [part(a[:5]), part(a[5:])]}),
    "parts that are strings": lambda a: completes({"content": [a]}),
    "no reasoning parser": lambda a: completes({"content": f"<think>\n{THOUGHT}\n</think>\n\n{a}"}),
    "a reasoning parser for another model": lambda a: completes({"content": f"{THOUGHT}</think>{a}", "reasoning_content": None}),
    "TGI": lambda a: completes({"content": a}, "eos_token"),
    "TGI with a stop sequence": lambda a: completes({"content": a}, "stop_sequence"),
    "Together": lambda a: completes({"content": a}, "eos"),
    "a reason that is an object": lambda a: completes({"content": a}, {"type": "stop", "matched": 151645}),
    "no message beyond its content": lambda a: Turn(json.dumps({"choices": [{"message": {"content": a}}]}).encode()),
}
WITHOUT_ANSWER: dict[str, tuple[Turn, str]] = {
    "vLLM, cut off within its thoughts": (completes({"content": None, "reasoning": THOUGHT}, "length"), "cut off in its thoughts"),
    "llama.cpp, cut off": (completes({"content": "", "reasoning_content": THOUGHT}, "length"), "cut off in its thoughts"),
    "LM Studio, the answer in the thoughts": (completes({"content": "", "reasoning_content": SAFE}), "thoughts and no answer"),
    "vLLM, a parser that takes the answer for thoughts": (
        completes({"content": None, "reasoning": PLAN}),
        "thoughts and no answer",
    ),
    "thoughts without an end, which ended": (completes({"content": f"<think>{THOUGHT}"}), "cut off in its thoughts"),
    "Mistral, cut off": (
        completes({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]}]}, "model_length"),
        "cut off in its thoughts",
    ),
    "OpenAI, refused": (completes({"content": None, "refusal": "I can't help with that."}), "refused"),
    "Azure, filtered": (completes({"content": "safe"}, "content_filter"), "cut off"),
    "OpenRouter, cut off": (completes({"content": "safe"}, "stop", native_finish_reason="MAX_TOKENS"), "cut off"),
    "a name for the end elsewhere": (completes({"content": "safe"}, None, stop_reason="max_tokens"), "cut off"),
    "a list of reasons": (completes({"content": "safe"}, ["length"]), "cut off"),
    "Gemini, cut off": (completes({"content": "safe"}, "MAX_TOKENS"), "cut off"),
    "nothing at all": (completes({"content": None}), "no text"),
    "a call of a tool": (completes({"content": None, "tool_calls": [{"function": {"name": "plan"}}]}, "tool_calls"), "no text"),
}


@pytest.mark.parametrize("answering", ANSWERING.values(), ids=ANSWERING)
def test_the_answer_of_each_server_is_used_and_its_thoughts_are_not(answering: Callable[[str], Turn]) -> None:
    assert judged(answering(SAFE)).verdict == "safe" and judged(answering("safe")).verdict == "safe"
    plan = asked(answering(PLAN), SYSTEM2)
    assert isinstance(plan, EngineReply) and plan.text == SUBGOALS


@pytest.mark.parametrize(("turn", "reason"), WITHOUT_ANSWER.values(), ids=WITHOUT_ANSWER)
def test_where_there_is_no_answer_there_is_neither_verdict_nor_plan(turn: Turn, reason: str) -> None:
    reply = judged(turn)
    assert reply.verdict == "" and reason in reply.violation
    refused = asked(turn, SYSTEM2)
    assert isinstance(refused, UnusableAnswerError) and reason in str(refused)


CUT_OFF = """length max_tokens MAX_TOKENS model_length maxTokens max_output_tokens token_limit time_limit
context_length_exceeded model_context_window_exceeded content_filter abort error cancelled repetition
insufficient_system_resource SAFETY refusal LANGUAGE MALFORMED_FUNCTION_CALL MODEL_ARMOR USER_CANCEL ERROR_TOXIC
guardrail_intervened pause_turn unload"""
CUT_OFF_BY_ITS_MEANING = """out_of_tokens num_predict preempted policy_violation kv_cache_full oom deadline server_shutdown
loop_detected network_error truncation"""
ENDED = """stop STOP eos eos_token stop_sequence end_turn end-of-text COMPLETE finished tool_calls function_call done unheard_of
stop_tokens im_end"""


REASONS = dict.fromkeys(f"{CUT_OFF} {CUT_OFF_BY_ITS_MEANING}".split(), True) | dict.fromkeys([*ENDED.split(), ""], False)


@pytest.mark.parametrize(("reason", "cut_off"), REASONS.items())
def test_only_names_for_being_cut_off_mean_that(reason: str, cut_off: bool) -> None:
    assert was_cut_off(reason) is cut_off
    assert judged(completes({"content": "safe"}, reason or None)).verdict == ("" if cut_off else "safe")


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {},
        {"content": None},
        {"content": []},
        {"content": [{"token": "safe"}]},
        {"content": [{"token": "safe", "logprob": None}]},
        {"tokens": ["safe"], "token_logprobs": [-0.1]},
        [],
        "none",
    ],
)
def test_a_server_that_tells_no_probabilities_is_served_without(logprobs: Any) -> None:
    reply = judged(says("safe", logprobs=logprobs))
    assert reply.verdict == "safe" and math.isnan(reply.score)


# --- forms that a server does not know --------------------------------------------------------------------------------------


def refuses(unknown: str, status: int, said: str) -> Script:
    def script(body: dict[str, Any], number: int) -> Turn:
        return Turn(said.encode(), status) if unknown in body else says(SAFE)

    return script


def warmed(script: Script, **options: Any) -> OpenAIEngine:
    """Raises: `ModelError`."""
    with server(script) as (url, _), engine(url, max_retries=0, **options) as judge:
        judge.warm_up()
        return judge


@pytest.mark.parametrize("status", [400, 404, 415, 422, 500, 501, 502])
def test_a_server_that_fails_in_a_form_that_it_does_not_know_is_loaded_without(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert warmed(refuses("response_format", status, "'response_format.type' must be 'text'")).dialect.constraint == "none"
    assert f"status {status} to `constraint: json_schema`" in caplog.text
    assert not warmed(refuses("logprobs", status, "logprobs")).dialect.logprobs


def openai_says(message: str, parameter: str) -> str:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", "param": parameter}})


LIMIT = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
FIXED = "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported."
EXTRA = '{"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]}'


@pytest.mark.parametrize(
    ("unknown", "said", "fix", "mended"),
    [
        (
            "max_tokens",
            openai_says(LIMIT, "max_tokens"),
            "token_limit: max_completion_tokens",
            {"token_limit": "max_completion_tokens"},
        ),
        ("temperature", openai_says(FIXED, "temperature"), "temperature: null", {"temperature": None}),
        ("temperature", openai_says("`temperature` is deprecated for this model.", ""), "temperature: null", {"temperature": None}),
        ("seed", EXTRA, "seed: null", {"seed": None}),
    ],
)
def test_a_refusal_names_the_one_key_that_helps(unknown: str, said: str, fix: str, mended: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=fix) as raised:
        warmed(refuses(unknown, 400, said))
    assert raised.value.is_public and "loc" not in str(raised.value)
    warmed(refuses(unknown, 400, said), **mended)


NEEDS = {
    "token_limit: max_completion_tokens": lambda body: "max_tokens" not in body,
    "temperature: null": lambda body: "temperature" not in body,
    "seed: null": lambda body: "seed" not in body,
    "system_role: false": lambda body: body["messages"][0]["role"] != "system",
    "cameras: []": lambda body: "image_url" not in json.dumps(body),
    "leave `chat_template_kwargs` out": lambda body: "chat_template_kwargs" not in body,
    "leave `extra` out": lambda body: "top_k" not in body,
}


@pytest.mark.parametrize(("keys", "status"), [((key,), 400) for key in NEEDS] + [(("temperature: null", "seed: null"), 404)])
def test_the_keys_that_help_are_named_whatever_the_refusal_says(keys: tuple[str, ...], status: int) -> None:
    def script(body: dict[str, Any], number: int) -> Turn:
        return says(SAFE) if all(NEEDS[key](body) for key in keys) else Turn(b"bad request", status)

    with pytest.raises(ModelError, match=".* and .*".join(map(re.escape, keys))) as raised:
        warmed(script, chat_template_kwargs={"enable_thinking": False}, extra={"top_k": 1})
    assert not any(key in str(raised.value) for key in NEEDS if key not in keys)


@pytest.mark.parametrize("times", [4, 1000])
def test_no_key_is_named_where_none_was_the_reason(times: int) -> None:
    """The server refuses everything, for good or for a while."""
    with pytest.raises(ModelError, match="its log says why"):
        warmed(lambda body, i: Turn(b"bad request", 500) if i < times else says(SAFE))


def test_a_model_without_a_system_role_or_without_eyes_is_told_so() -> None:
    def gemma(body: dict[str, Any], number: int) -> Turn:
        return Turn(b"System role not supported", 500) if body["messages"][0]["role"] == "system" else says(SAFE)

    with pytest.raises(ModelError, match="system_role: false"):
        warmed(gemma)
    warmed(gemma, system_role=False)
    with pytest.raises(ModelError, match=r"cameras: \[\]"):
        warmed(refuses("model", 500, "image input is not supported - hint: you may need to provide the mmproj"))


def test_thoughts_are_named_at_warm_up_with_what_turns_them_off(caplog: pytest.LogCaptureFixture) -> None:
    def qwen(body: dict[str, Any], number: int) -> Turn:
        thinks = body.get("chat_template_kwargs", {}).get("enable_thinking", True)
        return completes({"content": SAFE, "reasoning_content": THOUGHT if thinks else "\n\n"})

    with caplog.at_level(logging.WARNING):
        warmed(qwen)
    assert (
        "thinks before it answers" in caplog.text and "enable_thinking: false" in caplog.text and "reasoning_effort" in caplog.text
    )
    caplog.clear()
    warmed(qwen, chat_template_kwargs={"enable_thinking": False})
    assert not caplog.text


@pytest.mark.parametrize("output", ["judgement", "plan"])
def test_a_model_that_is_cut_off_within_its_thoughts_is_not_ready(output: str) -> None:
    """By default 128 tokens are all that it may write."""
    turn = completes({"content": None, "reasoning": THOUGHT}, "length")
    with server(lambda body, i: turn) as (url, _):
        model = build_engine(spec(output=output, base_url=url))
        with pytest.raises(UnusableAnswerError, match=r"cut off in its thoughts.*enable_thinking"):
            model.warm_up()
        model.close()


@pytest.mark.parametrize(
    ("by_schema", "free", "constraint"),
    [
        (PLAN, THOUGHT, "json_schema"),
        (THOUGHT, "lift the cup", "none"),
        ("1. lift", "1. lift", "none"),
        ('{"subgoals": ["a', "x", "json_schema"),
    ],
)
def test_plans_are_asked_for_by_schema_where_the_server_honours_it(by_schema: str, free: str, constraint: str) -> None:
    def script(body: dict[str, Any], number: int) -> Turn:
        return says(by_schema if "response_format" in body else free)

    with server(script) as (url, _):
        planner = build_engine(spec(output="plan", base_url=url))
        planner.warm_up()
        assert isinstance(planner, OpenAIEngine) and planner.dialect.constraint == constraint
        planner.close()


@pytest.mark.parametrize("first", [PLAN, "1. lift"])
def test_lines_of_text_are_no_plan_of_a_server_that_honours_schemas(first: str) -> None:
    """They are thoughts without marks, or the server has stopped honouring what it was asked for."""
    lines = "find the cup\nlift the cup"
    with server(lambda body, number: says(first if number == 0 else lines)) as (url, _):
        planner = build_engine(spec(output="plan", base_url=url))
        planner.warm_up()
        if first == PLAN:
            with pytest.raises(UnusableAnswerError, match="not of the schema that was asked for"):
                planner.infer([request(SYSTEM2)])
        else:
            assert only(planner.infer([request(SYSTEM2)])).text == lines
        planner.close()


def test_the_hash_of_a_model_without_later_options_is_the_one_it_had() -> None:
    """Robots resume on it after an update."""
    plain = build_engine(spec())
    assert plain.contract.model_hash == build_engine(spec(proxy=False)).contract.model_hash
    assert plain.contract.model_hash != build_engine(spec(chat_template_kwargs={"enable_thinking": False})).contract.model_hash


@pytest.mark.parametrize(
    "base_url",
    [
        "https://me.openai.azure.com/openai/deployments/judge?api-version=2024-10-21",
        "https://me.openai.azure.com/openai/deployments/judge",
        "https://me.openai.azure.com/openai/v1?api-version=preview",
        "https://gate.example/openai/v1?API-Version=2024-10-21",
    ],
)
def test_azures_older_addresses_are_refused_with_the_one_that_is_served(base_url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        build_engine(spec(base_url=base_url))
    problem = refused.value
    assert problem.key == "models.judge.options.base_url" and "https://NAME.openai.azure.com/openai/v1" in str(problem.fix)
    assert "api_key_env" not in str(problem.fix) and "me.openai" not in str(problem)


@pytest.mark.parametrize("base_url", ["http://u:p@gpu-2/v1", "http://gpu-2/v1?key=abc", "http://gpu-2/v1?"])
def test_an_address_with_a_secret_is_refused_and_not_repeated(base_url: str) -> None:
    if base_url.endswith("?"):  # nothing stands behind it
        build_engine(spec(base_url=base_url)).close()
        return
    with pytest.raises(ConfigurationError) as refused:
        build_engine(spec(base_url=base_url))
    assert "api_key_env" in str(refused.value.fix) and "abc" not in str(refused.value) and "u:p" not in str(refused.value)


# --- proxies ----------------------------------------------------------------------------------------------------------------

PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")


@pytest.fixture
def proxies(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize("value", ["http://127.0.0.1:9", "socks5://127.0.0.1:9", "no address"])
@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_server_on_this_machine_is_asked_without_a_proxy(proxies: pytest.MonkeyPatch, variable: str, value: str) -> None:
    proxies.setenv(variable, value)
    assert judged(says("safe")).verdict == "safe"
    proxies.setenv("NO_PROXY", "localhost, [::1]:80, 10.0.0.0/8")
    assert judged(says("safe")).verdict == "safe"


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("localhost", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("judge.localhost", True),
        ("127.1", True),
        ("127.0.0.1.", True),
        ("[::ffff:127.0.0.1]", True),
        ("ip6-localhost", True),
        ("localhost.localdomain", True),
    ],
)
def test_which_hosts_are_this_machine(host: str, is_here: bool) -> None:
    assert is_loopback(host) is is_here
    assert not is_loopback("gpu-2") and not is_loopback("192.168.1.2") and not is_loopback("localhost.example.org")


@pytest.mark.parametrize("exempt", ["gpu-2.invalid", ".invalid", "*", "gpu-1, gpu-2.invalid:8000"])
def test_a_proxy_that_does_not_hold_for_a_server_is_not_blamed(proxies: pytest.MonkeyPatch, exempt: str) -> None:
    proxies.setenv("HTTP_PROXY", "gopher://127.0.0.1:9")
    proxies.setenv("NO_PROXY", exempt)
    judge = build_engine(spec(base_url="http://gpu-2.invalid:8000/v1", max_retries=0))
    with pytest.raises(ModelError, match="the connection failed") as raised:
        judge.infer([request()])
    judge.close()
    assert "proxy" not in str(raised.value)


def test_a_proxy_before_a_server_elsewhere_is_named(proxies: pytest.MonkeyPatch) -> None:
    """Whether it cannot be reached, or cannot be used at all."""
    proxies.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    elsewhere = {"base_url": "http://gpu-2.invalid:8000/v1", "max_retries": 0}
    judge = build_engine(spec(**elsewhere))
    with pytest.raises(ModelError, match=r"the proxy of HTTP_PROXY: see `proxy`"):
        judge.infer([request()])
    judge.close()
    proxies.setenv("HTTP_PROXY", "gopher://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match=r"options\.proxy: the proxy of HTTP_PROXY cannot be used.*proxy: false"):
        build_engine(spec(**elsewhere))
    build_engine(spec(**elsewhere, proxy=False)).close()
