"""A project's own resources: found, checked before anything is connected, imported."""

import gc
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from cases import cases

from spark_cluster import resources as shipped
from spark_cluster.config.project import LARGEST, Project
from spark_cluster.errors import InvalidFile, Refused
from spark_cluster.resources.base import resource_class
from spark_cluster.runner import wire

CASES = cases(__file__, "own_resources.toml")
GOOD = """\
from dataclasses import dataclass
from spark_cluster.resources import Resource

@dataclass(frozen=True)
class Thing(Resource):
    path: str
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    folder = tmp_path / "mine"
    folder.mkdir()
    made = Project(folder)
    with made.in_use():
        yield made


def put(project: Project, name: str, text: str = GOOD) -> Path:
    path = project.folder / "resources" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(dedent(text))
    return path


def error_of(project: Project) -> str:
    with pytest.raises(InvalidFile) as caught:
        project.load_resources()
    assert project.extensions.resource_files == ()
    assert not [name for name in sys.modules if name.startswith(project.extensions.package)]
    return str(caught.value).replace(f"{project.folder}/", "")


def test_a_role_imports_them_without_more_ado(project):
    put(project, "thing.py")
    role = project.folder / "roles/r/__init__.py"
    role.parent.mkdir(parents=True)
    role.write_text(
        "from pydantic import BaseModel\nfrom spark_cluster.resources import Thing\n"
        "class Settings(BaseModel): pass\ndef role(node, settings): yield Thing('/x')\n"
    )
    (found,) = project.load_role("r").function(None, None)
    assert found.id == "Thing:/x"


def test_another_project_has_none_of_the_first(project, tmp_path):
    digest = wire.digest()
    put(project, "thing.py")
    project.load_resources()
    assert wire.digest() != digest
    other = Project(tmp_path)
    other.load_resources()
    with other.in_use():
        assert wire.digest() == digest
        assert resource_class("Thing") is None
        assert not hasattr(shipped, "Thing")
    assert shipped.Thing("/x").id == "Thing:/x"


def test_its_modules_go_with_the_project(tmp_path):
    project = Project(tmp_path)
    put(project, "thing.py")
    project.load_resources()
    package = project.extensions.package
    assert f"{package}.resources.thing" in sys.modules
    del project
    gc.collect()
    assert not [name for name in sys.modules if name.startswith(package)]
    assert not [finder for finder in sys.meta_path if getattr(finder, "package", "") == package]


def test_a_folder_of_another_program_is_left_alone(project):
    put(project, "thing.py", "import requests\nraise SystemExit\n")
    project.load_resources()
    assert project.extensions.resource_files == ()


def test_modules_that_resources_share(project):
    put(project, "_words.py", "WORD = 'x'\n")
    put(project, "thing.py", "from ._words import WORD\nfrom . import _words\n" + GOOD)
    put(
        project,
        "other.py",
        "from spark_cluster_project.resources.thing import Thing\n"
        "from spark_cluster_project.resources import _words\n" + GOOD.replace("Thing(", "Other("),
    )
    project.load_resources()
    assert shipped.Other("/x").id == "Other:/x"


@pytest.mark.parametrize("case", CASES["wrong"], ids=lambda case: case["expected"])
def test_wrong_ones(project, case):
    good = GOOD.replace(*case["replace"]) if "replace" in case else GOOD
    text = (GOOD if case.get("twice") else "") + good
    file = shipped.File
    put(
        project, case.get("name", "thing.py"), case.get("before", "") + text + case.get("after", "")
    )
    assert re.search(case["expected"], error_of(project))
    assert resource_class("File") is file
    assert resource_class("Thing") is None


@pytest.mark.parametrize(
    ("after", "expected"),
    [("\0", "resource thing: "), ("#" * LARGEST, r"resources/ of the project: found \d+ bytes")],
    ids=["a byte of 0", "too large"],
)
def test_what_is_no_text_or_too_large(project, after, expected):
    put(project, "thing.py", GOOD + after)
    assert re.search(expected, error_of(project))


def test_the_line_of_a_shared_module(project):
    put(project, "_part.py", "\n\ndef f():\n    raise KeyError('x')\n")
    put(project, "thing.py", "from ._part import f\nf()\n" + GOOD)
    assert error_of(project).startswith("resources/_part.py:4: resource thing: KeyError: 'x'")


def test_nothing_is_run_before_all_are_checked(project):
    put(
        project,
        "a.py",
        f"open({str(project.folder / 'ran')!r}, 'w')\n" + GOOD.replace("Thing", "A"),
    )
    put(project, "thing.py", "import requests\n" + GOOD)
    error_of(project)
    assert not (project.folder / "ran").exists()


@pytest.mark.parametrize("part", [".", "resources", "resources/thing.py"])
def test_what_others_can_write_is_not_run(project, part):
    put(project, "thing.py", f"open({str(project.folder / 'ran')!r}, 'w')\n" + GOOD)
    (project.folder / part).chmod(0o777)
    with pytest.raises(
        Refused, match=r"resources/ of the project is not used: .*writable by everyone"
    ) as e:
        project.load_resources()
    assert "chmod o-w" in e.value.hint
    assert not (project.folder / "ran").exists()
    assert project.extensions.resource_files == ()
