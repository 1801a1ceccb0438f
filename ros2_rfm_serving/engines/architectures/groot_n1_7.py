"""GR00T N1.7: the head of N1.6, after self-attention over its prefix, on Qwen3-VL (NVIDIA/Isaac-GR00T, Apache-2.0)."""

from __future__ import annotations

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from ros2_rfm_serving.engines.architectures.base import MAX_CHUNK, ArchitectureConfig, Observation
from ros2_rfm_serving.engines.architectures.groot_head import GrootHead, HeadConfig, Prefix
from ros2_rfm_serving.engines.architectures.groot_n1_5 import QWEN3
from ros2_rfm_serving.engines.architectures.groot_n1_6 import GrootN16, GrootN16Config
from ros2_rfm_serving.engines.architectures.image_insertion import JoinedPrompt, joined_images
from ros2_rfm_serving.engines.architectures.language import CausalLanguage
from ros2_rfm_serving.engines.architectures.layers import DecoderConfig, Rotation
from ros2_rfm_serving.engines.architectures.manifest import Images, Processing, Prompt, Sampling

MAX_DELAY_STEPS = 12
"""Longest inference delay that its chunks bridge, in steps; with 24 its users saw an arm swing."""
HEAD = HeadConfig(layers=32, future_tokens=0, text_every=2, embodiment=10)


