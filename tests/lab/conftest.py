"""The lab for tests that drive it: prepared and up, and afterwards as it was found."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
from beside import Beside, Place
from commandline import CommandLine
from detection import Detection, detection

from spark_cluster_lab import Lab, LabNode

LONGEST_FIRST = (
    "doctor", "faults", "main_job", "operate", "provision", "first_up", "models_up",
    "changed_arguments", "bench_replicas", "venv_runtime",
)  # fmt: skip
"""Files whose tests take minutes: where labs share the tests, none of these is left to the end."""

WHY_NOT = (
    "" if sys.platform == "linux" and os.geteuid() == 0 else "the lab needs root on Linux: skipped"
)


BESIDE = pytest.StashKey[Beside]()


def pytest_configure(config: pytest.Config) -> None:
    """Give each worker a lab (make lab-tests); alone, and in the first one, it is the machine's."""
    if number := getattr(config, "workerinput", {}).get("lab"):
        Place(number).enter()
    workers = config.getoption("numprocesses", None) or 0
    if workers > 1 and not WHY_NOT and "not lab" not in config.getoption("-m"):
        config.stash[BESIDE] = Beside(workers)
        config.stash[BESIDE].make()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker which lab is its own."""
    number = int(node.gateway.id.removeprefix("gw")) + 1
    if BESIDE in node.config.stash and number > 1:
        node.workerinput["lab"] = number


def pytest_unconfigure(config: pytest.Config) -> None:
    if beside := config.stash.get(BESIDE, None):
        beside.remove()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first."""
    order = {f"test_{name}": place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print why the lab's tests were skipped once, rather than for each test."""
    if WHY_NOT and terminalreporter.stats.get("skipped"):
        terminalreporter.write_line(f"tests/lab: {WHY_NOT}")


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Two nodes, up. What a test makes of them stays until another one resets them; at the end they
    are fresh, so that what comes next (`make demo`) does not meet a driver or a key of a test's."""
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    lab = Lab.default()
    was_down = lab.state() == "down"
    # What an earlier run has left on the nodes (journals, keys) is none of these tests'.
    lab.up(2, fresh=was_down, progress=lambda text: print(text, file=sys.stderr))
    yield lab
    if was_down:
        lab.down()
    else:
        lab.up(2, fresh=True)
        lab.trust()


@pytest.fixture(scope="module")
def user(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """A user with a folder for recipes of their own; nothing serves, at the end neither."""
    lab.trust()
    made = CommandLine(tmp_path_factory.mktemp("user"))
    (made.home / "recipes").mkdir()
    made("down", "--end-jobs")
    yield made
    made("down", "--end-jobs")


@pytest.fixture
def spark1(lab: Lab) -> LabNode:
    return lab.node("spark1")


@pytest.fixture
def spark2(lab: Lab) -> LabNode:
    return lab.node("spark2")


@pytest.fixture
def fresh(spark1: LabNode) -> LabNode:
    """The first node as a fresh Spark."""
    spark1.reset()
    return spark1


@pytest.fixture
def detected(
    record_property: Callable[[str, object], None],
) -> Callable[[str], AbstractContextManager[Detection]]:
    """`with detected("ID") as fault:` for a fault of docs/faults.toml."""
    return partial(detection, record=record_property)
