"""Every container that we start has the capabilities that it was given here, and no more."""

import ast
from pathlib import Path

import spark_cluster
from spark_cluster.node import confinement

WORDS = "--user 0:0 --cap-drop ALL --cap-add DAC_OVERRIDE --security-opt no-new-privileges"


def test_options_of_docker_run():
    assert " ".join(confinement.options("DAC_OVERRIDE")) == WORDS


def test_no_container_is_started_without_them():
    """Each function or constant that writes `docker run` takes the options from here."""
    package = Path(spark_cluster.__file__).parent
    sources = [(path.name, path.read_text()) for path in package.rglob("*.py")]
    starting = [
        (name, ast.unparse(part))
        for name, text in sources
        if '"docker"' in text
        for part in ast.walk(ast.parse(text))
        if isinstance(part, ast.FunctionDef) and _starts_a_container(part)
    ]
    assert {name for name, _ in starting} == {"fetch.py", "kernel_tuner.py", "open_loop.py"}
    for name, text in starting:
        assert "confinement.options(" in text, name


def _starts_a_container(part: ast.FunctionDef) -> bool:
    lists = (p for p in ast.walk(part) if isinstance(p, ast.List | ast.Tuple))
    words = ([getattr(one, "value", None) for one in p.elts] for p in lists)
    return any(found[:2] == ["docker", "run"] for found in words)
