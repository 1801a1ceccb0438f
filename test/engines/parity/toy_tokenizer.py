"""A tokenizer with a token for every character."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors

SPECIAL = ("<pad>", "<unk>", "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")


def toy_tokenizer() -> Tokenizer:
    characters = [chr(code) for code in range(32, 127)]
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, "\n", *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return tokenizer


def beginning_tokenizer() -> Tokenizer:
    """As PaliGemma's, which begins every text with a token of its own."""
    tokenizer = toy_tokenizer()
    begin = tokenizer.token_to_id(SPECIAL[-1])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{SPECIAL[-1]} $A", special_tokens=[(SPECIAL[-1], begin)])
    return tokenizer


def save_tokenizer(folder: Path) -> None:
    """As `transformers` saves it."""
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(
        tokenizer_object=toy_tokenizer(),
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens={
            "image_token": "<image>",
            "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>",
            "end_of_utterance_token": "<end_of_utterance>",
        },
    )
    fast.save_pretrained(folder)
