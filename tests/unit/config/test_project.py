"""The search path, roles and playbooks loaded from files, templates."""

import itertools
import os
import sys
import threading
import time
from pathlib import Path
from textwrap import dedent

import factories
import pytest
from cases import cases
from factories import read_inventory

from spark_cluster.config.extension import load_module
from spark_cluster.config.project import Project
from spark_cluster.config.topology import render
from spark_cluster.errors import InvalidFile, UsageError

CASES = cases(__file__, "project.toml")

GOOD_ROLE = """\
from __future__ import annotations
from pydantic import BaseModel

class Settings(BaseModel):
    size: int = 1
    name: str = "x"

def role(ctx, settings):
    yield settings.size
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    for kind in ("inventories", "playbooks", "roles", "recipes"):
        (tmp_path / "ours" / kind).mkdir(parents=True)
        (tmp_path / "mine" / kind).mkdir(parents=True)
    return Project(tmp_path / "mine", shipped=tmp_path / "ours")


def put(root: Path, name: str, text: str = "") -> Path:
    return factories.put(root / name, dedent(text))


def error_of(project: Project, name: str) -> str:
    return factories.error_of(project.load_role, name, folder=project.folder)


def test_the_users_own_comes_first_name_by_name(project):
    put(project.shipped, "recipes/a.yaml")
    put(project.shipped, "recipes/b.yaml")
    mine = put(project.folder, "recipes/a.yaml")
    put(project.folder, "recipes/_draft.yaml")
    put(project.folder, "recipes/notes.txt")
    assert list(project.list("recipes")) == ["a", "b"]
    assert project.find("recipes", "a") == mine
    assert project.find("recipes", "b").parent.parent == project.shipped


def test_unknown_names_get_a_suggestion(project):
    for name in ("network", "models"):
        put(project.shipped, f"roles/{name}/__init__.py")
    with pytest.raises(UsageError, match=r"no role 'netwrok'.*\n  did you mean 'network'\?"):
        project.find("roles", "netwrok")
    with pytest.raises(UsageError, match=r"\n  roles: models, network"):
        project.find("roles", "zzz")
    with pytest.raises(UsageError, match=r"\n  playbooks: none"):
        project.find("playbooks", "zzz")


def test_resolve_takes_names_and_paths(project):
    path = put(project.folder, "recipes/a.yaml")
    assert project.resolve("recipes", "a") == path
    assert project.resolve("recipes", "a.yaml") == path
    assert project.resolve("recipes", str(path)) == path
    assert project.resolve("recipes", path) == path
    with pytest.raises(InvalidFile, match=r"x/a.yaml: no such recipe\n  did you mean 'a'\?"):
        project.resolve("recipes", "x/a.yaml")


def test_missing_project_folder(tmp_path):
    with pytest.raises(UsageError, match=r"project folder .*none does not exist"):
        Project(tmp_path / "none")


def test_two_projects_have_their_own_role(project, tmp_path):
    put(project.folder, "roles/r/__init__.py", GOOD_ROLE + "from .part import *\n")
    put(project.folder, "roles/r/part.py", "WHOSE = 'first'\n")
    put(tmp_path, "other/roles/r/part.py", "WHOSE = 'second'\n")
    put(tmp_path, "other/roles/r/__init__.py", GOOD_ROLE + "from .part import *\n")
    roles = [p.load_role("r") for p in (project, Project(tmp_path / "other", tmp_path / "none"))]
    assert [role.function.__globals__["WHOSE"] for role in roles] == ["first", "second"]


@pytest.mark.parametrize(("text", "expected"), CASES["wrong_roles"])
def test_wrong_roles(project, text, expected):
    put(project.folder, "roles/r/__init__.py", text)
    assert error_of(project, "r").split("\n")[0] == expected


def test_a_role_without_code(project):
    (project.folder / "roles/r").mkdir()
    assert error_of(project, "r").startswith("roles/r/__init__.py: role r: no such file")


def test_the_line_is_that_of_the_roles_own_file(project):
    put(project.folder, "roles/r/__init__.py", "from .part import f\nf()\n")
    put(project.folder, "roles/r/part.py", "import json\n\ndef f():\n    json.loads('{')\n")
    assert error_of(project, "r").startswith("roles/r/part.py:4: role r: JSONDecodeError: ")


def test_settings_of_a_role(project, tmp_path):
    put(project.folder, "roles/r/__init__.py", GOOD_ROLE)
    path = put(tmp_path, "i.yaml", "nodes: {a: {address: x}}\nsettings:\n  r: {size: 2}\n")
    role, node = project.load_role("r"), read_inventory(path).head
    assert role.settings_for(node) == role.settings_model(size=2)
    assert role.settings_for(node, name="y") == role.settings_model(size=2, name="y")


def test_wrong_settings_name_the_side_that_wrote_them(project, tmp_path):
    put(project.folder, "roles/r/__init__.py", GOOD_ROLE)
    path = put(tmp_path, "i.yaml", "nodes: {a: {address: x}}\nsettings:\n  r:\n    size: big\n")
    role, node = project.load_role("r"), read_inventory(path).head
    with pytest.raises(InvalidFile) as wrong:
        role.settings_for(node, name="y")
    assert str(wrong.value) == f"{path}:4: settings.r.size: found 'big', expected a whole number"
    with pytest.raises(UsageError) as refused:
        role.settings_for(node, size="huge")
    assert str(refused.value) == (
        "settings of role r on a: size: found 'huge', expected a whole number"
    )


def test_playbooks(project):
    path = put(project.folder, "playbooks/p.py", "def main(play): pass\n")
    playbook = project.load_playbook("p")
    assert (playbook.name, playbook.path) == ("p", path)
    put(project.folder, "playbooks/q.py", "def play(play, tp=1): pass\n")
    assert project.load_playbook("q").name == "q"
    for text, expected in [
        ("x = 1\n", "no.py:1: playbook no: no function main(play)"),
        ("def main(): pass\n", "no.py:1: playbook no: no function main(play)"),
        ("\ndef main(play: pass\n", "no.py:2: playbook no: SyntaxError"),
    ]:
        put(project.folder, "playbooks/no.py", text)
        with pytest.raises(InvalidFile) as caught:
            project.load_playbook(project.folder / "playbooks/no.py")
        assert expected in str(caught.value)


def test_render(tmp_path):
    put(tmp_path, "a.j2", "{% if on %}\nx = {{ x }} & <y>\n{% endif %}\nend\n")
    assert render(tmp_path, "a.j2", on=True, x="<1>") == "x = <1> & <y>\nend\n"
    put(tmp_path, "name.j2", "{{ folder }} {{ template }}")
    assert render(tmp_path, "name.j2", folder="f", template="t") == "f t"


@pytest.mark.parametrize(("text", "expected"), CASES["wrong_templates"])
def test_wrong_templates(tmp_path, text, expected):
    put(tmp_path, "t.j2", text)
    with pytest.raises(InvalidFile) as caught:
        render(tmp_path, "t.j2", d={}, x=1)
    assert str(caught.value).replace(f"{tmp_path}/", "") == expected


def test_missing_template(tmp_path):
    put(tmp_path, "daemon.json.j2")
    with pytest.raises(InvalidFile, match=r"no such template\n  did you mean 'daemon.json.j2'\?"):
        render(tmp_path, "deamon.json.j2")


def test_a_role_is_loaded_while_other_threads_import(tmp_path):
    """Modules that show the answers are imported while a run is at work."""
    (tmp_path / "one.py").write_text("x = 1\n")
    done = threading.Event()

    def import_on() -> None:
        for number in itertools.count():
            if done.is_set():
                return
            sys.modules[f"imported_meanwhile_{number % 5000}"] = sys
            sys.modules.pop(f"imported_meanwhile_{(number - 2500) % 5000}", None)

    thread = threading.Thread(target=import_on)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(300):
            assert load_module(tmp_path / "one.py", "one_of_a_test", "a test").x == 1
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)
        for name in [name for name in list(sys.modules) if name.startswith("imported_meanwhile_")]:
            del sys.modules[name]


def test_two_threads_that_want_a_role_get_the_same(project):
    """Of a class that is made twice at the same time, the one is not complete yet."""
    text = GOOD_ROLE.replace(
        "class Settings", "import time\ntime.sleep(0.1)\n\n\nclass Settings", 1
    )
    put(project.folder, "roles/slow/__init__.py", text)
    found, start = [], threading.Barrier(4)

    def load() -> None:
        start.wait()
        found.append(project.load_role("slow"))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(role is found[0] for role in found)


def test_a_file_that_is_changed_twice_within_a_second_is_read_again(tmp_path):
    """Compiled code knows its source by length and whole seconds."""
    path = tmp_path / "play.py"
    for text in ("old", "new"):
        path.write_text(f"SAYS = {text!r}\n")
        second = int(time.time())
        os.utime(path, (second, second))
        assert text == load_module(path, "a_play", "playbook play").SAYS
