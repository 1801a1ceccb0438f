"""Action tokens: decoded in running batches, each row as if alone; merged on a public context, as if each were computed apart."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lab.training.optimizing import TrainingConfig
from lab.training.token_training import train_token_policy
from ros2_rfm_serving.engines.base import Engine, Stepping, TokenSampling, require_parity
from ros2_rfm_serving.engines.embedded import bundle
from ros2_rfm_serving.engines.embedded.engine import load_embedded
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.engines.embedded.token_network import TokenPolicyConfig, TokenPolicyNetwork
from ros2_rfm_serving.engines.embedded.token_policy import TokenPolicy
from ros2_rfm_serving.engines.flow.frames import steps_of_stages
from ros2_rfm_serving.engines.tokens.engine import TokenEngine
from ros2_rfm_serving.engines.tokens.sampling import confidence_of, noise_of
from ros2_rfm_serving.engines.warmup import warm_up
from ros2_rfm_serving.errors import ModelError, OutOfMemoryError
from ros2_rfm_serving.types import Conditioning, EngineReply, InferenceRequest, PipelineConfig

from .test_engines import SMALL, request

CONFIG = TokenPolicyConfig.of_senses(SMALL)
CONFIG = replace(CONFIG, chunk_length=4, max_inference_delay_steps=3, num_bins=11, decoder_blocks=2)
NUM_TOKENS = CONFIG.num_tokens
ASKED = [
    *(request(i, conditioning=Conditioning.NONE) for i in range(3)),
    *(request(i, delay, prefix) for i, (delay, prefix) in enumerate(((2, 2), (3, 6), (1, 0), (0, 3)), 3)),
]


@cache
def network(seed: int = 0) -> TokenPolicyNetwork:
    torch.manual_seed(seed)
    made = TokenPolicyNetwork(CONFIG)
    for parameter in made.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return made.eval().requires_grad_(False)


def policy() -> TokenPolicy:
    return TokenPolicy("small", copy.deepcopy(network()), "hash")


USED: list[TokenEngine] = []


def engine(temperature: float = 0.0) -> TokenEngine:
    USED.append(TokenEngine(policy(), TokenSampling(temperature=temperature, seed=3)))
    return USED[-1]


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    USED.clear()
    yield
    for used in USED:
        assert not used.ready() and not len(used._flight) and not used._outdated
        assert not used._public._sessions and len(used._public._free) == used.max_rows and not used._frames._sessions


def chunk(answer: Any) -> Any:
    assert isinstance(answer, EngineReply), answer
    return answer.chunk_robot


def confidence(answer: Any) -> Any:
    assert isinstance(answer, EngineReply), answer
    return answer.confidence


def stepped(used: TokenEngine, rows: Mapping[int, InferenceRequest]) -> dict[int, Any]:
    assert not used.enter(rows)
    answers: dict[int, Any] = {}
    while ready := used.ready():
        answers.update(used.iterate(ready))
    return answers


@cache
def alone(temperature: float) -> list[Any]:
    used = TokenEngine(policy(), TokenSampling(temperature=temperature, seed=3))
    return [used.infer([asked])[0] for asked in ASKED]


# --- one row ---


def test_it_is_an_engine_and_stepping_whose_chunks_are_as_promised() -> None:
    used = engine()
    assert isinstance(used, Engine) and isinstance(used, Stepping)
    used.warm_up()
    used.prepare(4)
    assert warm_up(used, 3) is not None
    assert used.contract.pipelines and used.contract.conditionings == (Conditioning.NONE, Conditioning.PREFIX)


def test_a_chunk_is_what_the_network_finds_likeliest_token_by_token() -> None:
    """Against the network as it was trained: without a cache, all tokens anew for each."""
    (reply,) = engine().infer([ASKED[0]])
    tokens = torch.zeros(1, NUM_TOKENS, dtype=torch.int64)
    inputs = policy()._inputs
    context = network().encode(inputs.states(ASKED[:1]), inputs.images(ASKED[:1]), inputs.words(ASKED[:1]))
    for position in range(NUM_TOKENS):
        tokens[0, position] = network().prefill(tokens, context)[0, position].argmax()
    np.testing.assert_array_equal(chunk(reply), network().centres(tokens.view(-1, CONFIG.num_actions)).numpy())


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_row_alone_is_the_same_bit_by_bit_by_turns_and_at_once(temperature: float) -> None:
    used = engine(temperature)
    for asked, whole in zip(ASKED, alone(temperature), strict=True):
        turns = used.num_iterations(asked)
        assert not used.enter({1: asked})
        for left in range(turns, 0, -1):
            answers = used.iterate(used.ready())
            assert bool(answers) == (left == 1)
        np.testing.assert_array_equal(chunk(answers[1]), chunk(whole))
        np.testing.assert_array_equal(confidence(answers[1]), whole.confidence)


@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(len(ASKED))), data=st.data(), temperature=st.sampled_from([0.0, 0.7]))
def test_rows_come_and_go_and_each_answers_as_if_alone(order: list[int], data: st.DataObject, temperature: float) -> None:
    """Any of them enter before any turn, any of those ready go on, some leave before they are done."""
    used = TokenEngine(policy(), TokenSampling(temperature=temperature, seed=3))  # an example may be given up half-way
    waiting, answers, left = list(order), dict[int, Any](), set[int]()
    expected = alone(temperature)
    while waiting or used.ready():
        entering = [waiting.pop() for _ in range(data.draw(st.integers(0 if used.ready() else 1, len(waiting))))]
        assert not used.enter({row: ASKED[row] for row in entering})
        ready = sorted(used.ready())
        going = data.draw(st.lists(st.sampled_from(ready), min_size=1, unique=True))
        answers.update(used.iterate(going))
        if data.draw(st.integers(0, 9)) == 0 and used.ready():
            gone = data.draw(st.sampled_from(sorted(used.ready())))
            used.leave([gone])
            left.add(gone)
    assert answers.keys() | left == set(range(len(ASKED))) and not len(used._flight)
    for row, answer in answers.items():
        np.testing.assert_array_equal(chunk(answer), chunk(expected[row]))
        np.testing.assert_allclose(confidence(answer), expected[row].confidence, atol=1e-5)


def test_logits_in_company_are_those_of_the_row_alone() -> None:
    model = policy()
    for row, asked in enumerate(ASKED):
        alone, company = model.cache(1), model.cache(len(ASKED))
        model.perceive([asked], alone)
        model.perceive(ASKED, company)
        first, before = [min(i, NUM_TOKENS - 1) for i in range(len(ASKED))], torch.full((len(ASKED), NUM_TOKENS), 5)
        before[:, 0] = 0
        model.generate(before, [0] * len(ASKED), company)
        model.generate(before[:1], [0], alone)
        together = model.generate(before[range(len(ASKED)), first][:, None], first, company)
        np.testing.assert_allclose(
            together[row], model.generate(before[:1, first[row]][:, None], [first[row]], alone)[0], rtol=1e-5, atol=1e-5
        )


def test_a_prefix_comes_back_as_it_was_given_costs_no_turns_and_is_continued() -> None:
    used, asked = engine(), ASKED[4]
    plain, continued = (chunk(used.infer([each])[0]) for each in (replace(asked, inference_delay_steps=0), asked))
    np.testing.assert_array_equal(continued[:3], asked.prefix_model[:3])
    assert used.num_iterations(asked) == NUM_TOKENS - 3 * CONFIG.num_actions
    assert np.abs(continued[3:] - plain[3:]).max() > 1e-4


def test_noise_follows_from_the_request_and_the_seed_alone() -> None:
    cold, warm = engine(), engine(2.0)
    again = TokenEngine(policy(), TokenSampling(temperature=2.0, seed=4))
    first = chunk(warm.infer([ASKED[0]])[0])
    np.testing.assert_array_equal(first, chunk(warm.infer([ASKED[1], ASKED[0]])[1]))
    other = replace(ASKED[0], id=replace(ASKED[0].id, sequence=99))
    for differs in (chunk(cold.infer([ASKED[0]])[0]), chunk(again.infer([ASKED[0]])[0]), chunk(warm.infer([other])[0])):
        assert (differs != first).any()


def test_samples_are_drawn_as_often_as_they_are_likely() -> None:
    logits, sampling, temperature = torch.tensor([2.0, 1.0, 0.0, -4.0]), TokenSampling(temperature=0.5), 0.5
    asked = [replace(ASKED[0], id=replace(ASKED[0].id, sequence=i)) for i in range(2000)]
    drawn = [int((logits + noise_of(each, 1, 4, sampling)[0]).argmax()) for each in asked]
    share = np.bincount(drawn, minlength=4) / len(drawn)
    np.testing.assert_allclose(share, (logits / temperature).softmax(-1), atol=5 * np.sqrt(0.25 / len(drawn)))


def test_confidence_is_how_likely_an_action_is_right_to_a_bin_in_all_dimensions() -> None:
    logits = torch.full((4, 5), -1e9)
    logits[0, 2], logits[1, 4] = 0.0, 0.0  # sure
    logits[2, 0], logits[3, [0, 4]] = 0.0, 0.0  # torn between both ends in the second dimension
    np.testing.assert_allclose(confidence_of(logits, torch.tensor([2, 4, 0, 0]), 2), [1.0, 0.5])


def test_what_it_was_not_trained_for_is_refused_row_by_row() -> None:
    used = engine()
    broken = replace(ASKED[3], prefix_model=np.full((2, 2), np.nan, np.float32))
    pipelined = replace(ASKED[0], pipelining=PipelineConfig(pp_perception=2))
    errors = used.enter(
        {1: request(1, 4, 6), 2: request(2, conditioning=Conditioning.GUIDED), 3: broken, 4: pipelined, 5: ASKED[0]}
    )
    said = {row: str(error) for row, error in errors.items()}
    assert "up to 3 steps, not 4" in said[1] and "tokens" in said[2] and "not finite" in said[3] and "pp_perception is 2" in said[4]
    assert list(used.ready()) == [5]
    used.leave([5, 17])


def test_more_rows_than_there_is_memory_for_are_refused_and_the_others_go_on() -> None:
    used = engine()
    errors = used.enter(dict.fromkeys(range(used.max_rows + 2), ASKED[0]))
    assert sorted(errors) == [used.max_rows, used.max_rows + 1] and "memory" in str(errors[used.max_rows])
    used.leave(range(used.max_rows))


def test_a_row_that_is_not_finite_fails_alone() -> None:
    used = engine()
    answers = used.infer([ASKED[0], replace(ASKED[1], state=np.full(6, np.nan, np.float32)), ASKED[2]])
    assert isinstance(answers[1], ModelError) and "not finite" in str(answers[1])
    np.testing.assert_array_equal(chunk(answers[0]), chunk(used.infer([ASKED[0]])[0]))


def broken(asked: InferenceRequest) -> InferenceRequest:
    return replace(asked, state=np.full(6, np.nan, np.float32))


def test_a_row_that_is_not_finite_leaves_nothing_in_the_slots_that_it_had() -> None:
    """Rows at positions of their own mask what comes later in their slots; a NaN there would go through the mask."""
    used = engine()
    assert all(isinstance(answer, ModelError) for answer in stepped(used, {0: broken(ASKED[0]), 1: broken(ASKED[1])}).values())
    assert not used.enter({2: ASKED[0]})
    for _ in range(3):
        used.iterate(used.ready())
    answers = stepped(used, {3: ASKED[1]})
    for row, asked in ((2, 0), (3, 1)):
        np.testing.assert_array_equal(chunk(answers[row]), chunk(alone(0.0)[asked]))


class Narrow(TokenPolicy):
    """Has memory for so many rows at once."""

    fits = 2
    largest = 0

    def _alloc(self, rows: int) -> None:
        self.largest = max(self.largest, rows)
        if rows > self.fits:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def perceive(self, requests: Any, cache: Any) -> None:
        self._alloc(len(requests))
        super().perceive(requests, cache)

    def generate(self, before: Tensor, first: Any, cache: Any) -> Tensor:
        self._alloc(len(first))
        return super().generate(before, first, cache)


def test_when_memory_runs_short_halves_are_tried_and_rows_answer_as_ever() -> None:
    used = TokenEngine(Narrow("small", copy.deepcopy(network()), "hash"), TokenSampling(seed=3))
    USED.append(used)
    asked = {row: ASKED[row] for row in range(4)}
    pipelined = {10 + i: frame(f"r{i}", 0, PipelineConfig()) for i in range(4)}
    answers = stepped(used, asked)
    for row, answer in answers.items():
        np.testing.assert_array_equal(chunk(answer), chunk(alone(0.0)[row]))
    np.testing.assert_array_equal(chunk(used.infer(list(asked.values()))[3]), chunk(alone(0.0)[3]))
    assert not stepped(used, pipelined)
    assert len(stepped(used, {20 + i: frame(f"r{i}", 1, PipelineConfig()) for i in range(4)})) == 4
    used.leave(range(30))


def test_rows_for_which_memory_never_suffices_are_told_and_the_others_go_on() -> None:
    model = Narrow("small", copy.deepcopy(network()), "hash")
    used = TokenEngine(model, TokenSampling(seed=3))
    USED.append(used)
    errors = used.enter(dict(enumerate([*ASKED, *ASKED])))
    assert errors and all(isinstance(error, OutOfMemoryError) for error in errors.values())
    left = set(range(2 * len(ASKED))) - set(errors)
    assert set(used.ready()) == left
    used.leave(left)
    assert not used.enter({20: ASKED[0]})
    model.fits = 0
    with pytest.raises(OutOfMemoryError):
        used.iterate([20])
    model.fits = 2
    np.testing.assert_array_equal(chunk(stepped(used, {21: ASKED[0]})[21]), chunk(alone(0.0)[0]))


def test_no_batch_is_larger_than_the_model_says() -> None:
    model = Narrow("small", copy.deepcopy(network()), "hash")
    model.fits = model.max_batch_size
    used = TokenEngine(model, TokenSampling(max_rows=3 * model.max_batch_size))
    rows = {row: ASKED[row % 3] for row in range(2 * model.max_batch_size + 5)}
    assert not used.enter(rows)
    used.iterate(used.ready())
    used.leave(rows)
    assert model.largest == model.max_batch_size


def test_the_catalogue_says_how_many_rows_may_be_in_flight(tmp_path: Path) -> None:
    bundle.save(tmp_path / "b", network())
    served = load_embedded("small", tmp_path / "b", BundleOptions(device="cpu", max_rows=80))
    assert isinstance(served, TokenEngine) and served.max_rows == 80


# --- public contexts ---


def frame(robot: str, number: int, pipelining: PipelineConfig, episode: int = 0, **changes: Any) -> InferenceRequest:
    asked = request(hash((robot, number, episode)) % 1000, conditioning=Conditioning.NONE)
    who = replace(asked.id, robot=robot, episode=episode, sequence=number)
    return replace(asked, id=who, pipelining=pipelining, **changes)


def test_with_one_stage_and_the_newest_context_a_chunk_is_that_of_its_last_observation() -> None:
    """pp_generation 1: all tokens on one context, so that nothing of what others said is left."""
    used, pipelining = engine(), PipelineConfig()
    asked = [frame("r", number, pipelining) for number in range(4)]
    assert not stepped(used, {0: asked[0]})
    for number in range(1, 4):
        answers = stepped(used, {number: asked[number]})
        reply = answers.pop(number - 1)
        assert not answers and reply.ended_with == number
        np.testing.assert_array_equal(chunk(reply), chunk(used.infer([asked[number]])[0]))
    used.leave([3])


@pytest.mark.parametrize("fetch_offset", [0, -1])
@pytest.mark.parametrize("pp_generation", [1, 2, 3, NUM_TOKENS])
def test_a_request_is_answered_in_every_frame_once_the_pipeline_is_full(pp_generation: int, fetch_offset: int) -> None:
    used, pipelining = engine(), PipelineConfig(pp_generation=pp_generation, fetch_offset=fetch_offset)
    shares = steps_of_stages(NUM_TOKENS, pipelining)
    for number in range(pp_generation + 5):
        assert not used.enter({number: frame("r", number, pipelining)})
        turns, answers = 0, dict[int, Any]()
        while ready := used.ready():
            answers.update(used.iterate(ready))
            turns += 1
        assert turns == (max(shares[: min(number, pp_generation)]) if number else 0)
        assert list(answers) == ([number - pp_generation] if number >= pp_generation else [])
        assert all(answer.ended_with == number + fetch_offset for answer in answers.values())
    used.leave(range(pp_generation + 5))


class Apart(TokenPolicy):
    """Merged prefills are computed a second time, each position by a prefill of its own that ends there."""

    worst = 0.0
    compared = 0

    def generate(self, before: Tensor, first: Any, cache: Any) -> Tensor:
        logits = super().generate(before, first, cache)
        for row in range(len(before) if before.shape[1] > 1 else 0):
            for position in range(before.shape[1]):
                own = tuple(values[row : row + 1].clone() for values in cache)
                separate = super().generate(before[row : row + 1, : position + 1], [0], own)[0, -1]
                self.worst = max(self.worst, float((separate - logits[row, position]).abs().max() / separate.abs().max()))
                self.compared += 1
        return logits


@settings(max_examples=10, deadline=None)
@given(
    stages=st.lists(st.integers(1, NUM_TOKENS), min_size=1, max_size=3),
    frames=st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=3, max_size=8),
    offset=st.sampled_from([0, -1]),
)
def test_merged_computation_equals_the_separate_ones(stages: list[int], frames: list[list[bool]], offset: int) -> None:
    """§4.2.3, for requests at any mix of positions and sessions in any company."""
    model = Apart("small", copy.deepcopy(network()), "hash")
    used = TokenEngine(model)
    rows = [-1]
    for number, beginning in enumerate(frames):
        for session, pp_generation in enumerate(stages):
            if beginning[session]:
                rows.append(rows[-1] + 1)
                asked = frame(f"r{session}", number, PipelineConfig(pp_generation=pp_generation, fetch_offset=offset))
                assert not used.enter({rows[-1]: asked})
        while ready := used.ready():
            used.iterate(ready)
    used.leave(rows)
    assert model.worst < 1e-5


def test_what_a_request_says_replaces_what_was_said_before_it_for_all() -> None:
    """X_A is shared: with a token per frame each answer holds the newest token of every position, and was said by all."""
    model, pipelining = policy(), PipelineConfig(pp_generation=NUM_TOKENS, fetch_offset=0)
    used = TokenEngine(model)
    said = torch.zeros(1, NUM_TOKENS, dtype=torch.int64)
    for number in range(2 * NUM_TOKENS):
        asked = frame("r", number, pipelining)
        answers = stepped(used, {number: asked})
        cache = model.cache(1)
        model.perceive([asked], cache)
        logits = model.generate(torch.nn.functional.pad(said[:, :-1], (1, 0)), [0], cache)[0]
        known = min(number, NUM_TOKENS)  # positions that a request stands at
        said[0, :known] = logits[:known].argmax(-1)
        for answer in answers.values():
            np.testing.assert_array_equal(chunk(answer), model.actions(said.view(-1, CONFIG.num_actions).numpy()))
    assert number >= NUM_TOKENS
    used.leave(range(2 * NUM_TOKENS))


def test_sessions_share_a_turn_and_nothing_else() -> None:
    pipelining = PipelineConfig(pp_generation=3, fetch_offset=-1)
    together, apart = engine(), engine()
    for number in range(7):
        rows = {10 * number + i: frame(f"r{i}", number, pipelining) for i in range(3)}
        alone = {row: answer for row, asked in rows.items() for row, answer in stepped(apart, {row: asked}).items()}
        company = stepped(together, rows)
        assert company.keys() == alone.keys()
        for row, answer in company.items():
            np.testing.assert_array_equal(chunk(answer), chunk(alone[row]))
    for used in (together, apart):
        used.leave(range(100))


def test_a_public_chunk_holds_the_prefix_of_the_observation_that_it_ended_with() -> None:
    used, pipelining = engine(), PipelineConfig(pp_generation=2, fetch_offset=-1)
    for number in range(6):
        prefix = np.full((3, 2), number / 10, np.float32)
        held: dict[str, Any] = {"conditioning": Conditioning.PREFIX, "inference_delay_steps": number % 4, "prefix_model": prefix}
        answers = stepped(used, {number: frame("r", number, pipelining, **held)})
        for answer in answers.values():
            delay = answer.ended_with % 4
            np.testing.assert_array_equal(chunk(answer)[:delay], np.full((delay, 2), answer.ended_with / 10, np.float32))
    used.leave(range(6))


def test_rows_of_a_former_episode_are_told_and_the_new_one_begins_anew() -> None:
    used, pipelining = engine(), PipelineConfig(pp_generation=2, fetch_offset=0)
    for number in range(2):
        stepped(used, {number: frame("r", number, pipelining)})
    answers = stepped(used, {2: frame("r", 0, pipelining, episode=1)})
    assert set(answers) == {0, 1} and all("episode is over" in str(answer) for answer in answers.values())
    used.leave([2])


def test_a_late_request_of_a_former_epoch_is_told_and_the_newer_one_goes_on() -> None:
    used, pipelining = engine(), PipelineConfig(pp_generation=1, fetch_offset=0)
    newer, late = (
        replace(asked, id=replace(asked.id, session_epoch=epoch))
        for epoch, asked in ((5, frame("r", 0, pipelining)), (4, frame("r", 9, pipelining)))
    )
    assert not stepped(used, {0: newer})
    answers = stepped(used, {1: late})
    assert set(answers) == {1} and "episode is over" in str(answers[1])
    newest = frame("r", 1, pipelining)
    assert set(stepped(used, {2: replace(newest, id=replace(newest.id, session_epoch=5))})) == {0}
    used.leave([2])


def test_nothing_of_a_former_session_is_in_an_answer() -> None:
    """Not where its tokens were given in an earlier frame, so that nobody said them; its memory was another session's."""
    pipelining = PipelineConfig(pp_generation=2, fetch_offset=0)
    held: dict[str, Any] = {
        "conditioning": Conditioning.PREFIX,
        "inference_delay_steps": 3,
        "prefix_model": np.zeros((3, 2), np.float32),
    }
    asked = [frame("r", number, pipelining, **(held if number == 1 else {})) for number in range(3)]
    replies = []
    for before in ([], [broken(frame("other", number, pipelining)) for number in range(4)]):
        used = engine()
        for row, each in enumerate(before, 100):
            stepped(used, {row: each})
        used.leave(range(100, 104))
        assert not stepped(used, {0: asked[0]}) and not stepped(used, {1: asked[1]})
        used.leave([1])
        replies.append(stepped(used, {2: asked[2]})[0])
        used.leave([2])
    np.testing.assert_array_equal(chunk(replies[0]), chunk(replies[1]))
    np.testing.assert_array_equal(confidence(replies[0]), confidence(replies[1]))
    assert confidence(replies[0])[:2].tolist() == [1.0, 1.0]  # given