class QwenVisionConfig(BaseModel):
    """Sizes of Qwen3-VL's image encoder. A patch is given twice, as if it were a video of two frames."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    image_px: int = Field(default=256, ge=1)
    patch_px: int = Field(default=16, ge=1)
    width: int = Field(default=1024, ge=1)
    layers: int = Field(default=24, ge=1, le=1000)
    heads: int = Field(default=16, ge=1)
    mlp_width: int = Field(default=4096, ge=1)
    positions: int = Field(default=2304, ge=1)
    """Number of positions in its table, from which those of an image are interpolated."""
    deep: tuple[int, ...] = (5, 11, 17)
    """Layers whose patches are added to the first layers of the language model."""

    @property
    def side(self) -> int:
        """Number of tokens per side of an image."""
        return self.image_px // self.patch_px // SHUFFLE


SHUFFLE = 2
"""Number of patches per side that become one token."""
FRAMES = 2


class GrootN17Config(GrootN16Config):
    chunk_length: int = Field(default=40, ge=1, le=MAX_CHUNK)
    action_columns: int = Field(default=132, ge=1)
    state_columns: int = Field(default=132, ge=0)
    vision: QwenVisionConfig = QwenVisionConfig()  # type: ignore[assignment]  # elsewhere only fields that both have are read
    language: DecoderConfig = QWEN3.model_copy(update={"layers": 16, "rope_theta": 5e6})
    vocabulary: int = Field(default=151936, ge=1)
    image_token: int = Field(default=151655, ge=0)
    """Token `<|image_pad|>` at the place of an image; our prompts have one for each image."""
    rope_parts: tuple[int, int, int] = (24, 20, 20)
    """Numbers of rotated pairs of a head for time, height and width, interleaved."""
    head: HeadConfig = HEAD


class GrootN17(GrootN16):
    RECORDS_PERCEPTION = False  # `transformers` cuts an image's patches by numbers that it reads from the device
    config_class = GrootN17Config  # type: ignore[assignment]  # as above

    def __init__(self, config: GrootN17Config) -> None:
        torch.nn.Module.__init__(self)
        self.config: GrootN17Config = config
        self.vision = qwen_vision(config.vision, config.language.width)
        self.language = CausalLanguage(config.language, config.vocabulary, normed=False)  # its head was trained without the norm
        self.head = GrootHead(config.head, config.action_columns, config.state_columns)

    @classmethod
    def toy(cls) -> GrootN17Config:
        own = GrootN16.toy()
        told = own.model_dump(exclude={"vision", "language", "head"})
        head = own.head.model_copy(update={"prefix_layers": 2})
        vision = QwenVisionConfig(image_px=64, width=32, layers=2, heads=2, mlp_width=24, positions=16, deep=(0,))
        return GrootN17Config(**told, vision=vision, language=own.language, head=head, rope_parts=(2, 1, 1))

    @classmethod
    def processing(cls, config: ArchitectureConfig, cameras: int = 2) -> Processing:
        assert isinstance(config, GrootN17Config)
        side = config.vision.image_px
        return Processing(
            images=Images(height_px=side, width_px=side, fit="pad", crop=230 / 256, whole=True),
            prompt=Prompt(template=prompt_of(cameras), max_tokens=128, bare=True),
        )

    @classmethod
    def sampling(cls) -> Sampling:
        return Sampling(num_steps=4, ramp_rate=6.0)

    def image_tokens(self, images: Tensor) -> Tensor:
        return self._seen(images)[0]

    def prefix(self, observation: Observation) -> Prefix:
        tokens, places = observation.tokens, observation.tokens == self.config.image_token
        images, *deep = self._seen(observation.images.to(self.dtype))
        joined = joined_images(self.language.embedded(tokens), places, observation.words, images)
        nothing = torch.zeros_like(self.language.embedded(tokens))
        added = [joined_images(nothing, places, observation.words, each).embedded for each in deep]
        rotation = self._rotation(joined)
        return Prefix(self.language(joined.embedded, rotation=rotation, added=added), joined.words, joined.images)

    def _seen(self, images: Tensor) -> list[Tensor]:
        """Return image tokens, then the features that are added layer by layer, [B, C, tokens, width] each.
        images: [B, C, 3, height, width]."""
        vision = self.config.vision
        assert isinstance(vision, QwenVisionConfig)
        flat, grid = images.flatten(0, 1), 2 * vision.side
        sizes = torch.tensor([[1, grid, grid]] * len(flat), device=images.device)
        said = self.vision(patches_of(flat, vision.patch_px), grid_thw=sizes)
        tokens, deep = said if isinstance(said, tuple) else (said.pooler_output, said.deepstack_features)
        return [each.reshape(*images.shape[:2], vision.side**2, -1) for each in (tokens, *deep)]

    def _rotation(self, joined: JoinedPrompt) -> Rotation:
        """Return the rotation by time, height and width.
        A word has the same position in all three. An image's patches have positions of their own, from the image's beginning."""
        config = self.config
        assert isinstance(config, GrootN17Config)
        side = config.vision.side
        first = joined.images & (joined.patch == 0)
        steps = torch.where(joined.images, first * side, 1)
        before = steps.cumsum(dim=1) - steps - (joined.images & ~first) * side
        row, column = joined.patch // side * joined.images, joined.patch % side * joined.images
        places = torch.stack([before, before + row, before + column], dim=-1).float()
        half = config.language.head_size // 2
        exponents = torch.arange(half, dtype=torch.float32, device=places.device) / half
        which = torch.tensor(turns_of(config.rope_parts), device=places.device)
        angles = (places[..., which] / config.language.rope_theta**exponents)[:, None]
        return angles.cos(), angles.sin()


def turns_of(parts: tuple[int, int, int]) -> list[int]:
    """Return the axis that rotates each pair, of time (0), height (1) and width (2): interleaved, with the rest for time."""
    turns = [0] * sum(parts)
    for axis in (1, 2):
        turns[axis : 3 * parts[axis] : 3] = [axis] * len(turns[axis : 3 * parts[axis] : 3])
    return turns


def patches_of(images: Tensor, patch_px: int) -> Tensor:
    """Return patches, [N patches, 3 x frames x patch x patch], in which the patches of a square are contiguous.
    images: [N, 3, height, width]."""
    count, channels, height, width = images.shape
    rows, columns = height // patch_px // SHUFFLE, width // patch_px // SHUFFLE
    cut = images.reshape(count, channels, rows, SHUFFLE, patch_px, columns, SHUFFLE, patch_px)
    cut = cut.permute(0, 2, 5, 3, 6, 1, 4, 7).unsqueeze(6).expand(-1, -1, -1, -1, -1, -1, FRAMES, -1, -1)
    return cut.reshape(count * rows * columns * SHUFFLE**2, -1)


def qwen_vision(config: QwenVisionConfig, width: int) -> Qwen3VLVisionModel:
    return Qwen3VLVisionModel._from_config(
        Qwen3VLVisionConfig(
            hidden_size=config.width,
            depth=config.layers,
            num_heads=config.heads,
            intermediate_size=config.mlp_width,
            patch_size=config.patch_px,
            spatial_merge_size=SHUFFLE,
            temporal_patch_size=FRAMES,
            num_position_embeddings=config.positions,
            deepstack_visual_indexes=list(config.deep),
            out_hidden_size=width,
            attn_implementation="sdpa",
        )
    )


def prompt_of(cameras: int) -> str:
    """Return the prompt of Qwen3-VL's chat."""
    images = "<|vision_start|><|image_pad|><|vision_end|>" * cameras
    return f"<|im_start|>user\n{images}{{instruction}}<|im_end|>\n"
