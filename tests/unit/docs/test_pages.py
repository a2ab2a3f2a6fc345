"""The pages written by hand: their commands, paths and examples are those of the code."""

import ast
import html
import importlib
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import readme
from factories import load_inventory, put

from docs.generate import pictures
from docs.generate.code import commands, root
from spark_cluster import __version__
from spark_cluster.config.project import Project
from spark_cluster.doctor.check import Check
from spark_cluster.issues.entries import read
from spark_cluster.node.host import Host
from spark_cluster.resources import Missing, Resource

CHECKOUT = Path(__file__).parents[3]
DOCS = CHECKOUT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
COMMANDS = dict(commands())
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
CODE = re.compile(r"`([a-z]+ [^`\n]*)`")
PATH = re.compile(
    r"`((?:spark_cluster|roles|playbooks|recipes|suites|tests|docs|benchmarks)/[\w./-]+)`"
)


def blocks(page: Path, language: str) -> list[str]:
    """The page's blocks of code in a language."""
    found = FENCE.findall(page.read_text())
    return [textwrap.dedent(text) for _, name, text in found if name == language]


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Every `spark-cluster ...` of README and in the pages' blocks for a shell, without its
    comment; and the commands in short, as README and the page of all commands have them."""
    text = readme.README + (DOCS / "commands.md").read_text()
    in_short = [code for code in CODE.findall(text) if first(code.split()) in COMMANDS]
    for line in [*readme.COMMANDS, *in_short]:
        words = shlex.split(line.removeprefix("spark-cluster "))
        if first(words) in COMMANDS:
            yield f"README.md: {line}", words
    for page in PAGES:
        for block in [*blocks(page, "sh"), *blocks(page, "")]:
            for line in block.splitlines():
                words = shlex.split(line, comments=True)
                if words[:1] == ["spark-cluster"]:
                    yield f"{page.relative_to(CHECKOUT)}: {line}", words[1:]


def first(words: list[str]) -> str:
    """The command that a line begins with, or its first word."""
    return " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]


def spelled(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that a line calls, and its other words."""
    name = first(words)
    assert name in COMMANDS, f"no such command: {words}"
    return COMMANDS[name], words[len(name.split()) :]


def test_commands_and_options_are_there():
    lines = list(command_lines())
    assert len(lines) > 25
    for where, words in lines:
        command, others = spelled(words)
        known = {name for param in [*command.params, *root.params] for name in param.opts}
        known.add("--help")
        others = others[: others.index("--")] if "--" in others else others
        given = {word.partition("=")[0] for word in others if word.startswith("-")}
        assert given <= known, where


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/inventory.md"])
def test_the_inventory_of_a_page(tmp_path, page):
    put(tmp_path / "inventory.yaml", readme.blocks("yaml", page)[0])
    found = load_inventory(str(tmp_path / "inventory.yaml"), Project(tmp_path))
    assert list(found.nodes) == ["spark1", "spark2"]


def test_paths_are_there():
    for page in PAGES:
        for name in PATH.findall(page.read_text()):
            if name not in ("roles/motd/__init__.py", "roles/network"):  # the reader's own
                assert (CHECKOUT / name).exists(), f"{page.name}: {name}"


