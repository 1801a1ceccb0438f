"""GR00T N1.5: SigLIP 2 and Qwen3 as in Eagle, and a head that reads both (NVIDIA/Isaac-GR00T, Apache-2.0)."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor, nn

from ros2_rfm_serving.engines.architectures.base import MAX_CHUNK, Architecture, ArchitectureConfig, Observation
from ros2_rfm_serving.engines.architectures.groot_head import GrootHead, HeadConfig, Prefix
from ros2_rfm_serving.engines.architectures.image_insertion import joined_images
from ros2_rfm_serving.engines.architectures.language import CausalLanguage
from ros2_rfm_serving.engines.architectures.layers import DecoderConfig, unread
from ros2_rfm_serving.engines.architectures.manifest import Images, Processing, Prompt, Sampling
from ros2_rfm_serving.engines.architectures.vision import Siglip, VisionConfig
from ros2_rfm_serving.engines.flow.graphs import Tensors

SIGLIP = VisionConfig(image_px=224, patch_px=14, width=1152, layers=27, heads=16, mlp_width=4304)
QWEN3 = DecoderConfig(width=2048, layers=12, heads=16, kv_heads=8, head_size=128, mlp_width=6144, rope_theta=1e6, head_norm=True)


class GrootN15Config(ArchitectureConfig):
    chunk_length: int = Field(default=16, ge=1, le=MAX_CHUNK)
    action_columns: int = Field(default=32, ge=1)
    state_columns: int = Field(default=64, ge=0)
    vision: VisionConfig = SIGLIP
    language: DecoderConfig = QWEN3
    """Language model, with the layers that are used."""
    vocabulary: int = Field(default=151680, ge=1)
    image_token: int = Field(default=151669, ge=0)
    """Token `<IMG_CONTEXT>` at the place of an image; our prompts have one for each image."""
    head: HeadConfig = HeadConfig()


class GrootN15(Architecture):
    config_class = GrootN15Config
    config: GrootN15Config
    EXACT = ("head.model.timestep_encoder", "head.model.proj_out_1", "head.model.proj_out_2")

    def __init__(self, config: GrootN15Config) -> None:
        super().__init__()
        self.config: GrootN15Config = config
        self.vision = Siglip(config.vision)
        self.connector = self.connector_of(config)
        self.language = CausalLanguage(config.language, config.vocabulary)
        self.head = GrootHead(config.head, config.action_columns, config.state_columns)

    def connector_of(self, config: GrootN15Config) -> nn.Module:
        return nn.Linear(config.vision.width, config.language.width)

    @classmethod
    def toy(cls) -> GrootN15Config:
        language = DecoderConfig(width=24, layers=2, heads=4, kv_heads=2, head_size=8, mlp_width=40, rope_theta=1e6, head_norm=True)
        head = HeadConfig(
            layers=4,
            heads=4,
            width=32,
            hidden=20,
            prefix_width=24,
            prefix_layers=2,
            prefix_heads=3,
            future_tokens=3,
            positions=16,
            embodiments=3,
            embodiment=2,
        )
        vision = VisionConfig(image_px=28, patch_px=14, width=32, layers=2, heads=16, mlp_width=24)
        sizes = {"chunk_length": 7, "action_columns": 5, "state_columns": 6}
        return GrootN15Config(**sizes, vision=vision, language=language, vocabulary=64, image_token=60, head=head)

    @classmethod
    def processing(cls, config: GrootN15Config, cameras: int = 2) -> Processing:  # type: ignore[override]
        side = config.vision.image_px
        return Processing(
            images=Images(height_px=side, width_px=side, crop=0.95, whole=True),
            prompt=Prompt(template=prompt_of(cameras), max_tokens=128),
        )

    @classmethod
    def sampling(cls) -> Sampling:
        return Sampling(num_steps=4)

    def image_tokens(self, images: Tensor) -> Tensor:
        tokens: Tensor = self.connector(self.vision(images.flatten(0, 1)))
        return tokens.reshape(*images.shape[:2], *tokens.shape[1:])

    def prefix(self, observation: Observation) -> Prefix:
        tokens, places = observation.tokens, observation.tokens == self.config.image_token
        images = self.image_tokens(observation.images.to(self.dtype))
        joined = joined_images(self.language.embedded(tokens), places, observation.words, images)
        return Prefix(self.language(joined.embedded), joined.words, joined.images)

    def perceive(self, observation: Observation) -> Tensors:
        return self.head.context(self.prefix(observation), observation.state.to(self.dtype))

    def lengthened(self, context: Tensors, count: int) -> Tensors:
        words, images, tokens, *read = context
        words, images, *read = unread((words, images, *read), count)
        return words, images, tokens, *read

    def velocity(self, x: Tensor, time: Tensor, context: Tensors) -> Tensor:
        return self.head.velocity(x, time, context)


def prompt_of(cameras: int) -> str:
    """Return Eagle's prompt, with Qwen's chat; an image's tokens replace its `<IMG_CONTEXT>`."""
    images = "".join(f"<image {i + 1}><img><IMG_CONTEXT></img>" for i in range(cameras))
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    return f"{system}<|im_start|>user\n{images}{{instruction}}<|im_end|>\n<|im_start|>assistant\n"
