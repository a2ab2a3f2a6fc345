"""`spark-cluster init`: what it writes can be read, and nothing is overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from factories import load_inventory
from hypothesis import given
from hypothesis import strategies as st
from json_schema import document as fits

from spark_cluster.cli.api import Cluster
from spark_cluster.cli.app import App
from spark_cluster.cli.first_steps import init
from spark_cluster.config.discovery import Answers, write
from spark_cluster.config.project import Project
from spark_cluster.errors import UsageError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: str, text: str | None = None, obj: App | None = None) -> Result:
    return CliRunner().invoke(init, args, input=text, obj=obj or App(Cluster()))


def test_two_nodes_without_questions(here: Path) -> None:
    result = run("--node", "10.0.0.1", "--node", "10.0.0.2", "--user", "me", "--yes")
    assert result.exit_code == 0, result.output
    assert "spark-cluster up --tp 2" in result.output
    inventory = load_inventory(None, Project(here))
    assert [node.address for node in inventory.nodes.values()] == ["10.0.0.1", "10.0.0.2"]
    assert (inventory.head.name, inventory.head.user) == ("spark1", "me")
    assert inventory.serve.recipe == "gemma4-31b-nvfp4"
    text = (here / "inventory.yaml").read_text()
    assert text.count("#") > 10
    assert max(map(len, text.splitlines())) <= 110
    assert [path.name for path in here.iterdir()] == ["inventory.yaml"]


def test_one_node_and_options(here: Path) -> None:
    result = run("--node", "spark-2a60.local", "--identity-file", "~/k y", "--recipe", "lab-paris",
                 "--yes")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "--tp 1" in result.output
    inventory = load_inventory(None, Project(here))
    assert inventory.head.identity_file == Path.home() / "k y"
    assert (inventory.head.user, inventory.serve.recipe) == (None, "lab-paris")
    assert "fabric" not in (here / "inventory.yaml").read_text()


def test_questions(here: Path) -> None:
    result = run(text="10.0.0.1\n10.0.0.2\n\n\n")
    assert result.exit_code == 0, result.output
    inventory = load_inventory(None, Project(here))
    assert len(inventory.nodes) == 2
    assert inventory.head.user == "nvidia"


def test_never_overwritten_without_force(here: Path) -> None:
    path = here / "inventory.yaml"
    path.write_text("mine")
    result = run("--node", "10.0.0.1", "--yes")
    assert isinstance(result.exception, UsageError)
    assert "exists" in str(result.exception) and "--force" in str(result.exception)
    assert path.read_text() == "mine"
    assert run("--node", "10.0.0.1", "--yes", "--force").exit_code == 0
    assert load_inventory(None, Project(here)).head.address == "10.0.0.1"


def test_the_pool_keeps_off_the_management_network(here: Path) -> None:
    run("--node", "192.168.177.5", "--node", "192.168.178.6", "--yes")
    inventory = load_inventory(None, Project(here))
    assert [str(net) for net in inventory.pool] == ["192.168.187.0/24", "192.168.188.0/24"]


def test_json(here: Path) -> None:
    result = run("--node", "10.0.0.1", "--yes", obj=App(Cluster(), as_json=True))
    document = fits("init", result.stdout)
    assert document["ok"] is True
    assert document["nodes"] == ["spark1"]
    assert document["file"] == str(here / "inventory.yaml")


def test_project_folder(here: Path) -> None:
    (here / "p").mkdir()
    run("--node", "10.0.0.1", "--yes", obj=App(Cluster(project=here / "p")))
    assert (here / "p" / "inventory.yaml").exists()


def test_unwritable_folder(here: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        write(here / "none" / "inventory.yaml", Answers(("x",)), Project(here))


@given(st.lists(st.text(max_size=20), min_size=1, max_size=3), st.text(max_size=20))
def test_any_answer_is_written_faithfully_or_refused(addresses: list[str], user: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "inventory.yaml"
        try:
            inventory = write(path, Answers(tuple(addresses), user or None), Project(Path(folder)))
        except UsageError:
            assert list(Path(folder).iterdir()) == []
            return
        assert [node.address for node in inventory.nodes.values()] == addresses
        assert inventory.head.user == (user or None)