@settings(max_examples=6, deadline=None)
@given(data=st.data(), offset=st.sampled_from([0, -1]), stages=st.integers(1, NUM_TOKENS))
def test_whatever_comes_leaves_and_fails_merged_is_separate_and_nothing_is_left(
    data: st.DataObject, offset: int, stages: int
) -> None:
    """§4.2.3 with rows that leave, episodes and epochs that change, observations that are NaN and a network that fails."""
    used = TokenEngine(model := Apart("small", copy.deepcopy(network()), "hash"), TokenSampling(max_rows=20))
    pipelining = PipelineConfig(pp_generation=stages, fetch_offset=offset)
    rows, plain = 0, model.generate
    for number in range(data.draw(st.integers(3, 6))):
        entering = {}
        for robot in data.draw(st.lists(st.integers(0, 2), max_size=3)):
            asked = frame(f"r{robot}", number, pipelining, episode=data.draw(st.integers(0, 1)))
            asked = replace(asked, id=replace(asked.id, session_epoch=data.draw(st.integers(1, 2))))
            entering[rows] = broken(asked) if data.draw(st.integers(0, 5)) == 0 else asked
            rows += 1
        if data.draw(st.booleans()):
            entering[rows], rows = ASKED[number % len(ASKED)], rows + 1
        errors = used.enter(entering)
        used.leave(data.draw(st.lists(st.integers(0, rows), max_size=2)))
        for _turn in range(40):
            if not (ready := used.ready()):
                break
            if data.draw(st.integers(0, 19)) == 0:
                model.generate = lambda *_: 1 // 0  # type: ignore[method-assign]
                with suppress(ZeroDivisionError):  # nor is it asked for rows of a former episode
                    used.iterate(ready)
                model.generate = plain  # type: ignore[method-assign]
                assert not set(ready) & set(used.ready())
            else:
                used.iterate(ready)
        else:
            raise AssertionError("a row goes on for ever")
        assert len(used._flight) + len(list(used._public)) <= used.max_rows
        assert all("memory" in str(error) for error in errors.values())
    used.leave(range(rows))
    assert model.worst < 1e-5 and not used.ready() and not used._outdated and not used._public._sessions
    np.testing.assert_array_equal(chunk(used.infer([ASKED[0]])[0]), chunk(alone(0.0)[0]))


