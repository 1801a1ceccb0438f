"""Gemma as pi0 and pi0.5 have it, against transformers' own and against what its parts are defined to be."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec

import numpy as np
import pytest
import torch
from lerobot.policies.pi0 import modeling_pi0
from transformers import GemmaConfig, GemmaModel, PaliGemmaForConditionalGeneration

from ros2_rfm_serving.engines.lerobot.pi_gemma import (
    CHECK,
    AdaptiveNorm,
    PiGemmaForCausalLM,
    PiGemmaModel,
    PiPaliGemma,
    provide,
)

WIDTH, CONDITION, ROWS, PREFIX, TOKENS = 32, 16, 3, 5, 4


def config(**changes: object) -> GemmaConfig:
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8, "num_hidden_layers": 2, "vocab_size": 16}
    made = GemmaConfig(hidden_size=WIDTH, intermediate_size=48, **sizes, **changes)
    made._attn_implementation = "eager"
    return made


def randomized(module: torch.nn.Module) -> torch.nn.Module:
    for parameter in module.parameters():
        parameter.data = torch.randn_like(parameter) * 0.3
    return module.eval().requires_grad_(False)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(5)


def test_without_a_condition_it_is_gemma_but_for_the_scale_of_what_enters() -> None:
    ours = randomized(PiGemmaForCausalLM(config())).model
    theirs = GemmaModel(config()).eval()
    theirs.load_state_dict(ours.state_dict())
    x, mask = torch.randn(ROWS, TOKENS, WIDTH), torch.zeros(ROWS, 1, TOKENS, TOKENS)
    positions = torch.arange(TOKENS).expand(ROWS, -1)
    got = ours(inputs_embeds=x, attention_mask=mask, position_ids=positions).last_hidden_state
    asked = theirs(inputs_embeds=x / WIDTH**0.5, attention_mask=mask, position_ids=positions).last_hidden_state
    assert torch.allclose(got, asked, atol=1e-5)


def test_scale_shift_and_gate_follow_from_the_condition() -> None:
    norm = randomized(AdaptiveNorm(WIDTH, 1e-6, CONDITION))
    x, condition = torch.randn(ROWS, TOKENS, WIDTH), torch.randn(ROWS, CONDITION)
    got, gate = norm(x, condition)
    x64, c64 = x.numpy().astype(np.float64), condition.numpy().astype(np.float64)
    modulation = c64 @ norm.dense.weight.numpy().astype(np.float64).T + norm.dense.bias.numpy()
    scale, shift, expected_gate = np.split(modulation[:, None], 3, axis=-1)
    expected = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + 1e-6) * (1 + scale) + shift
    assert np.allclose(got, expected, atol=1e-5) and np.allclose(gate, expected_gate, atol=1e-5)


def conditioned() -> PiGemmaModel:
    model: PiGemmaModel = randomized(PiGemmaForCausalLM(config(use_adarms=True, adarms_cond_dim=CONDITION))).model
    return model


def test_every_norm_of_a_conditioned_model_hears_the_condition() -> None:
    model = conditioned()
    x, mask = torch.randn(ROWS, TOKENS, WIDTH), torch.zeros(ROWS, 1, TOKENS, TOKENS)
    positions = torch.arange(TOKENS).expand(ROWS, -1)
    conditions = torch.randn(2, ROWS, CONDITION)

    def answer(condition: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(
            inputs_embeds=x, attention_mask=mask, position_ids=positions, adarms_cond=condition
        ).last_hidden_state
        return out

    whole = answer(conditions[0])
    assert not torch.allclose(whole, answer(conditions[1]))
    for norm in [module for module in model.modules() if isinstance(module, AdaptiveNorm)]:
        held = {name: parameter.clone() for name, parameter in norm.named_parameters()}
        norm.dense.weight.zero_()
        assert not torch.allclose(whole, answer(conditions[0]))
        norm.load_state_dict(held)
    # Closed gates: what enters is all that there is.
    for layer in model.layers:
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.dense.weight[2 * WIDTH :].zero_()
            norm.dense.bias[2 * WIDTH :].zero_()
    assert torch.allclose(answer(conditions[0]), model.norm(x, conditions[0])[0])


def test_a_step_reads_the_prefix_and_adds_nothing_to_it() -> None:
    """Prefix first, then two steps on it: each is what the whole sequence gives at its places."""
    model = randomized(PiGemmaForCausalLM(config())).model
    prefix, steps = torch.randn(ROWS, PREFIX, WIDTH), torch.randn(2, ROWS, TOKENS, WIDTH)
    blind = torch.full((PREFIX + TOKENS, PREFIX + TOKENS), 0.0)
    blind[:PREFIX, PREFIX:] = torch.finfo(torch.float32).min  # the prefix does not see the step
    mask = blind.expand(ROWS, 1, -1, -1)
    positions = torch.arange(PREFIX + TOKENS).expand(ROWS, -1)
    perceived = model(
        inputs_embeds=prefix, attention_mask=mask[:, :, :PREFIX, :PREFIX], position_ids=positions[:, :PREFIX], use_cache=True
    )
    for step in steps:
        got = model(
            inputs_embeds=step,
            attention_mask=mask[:, :, PREFIX:],
            position_ids=positions[:, PREFIX:],
            past_key_values=perceived.past_key_values,
            use_cache=False,
        ).last_hidden_state
        whole = model(inputs_embeds=torch.cat([prefix, step], 1), attention_mask=mask, position_ids=positions).last_hidden_state
        assert torch.allclose(got, whole[:, PREFIX:], atol=1e-5)
    assert perceived.past_key_values.get_seq_length() == PREFIX


def test_a_transformers_that_has_the_changes_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = PaliGemmaForConditionalGeneration
    monkeypatch.setitem(sys.modules, CHECK.__name__, module_from_spec(ModuleSpec(CHECK.__name__, None)))
    monkeypatch.setattr(modeling_pi0, "PaliGemmaForConditionalGeneration", theirs)
    provide("pi0")
    assert modeling_pi0.PaliGemmaForConditionalGeneration is theirs
    monkeypatch.delitem(sys.modules, CHECK.__name__)
    provide("pi0")
    assert modeling_pi0.PaliGemmaForConditionalGeneration is PiPaliGemma
