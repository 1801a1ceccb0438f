"""Our loop for every kind of head, and the runtime around it: fixed shapes, recorded graphs, too little memory, options."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from ros2_rfm_serving.engines.base import Predicts, SamplingConfig
from ros2_rfm_serving.engines.embedded.engine import FlowPolicy, load_embedded
from ros2_rfm_serving.engines.embedded.layers import Attention
from ros2_rfm_serving.engines.embedded.networks import FlowPolicyNetwork
from ros2_rfm_serving.engines.embedded.options import BundleOptions, device_of
from ros2_rfm_serving.engines.flow.engine import FlowEngine
from ros2_rfm_serving.engines.flow.graphs import Graphed, accelerated
from ros2_rfm_serving.engines.flow.memory import in_halves
from ros2_rfm_serving.engines.flow.sampling import FlowSample, sample
from ros2_rfm_serving.engines.flow.solvers import Ddim, cosine_levels, solver_of
from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.errors import ConfigurationError, ContractError, ModelError, OutOfMemoryError
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.types import Conditioning, Guidance, InferenceRequest, SessionRequest

from .test_engines import request, small_policy

NONE, PREFIX, GUIDED = Conditioning
DIFFUSIONS = [Predicts.NOISE, Predicts.CLEAN]
REQUESTS = [request(0), request(1, delay=2, prefix=2), request(2, delay=4, prefix=6), request(3, delay=1, prefix=0)]


# --- what is computed once -----------------------------------------------------------------------------------------------------


def test_keys_and_values_of_the_prefix_are_computed_once_per_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, counted = small_policy(), {"perceive": 0, "context": 0, "velocity": 0}
    cross = {block.cross_attention for block in policy._network.head}

    def counting(owner: type, method: str, name: str, counts: Any = lambda self: True) -> None:
        original = getattr(owner, method)

        def counted_call(self: Any, *arguments: Any) -> Any:
            counted[name] += bool(counts(self))
            return original(self, *arguments)

        monkeypatch.setattr(owner, method, counted_call)

    counting(FlowPolicy, "perceive", "perceive")
    counting(Attention, "keys_values", "context", lambda attention: attention in cross)
    counting(FlowPolicyNetwork, "velocity_at", "velocity")
    sample(policy, REQUESTS, SamplingConfig(num_steps=7))
    assert counted == {"perceive": 1, "context": len(cross), "velocity": 7}


def test_times_are_embedded_once_each_and_the_result_is_that_of_embedding_every_token() -> None:
    few, every = small_policy(), small_policy()
    every._few_times = False
    embedded: list[int] = []
    few._network.time_mlp.register_forward_pre_hook(lambda module, inputs: embedded.append(inputs[0].shape[:-1].numel()))
    for _ in range(2):
        chunks = sample(few, REQUESTS, SamplingConfig(num_steps=4)).chunks
    assert embedded == [1] * 5, "the time of each of the four steps, and 1 of what is fixed or 0, at the first inference"
    np.testing.assert_allclose(chunks, sample(every, REQUESTS, SamplingConfig(num_steps=4)).chunks, atol=1e-6)


# --- given noise ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("predicts", Predicts)
def test_given_noise_gives_the_same_chunk_bit_by_bit_alone_and_to_rounding_in_a_batch(predicts: Predicts) -> None:
    policy, config = small_policy(), SamplingConfig(num_steps=5, predicts=predicts, clean_limit=3.0)
    requests = [replace(r, conditioning=NONE) for r in REQUESTS]
    noise = np.random.default_rng(5).standard_normal((4, 8, 2), np.float32)
    together = sample(policy, requests, config, noise)
    for i, alone in enumerate(requests):
        once, again = (sample(policy, [alone], config, noise[i : i + 1]) for _ in range(2))
        np.testing.assert_array_equal(once.chunks, again.chunks)
        np.testing.assert_array_equal(once.updates, again.updates)
        np.testing.assert_allclose(together.chunks[i], once.chunks[0], rtol=1e-5, atol=1e-5)
    other = sample(policy, requests, config, -noise).chunks
    assert (np.abs(other - together.chunks).max() > 1e-3) == (predicts is not Predicts.CHUNK)


def test_the_shipped_policys_batched_rows_equal_rows_run_alone(repository: Path) -> None:
    engine = load_embedded("m", repository / "models" / "metaworld_flow")
    rng = np.random.default_rng(0)
    requests = [
        replace(
            warmup_request(engine.contract),
            instruction="reach the red target",
            state=rng.normal(size=39).astype(np.float32),
            images={camera: rng.integers(0, 255, (96, 96, 3), np.uint8) for camera in engine.contract.cameras},
            conditioning=(NONE, PREFIX, GUIDED)[i % 3],
            inference_delay_steps=i,
            prefix_model=rng.normal(size=(12, 4)).astype(np.float32),
        )
        for i in range(8)
    ]
    for row, alone in zip(engine.infer(requests), requests, strict=True):
        np.testing.assert_allclose(row.chunk_model, engine.infer([alone])[0].chunk_model, atol=1e-5)


# --- diffusion -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("predicts", DIFFUSIONS)
@pytest.mark.parametrize("num_steps", [1, 3, 10])
def test_a_diffusion_that_knows_the_answer_arrives_there(predicts: Predicts, num_steps: int) -> None:
    rng = torch.Generator().manual_seed(0)
    clean, noise = (
        torch.randn(2, 8, 3, generator=rng, dtype=torch.float64),
        torch.randn(2, 8, 3, generator=rng, dtype=torch.float64),
    )
    ddim = Ddim(predicts=predicts, num_steps=num_steps, train_steps=50, clean_limit=None)
    kept = cosine_levels(50)[49]
    x = math.sqrt(kept) * clean + math.sqrt(1 - kept) * noise
    for step in range(num_steps):
        level = cosine_levels(50)[round(50 * ddim.numbers(step)[0]) - 1]
        np.testing.assert_allclose(x, math.sqrt(level) * clean + math.sqrt(1 - level) * noise, atol=1e-9)
        x = x + ddim.update(lambda x: noise if predicts is Predicts.NOISE else clean, x, ddim.numbers(step), None)
    np.testing.assert_allclose(x, clean, atol=1e-9)


def test_a_step_between_two_noise_levels_takes_the_even_one() -> None:
    """As the trailing steps of other samplers, which round halves to even: exactly, or it is another level by machine."""
    ddim = Ddim(predicts=Predicts.CLEAN, num_steps=40, train_steps=100, clean_limit=None)
    exact = [Fraction(100 * left, 40) for left in range(40, 0, -1)]
    assert [round(100 * ddim.numbers(step)[0]) for step in range(40)] == [round(time) for time in exact]


def test_the_noise_levels_are_those_of_the_cosine_schedule() -> None:
    levels = cosine_levels(100)
    assert len(levels) == 100 and all(a > b > 0 for a, b in itertools.pairwise(levels))
    half = math.cos(0.508 / 1.008 * math.pi / 2) ** 2 / math.cos(0.008 / 1.008 * math.pi / 2) ** 2
    assert levels[49] == pytest.approx(half) and levels[-1] == pytest.approx(levels[-2] * 1e-3)


def test_estimates_are_cut_where_the_diffusion_was_trained_so() -> None:
    ddim = Ddim(predicts=Predicts.CLEAN, num_steps=1, train_steps=10, clean_limit=1.0)
    x = torch.zeros(1, 2, 1)
    assert (x + ddim.update(lambda x: torch.tensor([[[3.0], [-0.5]]]), x, ddim.numbers(0), None)).flatten().tolist() == [1.0, -0.5]


@pytest.mark.parametrize("predicts", DIFFUSIONS)
def test_a_diffusion_continues_prefixes_and_records_its_updates(predicts: Predicts) -> None:
    policy, config = small_policy(), SamplingConfig(num_steps=5, predicts=predicts)
    (reply,) = FlowEngine(policy, config).infer([request(1, delay=3, prefix=3)])
    np.testing.assert_array_equal(reply.chunk_model[:3], request(1, prefix=3).prefix_model)
    assert reply.updates.shape == (5, 8, 2) and not reply.updates[:, :3].any() and reply.updates[:, 3:].any()
    (free,) = sample(policy, [request(1)], config, np.zeros((1, 8, 2), np.float32)).updates
    np.testing.assert_allclose(
        free.sum(0), sample(policy, [request(1)], config, np.zeros((1, 8, 2), np.float32)).chunks[0], atol=1e-4
    )


def test_each_head_offers_what_it_can() -> None:
    offers = {p: FlowEngine(small_policy(), SamplingConfig(predicts=p)).contract.conditionings for p in Predicts}
    assert offers == {
        Predicts.VELOCITY: (NONE, PREFIX, GUIDED),
        Predicts.NOISE: (NONE, PREFIX),
        Predicts.CLEAN: (NONE, PREFIX),
        Predicts.CHUNK: (NONE,),
    }
    with pytest.raises(ModelError, match="only flow-matching models can be guided"):
        sample(small_policy(), [request(0, 2, 5, GUIDED)], SamplingConfig(predicts=Predicts.NOISE))


def test_more_steps_than_noise_levels_are_refused() -> None:
    with pytest.raises(ModelError, match="num_steps is 11; a diffusion of 10 noise levels"):
        FlowEngine(small_policy(), SamplingConfig(predicts=Predicts.NOISE, num_steps=11, train_steps=10))
    with pytest.raises(ModelError, match="num_steps is 0"):
        solver_of(SamplingConfig(num_steps=0))


# --- regression ----------------------------------------------------------------------------------------------------------------


def test_a_regression_takes_one_call_and_has_no_updates() -> None:
    policy = small_policy()
    (reply,) = FlowEngine(policy, SamplingConfig(predicts=Predicts.CHUNK, num_steps=10)).infer([request(1)])
    with torch.no_grad():
        chunk = policy.velocity(torch.zeros(1, 8, 2), torch.ones(1, 8), policy.perceive([request(1)]))
    np.testing.assert_array_equal(reply.chunk_model, chunk[0])
    assert reply.updates.size == 0


@pytest.mark.parametrize("conditioning", [PREFIX, GUIDED])
def test_a_session_that_asks_a_regression_for_real_time_chunking_is_not_opened(conditioning: Conditioning) -> None:
    server = ModelServer(ServerConfig(name="s"), FlowEngine(small_policy(), SamplingConfig(predicts=Predicts.CHUNK)))
    asked = SessionRequest(robot="r", component="system1", action_names=("x", "y"), cameras=("front",), state_size=6)
    server.open_session(asked)
    with pytest.raises(ContractError, match=conditioning.value):
        server.open_session(replace(asked, conditioning=conditioning))


# --- rows that fail ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("true_jacobian", [False, True])
def test_a_row_of_nan_touches_no_other(true_jacobian: bool) -> None:
    engine = FlowEngine(small_policy())
    guidance = Guidance(true_jacobian=true_jacobian)
    requests = [replace(request(i, 2, 5, GUIDED), guidance=guidance) for i in range(3)]
    broken = [requests[0], replace(requests[1], state=np.full(6, np.nan, np.float32)), requests[2]]
    healthy, beside = engine.infer(requests), engine.infer(broken)
    assert not np.isfinite(beside[1].chunk_model).any()
    for row in (0, 2):
        np.testing.assert_allclose(beside[row].chunk_model, healthy[row].chunk_model, atol=1e-5)


class Small:
    """Memory for `room` rows."""

    def __init__(self, room: int) -> None:
        self.room, self.ran = room, list[int]()

    def __call__(self, rows: Sequence[int]) -> list[int]:
        self.ran.append(len(rows))
        if len(rows) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return [2 * row for row in rows]


def test_too_large_a_batch_runs_in_halves_once() -> None:
    run = Small(room=3)
    assert in_halves(run, [1, 2, 3, 4, 5]) == [2, 4, 6, 8, 10] and run.ran == [5, 2, 3]
    run = Small(room=1)
    with pytest.raises(OutOfMemoryError, match="a batch of 4"):
        in_halves(run, [1, 2, 3, 4])
    assert run.ran == [4, 2]
    with pytest.raises(OutOfMemoryError):
        in_halves(Small(room=0), [1])


def test_the_hosts_memory_counts_and_other_errors_pass() -> None:
    with pytest.raises(OutOfMemoryError):
        in_halves(lambda rows: [torch.empty(1 << 62, dtype=torch.uint8)], [1])
    with pytest.raises(RuntimeError, match="size"):
        in_halves(lambda rows: [torch.ones(2) @ torch.ones(3)], [1, 2])


def test_a_server_survives_a_batch_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = small_policy()
    engine, perceive = FlowEngine(policy), FlowPolicy.perceive

    def limited(self: FlowPolicy, requests: Sequence[InferenceRequest]) -> Any:
        if len(requests) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return perceive(self, requests)

    plain = engine.infer(REQUESTS)
    monkeypatch.setattr(FlowPolicy, "perceive", limited)
    for row, expected in zip(engine.infer(REQUESTS), plain, strict=True):
        np.testing.assert_allclose(row.chunk_model, expected.chunk_model, atol=1e-5)
    with pytest.raises(OutOfMemoryError):
        engine.infer(REQUESTS * 2)
    assert len(engine.infer(REQUESTS[:1])) == 1


# --- fixed shapes and recorded graphs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("allowed", [False, True])
def test_a_jacobian_that_may_be_asked_for_is_warmed_up_and_one_that_may_not_is_not(
    allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[int, bool]] = []
    plain = sample

    def watched(model: FlowPolicy, requests: list[InferenceRequest], config: SamplingConfig, **more: Any) -> FlowSample:
        ran.append((len(requests), requests[0].guidance.true_jacobian))
        return plain(model, requests, config, **more)

    monkeypatch.setattr("ros2_rfm_serving.engines.flow.engine.sample", watched)
    engine = FlowEngine(small_policy(), SamplingConfig(fixed_shapes=(1, 2), true_jacobian=allowed))
    engine.warm_up()
    assert ran == ([(1, False), (1, True), (2, False), (2, True)] if allowed else [(1, False), (2, False)])
    assert engine.contract.true_jacobian is allowed
    diffusion = SamplingConfig(predicts=Predicts.NOISE, true_jacobian=True)
    assert not FlowEngine(small_policy(), diffusion).contract.true_jacobian, "it cannot be guided at all"


def test_batches_are_filled_up_to_the_sizes_that_were_warmed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    perceive = FlowPolicy.perceive
    monkeypatch.setattr(FlowPolicy, "perceive", lambda self, requests: ran.append(len(requests)) or perceive(self, requests))
    engine = FlowEngine(small_policy(), SamplingConfig(fixed_shapes=(1, 2, 4)))
    engine.warm_up()
    assert ran == [1, 2, 4] and engine.max_batch_size == 4
    engine.prepare(3)
    assert ran == [1, 2, 4], "no size is left to prepare"
    replies = engine.infer(REQUESTS[:3])
    assert ran[3:] == [4] and len(replies) == 3
    for row, alone in zip(replies, FlowEngine(small_policy()).infer(REQUESTS[:3]), strict=True):
        np.testing.assert_allclose(row.chunk_model, alone.chunk_model, atol=1e-5)
    with pytest.raises(ModelError, match="batches of 1 to 4, not 5"):
        engine.prepare(5)


def test_a_size_is_warmed_up_once_where_any_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    perceive = FlowPolicy.perceive
    monkeypatch.setattr(FlowPolicy, "perceive", lambda self, requests: ran.append(len(requests)) or perceive(self, requests))
    engine = FlowEngine(small_policy())
    for size in (3, 3, 2):
        engine.prepare(size)
    assert ran == [3, 2]


class Recorder:
    """In place of a GPU: replays by running, and tells what was recorded and replayed."""

    def __init__(self) -> None:
        self.recorded: list[tuple[int, ...]] = []
        self.replayed = 0

    def __call__(self, function: Any, inputs: tuple[Tensor, ...]) -> Any:
        self.recorded.append(tuple(inputs[0].shape))

        def replay(*inputs: Tensor) -> Any:
            self.replayed += 1
            return function(*inputs)

        return replay


def test_a_graph_is_recorded_once_per_shapes_and_dtypes() -> None:
    recorder = Recorder()
    double = Graphed(lambda x, y: (x + y.sum(),), recorder)
    calls = [(torch.ones(2), torch.ones(3)), (torch.zeros(2), torch.ones(3)), (torch.ones(4), torch.ones(3))]
    calls += [(torch.ones(2), torch.ones(1)), (torch.ones(2).double(), torch.ones(3)), (torch.ones(2), torch.ones(3))]
    results = [double(*call)[0][0].item() for call in calls]
    assert results == [4, 3, 4, 2, 4, 4]
    assert recorder.recorded == [(2,), (4,), (2,), (2,)] and recorder.replayed == len(calls)


def test_what_is_differentiated_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr("ros2_rfm_serving.engines.flow.graphs.record_cuda", recorder)

    def square(x: Tensor) -> tuple[Tensor]:
        return (x * x,)

    assert accelerated(square, compiled=False, recorded=False) is square
    fast = accelerated(square, compiled=False, recorded=True)
    x = torch.tensor(3.0, requires_grad=True)
    assert torch.autograd.grad(fast(x)[0], x)[0] == 6 and not recorder.recorded
    with torch.inference_mode():
        assert fast(x)[0] == 9 and recorder.recorded == [()]


def test_a_recorded_policy_computes_the_same_and_records_each_shape_once(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, plain = Recorder(), small_policy()
    monkeypatch.setattr("ros2_rfm_serving.engines.flow.graphs.record_cuda", recorder)
    options = BundleOptions(device="cpu", cuda_graphs=True, batch_sizes=(1, 4))
    policy = FlowPolicy("small", small_policy()._network, "hash", options)
    engine = FlowEngine(policy, SamplingConfig(fixed_shapes=options.fixed_shapes))
    engine.warm_up()
    assert len(recorder.recorded) == 2 * 2, "perceiving and one step, at two sizes"
    for row, expected in zip(engine.infer(REQUESTS[:3]), FlowEngine(plain).infer(REQUESTS[:3]), strict=True):
        np.testing.assert_allclose(row.chunk_model, expected.chunk_model, atol=1e-5)
    guided = replace(request(0, 2, 5, GUIDED), guidance=Guidance(true_jacobian=True))
    np.testing.assert_allclose(engine.infer([guided])[0].chunk_model, FlowEngine(plain).infer([guided])[0].chunk_model, atol=1e-5)
    assert len(recorder.recorded) == 4, "nothing is recorded while requests wait"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_traced_policy_gives_the_same_bits_in_batches_of_any_size(dtype: str) -> None:
    plain, traced = (
        FlowPolicy(
            "small",
            small_policy()._network,
            "hash",
            BundleOptions.model_validate({"device": "cpu", "dtype": dtype, "trace": trace}),
        )
        for trace in (False, True)
    )
    jacobian = replace(request(5, 2, 5, GUIDED), guidance=Guidance(true_jacobian=True))
    for batch in (
        REQUESTS[:2],
        REQUESTS[:1],
        [*REQUESTS, request(4, 2, 5, GUIDED)],
        [jacobian],
        [request(6, conditioning=NONE)] * 3,
    ):
        ours, theirs = (sample(policy, batch, SamplingConfig(num_steps=3)) for policy in (traced, plain))
        np.testing.assert_array_equal(ours.chunks, theirs.chunks)
        np.testing.assert_array_equal(ours.updates, theirs.updates)
    tokens = [plain.inputs(REQUESTS[:3]), traced.inputs(REQUESTS[:3])]
    for block, other in zip(plain.perception, traced.perception, strict=True):
        tokens = [block(*tokens[0]), other(*tokens[1])]
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*tokens, strict=True))


# --- options -------------------------------------------------------------------------------------------------------------------


def spec(repository: Path, **options: Any) -> EngineSpec:
    return EngineSpec(
        model="m",
        entry=CatalogueEntry(engine="bundle", bundle="metaworld_flow", options=options),
        models_folder=repository / "models",
        profile=Profile({}),
        gpu_type="CPU",
        wait=lambda s: None,
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_step": 4}, r"models\.m\.options\.num_step: unknown key; did you mean `num_steps`"),
        ({"num_steps": 0}, r"models\.m\.options\.num_steps: .*greater than or equal to 1 \(found 0\)"),
        ({"dtype": "int2"}, r"models\.m\.options\.dtype: .*'float32', 'bfloat16', 'float16', 'int8' or 'int4'"),
        ({"device": "tpu"}, r"models\.m\.options\.device"),
        ({"batch_sizes": [4, 2]}, r"models\.m\.options\.batch_sizes: .*batch sizes rise"),
    ],
)
def test_wrong_options_are_named_with_their_key(repository: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        build_engine(spec(repository, **options))


def test_a_device_that_is_not_there_is_named(repository: Path) -> None:
    missing = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(ModelError, match=f"options.device is '{missing}', PyTorch sees"):
        build_engine(spec(repository, device=missing))
    with pytest.raises(ModelError, match=r"options\.cuda_graphs needs a GPU"):
        build_engine(spec(repository, device="cpu", cuda_graphs=True))


def test_a_gpu_that_was_given_and_is_not_there_is_said(
    repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`rfm up --host` gave it one, and plans have its latencies."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for given, gpu_type, says in (("3", "H200", 1), ("3", "CPU", 0), ("", "H200", 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
        caplog.clear()
        assert device_of("m", "auto", gpu_type) == "cpu"
        assert caplog.text.count("'m' is served by the CPU: PyTorch sees no GPU where CUDA_VISIBLE_DEVICES is '3'") == says


def test_a_second_gpu_of_a_server_that_has_one_is_its_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert device_of("m", "cuda:0") == "cuda:0"
    with pytest.raises(ModelError, match=r"options\.device is 'cuda:1', PyTorch sees 1 GPUs; say `cuda`"):
        device_of("m", "cuda:1")


def test_options_reach_the_loop(repository: Path) -> None:
    (reply,) = (e := build_engine(spec(repository, num_steps=2, noise_scale=1.0))).infer([warmup_request(e.contract)])
    (other,) = build_engine(spec(repository, num_steps=2, noise_scale=1.0, seed=1)).infer([warmup_request(e.contract)])
    assert len(reply.updates) == 2 and np.abs(reply.chunk_model - other.chunk_model).max() > 1e-3


def test_on_a_gpu_compiling_and_recording_are_the_default() -> None:
    assert BundleOptions(device="cuda").compiles and BundleOptions(device="cuda:1").records
    assert not BundleOptions(device="cpu").compiles and BundleOptions(device="cpu").fixed_shapes == ()
    assert BundleOptions(device="cuda", compile=False, cuda_graphs=False).fixed_shapes == ()
    with pytest.raises(ValidationError):
        BundleOptions(device="cuda:x")