def test_pipelines_that_it_cannot_serve_are_refused() -> None:
    for asked, why in (
        (PipelineConfig(pp_perception=2), "pp_perception is 2"),
        (PipelineConfig(pp_generation=NUM_TOKENS + 1), f"pp_generation is {NUM_TOKENS + 1}"),
        (PipelineConfig(fetch_offset=-2), "fetch_offset is -2"),
    ):
        with pytest.raises(ModelError, match=why):
            engine().require_pipelining(asked)
    engine().require_pipelining(PipelineConfig(pp_generation=NUM_TOKENS, fetch_offset=-1))


# --- parity and bundles ---


def test_the_parity_gate_holds_in_each_precision() -> None:
    for dtype in ("float32", "bfloat16"):
        options = BundleOptions(device="cpu", dtype=dtype)
        checks = TokenEngine(TokenPolicy("small", copy.deepcopy(network()), "hash", options)).check_parity()
        assert len(checks) == 5
        require_parity("small", checks)


def late(policy: TokenPolicy) -> None:
    policy._place[1:] = policy._place[1:].roll(1)


def forgetful(policy: TokenPolicy) -> None:
    plain = policy.generate

    def generate(before: Tensor, first: Any, cache: Any) -> Tensor:
        logits = plain(before, first, cache)
        cache[0][:, :, :, CONFIG.num_context_tokens] = 0
        return logits

    policy.generate = generate  # type: ignore[method-assign]


