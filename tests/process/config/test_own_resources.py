"""A project's own resources: found, checked before anything is connected, imported."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from example_pages import write_files

from spark_cluster import resources as shipped
from spark_cluster.config.project import LARGEST, Project
from spark_cluster.errors import InvalidFile, Refused
from spark_cluster.resources.base import from_wire, resource_class, to_wire
from spark_cluster.runner import wire

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


def test_the_example_of_the_page_is_imported_as_ours_are(project: Project) -> None:
    write_files("extend-resource.md", project.folder)
    plain = wire.digest()
    project.load_resources()
    mount = shipped.Mount("/models", "nas:/models")
    assert type(mount).__module__ == f"{project.extensions.package}.resources.mount"
    assert from_wire(to_wire(mount)) == mount
    assert [name for name, _ in project.extensions.resource_files] == [
        "spark_cluster_project/__init__.py",
        "spark_cluster_project/resources/__init__.py",
        "spark_cluster_project/resources/mount.py",
    ]
    assert wire.digest() != plain
    project.load_playbook(project.folder / "models.py")
    assert not list(project.folder.rglob("resources/__pycache__"))


def test_a_role_imports_them_without_more_ado(project: Project) -> None:
    put(project, "thing.py")
    role = project.folder / "roles/r/__init__.py"
    role.parent.mkdir(parents=True)
    role.write_text(
        "from pydantic import BaseModel\nfrom spark_cluster.resources import Thing\n"
        "class Settings(BaseModel): pass\ndef role(node, settings): yield Thing('/x')\n"
    )
    (found,) = project.load_role("r").function(None, None)
    assert found.id == "Thing:/x"


def test_a_project_without_any_costs_and_changes_nothing(project: Project) -> None:
    before, digest = set(sys.modules), wire.digest()
    project.load_resources()
    assert wire.digest() == digest
    assert "spark_cluster.config.project" not in set(sys.modules) - before
    assert project.extensions.resource_files == ()


def test_another_project_has_none_of_the_first(project: Project, tmp_path: Path) -> None:
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


def test_its_modules_go_with_the_project(tmp_path: Path) -> None:
    project = Project(tmp_path)
    put(project, "thing.py")
    project.load_resources()
    package = project.extensions.package
    assert f"{package}.resources.thing" in sys.modules
    del project
    gc.collect()
    assert not [name for name in sys.modules if name.startswith(package)]
    assert not [finder for finder in sys.meta_path if getattr(finder, "package", "") == package]


def test_a_folder_of_another_program_is_left_alone(project: Project) -> None:
    put(project, "thing.py", "import requests\nraise SystemExit\n")
    project.load_resources()
    assert project.extensions.resource_files == ()


def test_modules_that_resources_share(project: Project) -> None:
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


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "thing.py",
            "import json\nimport requests\n" + GOOD,
            r"resources/thing\.py:2: resource thing: imports requests, expected the standard "
            r"library of Python 3\.10, spark_cluster\.resources, spark_cluster\.node, or a file",
        ),
        (
            "thing.py",
            GOOD + "    def converge(self, host, actual):\n        from pydantic import x\n",
            r"resources/thing\.py:8: resource thing: imports pydantic",
        ),
        ("thing.py", "import tomllib\n" + GOOD, r"thing\.py:1: resource thing: imports tomllib"),
        (
            "thing.py",
            "from spark_cluster.config import folders\n" + GOOD,
            r"resource thing: imports spark_cluster\.config",
        ),
        (
            "thing.py",
            "from spark_cluster import runner\n" + GOOD,
            r"resource thing: imports spark_cluster\.runner",
        ),
        ("thing.py", "from .. import x\n" + GOOD, r"resource thing: imports \.\."),
        (
            "thing.py",
            "from ._none import x\n" + GOOD,
            r"resource thing: imports _none, which is not next to it\n  files there: thing",
        ),
        (
            "thing.py",
            "\n" + GOOD.replace("path: str", "path: str ="),
            r"resources/thing\.py:7: resource thing: SyntaxError: invalid syntax\n  it also runs",
        ),
        (
            "thing.py",
            GOOD + "\ntry:\n    pass\nexcept* OSError:\n    pass\n",
            r"resources/thing\.py:\d+: resource thing: SyntaxError: .*3\.11",
        ),
        ("thing.py", GOOD + "\0", r"resource thing: "),
        (
            "thing.py",
            GOOD.replace("class Thing(", "class Thng("),
            r"resources/thing\.py:1: resource thing: no class Thing\n  a resource's class is named",
        ),
        (
            "thing.py",
            GOOD.replace("@dataclass(frozen=True)", "@dataclass"),
            r"thing\.py:\d: resource thing: TypeError: cannot inherit non-frozen dataclass",
        ),
        (
            "thing.py",
            GOOD.replace("@dataclass(frozen=True)\n", ""),
            r"thing\.py:4: resource thing: class Thing is not a frozen dataclass\n  put @dataclass",
        ),
        (
            "thing.py",
            GOOD.replace("(Resource)", ""),
            r"thing\.py:5: resource thing: class Thing is not a subclass of Resource\n",
        ),
        (
            "thing.py",
            GOOD + GOOD.replace("Thing", "Second"),
            r"thing\.py:11: resource thing: found the resource Second, expected only Thing",
        ),
        (
            "_part.py",
            GOOD.replace("Thing", "File"),
            r"_part\.py:5: module _part of resources: found the resource File, expected none",
        ),
        (
            "file.py",
            GOOD.replace("Thing", "File"),
            r"resource file: the name is that of a resource that ships .*\n  choose another name",
        ),
        ("base.py", GOOD.replace("Thing", "Base"), r"resource base: the name is that of"),
        ("my-thing.py", GOOD, r"found the file name 'my-thing\.py', expected words of letters"),
        ("My.py", GOOD, r"found the file name 'My\.py'"),
        (
            "thing.py",
            GOOD + "\n1 / 0\n",
            r"resources/thing\.py:8: resource thing: ZeroDivisionError: division by zero",
        ),
        ("thing.py", GOOD + "\nraise SystemExit(3)\n", r"thing\.py:8: resource thing: SystemExit"),
        (
            "thing.py",
            GOOD + "#" * LARGEST,
            r"resources: resources/ of the project: found \d+ bytes",
        ),
    ],
)
def test_wrong_ones(project: Project, name: str, text: str, expected: str) -> None:
    file = shipped.File
    put(project, name, text)
    assert re.search(expected, error_of(project))
    assert resource_class("File") is file
    assert resource_class("Thing") is None


def test_the_line_of_a_shared_module(project: Project) -> None:
    put(project, "_part.py", "\n\ndef f():\n    raise KeyError('x')\n")
    put(project, "thing.py", "from ._part import f\nf()\n" + GOOD)
    assert error_of(project).startswith("resources/_part.py:4: resource thing: KeyError: 'x'")


def test_nothing_is_run_before_all_are_checked(project: Project) -> None:
    put(
        project,
        "a.py",
        f"open({str(project.folder / 'ran')!r}, 'w')\n" + GOOD.replace("Thing", "A"),
    )
    put(project, "thing.py", "import requests\n" + GOOD)
    error_of(project)
    assert not (project.folder / "ran").exists()


@pytest.mark.parametrize("part", [".", "resources", "resources/thing.py"])
def test_what_others_can_write_is_not_run(project: Project, part: str) -> None:
    put(project, "thing.py", f"open({str(project.folder / 'ran')!r}, 'w')\n" + GOOD)
    (project.folder / part).chmod(0o777)
    with pytest.raises(
        Refused, match=r"resources/ of the project is not used: .*writable by everyone"
    ) as e:
        project.load_resources()
    assert "chmod o-w" in e.value.hint
    assert not (project.folder / "ran").exists()
    assert project.extensions.resource_files == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_a_file_of_another_user(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    os.chown(put(project, "thing.py"), 12345, 12345)
    with pytest.raises(Refused, match=r"thing\.py belongs to another user"):
        project.load_resources()


def test_the_agents_name_of_the_package_is_the_bootstraps(project: Project) -> None:
    from spark_cluster.agent import bootstrap
    from spark_cluster.node.values import PROJECT_PACKAGE

    assert f'"{PROJECT_PACKAGE}"' in Path(bootstrap.__file__).read_text()