def test_the_changelog_tells_this_version():
    headings = re.findall(r"^## (.+)$", (CHECKOUT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] == "[Unreleased]"
    assert __version__ in {heading.split(" ")[0].strip("[]") for heading in headings}


def test_the_role_of_the_page(tmp_path):
    folder = tmp_path / "roles" / "motd"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(blocks(DOCS / "how-to/role.md", "python")[0])
    role = Project(tmp_path).load_role("motd")
    assert list(role.settings_model.model_fields) == ["text"]


def test_the_playbook_of_the_page(tmp_path):
    (tmp_path / "greet.py").write_text(blocks(DOCS / "how-to/playbook.md", "python")[0])
    playbook = Project(tmp_path).load_playbook(tmp_path / "greet.py")
    assert playbook.name == "greet"


@pytest.fixture
def cpu_governor(tmp_path, monkeypatch) -> Iterator[type[Resource]]:
    """The page's resource, imported as a module and forgotten afterwards."""
    (tmp_path / "cpu_governor.py").write_text(blocks(DOCS / "how-to/resource.md", "python")[0])
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("cpu_governor").CpuGovernor
    sys.modules.pop("cpu_governor")


def test_the_resource_of_the_page(cpu_governor, tmp_path):
    kind = cpu_governor
    host, wanted = Host(root=tmp_path), kind("performance")
    with pytest.raises(Missing):
        wanted.observe(host)
    for number in (0, 1):
        file = tmp_path / f"sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor"
        file.parent.mkdir(parents=True)
        file.write_text("powersave\n")
    actual = wanted.observe(host)
    assert actual == {"governor": "powersave"}
    wanted.converge(host, actual)
    assert wanted.observe(host) == wanted.desired()


def test_the_known_issue_of_the_page(tmp_path):
    (text,) = blocks(DOCS / "how-to/known-issue.md", "toml")
    (tmp_path / "container.toml").write_text(text)
    (issue,) = read(tmp_path / "container.toml")
    assert all(issue.log[0].regex.search(sample) for sample in issue.samples)


def test_the_check_of_the_page():
    space: dict[str, object] = {"__name__": "system"}
    exec(compile(blocks(DOCS / "how-to/check.md", "python")[0], "system.py", "exec"), space)
    check = space["disk_left"]
    assert isinstance(check, Check)
    assert check.area == "system"


def test_what_the_page_of_the_python_api_imports_is_there():
    """What its methods do is run by the tests of the script and the notebook next to it."""
    found = [ast.parse(text) for text in blocks(DOCS / "how-to/python-api.md", "python")]
    assert len(found) == 4
    lines = [node for tree in found for node in tree.body if isinstance(node, ast.ImportFrom)]
    space: dict[str, object] = {}
    for line in lines:
        exec(ast.unparse(line), space)
    called = {
        node.func.attr
        for tree in found
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "cluster"
    }
    assert called == {"provision", "up", "verify", "events"}
    assert called <= set(dir(space["Cluster"]))


def test_the_modules_in_the_picture_of_up_exist():
    picture = (DOCS / "explanation/how-up-works.md").read_text()
    named = re.findall(r"\b(?:cli|engine)/[\w/]+(?:\.py|/)", picture)
    assert len(named) > 8
    assert not [name for name in named if not (CHECKOUT / "spark_cluster" / name).exists()]


@pytest.mark.parametrize("name", pictures.NAMES)
def test_a_picture_of_a_terminal_shows_its_recorded_run(name):
    drawn = (pictures.FOLDER / f"{name}.svg").read_text()
    shown = "".join(html.unescape(text) for text in re.findall(r">([^<]*)</text>", drawn))
    recorded = (pictures.FOLDER / f"{name}.txt").read_text()
    assert "".join(recorded.split()) in "".join(shown.split()), "run `python -m docs.generate`"
    assert "url(http" not in drawn


def test_every_room_is_in_the_picture_of_the_house_and_on_its_page():
    folders = {path.parent.name for path in (CHECKOUT / "spark_cluster").glob("*/__init__.py")}
    picture = (DOCS / "pictures/house.svg").read_text()
    drawn = set(re.findall(r">(\w+)/</text>", picture))
    assert drawn == folders | {"playbooks", "roles"}
    page = (DOCS / "explanation/house.md").read_text()
    assert folders - set(re.findall(r"^\| `(\w+)/` \|", page, re.M)) == {"dashboard"}


RECORDS = {DOCS / "gpu.md"}
"""Pages that show what was printed as it was recorded, at the width of its terminal."""


@pytest.mark.parametrize("page", sorted({*PAGES} - RECORDS), ids=lambda page: page.stem)
def test_commands_and_screens_fit_next_to_the_sidebars(page):
    """At 1280 pixels: 86 columns. Code and files of others are wrapped by the page."""
    lines = [
        line
        for language in ("sh", "text", "console", "")
        for block in blocks(page, language)
        for line in block.splitlines()
    ]
    assert [line for line in lines if len(line) > 86] == []