def impatient(policy: TokenPolicy) -> None:
    policy._network.seen = torch.ones_like(policy._network.seen)


@pytest.mark.parametrize(("fault", "block"), [(late, "prefill"), (forgetful, "decode with a cache"), (impatient, "prefill")])
def test_each_fault_is_found_by_its_gate(fault: Any, block: str) -> None:
    faulty = policy()
    reference = policy().reference()
    faulty.reference = lambda: reference  # type: ignore[method-assign]
    fault(faulty)
    failed = [check.block for check in TokenEngine(faulty).check_parity() if not check.passes]
    assert failed and failed[0] == block


def test_training_learns_and_writes_a_bundle_that_loads(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 400
    state = rng.normal(size=(n, 6)).astype(np.float32)
    action = np.stack([np.sign(state[:, 0]), np.tanh(state[:, 1])], axis=1).astype(np.float32)

    class Data:
        def __init__(self) -> None:
            self.state, self.action, self.executed = state, action, action
            self.disturbed, self.episode = np.zeros(n, bool), np.arange(n, dtype=np.int32)
            self.task, self.frame = np.zeros(n, np.int32), np.zeros(n, np.int32)
            self.images = np.zeros((1, 1, 32, 32, 3), np.uint8)
            self.verdict = self.frame_task = self.frame_episode = np.zeros(1, np.int32)

    rows: list[dict[str, float]] = []
    training = TrainingConfig(steps=60, batch_size=32, warm_up_steps=5, log_every=20, image_dropout=0.9, learning_rate=3e-3)
    trained = train_token_policy(CONFIG, Data(), [("go",)], training, rows.append)
    assert rows[-1]["loss"] < 0.9 * rows[0]["loss"] and rows[-1]["within_a_bin"] > rows[0]["within_a_bin"]
    content_hash = bundle.save(tmp_path, trained)
    loaded, again = bundle.load(tmp_path)
    assert isinstance(loaded, TokenPolicyNetwork) and again == content_hash
    sampled = load_embedded("m", tmp_path, BundleOptions(device="cpu", temperature=0.5))
    assert sampled.contract.model_hash != content_hash == load_embedded("m", tmp_path).contract.model_hash
    forward = replace(ASKED[0], state=np.array([2, 0, 0, 0, 0, 0], np.float32))
    (reply,) = load_embedded("m", tmp_path).infer([forward])
    assert chunk(reply)[0, 0] > 0
