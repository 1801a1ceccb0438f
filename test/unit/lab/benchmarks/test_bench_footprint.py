"""`rfm bench footprint`: what a fresh process takes, medians of rounds, and what is refused."""

from __future__ import annotations

import csv
import subprocess
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
import typer
from rich.table import Table

from lab.benchmarks.footprint import report
from lab.benchmarks.footprint.measured import Footprint, Row
from lab.benchmarks.footprint.plot import chart
from lab.benchmarks.footprint.report import in_a_process, middle, tables_of, write_csv
from ros2_rfm_serving.errors import ConfigurationError, RfmError

MB = 1 << 20


def found(**changes: float) -> Footprint:
    figures = {field.name: 1.0 for field in fields(Footprint)} | changes
    return Footprint(**figures)  # type: ignore[arg-type]


@pytest.mark.patient
def test_a_fresh_process_says_what_a_model_takes_beyond_an_empty_one(repository: Path) -> None:
    folder = repository / "models" / "metaworld_flow"
    figures = in_a_process(folder, "int8", "cpu", "0", "2")
    whole = sum((folder / name).stat().st_size for name in ("config.json", "model.safetensors"))
    assert figures.file_bytes == whole and figures.served and figures.gate_s > 0 and figures.device_bytes == 0
    assert whole / 3 < figures.resident_bytes <= figures.peak_bytes < 1000 * MB < 10 * figures.empty_bytes
    assert figures.load_s + figures.gate_s < figures.ready_s and min(figures.first_chunk_s, figures.chunk_s) > 0


def test_a_precision_that_a_model_has_not_is_told_and_the_others_are_measured(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = repository / "models" / "metaworld_judge"
    with pytest.raises(RfmError, match="flow policies and architectures"):
        in_a_process(judge, "int8", "cpu", "0", "1")

    def measured(folder: Path, precision: str, *_: str, look: object) -> Footprint:
        if precision == "int8":
            raise RfmError("not that one")
        return found()

    monkeypatch.setattr(report, "in_a_process", measured)
    rows, refused, _ = report._measure_all({"judge": judge}, ["float32", "int8"], ("cpu", "0", "1"), 2)
    assert [(row.model, row.precision) for row in rows] == [("judge", "float32")] and list(refused) == ["judge, int8"]


def test_medians_of_rounds_in_a_table_a_file_and_a_figure(tmp_path: Path) -> None:
    rounds = [found(chunk_s=0.003), found(chunk_s=0.001), found(chunk_s=0.002, served=False)]
    figures = middle(rounds)
    assert figures.chunk_s == 0.002 and not figures.served
    rows = [Row(model="m", precision="int8", figures=figures), Row(model="m", precision="float32", figures=found(gate_s=0))]
    write_csv(tmp_path / "f.csv", rows)
    with (tmp_path / "f.csv").open() as stream:
        read = list(csv.DictReader(stream))
    assert [row["precision"] for row in read] == ["int8", "float32"] and float(read[0]["chunk_s"]) == 0.002
    assert set(asdict(figures)) < set(read[0])
    pytest.importorskip("matplotlib")
    chart([*rows, Row(model="n", precision="int8", figures=replace(figures, device_peak_bytes=0))])


def test_a_models_precisions_stand_side_by_side() -> None:
    plain = found(file_bytes=3e6, resident_bytes=115e6, peak_bytes=115e6, device_peak_bytes=0, gate_s=0, chunk_s=0.005)
    large = replace(plain, resident_bytes=500e6, peak_bytes=2e9, gate_s=0.5, served=False)
    rows = [
        Row(model="m", precision="float32", figures=plain),
        Row(model="m", precision="int8", figures=large),
        Row(model="n", precision="float32", figures=replace(plain, chunk_s=0, first_chunk_s=0)),
    ]
    memory, ready, chunks = map(cells_of, tables_of(rows))
    assert memory == [["m", "3.0", "115", "500 (2000)"], ["n", "3.0", "115", "-"]]
    assert ready == [["m", "3.0", "1.00", "1.00 (0.50), refused"], ["n", "3.0", "1.00", "-"]]
    assert chunks == [["m", "3.0", "1000.0, 5.0", "1000.0, 5.0"], ["n", "3.0", "-", "-"]]
    on_gpu = replace(plain, device_bytes=1e9, device_peak_bytes=3e9)
    assert cells_of(tables_of([Row(model="m", precision="float32", figures=on_gpu)])[1]) == [["m", "3.0", "1000 (3000)"]]


def cells_of(table: Table) -> list[list[str]]:
    return [list(map(str, line)) for line in zip(*(column.cells for column in table.columns), strict=True)]


PEAKS = """
from lab.benchmarks.footprint.measured import forget_peak, peak_bytes, resident_bytes

def hold(size):
    block = bytearray(size)
    block[::4096] = b"x" * len(block[::4096])

hold(64 << 20)
forget_peak()
before = peak_bytes()
resident, _ = resident_bytes()
hold(48 << 20)
print(before - resident, peak_bytes() - before)
"""


def test_the_peak_is_that_of_what_follows() -> None:
    """In a process of its own, as models are measured: beside others' threads the process's memory comes and goes."""
    ran = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, timeout=100, check=True)
    forgotten, grown = map(int, ran.stdout.split())
    assert forgotten < 32 * MB and grown > 40 * MB, ran.stderr


def test_what_is_no_bundle_is_named() -> None:
    with pytest.raises(ConfigurationError, match="metaworld_flow"):
        report._shipped("metaworld_flo")


@pytest.mark.parametrize("wrong", ["float8", "", ","])
def test_a_precision_that_is_none_is_refused_before_anything_is_measured(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="--precisions"):
        report.footprint(precisions=wrong)
    with pytest.raises(ConfigurationError, match="there is no model to measure"):
        report.footprint(models="", precisions="int8,int8")


def test_two_folders_of_one_name_are_two_models(tmp_path: Path) -> None:
    folders = [tmp_path / "a" / "mine", tmp_path / "b" / "mine"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "config.json").touch()
    assert report._shipped(",".join(map(str, folders))) == {str(folder): folder for folder in folders}
    assert report._shipped(str(folders[0])) == {"mine": folders[0]}


def test_what_was_measured_is_kept_when_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = [found(chunk_s=0.001), found(chunk_s=0.002), found(chunk_s=0.003)]
    file = tmp_path / "f.csv"

    def measured(folder: Path, *_: str, look: object) -> Footprint:
        if not left:
            raise KeyboardInterrupt
        return left.pop(0)

    monkeypatch.setattr(report, "in_a_process", measured)
    with pytest.raises(typer.Exit) as ended:
        report.footprint(models="metaworld_safety", precisions="float32,int8", chunks=1, rounds=3, csv_file=file)
    assert ended.value.exit_code == 130 and "stopped" in capsys.readouterr().out
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [float(row["chunk_s"]) for row in rows] == [0.002, 0.002]


def test_a_process_that_hangs_is_told_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "LIMIT_S", 0.0)
    with pytest.raises(RfmError, match="had not ended after 0 s"):
        in_a_process(Path("nowhere"), "int8", "cpu", "0", "2")
