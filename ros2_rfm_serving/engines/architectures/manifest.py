"""Content of `config.json` of a bundle whose `kind` is `architecture`, beside the sizes of its network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, ValidationError, field_validator

from ros2_rfm_serving.engines.base import Predicts

TOKENIZER = "tokenizer.json"
"""File in the format of the library `tokenizers`."""
FORMAT: Literal[2] = 2
"""Format of the bundles that are written now."""
MAX_CAMERAS, MAX_TOKENS, MAX_STEPS, MAX_LINES = 64, 100_000, 10_000, 10_000
"""Limits beyond any model: a checkpoint with larger numbers would keep a server busy for ever."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Affine(_Part):
    """Scaling of the columns of a state or of actions.

    normalised = (value - offset) / scale, and value = normalised * scale + offset. A column of a range (`ranged`) goes to [-1, 1]:
    normalised = 2 * (value - offset) / scale - 1, and value = (normalised + 1) / 2 * scale + offset. Scale 0: normalised is 0.
    """

    offset: tuple[float, ...] = ()
    """Lowest value of a range, or else the value that becomes 0. If empty, offset is 0 and scale is 1 for all columns."""
    scale: tuple[NonNegativeFloat, ...] = ()
    """Width of a range, or else the distance that becomes 1."""
    ranged: tuple[bool, ...] = ()
    """True for a column that is scaled as a range; if empty, no column is. The lowest value and the width are kept because the
    middle of a narrow range loses its digits, and the lowest value would no longer be -1 exactly."""
    constant: tuple[bool, ...] = ()
    """True for a number whose column is 0 for the model whatever its value is, but is scaled on its way back.
    If it is empty, no column is. There are as many flags as `scale` has numbers."""
    unscaled: tuple[bool, ...] = ()
    """True for a number whose column the model reads unscaled, and whose scale counts on its way back alone. If it is empty, no
    column is. There are as many flags as `scale` has numbers. Some columns of GR00T N1.5 that never moved are examples."""
    binary: tuple[bool, ...] = ()
    """True for a column that is 1 above 0.5 and else 0, both ways; if empty, no column is."""
    precision: Literal["float32", "float64"] = "float32"
    """Precision of the library that computed these statistics. The network itself receives float32."""
    lines: int = Field(default=1, ge=1, le=MAX_LINES)
    """Number of actions of a chunk with statistics of their own, one line after the other; later actions have the last line's."""
    clip: PositiveFloat | None = None
    """Limit of normalised values on their way into the model, which are clipped to +- this."""
    clip_back: PositiveFloat | None = None
    """Limit of normalised values on their way out of the model."""
    unclipped: tuple[bool, ...] = ()
    """True for a column that `clip` and `clip_back` leave unchanged; if empty, no column is."""

    @property
    def centre(self) -> tuple[float, ...]:
        """Values that become 0, line after line."""
        return tuple(low + width / 2 if own else low for low, width, own in self._columns())

    @property
    def deviation(self) -> tuple[float, ...]:
        """Distances that become 1, line after line."""
        return tuple(width / 2 if own else width for _, width, own in self._columns())

    def _columns(self) -> Iterator[tuple[float, float, bool]]:
        """Yield each number's offset, scale, and whether it is a range."""
        ranged = self.ranged * self.lines or (False,) * len(self.offset)
        return zip(self.offset, self.scale, ranged, strict=True)


def ranges_of(low: Sequence[float], width: Sequence[float], precision: Literal["float32", "float64"] = "float32") -> Affine:
    """Return the scaling of ranges to [-1, 1]. Both are numbers of `precision`, computed as the checkpoint's library does."""
    return Affine(offset=tuple(low), scale=tuple(width), ranged=(True,) * len(low), precision=precision)


class StateInput(_Part):
    """Column of the network's state: one of the robot's, or its sine or cosine."""

    column: NonNegativeInt
    function: Literal["value", "sin", "cos"] = "value"


class Recrop(_Part):
    """Resize to a square, crop and second resize, as in the processors of GR00T N1.6 and N1.7.

    Each result is rounded to whole pixel values.
    """

    side_px: int = Field(ge=1)
    """Side of the square, before the crop and after it."""
    crop_px: int = Field(ge=1)
    """Side of the middle that is kept."""
    shape: Literal["letterbox", "stretch", "square"]
    """Treatment of an image that is not square: black is added first, it is stretched, or it is refused."""
    area: bool = False
    """True for a resize like OpenCV's INTER_AREA; otherwise bilinear with antialiasing, like torchvision's."""


