"""What `config.json` of a bundle says whose `kind` is `architecture`, beside the sizes of its network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, ValidationError, field_validator

from ros2_rfm_serving.engines.base import Predicts

TOKENIZER = "tokenizer.json"
"""As the library `tokenizers` writes it."""
FORMAT: Literal[2] = 2
"""Of the bundles that are written now."""
MAX_CAMERAS, MAX_TOKENS, MAX_STEPS, MAX_LINES = 64, 100_000, 10_000, 10_000
"""Beyond any model: a checkpoint that says more would keep a server busy for ever."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Affine(_Part):
    """Scaling of the columns of a state or of actions.

    normalised = (value - offset) / scale, and value = normalised * scale + offset. A column of a range (`ranged`) goes to [-1, 1]:
    normalised = 2 * (value - offset) / scale - 1, and value = (normalised + 1) / 2 * scale + offset. Scale 0: normalised is 0.
    """

    offset: tuple[float, ...] = ()
    """Lowest value of a range, else the value that becomes 0. Empty: 0 and 1 for all"""
    scale: tuple[NonNegativeFloat, ...] = ()
    """Width of a range, else the distance that becomes 1"""
    ranged: tuple[bool, ...] = ()
    """Whether a column is scaled as a range, column by column; empty: none is. The lowest value and the width are kept because the
    middle of a narrow range loses its digits, and the lowest value would no longer be -1 exactly"""
    constant: tuple[bool, ...] = ()
    """Numbers, as many as `scale` has, whose column is 0 for the model whatever its value is, and is scaled on its way back all the
    same; empty: none"""
    unscaled: tuple[bool, ...] = ()
    """Numbers, as many as `scale` has, whose column the model reads as it is and whose scale counts on its way back alone, as some
    columns of GR00T N1.5 that never moved; empty: none"""
    binary: tuple[bool, ...] = ()
    """Columns that are 1 above 0.5 and else 0, both ways; empty: none"""
    precision: Literal["float32", "float64"] = "float32"
    """As the library computes whose statistics these are. The network itself receives float32"""
    lines: int = Field(default=1, ge=1, le=MAX_LINES)
    """Actions of a chunk that have numbers of their own, one line after the other; those behind them have the last line's"""
    clip: PositiveFloat | None = None
    """Normalised values are cut to +- this, on their way into the model."""
    clip_back: PositiveFloat | None = None
    """And on their way out of it"""
    unclipped: tuple[bool, ...] = ()
    """Columns that `clip` and `clip_back` leave as they are; empty: none"""

    @property
    def centre(self) -> tuple[float, ...]:
        """Values that become 0, line after line."""
        return tuple(low + width / 2 if own else low for low, width, own in self._columns())

    @property
    def deviation(self) -> tuple[float, ...]:
        """Distances that become 1, line after line."""
        return tuple(width / 2 if own else width for _, width, own in self._columns())

    def _columns(self) -> Iterator[tuple[float, float, bool]]:
        """Yield offset, scale and whether it is a range, of each number."""
        ranged = self.ranged * self.lines or (False,) * len(self.offset)
        return zip(self.offset, self.scale, ranged, strict=True)


def ranges_of(low: Sequence[float], width: Sequence[float], precision: Literal["float32", "float64"] = "float32") -> Affine:
    """Return the scaling of ranges to [-1, 1]. Both are numbers of `precision`, computed as the checkpoint's library does."""
    return Affine(offset=tuple(low), scale=tuple(width), ranged=(True,) * len(low), precision=precision)


class StateInput(_Part):
    """A column of the network's state: one of the robot's, or its sine or cosine."""

    column: NonNegativeInt
    function: Literal["value", "sin", "cos"] = "value"


class Recrop(_Part):
    """Resizing to a square, cropping and resizing again, as the processors of GR00T N1.6 and N1.7 do it.

    Each result is rounded to whole pixel values.
    """

    side_px: int = Field(ge=1)
    """Of the square, before the crop and after it"""
    crop_px: int = Field(ge=1)
    """Of the middle that is kept"""
    shape: Literal["letterbox", "stretch", "square"]
    """What is done with a picture that is not square: black is added first, it is stretched, or it is refused"""
    area: bool = False
    """As OpenCV's INTER_AREA resizes; else bilinear with antialiasing, as torchvision does"""


