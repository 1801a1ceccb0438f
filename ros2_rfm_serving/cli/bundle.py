"""`rfm bundle`, `rfm import`: model bundles, and checkpoints of others made into them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.plain import PlainTable
from ros2_rfm_serving.operate import bundles
from ros2_rfm_serving.operate.extras import needing
from ros2_rfm_serving.operate.inputs import JsonFlag, console, print_json

if TYPE_CHECKING:
    from ros2_rfm_serving.engines.architectures.importers.importing import ImportedBundle

app = typer.Typer(help="Model bundles: what one is, whether it is whole, how two differ.", no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Bundle: a folder with config.json and model.safetensors")]
FORMATS = "lerobot, openpi, groot, groot_n1_6, groot_n1_7, evo1, bitvla; default: whichever recognises it"
Format = Annotated[str, typer.Option("--as", metavar="FORMAT", help=FORMATS)]
StateWords = Annotated[
    int, typer.Option(min=0, help="Columns of the state in pi0.5's prompt, padded: 32 if LeRobot before 0.5 trained it")
]
Relative = Annotated[
    str, typer.Option(metavar="A,B,..", help="Actions that are relative to the state, where training made them so (openpi)")
]
Assets = Annotated[str, typer.Option(metavar="NAME", help="openpi: folder below assets/ whose statistics count, if several")]
ChunkLength = Annotated[
    int, typer.Option(min=0, help="openpi: actions of a chunk, the action_horizon of its training; 0: its config.json says it")
]
StateInPrompt = Annotated[
    bool | None,
    typer.Option(
        "--discrete-state-input/--no-discrete-state-input",
        help="openpi: whether pi0.5 was trained with its state in its prompt (not so: pi05_libero)",
        show_default="with it",
    ),
]
Keys = "GR00T N1.5: keys of the {part} in the order of the data config that trained it, all or fewer than the checkpoint has"
StateKeys = Annotated[str, typer.Option(metavar="A,B,..", help=Keys.format(part="state"))]
ActionKeys = Annotated[str, typer.Option(metavar="A,B,..", help=Keys.format(part="actions"))]
RawUnits = Annotated[
    bool, typer.Option("--raw-units", help="Take states and actions as the network has them where statistics are missing (LeRobot)")
]
Release = Annotated[
    str, typer.Option(metavar="0.4|0.5|0.6", help="LeRobot that trained pi0 or pi0.5, where the checkpoint does not say")
]
Embodiment = Annotated[str, typer.Option(help="GR00T, Evo-1: which embodiment's weights and statistics, where there are several")]


@app.command()
def show(folder: Folder, json_: JsonFlag = False) -> None:
    """Show a bundle: architecture, sizes, contract, processing, hashes, and its origin.

    Example:  rfm bundle show models/metaworld_flow
    """
    with needing("torch", "rfm bundle"):
        told = bundles.described(folder)
    if json_:
        print_json(told)
        return
    table = PlainTable("", title=str(folder))
    table.add_column("", overflow="fold")  # hashes to the last digit
    for key, value in _flat(told):
        table.add_row(key, str(value))
    console.print(table)


@app.command()
def verify(folder: Folder) -> None:
    """Loads a bundle, runs it once, holds it against its reference block by block, and its files against its card.

    Example:  rfm bundle verify /tmp/my_pi0

    Exit code: 0 when all is well, 1 when something is not.
    """
    with needing("architectures", "rfm bundle verify"):
        wrong = bundles.verified(folder)
    for line in wrong or ["ok"]:
        console.print(line, soft_wrap=True, markup=False)
    raise typer.Exit(1 if wrong else 0)


@app.command()
def diff(one: Folder, other: Folder) -> None:
    """Show how the second bundle differs from the first: keys, processor files, weights.

    Example:  rfm bundle diff models/metaworld_flow models/metaworld_staged_flow

    Exit code: 0 when they are the same, 1 when they are not.
    """
    with needing("torch", "rfm bundle"):
        lines = list(bundles.differences(one, other))
    for line in lines or ["the same"]:
        console.print(line, soft_wrap=True, markup=False)
    raise typer.Exit(1 if lines else 0)


def import_(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Folder with the checkpoint of another project")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that becomes the bundle; it must not exist")],
    format_: Format = "",
    action_names: Annotated[str, typer.Option(metavar="A,B,..", help="Of the action columns, in the robot's order")] = "",
    cameras: Annotated[
        str, typer.Option(metavar="A,B,..", help="As the robot names them, in the network's order (openpi, LeRobot)")
    ] = "",
    state_size: Annotated[int, typer.Option(min=0, help="Columns of the state (openpi); 0: as many as its statistics")] = 0,
    state_words: StateWords = 0,
    raw_units: RawUnits = False,
    release: Release = "",
    relative: Relative = "",
    control_rate_hz: Annotated[float, typer.Option(min=0, help="Of the demonstrations; 0: any")] = 0.0,
    tokenizer: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder or file with its tokenizer.json")] = None,
    kind: Embodiment = "",
    assets: Assets = "",
    chunk_length: ChunkLength = 0,
    discrete_state_input: StateInPrompt = None,
    state_keys: StateKeys = "",
    action_keys: ActionKeys = "",
    licence: Annotated[str, typer.Option(help="Of the weights, for the card; default: as the checkpoint's card says")] = "",
) -> None:
    """Makes a bundle of a checkpoint: SmolVLA, pi0, pi0.5 (LeRobot, openpi), GR00T N1.5 to N1.7, Evo-1, BitVLA.

    Nothing in it is run.

    Example:  rfm import ~/checkpoints/my_smolvla models/my_smolvla --action-names x,y,z,gripper --tokenizer ~/SmolVLM2

    Exit code: 0, or 2 with what is missing and how to help it.
    """
    with needing("architectures", "rfm import"):
        import transformers  # noqa: F401

        from ros2_rfm_serving.engines.architectures.importers.base import ImportOptions
        from ros2_rfm_serving.engines.architectures.importers.importing import import_checkpoint
    if folder.exists():
        raise ConfigurationError("it is there already", file=str(folder), key="DIR", fix="name another folder, or remove it")
    wishes = ImportOptions(
        action_names=_names(action_names),
        cameras=_names(cameras),
        state_size=state_size,
        state_words=state_words,
        relative=_names(relative),
        raw_units=raw_units,
        release=release,
        control_rate_hz=control_rate_hz,
        tokenizer=tokenizer,
        licence=licence,
        kind=kind,
        assets=assets,
        chunk_length=chunk_length,
        discrete_state_input=discrete_state_input,
        state_keys=_names(state_keys),
        action_keys=_names(action_keys),
    )
    _tell(folder, import_checkpoint(source, folder, wishes, format_))


def _tell(folder: Path, made: ImportedBundle) -> None:
    manifest = made.imported.manifest
    promise = manifest.contract
    console.print(
        f"{folder}: {manifest.architecture} from a {made.importer} checkpoint, {len(promise.action_names)} actions, "
        f"cameras {', '.join(promise.cameras) or 'none'}, hash {made.content_hash[:12]}",
        soft_wrap=True,
        markup=False,
    )
    for note in made.imported.notes:
        console.print(note, soft_wrap=True, markup=False)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _flat(value: Any, at: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in _flat(inner, f"{at}.{key}" if at else str(key))]
    return [(at, value)]