class Images(_Part):
    """Geometry and scale from a robot's images to those of a network."""

    height_px: int = Field(ge=1)
    width_px: int = Field(ge=1)
    fit: Literal["stretch", "pad", "pad_top_left"] = "stretch"
    """Resize mode. `pad` keeps the aspect ratio and adds black on both sides; `pad_top_left` adds it before the image only."""
    border: float = Field(default=0.0, ge=-1, le=1)
    """Level of the borders, for pixels in [0, 1]; -1, which no pixel has, for models that LeRobot 0.4 trained."""
    antialias: bool = True
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.5, 0.5, 0.5)
    """Scale of pixels: normalised = (pixel / 255 - mean) / std. Black is added before."""
    crop: float = Field(default=1.0, gt=0, le=1)
    """Share of height and width that is kept around the middle, before all other operations."""
    whole: bool = False
    """True if the result of a resize is truncated to whole pixel values."""
    recrop: Recrop | None = None
    """Recipe that replaces `crop`, before all other operations."""
    absent: int = Field(default=0, ge=0, le=MAX_CAMERAS)
    """Number of cameras that the network has and no robot: black, after the others, and never attended to."""

    @property
    def least_px(self) -> tuple[int, int]:
        """Width and height of the smallest image of which no part has to be enlarged."""
        if self.recrop:
            side = math.ceil(self.width_px * self.recrop.side_px / self.recrop.crop_px)
            return side, side
        return math.ceil(self.width_px / self.crop), math.ceil(self.height_px / self.crop)


class Prompt(_Part):
    template: str = "{instruction}\n"
    """Prompt with `{instruction}` and `{state}`, the bins of the normalised state."""
    clean: bool = False
    """True if instructions lose surrounding blanks, and underscores and line ends become blanks."""
    bare: bool = False
    """True if instructions become lower case, and lose all but letters, digits, underscores and blanks."""
    lower: bool = False
    """True if instructions become lower case."""
    max_tokens: int = Field(ge=1, le=MAX_TOKENS)
    """Length of a prompt in tokens. The instruction of a longer prompt is cut, or the prompt itself if no text follows the
    instruction. Shorter prompts are padded at their end."""
    pad_token: int = Field(default=0, ge=0)
    state_bins: int = Field(default=256, ge=2)
    """Number of bins of [-1, 1]."""
    state_words: int = Field(default=0, ge=0, le=MAX_TOKENS)
    """Columns of the state in `{state}`, padded with zeros; 0 for as many as it has."""


class Processing(_Part):
    """Conversion of requests to tensors and back."""

    images: Images
    prompt: Prompt
    state_inputs: tuple[StateInput, ...] = ()
    """Columns of the network's state, which `state` scales; if empty, the robot's state as it is sent."""
    state: Affine = Affine()
    action: Affine = Affine()
    relative: tuple[NonNegativeInt | None, ...] = ()
    """Column of the observed state, as the robot sends it, that each action is relative to; null if it is absolute.
    If empty, all actions are absolute."""


class Sampling(_Part):
    predicts: Predicts = Predicts.VELOCITY
    num_steps: int = Field(default=10, ge=1, le=MAX_STEPS)
    train_steps: int = Field(default=100, ge=1, le=MAX_STEPS)
    clean_limit: PositiveFloat | None = None
    noise_scale: float = Field(default=1.0, ge=0)
    ramp_rate: float = Field(default=0.0, ge=0)
    """Rate at which a chunk departs from the previous one (engines/flow/ramp.py); 0 if it does so as soon as the delay is over."""
    noise: Literal["normal", "uniform"] = "normal"
    """Distribution of the noise; `uniform` is in [-1, 1)."""


class Promise(_Part):
    """Parts of the contract that do not follow from the sizes of the network."""

    action_names: tuple[str, ...] = Field(min_length=1)
    cameras: tuple[str, ...] = ()
    state_size: int = Field(default=0, ge=0)
    control_rate_hz: float = Field(default=0.0, ge=0)
    max_inference_delay_steps: int = Field(default=0, ge=0)
    """Longest prefix in steps that it was trained to continue; 0 for none."""

    @field_validator("action_names", "cameras")
    @classmethod
    def _once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        wrong = sorted({name for name in names if names.count(name) > 1 or not name.strip() or not name.isprintable()})
        if wrong:
            raise ValueError(f"a name for each, none twice, none empty, all printable: {', '.join(map(ascii, wrong))}")
        return names


class BundleManifest(_Part):
    """Content of `config.json`. The architecture's own `config_class` checks `network`."""

    format: Literal[1, 2] = FORMAT
    """Format; 1 precedes ranges that are kept as such, see `bundle.require_current`."""
    kind: Literal["architecture"] = "architecture"
    architecture: str
    network: dict[str, Any]
    contract: Promise
    sampling: Sampling
    processing: Processing


def first_of(error: ValidationError) -> str:
    """Return key, problem and value of the first error."""
    problem = error.errors()[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}, it is {problem['input']!r}"
