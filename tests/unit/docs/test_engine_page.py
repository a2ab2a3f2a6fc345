"""The engine of the page "Add an engine", as another package would bring it."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from factories import make_node, put
from serve_plans import server_for, snapshot_of
from test_pages import DOCS, blocks

from spark_cluster.config import engines
from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.engine import runtime
from spark_cluster.engine.engine import Engine, engine

RECIPE = """\
name: r
model: {name: org/m, served_name: m}
image: {ref: "tiny:1"}
engine: tiny
engine_args: {context: 4096}
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The page's module, found by the page's entry point."""
    page = DOCS / "how-to/engine.md"
    put(tmp_path / "my_package/__init__.py")
    put(tmp_path / "my_package/tiny.py", blocks(page, "python")[0])
    monkeypatch.syspath_prepend(tmp_path)
    _, line = blocks(page, "toml")[0].splitlines()
    name, _, value = line.partition(" = ")
    point = EntryPoint(name, value.strip('"'), engines.GROUP)
    monkeypatch.setattr(engines, "entry_points", lambda group: [point])
    engines._plug_ins.cache_clear()
    yield
    engines._plug_ins.cache_clear()
    for module in ("my_package", "my_package.tiny"):
        sys.modules.pop(module, None)


@pytest.mark.usefixtures("tiny")
def test_the_engine_of_the_page(tmp_path):
    recipe = load_recipe(put(tmp_path / "r.yaml", RECIPE), Project(tmp_path))
    plan = server_for(recipe, make_node("a"))
    deployment = plan.starting(share=0.5, ray_token=None)
    found = engine("tiny")
    process = found.server(plan.nodes[0], deployment, 29501)
    container = runtime.resource(process, deployment)
    assert container.command == (
        *("tiny-serve", "--weights", snapshot_of("org/m"), "--context", "4096", "--gpus", "1"),
        *("--memory-share", "0.5", "--served-model-name", "m", "--host=127.0.0.1", "--port=8000"),
    )


@pytest.mark.usefixtures("tiny")
def test_it_has_all_that_an_engine_has():
    wanted = {name for name in vars(Engine) if not name.startswith("_")}
    assert wanted <= set(dir(engine("tiny")))
    for ours in ("vllm", "sglang"):
        assert wanted <= set(dir(engine(ours)))