class Images(_Part):
    """From what a robot sends to what a network sees."""

    height_px: int = Field(ge=1)
    width_px: int = Field(ge=1)
    fit: Literal["stretch", "pad", "pad_top_left"] = "stretch"
    """`pad`: the ratio is kept and black added on both sides; `pad_top_left`: before it only"""
    border: float = Field(default=0.0, ge=-1, le=1)
    """Level of what is added, where pixels are in [0, 1]; -1, which no pixel has, for models that LeRobot 0.4 trained"""
    antialias: bool = True
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.5, 0.5, 0.5)
    """normalised = (pixel / 255 - mean) / std; black is added before"""
    crop: float = Field(default=1.0, gt=0, le=1)
    """Of height and width, what is kept around the middle, before anything else"""
    whole: bool = False
    """What resizing gives is cut to whole pixel values"""
    recrop: Recrop | None = None
    """Before all else, in place of `crop`"""
    absent: int = Field(default=0, ge=0, le=MAX_CAMERAS)
    """Cameras that the network has and no robot: black, after the others, and never attended to"""

    @property
    def least_px(self) -> tuple[int, int]:
        """Width and height of an image of which nothing has to be made larger."""
        if self.recrop:
            side = math.ceil(self.width_px * self.recrop.side_px / self.recrop.crop_px)
            return side, side
        return math.ceil(self.width_px / self.crop), math.ceil(self.height_px / self.crop)


class Prompt(_Part):
    template: str = "{instruction}\n"
    """`{instruction}`, `{state}`: bins of the normalised state"""
    clean: bool = False
    """Instructions without surrounding blanks; underscores and line ends become blanks"""
    bare: bool = False
    """Instructions in small letters, without what is neither letter, digit, underscore nor blank"""
    lower: bool = False
    """Instructions in small letters"""
    max_tokens: int = Field(ge=1, le=MAX_TOKENS)
    """Of longer prompts the instruction is cut, and the prompt where nothing stands behind that; shorter ones are padded behind"""
    pad_token: int = Field(default=0, ge=0)
    state_bins: int = Field(default=256, ge=2)
    """Of [-1, 1]"""
    state_words: int = Field(default=0, ge=0, le=MAX_TOKENS)
    """Columns of the state in `{state}`, padded with zeros; 0: as many as it has"""


class Processing(_Part):
    """Requests to tensors and back."""

    images: Images
    prompt: Prompt
    state_inputs: tuple[StateInput, ...] = ()
    """Columns of the network's state, which `state` scales; empty: the robot's, as it sends them"""
    state: Affine = Affine()
    action: Affine = Affine()
    relative: tuple[NonNegativeInt | None, ...] = ()
    """Of each action the column of the observed state, as the robot sends it, that it is counted from; null: from nothing. Empty:
    all of them"""


class Sampling(_Part):
    predicts: Predicts = Predicts.VELOCITY
    num_steps: int = Field(default=10, ge=1, le=MAX_STEPS)
    train_steps: int = Field(default=100, ge=1, le=MAX_STEPS)
    clean_limit: PositiveFloat | None = None
    noise_scale: float = Field(default=1.0, ge=0)
    ramp_rate: float = Field(default=0.0, ge=0)
    """How fast a chunk leaves the one before it (engines/flow/ramp.py); 0: as soon as the delay is over"""
    noise: Literal["normal", "uniform"] = "normal"
    """`uniform`: in [-1, 1)"""


class Promise(_Part):
    """Of the contract, what is not in the sizes of the network."""

    action_names: tuple[str, ...] = Field(min_length=1)
    cameras: tuple[str, ...] = ()
    state_size: int = Field(default=0, ge=0)
    control_rate_hz: float = Field(default=0.0, ge=0)
    max_inference_delay_steps: int = Field(default=0, ge=0)
    """Longest prefix that it was trained to continue; 0: none"""

    @field_validator("action_names", "cameras")
    @classmethod
    def _once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        wrong = sorted({name for name in names if names.count(name) > 1 or not name.strip() or not name.isprintable()})
        if wrong:
            raise ValueError(f"a name for each, none twice, none empty, all printable: {', '.join(map(ascii, wrong))}")
        return names


class Manifest(_Part):
    """`config.json`. `network` is checked by the architecture's own `config_class`."""

    format: Literal[1, 2] = FORMAT
    """1: before ranges were kept as such; see `bundle.require_current`"""
    kind: Literal["architecture"] = "architecture"
    architecture: str
    network: dict[str, Any]
    contract: Promise
    sampling: Sampling
    processing: Processing


def first_of(error: ValidationError) -> str:
    """Key, what is wrong with it, value."""
    problem = error.errors()[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}, it is {problem['input']!r}"
