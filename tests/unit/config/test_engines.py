"""Engines by name: ours, those of other packages, and what a recipe says of them."""

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from cases import cases

from spark_cluster.config import engines
from spark_cluster.config.engines import Dialect
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipes import load_recipe
from spark_cluster.engine.engine import engine
from spark_cluster.errors import UsageError

BASE = """\
name: r
model: {name: org/m, served_name: m}
image: {ref: "repo/image:1"}
"""


class Foreign:
    """An engine of another package."""

    name = "foreign"
    dialect = Dialect("Foreign", ("foreign", "run"), names={"max-model-len": "ctx"})


FOREIGN = Foreign()


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    points = [
        EntryPoint("foreign", f"{__name__}:FOREIGN", engines.GROUP),
        EntryPoint("broken", "no_such_module:ENGINE", engines.GROUP),
        EntryPoint("vllm", f"{__name__}:FOREIGN", engines.GROUP),
    ]
    monkeypatch.setattr(engines, "entry_points", lambda group: points)
    engines._plug_ins.cache_clear()
    yield
    engines._plug_ins.cache_clear()


def load(folder: Path, text: str) -> Recipe:
    path = folder / "r.yaml"
    path.write_text(text)
    return load_recipe(path, Project(folder))


def test_ours():
    assert engines.names()[:2] == ("vllm", "sglang")
    assert [engine(name).dialect.title for name in ("vllm", "sglang")] == ["vLLM", "SGLang"]


def test_one_that_no_one_has():
    with pytest.raises(UsageError, match="there is no engine 'sgland'") as caught:
        engine("sgland")
    assert "did you mean 'sglang'?" in caught.value.hint


@pytest.mark.usefixtures("plug_in")
def test_one_of_another_package(tmp_path):
    assert engines.names() == ("vllm", "sglang", "broken", "foreign")
    assert engine("foreign") is FOREIGN
    assert engine("vllm") is not FOREIGN, "ours cannot be replaced"
    recipe = load(tmp_path, f"{BASE}engine: foreign\nengine_args: {{ctx: 5}}\n")
    assert recipe.dialect.common(recipe.flags(1))["max-model-len"] == 5
    with pytest.raises(UsageError, match="the engine 'broken' cannot be loaded: No module named"):
        engine("broken")


def test_an_engines_own_flags_become_vllms_for_plans(tmp_path):
    text = (
        f"{BASE}engine: sglang\ngpu_memory_utilization: 0.6\n"
        "engine_args: {context-length: 4096, max-running-requests: 8}\n"
        "drafter: {method: mtp, tokens: 2}\n"
    )
    recipe = load(tmp_path, text)
    flags = recipe.flags(2)
    expected = cases(__file__, "engines.toml")
    assert flags == expected["flags"]
    assert recipe.dialect.common(flags) == expected["common"]
