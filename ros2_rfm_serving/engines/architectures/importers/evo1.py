"""Importer of Evo-1's checkpoints: `config.json`, `norm_stats.json`, and the weights of its DeepSpeed file as safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, float32, tensor

from ros2_rfm_serving.engines.architectures.evo1 import CAMERAS, INTERN_VIT, QWEN2, Evo1, Evo1Config
from ros2_rfm_serving.engines.architectures.evo_head import EvoHeadConfig
from ros2_rfm_serving.engines.architectures.importers.base import Imported, ImportOptions, Rule, renamed
from ros2_rfm_serving.engines.architectures.importers.decoder_weights import decoder_rules, decoder_sizes
from ros2_rfm_serving.engines.architectures.importers.files import Json, layers_of, read_json, tokenizer_file
from ros2_rfm_serving.engines.architectures.importers.shards import INDEX, WEIGHTS, read_weights
from ros2_rfm_serving.engines.architectures.importers.tokens import token_id
from ros2_rfm_serving.engines.architectures.manifest import Affine, BundleManifest, Processing, Promise, ranges_of
from ros2_rfm_serving.engines.architectures.vision import VisionConfig
from ros2_rfm_serving.errors import ModelError

PICKLE, STATISTICS = "mp_rank_00_model_states.pt", "norm_stats.json"
EPS = 1e-8
"""Number that its normaliser adds to every span."""
BOUNDS, BOUNDS_Q99, NORMAL = "bounds", "bounds_q99", "normal"
"""Values of `normalization_type`."""
_VIT, _LANGUAGE, _HEAD = r"embedder\.model\.vision_model", r"embedder\.model\.language_model\.model", r"action_head"
_LAYER, _BLOCK = rf"{_VIT}\.encoder\.layers\.(\d+)", rf"{_HEAD}\.transformer_blocks\.(\d+)"
RULES: list[Rule] = [
    (rf"{_VIT}\.embeddings\.class_embedding", "vision.embeddings.class_token"),
    (rf"{_VIT}\.embeddings\.position_embedding", "vision.embeddings.position"),
    (rf"{_VIT}\.embeddings\.patch_embedding\.(.+)", r"vision.embeddings.patch_embedding.\1"),
    (rf"{_LAYER}\.(norm[12]\..+)", r"vision.blocks.\1.\2"),
    (rf"{_LAYER}\.ls([12])", r"vision.blocks.\1.scale\2"),
    (rf"{_LAYER}\.attn\.(qkv\..+)", r"vision.blocks.\1.\2"),
    (rf"{_LAYER}\.attn\.proj\.(.+)", r"vision.blocks.\1.out.\2"),
    (rf"{_LAYER}\.mlp\.(.+)", r"vision.blocks.\1.\2"),
    (r"embedder\.model\.mlp1\.0\.(.+)", r"connector.norm.\1"),
    (r"embedder\.model\.mlp1\.1\.(.+)", r"connector.fc1.\1"),
    (r"embedder\.model\.mlp1\.3\.(.+)", r"connector.fc2.\1"),
    (rf"{_LANGUAGE}\.embed_tokens\.weight", "language.embedding.weight"),
    (rf"{_LANGUAGE}\.norm\.weight", "language.norm.weight"),
    *decoder_rules(_LANGUAGE, "language.blocks"),
    (rf"{_HEAD}\..+\.pe|{_HEAD}\.time_pos_enc\.pe", ""),
    (rf"{_HEAD}\.(state_encoder|action_encoder)\.(\w+)\.linear\.(.+)", r"head.\1.\2.\3"),
    (rf"{_HEAD}\.mlp_head\.(\w+)\.linear\.(.+)", r"head.decoder.\1.\2"),
    (rf"{_HEAD}\.norm_out\.(.+)", r"head.norm.\1"),
    (rf"{_HEAD}\.seq_pool_proj\.(.+)", r"head.pool.\1"),
    (rf"{_BLOCK}\.(norm[12]\..+)", r"head.blocks.\1.\2"),
    (rf"{_BLOCK}\.ff\.0\.(.+)", r"head.blocks.\1.fc1.\2"),
    (rf"{_BLOCK}\.ff\.2\.(.+)", r"head.blocks.\1.fc2.\2"),
    (rf"{_BLOCK}\.attn\.out_proj\.(.+)", r"head.blocks.\1.out.\2"),
    (rf"{_BLOCK}\.attn\.in_proj_(.+)", r"head.blocks.\1.in.\2"),
]


def recognises(folder: Path) -> bool:
    return (folder / STATISTICS).is_file() and any((folder / name).is_file() for name in (WEIGHTS, INDEX, PICKLE))


def read(folder: Path, wishes: ImportOptions) -> Imported:
    """Read a checkpoint. Raises: `ModelError`."""
    if (folder / PICKLE).is_file() and not (folder / WEIGHTS).is_file():
        fix = f"save what is under its key `module` as {WEIGHTS} beside it"
        raise ModelError(f"{folder / PICKLE}: a pickle can run anything, so it is not read; {fix}")
    config, statistics = read_json(folder / "config.json"), read_json(folder / STATISTICS)
    files, theirs = read_weights(folder)
    weights = by_our_names(theirs, files[0])
    robot = robot_of(statistics, wishes.kind, _normalisation(config))
    tokenizer_json = tokenizer_file(folder, wishes.tokenizer, "OpenGVLab/InternVL3-1B")
    tokenizer = tokenizer_json.read_text(encoding="utf-8")
    network = _network(config, weights, robot, tokenizer)
    promise = _promise(robot, wishes, config.file, statistics.file)
    absent, steps = CAMERAS - len(promise.cameras), config.count("num_inference_timesteps", Evo1.sampling().num_steps)
    published = Evo1.processing(network)
    manifest = BundleManifest(
        architecture="evo1",
        network=network.model_dump(),
        contract=promise,
        sampling=Evo1.sampling().model_copy(update={"num_steps": steps}),
        processing=Processing(
            images=published.images.model_copy(update={"absent": absent}),
            prompt=published.prompt.model_copy(update={"pad_token": token_id(tokenizer, "<|endoftext|>")}),
            state=robot.state,
            action=robot.action,
        ),
    )
    return Imported(
        manifest=manifest,
        weights=weights,
        tokenizer=tokenizer,
        files=(config.file, statistics.file, tokenizer_json, *files),
        notes=(f"statistics of {robot.name}", f"cameras that are not there are black and masked: {absent}"),
    )


def _promise(robot: Robot, wishes: ImportOptions, config: Path, statistics: Path) -> Promise:
    """Return the contract's part of the manifest. Raises: `ModelError` if names or cameras do not fit."""
    count = len(robot.action.offset)
    names = wishes.action_names or tuple(f"action_{i}" for i in range(count))
    if len(names) != count:
        raise ModelError(f"{statistics}: {count} actions, {len(names)} names were given for them")
    cameras = wishes.cameras or tuple(f"image_{i + 1}" for i in range(CAMERAS))
    if len(cameras) > CAMERAS:
        raise ModelError(f"{config}: it sees {CAMERAS} cameras, {len(cameras)} were given")
    return Promise(action_names=names, cameras=cameras, state_size=len(robot.state.offset), control_rate_hz=wishes.control_rate_hz)


