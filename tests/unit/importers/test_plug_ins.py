"""Importers of other packages, found by their entry points."""

import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cases import each_row
from click.testing import CliRunner
from example_pages import files_of
from foreign_samples import SPARKRUN_V2

from spark_cluster.cli import cli
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.importers.files import read_file
from spark_cluster.importers.importer import Choice

PAGE = "extend-importer.md"
COMPOSE = """\
services:
  gemma:
    image: vllm/vllm-openai:v0.11.0
    command: vllm serve google/gemma-3-27b-it --max-model-len 8192
    environment: {HF_HUB_OFFLINE: 1}
    restart: always
"""

Install = Callable[..., None]
IMPORTER = """\
class Y:
    name = 'x'
    def recognises(self, given): {recognises}
    def read(self, given, choice): {read}
X = Y()
"""
"""An importer of a package."""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package of one module, as pip lays it out."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    modules: list[str] = []

    def made(name: str, code: str, points: dict[str, str]) -> None:
        module = name.replace("-", "_")
        modules.append(module)
        (site / f"{module}.py").write_text(code)
        info = site / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"{point} = {value}" for point, value in points.items()]
        text = "\n".join(["[spark_cluster.importers]", *lines, ""])
        (info / "entry_points.txt").write_text(text)

    yield made
    for module in modules:
        sys.modules.pop(module, None)


@pytest.fixture
def compose(install: Install) -> None:
    files = files_of(PAGE)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    points = project["entry-points"]["spark_cluster.importers"]
    install(project["name"], files["spark_cluster_compose.py"], points)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "compose.yaml"
    path.write_text(COMPOSE)
    return path


def test_without_the_package(file):
    assert read_file(file).launch.docker == {"restart": "always"}


@pytest.mark.usefixtures("compose")
def test_the_example_of_the_page(file, tmp_path):
    source = read_file(file)
    assert source.kind == "compose file"
    assert source.launch.args["max-model-len"] == 8192
    assert source.launch.env == {"HF_HUB_OFFLINE": "1"}
    assert [one.what for one in source.left_out] == ["services.gemma.restart"]
    done = CliRunner().invoke(cli, ["--project", str(tmp_path), "recipes", "import", str(file)])
    assert done.exit_code == 0, done.output
    assert "compose file" in done.output
    assert list((tmp_path / "recipes").glob("*.yaml"))


@pytest.mark.usefixtures("compose")
def test_what_it_refuses(file):
    with pytest.raises(UsageError, match="--variant and --feature"):
        read_file(file, Choice("fp8"))
    file.write_text("services: {a: {image: x}, b: {image: y}}\n")
    with pytest.raises(InvalidFile, match="found 2 services, expected one"):
        read_file(file)


BROKEN = {
    "it cannot be imported": ("import no_such_module\n", "ModuleNotFoundError: No module named"),
    "it ends the program": ("raise SystemExit(3)\n", "SystemExit: 3"),
    "it has no such object": ("", "AttributeError"),
    "it is a class": ("class X:\n    name = 'x'\n", "expected an object with a name"),
    "it has no method": ("class Y: name = 'x'\nX = Y()\n", r"it has no recognises()"),
    "it raises when asked": (
        IMPORTER.format(recognises="return given.data['x']['y'] == 1", read="..."),
        "KeyError: 'x'",
    ),
}


@pytest.mark.usefixtures("compose")
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_one_is_left_out_with_one_message(file, tmp_path, install, fault):
    """Its name comes first in the order, so that it is asked before the good one."""
    code, expected = BROKEN[fault]
    install("a-broken-one", code, {"a": "a_broken_one:X"})
    source = read_file(file)
    assert source.kind == "compose file"
    (note,) = [text for text in source.notes if "importer 'a'" in text]
    assert "of the package a-broken-one 1.0 (a_broken_one:X) cannot be used: " in note
    assert expected in note
    file.write_text("x: [1]\n" if "KeyError" not in expected else "z: 1\n")
    with pytest.raises(InvalidFile, match="not a file of a known kind") as caught:
        read_file(file)
    assert caught.value.hint.count("importer 'a'") == 1
    assert "a compose file" in caught.value.hint
    file.write_text(SPARKRUN_V2)
    assert not [text for text in read_file(file).notes if "importer 'a'" in text]


@each_row(__file__, "plug_ins.toml", "one_that_fails_to_read")
def test_one_that_fails_to_read(file, install, body, expected):
    install("bad", IMPORTER.format(recognises="return True", read=body), {"bad": "bad:X"})
    with pytest.raises(InvalidFile, match=r"importer 'bad' of the package bad 1\.0") as caught:
        read_file(file)
    assert expected in str(caught.value)
    assert str(file) in caught.value.where


def test_ours_cannot_be_taken(file, install):
    """A package that wants every file gets what is left."""
    code = IMPORTER.format(recognises="return True", read="return 5")
    install("greedy", code, {"greedy": "greedy:X"})
    file.write_text(SPARKRUN_V2)
    assert read_file(file).kind == "sparkrun recipe"


def test_a_text_file(install, tmp_path):
    """Files that are not YAML; a package is asked before a command line is looked for in it."""
    code = "from spark_cluster.importers.commandline import read\n" + IMPORTER.format(
        recognises="return given.text.startswith('#!rc')",
        read="return read(given.text.split('\\n', 1)[1])",
    )
    install("rc", code, {"rc": "rc:X"})
    path = tmp_path / "serve.rc"
    path.write_text("#!rc\nvllm serve org/m\n")
    assert read_file(path).launch.model == "org/m"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidFile):
        read_file(path)
