"""Which actions count, and `rfm simulate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.simulation.goodput import ActionCounts, ComponentCounts, GoodputCounter
from test.unit.simulation.simulated import factory, run

# --- goodput ---------------------------------------------------------------------------------------------------------------


class Book:
    """A ledger of a robot with all kinds of components, where everything is in order at 10 s."""

    def __init__(self) -> None:
        plant = factory(plans=0.5, safety=True)
        self.actions = ActionCounts()
        self.tallies = {name: ComponentCounts() for name in plant.tasks["pick"].components}
        self.ledger = GoodputCounter(plant.tasks["pick"], self.tallies, self.actions, 0.0)
        self.ledger.begin(9.0)
        self.call("system2", 9.0, 9.5)
        self.call("safety", 9.5, 9.6)
        self.call("system1", 9.9, 10.0)

    def call(self, component: str, sent_s: float, answered_s: float | None = None) -> None:
        self.ledger.sent(component, sent_s)
        if answered_s is not None:
            self.ledger.answered(component, answered_s)

    def counts(self, now_s: float = 10.0) -> bool:
        before = self.actions.qualified
        self.ledger.executed(now_s)
        return self.actions.qualified > before


def test_an_action_counts_when_all_it_relies_on_is_in_time() -> None:
    assert Book().counts()


def test_a_late_prediction_does_not_count() -> None:
    book = Book()
    book.call("system1", 9.5, 9.95)
    assert not book.counts() and book.actions.raw == 1
    assert book.tallies["system1"].within == 1 and len(book.tallies["system1"].latencies_s) == 2


def test_an_action_under_a_late_plan_does_not_count_until_the_next_plan() -> None:
    book = Book()
    book.call("system2", 7.0, 9.8)
    assert book.counts(), "it was asked for under the plan before"
    book.call("system1", 9.9, 10.0)
    assert not book.counts()
    book.call("system2", 10.0, 10.5)
    book.call("system1", 10.5, 10.6)
    book.call("safety", 10.0, 10.1)
    assert book.counts(10.6)


def test_a_late_or_overdue_check_spoils_the_actions_after_it() -> None:
    book = Book()
    book.call("safety", 9.5, 9.9)
    assert not book.counts(), "400 ms, and 300 are allowed"
    book = Book()
    assert book.counts(9.5 + 1.05 * (0.5 + 0.3))
    assert not book.counts(9.5 + 1.05 * (0.5 + 0.3) + 1e-6), "the next check should have been answered by now"


def test_before_the_first_check_and_plan_are_due_only_the_plan_is_missed() -> None:
    book = Book()
    book.ledger.begin(20.0)
    book.call("system1", 20.0, 20.1)
    assert not book.counts(20.1), "no plan yet"
    book.call("system2", 20.0, 20.2)
    book.call("system1", 20.2, 20.25)
    assert book.counts(20.25), "the first check has until 20.3"
    assert not book.counts(20.4)


def test_what_could_still_be_in_time_is_not_judged() -> None:
    book = Book()
    book.call("system1", 9.7)
    book.call("safety", 8.0)
    book.ledger.end(10.0)
    assert (book.tallies["system1"].sent, book.tallies["system1"].undecided) == (2, 1)
    assert (book.tallies["safety"].sent, book.tallies["safety"].undecided) == (2, 0)


def test_a_saturated_factory_counts_only_what_is_within_the_slo() -> None:
    """ROSA §4.3: 145.5 raw actions/s x 17.0 % within the SLO = 24.8 that count."""
    report = run(factory(12, slo_ms=395), jitter=0.3, seconds=120)
    share = report.components["system1"].slo_attainment
    assert 0.2 < share < 0.8
    assert report.goodput == pytest.approx(report.raw * share, rel=0.01)


# --- the command ---

P1 = Path(__file__).parents[3] / "config" / "rosa" / "p1.yaml"


def invoke(*options: str) -> Result:
    return CliRunner().invoke(app, ["simulate", str(P1), "--robots", "4", "--seconds", "5", "--policy", "baseline3", *options])


def test_the_command_prints_json_and_nothing_else() -> None:
    result = invoke("--json", "--seed", "3", "--crash", "server_1@7", "--network", "latency=2,jitter=1,loss=0.01")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["policy"] == "baseline3" and report["seconds"] == 5.0
    assert report["tasks"].keys() == {"pick_action_only"} and 0 < report["goodput"] <= report["raw"]
    assert {"slo_attainment", "p50_ms", "p99_ms"} <= report["components"]["system1"].keys()
    assert {"server", "model", "utilisation"} <= report["servers"][0].keys()
    assert (
        invoke("--json", "--seed", "3", "--crash", "server_1@7", "--network", "latency=2,jitter=1,loss=0.01").stdout
        == result.stdout
    )


def test_the_command_prints_tables() -> None:
    result = invoke()
    assert result.exit_code == 0, result.output
    for word in ("pick_action_only", "system1", "server_1", "goodput"):
        assert word in result.output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--crash", "server_1"), "--crash: cannot be read"),
        (("--crash", "@5"), "write server_1@10"),
        (("--crash", "server_99@5"), "nothing is named 'server_99'"),
        (("--network", "latency"), "--network: cannot be read"),
        (("--network", "latency=1,latency=2"), "'latency=2'"),
        (("--network", "loss=2"), "network.loss"),
        (("--network", "trace=/nowhere.csv"), "check the path"),
    ],
)
def test_the_command_says_what_it_cannot_read(options: tuple[str, ...], says: str) -> None:
    result = invoke(*options)
    assert isinstance(result.exception, ConfigurationError) and says in str(result.exception)
