"""GR00T N1.6: N1.5 with another connector, and a head that alternates between words and images (NVIDIA/Isaac-GR00T, Apache-2.0)."""

from __future__ import annotations

from pydantic import Field
from torch import nn

from ros2_rfm_serving.engines.architectures.base import MAX_CHUNK, ArchitectureConfig
from ros2_rfm_serving.engines.architectures.groot_head import HeadConfig
from ros2_rfm_serving.engines.architectures.groot_n1_5 import QWEN3, GrootN15, GrootN15Config
from ros2_rfm_serving.engines.architectures.intern_vision import Connector
from ros2_rfm_serving.engines.architectures.layers import DecoderConfig
from ros2_rfm_serving.engines.architectures.manifest import Images, Processing, Prompt
from ros2_rfm_serving.engines.architectures.vision import VisionConfig

SIGLIP2 = VisionConfig(image_px=252, patch_px=14, width=1152, layers=27, heads=16, mlp_width=4304)
"""Image encoder. Its table of positions is for 16 x 16 patches, and is resized once, at import."""
HEAD = HeadConfig(layers=32, prefix_layers=0, future_tokens=0, text_every=2, embodiment=10)


class GrootN16Config(GrootN15Config):
    chunk_length: int = Field(default=50, ge=1, le=MAX_CHUNK)
    action_columns: int = Field(default=128, ge=1)
    state_columns: int = Field(default=128, ge=0)
    vision: VisionConfig = SIGLIP2
    shuffle: int = Field(default=2, ge=1)
    """Number of patches per side that become one token."""
    language: DecoderConfig = QWEN3.model_copy(update={"layers": 16})
    head: HeadConfig = HEAD


class GrootN16(GrootN15):
    config_class = GrootN16Config

    def connector_of(self, config: GrootN15Config) -> nn.Module:
        assert isinstance(config, GrootN16Config)
        return Connector(config.vision, config.shuffle, config.language.width)

    @classmethod
    def toy(cls) -> GrootN16Config:
        own = GrootN15.toy()
        head = own.head.model_copy(update={"layers": 8, "prefix_layers": 0, "future_tokens": 0, "text_every": 2})
        vision = own.vision.model_copy(update={"image_px": 56})
        return GrootN16Config(**(own.model_dump() | {"head": head.model_dump(), "vision": vision.model_dump()}))

    @classmethod
    def processing(cls, config: ArchitectureConfig, cameras: int = 2) -> Processing:
        assert isinstance(config, GrootN16Config)
        side = config.vision.image_px
        return Processing(
            images=Images(height_px=side, width_px=side, crop=0.95, whole=True),
            prompt=Prompt(template=prompt_of(cameras), max_tokens=128, bare=True),
        )


def prompt_of(cameras: int) -> str:
    """Return Eagle's prompt, with Qwen's chat: the instruction first, then the images, and no beginning of an answer."""
    images = "".join(f"<image {i + 1}><img><IMG_CONTEXT></img>" for i in range(cameras))
    return f"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{{instruction}}{images}<|im_end|>\n"
