"""The tables of ROSA's page, from the data beside it.

`python -m test.unit.lab.reproductions.rosa_page` writes them anew; the prose is by hand.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

SHIPPED = Path(__file__).resolve().parents[4] / "docs" / "reproductions" / "rosa"
WORKLOADS = {"p1": "P1", "p2": "P2", "p3": "P3", "p4": "P4", "mix2": "Mix2", "mix4": "Mix4"}
POLICIES = ("best", "rosa", "baseline1", "baseline2", "baseline3", "baseline4")
OFF = 0.1
"""What a prediction should be within."""
Row = dict[str, str]


def rows(name: str) -> list[Row]:
    """Of a CSV beside the page."""
    return list(csv.DictReader((SHIPPED / name).read_text().splitlines()))


def claims() -> Iterator[str]:
    """A line each, in all figures' tables."""
    for row in rows("claims.csv"):
        holds = "yes" if row["holds"] == "True" else "**no**"
        paper, ours = (_figure(row[of], row["unit"]) for of in ("paper", "ours"))
        yield f"| {row['claim']} | {paper} | {ours} | {row['rule']} | {holds} |"


def best() -> Iterator[str]:
    """`best` with rate control at every point of the sweeps, beside the best of all other policies."""
    runs = [row for row in rows("policies.csv") if not row["allocation_of"]]
    for workload, title in WORKLOADS.items():
        for robots in sorted({int(row["robots"]) for row in runs}):
            here = [row for row in runs if row["workload"] == workload and int(row["robots"]) == robots]
            (ours,) = [row for row in here if row["policy"] == "best" and row["rate_control"] == "True"]
            others = sorted((row for row in here if row is not ours), key=lambda row: POLICIES.index(row["policy"]))
            other = max(others, key=lambda row: float(row["goodput_hz"]))
            gap = max(0.0, 1 - float(ours["objective_hz"]) / float(ours["bound_hz"]))
            which = f"`{other['policy']}`" + ("" if other["rate_control"] == "True" else ", uncapped")
            yield (
                f"| {title} | {robots} | {float(ours['goodput_hz']):.1f} | {float(ours['lowest_attainment']):.2%} "
                f"| {float(ours['expected_goodput_hz']):.1f} | {gap:.1%} | {float(other['goodput_hz']):.1f} | {which} |"
            ).replace("%", " %")


def predicted() -> Iterator[str]:
    """Goodput and p99 against what was predicted, per policy, of the runs whose schedule promises every SLO."""
    for policy in POLICIES:
        for capped in ("True", "False"):
            runs = [row for row in rows("policies.csv") if _of(row, policy, capped) and not row["allocation_of"]]
            goodput = [_off(row["goodput_hz"], row["expected_goodput_hz"]) for row in runs]
            asked = [row for row in rows("servers.csv") if _of(row, policy, capped) and row["p99_ms"] != "nan"]
            servers = [_off(row["p99_ms"], row["predicted_p99_ms"]) for row in asked]
            yield (
                f"| `{policy}` | {'yes' if capped == 'True' else 'no'} | {len(runs)} | {_spread(goodput, 1)} "
                f"| {len(servers)} | {_spread(servers, 0)} |"
            )


def lines() -> list[str]:
    """Of all three."""
    return [*claims(), *best(), *predicted()]


def _of(row: Row, policy: str, capped: str) -> bool:
    return row["policy"] == policy and row["rate_control"] == capped and row["predicted_feasible"] == "True"


def _off(measured: str, expected: str) -> float:
    return abs(float(measured) / float(expected) - 1)


def _spread(off: Sequence[float], digits: int) -> str:
    """Median and worst, and how many are not within `OFF`."""
    return f"{100 * median(off):.{digits}f} % / {100 * max(off):.{digits}f} % | {sum(each > OFF for each in off)}"


def _figure(value: str, unit: str) -> str:
    number = f"{float(value):.4g}"
    return f"{number} of 4" if unit == "of 4" else f"{number} {unit}".strip()


def _key(line: str) -> tuple[str, ...]:
    """By which a line takes the place of another: a point, a policy, or a claim with the paper's figure and the rule."""
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    if len(cells) == 5:
        return cells[0], cells[1], cells[3]
    return tuple(cells[:2]) if len(cells) == 8 else ()


def main() -> None:
    """Write them."""
    new = {_key(line): line for line in lines()}
    page = SHIPPED / "README.md"
    old = page.read_text().splitlines()
    page.write_text("\n".join(new.get(_key(line), line) if line.startswith("| ") else line for line in old) + "\n")


if __name__ == "__main__":
    main()