def by_our_names(theirs: Mapping[str, Tensor], file: Path) -> dict[str, Tensor]:
    """Return the weights by our names. Raises: `ModelError` for an unknown weight."""
    weights = renamed(theirs, RULES, file)
    for name in [name for name in weights if ".in." in name]:
        packed, block = weights.pop(name), name.replace(".in.", ".{}.")
        weights.update((block.format(part), each) for part, each in zip(("query", "key", "value"), packed.chunk(3), strict=True))
    for name in ("vision.embeddings.class_token", "vision.embeddings.position"):
        if name in weights:
            weights[name] = weights[name].reshape(-1, weights[name].shape[-1]).squeeze(0)
    return weights


def _normalisation(config: Json) -> str:
    """Return the `normalization_type`. Raises: `ModelError` for an unknown one."""
    kind = config.get("normalization_type") or BOUNDS
    if kind not in (BOUNDS, BOUNDS_Q99, NORMAL):
        raise ModelError(f"{config.file}: normalization_type is {kind!r}; {BOUNDS}, {BOUNDS_Q99} and {NORMAL} are known")
    return str(kind)


class Robot(NamedTuple):
    """Statistics in `norm_stats.json` of one robot, or of one data set of it."""

    name: str
    state: Affine
    action: Affine


def robot_of(statistics: Json, wished: str, normalisation: str = BOUNDS) -> Robot:
    """Return the statistics of one robot.
    wished: `ROBOT`, or `ROBOT/DATASET`. normalisation: `normalization_type` of its configuration. Raises: `ModelError`."""
    known: dict[str, dict[str, Any]] = {}
    for arm, own in statistics.content.items():
        known |= {arm: own} if "action" in own else {f"{arm}/{dataset}": each for dataset, each in own.items()}
    name = wished or (next(iter(known)) if len(known) == 1 else "")
    if name not in known:
        raise ModelError(f"{statistics.file}: which robot? Say one of {', '.join(known)}, not {name!r}")
    try:
        state, action = (scaling_of(known[name][key], normalisation) for key in ("observation.state", "action"))
    except (KeyError, TypeError) as error:
        raise ModelError(f"{statistics.file}: {name}: {error} is missing or of another kind") from error
    clip = None if normalisation == NORMAL else 1.0
    return Robot(name, state.model_copy(update={"clip": clip}), action)


