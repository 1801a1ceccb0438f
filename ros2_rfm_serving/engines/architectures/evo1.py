"""Evo-1: InternVL3 with half of its language model, read by a flow-matching head (MINT-SJTU/Evo-1, MIT)."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from ros2_rfm_serving.engines.architectures.base import MAX_CHUNK, Architecture, ArchitectureConfig, Observation
from ros2_rfm_serving.engines.architectures.evo_head import EvoHead, EvoHeadConfig
from ros2_rfm_serving.engines.architectures.image_insertion import joined_images
from ros2_rfm_serving.engines.architectures.intern_vision import Connector, InternVit
from ros2_rfm_serving.engines.architectures.language import CausalLanguage
from ros2_rfm_serving.engines.architectures.layers import DecoderConfig
from ros2_rfm_serving.engines.architectures.manifest import Images, Processing, Prompt, Sampling
from ros2_rfm_serving.engines.architectures.vision import VisionConfig
from ros2_rfm_serving.engines.flow.graphs import Tensors

INTERN_VIT = VisionConfig(image_px=448, patch_px=14, width=1024, layers=24, heads=16, mlp_width=4096)
QWEN2 = DecoderConfig(width=896, layers=14, heads=14, kv_heads=2, head_size=64, mlp_width=4864, rope_theta=1e6, bias=True)
CAMERAS = 3
"""Number of cameras of the network; those that a robot lacks are black, and masked in the language model."""


class Evo1Config(ArchitectureConfig):
    chunk_length: int = Field(default=50, ge=1, le=MAX_CHUNK)
    action_columns: int = Field(default=24, ge=1)
    state_columns: int = Field(default=24, ge=1)
    vision: VisionConfig = INTERN_VIT
    shuffle: int = Field(default=2, ge=1)
    """Number of patches per side that become one token."""
    language: DecoderConfig = QWEN2
    vocabulary: int = Field(default=151674, ge=1)
    image_token: int = Field(default=151667, ge=0)
    """Token `<IMG_CONTEXT>` at the place of an image; our prompts have one for each image."""
    text_tokens: int = Field(default=1024, ge=1)
    """Number of tokens of a prompt with its images; the head also reads padding, so that this number is a part of the model."""
    head: EvoHeadConfig = EvoHeadConfig(actions=7)


class Evo1(Architecture):
    config_class = Evo1Config
    config: Evo1Config
    READS_PADDING = True
    EXACT = ("head.state_encoder", "head.action_encoder", "head.decoder")

    def __init__(self, config: Evo1Config) -> None:
        super().__init__()
        self.config: Evo1Config = config
        self.vision = InternVit(config.vision)
        self.connector = Connector(config.vision, config.shuffle, config.language.width)
        self.language = CausalLanguage(config.language, config.vocabulary)
        self.head = EvoHead(config.head, config.chunk_length, config.action_columns, config.state_columns)

    @classmethod
    def toy(cls) -> Evo1Config:
        return Evo1Config(
            chunk_length=6,
            action_columns=6,
            state_columns=8,
            vision=VisionConfig(image_px=56, patch_px=14, width=16, layers=2, heads=2, mlp_width=24),
            language=DecoderConfig(width=24, layers=2, heads=3, kv_heads=1, head_size=8, mlp_width=40, rope_theta=1e6, bias=True),
            vocabulary=128,
            image_token=127,
            text_tokens=96,
            head=EvoHeadConfig(layers=2, heads=4, width=24, hidden=20, state_hidden=20, actions=4),
        )

    @classmethod
    def processing(cls, config: ArchitectureConfig) -> Processing:
        assert isinstance(config, Evo1Config)
        side, grown = config.vision.image_px, (config.vision.image_px // config.vision.patch_px // config.shuffle) ** 2 - 1
        images = "".join(f"Image-{i + 1}: <img><IMG_CONTEXT></img>\n" for i in range(CAMERAS))
        return Processing(
            images=Images(height_px=side, width_px=side, antialias=False, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
            prompt=Prompt(template=images + "{instruction}", max_tokens=config.text_tokens - CAMERAS * grown),
        )

    @classmethod
    def sampling(cls) -> Sampling:
        return Sampling(num_steps=50, noise="uniform")

    def image_tokens(self, images: Tensor) -> Tensor:
        tokens: Tensor = self.connector(self.vision(images.flatten(0, 1)))
        return tokens.reshape(*images.shape[:2], *tokens.shape[1:])

    def perceive(self, observation: Observation) -> Tensors:
        tokens, places = observation.tokens, observation.tokens == self.config.image_token
        images = self.image_tokens(observation.images.to(self.dtype))
        joined = joined_images(self.language.embedded(tokens), places, observation.words, images)
        known = joined.words & (~joined.images | observation.seen.gather(1, joined.which))
        return self.head.context(self.language(joined.embedded, known), observation.state.to(self.dtype))

    def velocity(self, x: Tensor, time: Tensor, context: Tensors) -> Tensor:
        return self.head.velocity(x, time, context)
