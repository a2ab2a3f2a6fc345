"""The example script and the notebook, run as they are on real agents over pipes."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from cases import each_row
from notebook import cells, run
from piped_cluster import PipedNodes

from spark_cluster.config.facts import GpuProcess

EXAMPLES = Path(__file__).parents[4] / "examples"
NOTEBOOK = EXAMPLES / "cluster.ipynb"


@pytest.fixture
def here(project: Path, piped_nodes: PipedNodes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project is the current folder; a process holds GPU memory on its nodes."""
    monkeypatch.chdir(project)
    for name in ("spark1", "spark2"):
        piped_nodes[name].held = [GpuProcess(17, "VLLM::EngineCore", 900)]
        piped_nodes[name].put("/srv/images/spark-vllm.tar")
        piped_nodes[name].available_gib = 0
        with piped_nodes[name].state("systemd") as systemd:
            systemd["units"] = {"systemd-logind.service": {"active": "active"}}
        (project / name / "etc").mkdir()
    return project


@pytest.fixture
def serve() -> ModuleType:
    """The example script, imported."""
    spec = importlib.util.spec_from_file_location("example_serve", EXAMPLES / "serve.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@each_row(__file__, "examples.toml", "the_script_ends_with_the_status_of_its_error")
def test_the_script_ends_with_the_status_of_its_error(here, serve, capsys, words, status, said):
    assert serve.main(words) == status
    assert said in capsys.readouterr().err


def test_the_notebook(here, capsys):
    run(NOTEBOOK)
    said = capsys.readouterr().out
    assert "spark2: 900 MiB of GPU memory are held" in said
    assert "stopped" in said
    assert "+Welcome" in said
    assert "2 changes would be made" in said
    assert not (here / "spark1/etc/motd").exists(), "check mode changes nothing"


def test_the_notebook_is_one_without_output():
    document = json.loads(NOTEBOOK.read_text())
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in document["cells"]]
    assert len(set(ids)) == len(ids)
    assert {cell["cell_type"] for cell in document["cells"]} == {"code", "markdown"}
    code = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    assert len(code) == len(cells(NOTEBOOK))
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