def scaling_of(statistics: Mapping[str, list[float]], normalisation: str) -> Affine:
    """Return the scaling of its `Normalizer` (Evo_1/scripts/Evo1_server.py at 1bf31c4), which computes in float32.

    Raises: `KeyError` for statistics that are missing.
    """
    if normalisation == NORMAL:
        mean, std = (tensor(statistics[name], dtype=float32) for name in ("mean", "std"))
        return Affine(offset=tuple(mean.tolist()), scale=tuple((std + EPS).tolist()))
    names = ("q01", "q99") if normalisation == BOUNDS_Q99 and {"q01", "q99"} <= statistics.keys() else ("min", "max")
    low, high = (tensor(statistics[name], dtype=float32) for name in names)
    return ranges_of(low.tolist(), (high - low + EPS).tolist())


def _network(config: Json, weights: dict[str, Tensor], robot: Robot, tokenizer: str) -> Evo1Config:
    """Return the sizes of the network. Raises: `ModelError` if one is missing or impossible."""
    length = config.get("action_horizon") or config.get("horizon")
    columns = config.get("per_action_dim")
    try:
        patch, positions = weights["vision.embeddings.patch_embedding.weight"], weights["vision.embeddings.position"]
        vision = VisionConfig(
            image_px=round((len(positions) - 1) ** 0.5) * patch.shape[-1],
            patch_px=patch.shape[-1],
            width=len(patch),
            layers=layers_of(weights, "vision.blocks."),
            heads=INTERN_VIT.heads,
            mlp_width=len(weights["vision.blocks.0.fc1.weight"]),
        )
        width = weights["language.embedding.weight"].shape[1]
        return Evo1Config(
            chunk_length=length,
            action_columns=columns,
            state_columns=config.content["state_dim"],
            vision=vision,
            shuffle=round((weights["connector.norm.weight"].shape[0] / vision.width) ** 0.5),
            language=QWEN2.model_copy(update=decoder_sizes(weights, "language.blocks", width // QWEN2.heads)),
            vocabulary=len(weights["language.embedding.weight"]),
            image_token=token_id(tokenizer, "<IMG_CONTEXT>"),
            text_tokens=config.get("max_text_length") or 1024,
            head=EvoHeadConfig(
                layers=layers_of(weights, "head.blocks."),
                heads=config.get("num_heads") or 8,
                width=width,
                hidden=len(weights["head.decoder.fc1.weight"]),
                state_hidden=len(weights["head.state_encoder.fc1.weight"]),
                actions=len(robot.action.offset),
            ),
        )
    except (KeyError, ValueError) as error:
        raise ModelError(f"{config.file}: {error}") from error
