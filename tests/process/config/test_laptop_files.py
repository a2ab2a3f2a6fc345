"""Which files of the laptop a recipe may have sent to the nodes."""

from pathlib import Path

import pytest
from factories import read_inventory
from program import invoke

from spark_cluster.config.extension import LAB_MODELS, Allowances
from spark_cluster.config.project import Project
from spark_cluster.config.recipe_settings import must_be_allowed
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import Refused

PATCH = """\
name: r
model: {name: org/m, served_name: m}
image: {ref: "repo/image:1"}
patches:
  - {file: FILE, origin: laptop, target: /opt/x.py, why: a test}
"""
MODEL = """\
name: r
model: {name: m, served_name: m, source: directory, directory: FILE}
image: {ref: "repo/image:1"}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with a key and a project; somebody's recipe lies in another folder."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True)
    (folder / ".ssh/id").write_text("a key")
    (folder / "project/recipes").mkdir(parents=True)
    (folder / "project/fix.py").write_text("x = 1\n")
    (tmp_path / "theirs/m/sub").mkdir(parents=True)
    (tmp_path / "theirs/fix.py").write_text("x = 1\n")
    (tmp_path / "theirs/m/config.json").write_text("{}")
    monkeypatch.setenv("HOME", str(folder))
    return folder


def look(tmp_path: Path, file: str, text: str = PATCH, *allow: Path, project: str = "") -> None:
    (tmp_path / "theirs/r.yaml").write_text(text.replace("FILE", file))
    folder = tmp_path / (project or "home/project")
    must_be_allowed(load_recipe(tmp_path / "theirs/r.yaml", Project(folder), Allowances(allow)))


@pytest.mark.parametrize("file", ["~/.ssh/id", "../home/.ssh/id", "/etc/passwd", "/dev/null"])
def test_a_file_elsewhere_is_refused(tmp_path, file):
    with pytest.raises(Refused, match=r"recipe r wants .* \(patches\[0\]\.file\)"):
        look(tmp_path, file)


def test_what_lies_next_to_the_recipe_or_in_the_project_is_sent(tmp_path):
    look(tmp_path, "fix.py")
    look(tmp_path, "../home/project/fix.py")
    (tmp_path / "theirs/m/.gitattributes").write_text("*.bin filter=lfs\n")
    look(tmp_path, "m", MODEL)


def test_a_link_counts_as_what_it_leads_to(tmp_path):
    (tmp_path / "theirs/innocent.py").symlink_to("../home/.ssh/id")
    with pytest.raises(Refused, match=r"a link to .*id"):
        look(tmp_path, "innocent.py")
    (tmp_path / "theirs/m/sub/weights").symlink_to(tmp_path / "home/.ssh/id")
    with pytest.raises(Refused, match=r"model\.directory"):
        look(tmp_path, "m", MODEL)
    (tmp_path / "theirs/all").symlink_to(tmp_path / "home")
    with pytest.raises(Refused, match=r"model\.directory"):
        look(tmp_path, "all", MODEL)


def test_a_home_as_project_holds_no_files_for_recipes(tmp_path, home):
    (home / "notes.txt").write_text("private")
    for project in ("home", "."):
        for file in ("~/notes.txt", "~/.ssh/id"):
            with pytest.raises(Refused):
                look(tmp_path, file, project=project)


def test_hidden_files_of_a_project_are_not_sent(tmp_path, home):
    (home / "project/.env").write_text("SECRET=1")
    with pytest.raises(Refused):
        look(tmp_path, "../home/project/.env")


def test_what_the_user_names_is_sent(tmp_path, home):
    look(tmp_path, "~/.ssh/id", PATCH, home / ".ssh/id")
    look(tmp_path, "~/.ssh/id", PATCH, Path("~/.ssh"))
    with pytest.raises(Refused) as caught:
        look(tmp_path, "~/.ssh/id", PATCH, home / ".ssh/i")
    assert "--allow-file" in caught.value.hint


def test_the_inventory_may_name_them(tmp_path):
    text = "nodes: {a: {address: 10.0.0.1}}\nserve: {allow_files: [shared, ~/models]}\n"
    (tmp_path / "inventory.yaml").write_text(text)
    files = read_inventory(tmp_path / "inventory.yaml").serve.allow_files
    assert files == [tmp_path / "shared", tmp_path / "home/models"]


def test_the_labs_own_model_may_be_sent(tmp_path):
    must_be_allowed(load_recipe("lab-paris", Project(tmp_path)))
    look(tmp_path, str(LAB_MODELS / "paris"), MODEL)
    for elsewhere in (LAB_MODELS.parent, Path(f"{LAB_MODELS}-more")):
        with pytest.raises(Refused):
            look(tmp_path, str(elsewhere / "x.py"))


def test_a_recipe_in_a_checkout_is_no_more_trusted_than_others(tmp_path):
    """`recipes import` writes there too, next to what ships."""
    checkout = tmp_path / "home/project"
    (checkout / "recipes/r.yaml").write_text(PATCH.replace("FILE", "~/.ssh/id"))
    for folder in (checkout, tmp_path / "theirs"):
        with pytest.raises(Refused):
            must_be_allowed(load_recipe(checkout / "recipes/r.yaml", Project(folder, checkout)))


@pytest.mark.parametrize("command", [["up"], ["lint"], ["plan", "--offline"]])
def test_commands_refuse_and_allow(tmp_path, home, monkeypatch, command):
    (tmp_path / "theirs/r.yaml").write_text(PATCH.replace("FILE", "~/.ssh/id"))
    (home / "project/inventory.yaml").write_text("nodes: {a: {address: 127.0.0.1, port: 1}}\n")
    monkeypatch.chdir(home / "project")
    name = ["--recipe"] if command == ["up"] else []
    words = [*command, *name, str(tmp_path / "theirs/r.yaml")]
    done = invoke(*words)
    assert isinstance(done.exception, Refused), done.output
    done = invoke(*words, "--allow-file", "~/.ssh/id")
    assert not isinstance(done.exception, Refused)
