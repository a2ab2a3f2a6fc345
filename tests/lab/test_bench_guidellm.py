"""A benchmark by real GuideLLM on real vLLM.

GuideLLM needs PyTorch, which the lab has for the Python of its image only: the test makes the
environment for that Python, as the role would have made it for the node's.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_results import bench_user, record
from commandline import CommandLine
from factories import SHIPPED
from test_venv_runtime import PREPARE

from spark_cluster.bench import guidellm
from spark_cluster.bench.on_node import FOLDER
from spark_cluster.lab import LabNode
from spark_cluster.node import paths
from spark_cluster.resources.virtual_environment import MARKER

pytestmark = [pytest.mark.lab, pytest.mark.soak]

SUITE = """\
name: guided
recipes: [lab-paris]
tool: guidellm
prompt: [32]
output: [8]
requests: 6
runs: 2
stages:
  - {name: two at once, concurrency: [2]}
  - {name: at a rate, request_rate: [4]}
"""
MISSING = """\
aiofiles aiologic culsans datasets eval-type-backport faker ftfy h2 hpack html5tagger hyperframe
more-itertools multiprocess pandas pyarrow python-dateutil sanic sanic-routing tabulate tracerite
tzdata ujson wcwidth xxhash
"""
"""What GuideLLM needs and vLLM does not bring."""


def install(node: LabNode, user: CommandLine, wheels: Path) -> None:
    """Put GuideLLM where the role puts it, next to the packages of vLLM's environment."""
    user("playbook", user.playbook(PREPARE))
    (engine,) = (node.root / "srv/engine/lib").iterdir()
    version = engine.name.removeprefix("python")
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(wheels)]
    argv += ["--only-binary=:all:", "--python-version", version, f"guidellm=={guidellm.VERSION}"]
    subprocess.run([*argv, *MISSING.split()], check=True, timeout=600)
    path = node.root / paths.GUIDELLM.lstrip("/")
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(node.root / "srv/engine", path, symlinks=True)
    shutil.copytree(wheels, path / f"lib/{engine.name}/site-packages", dirs_exist_ok=True)
    program = path / "bin/guidellm"
    _, _, text = (wheels / "bin/guidellm").read_text().partition("\n")
    program.write_text(f"#!{paths.GUIDELLM}/bin/python3\n{text}")
    program.chmod(0o755)
    settings = SHIPPED.load_role("guidellm").settings_model()
    lines = (*settings.pip_options, f"guidellm=={settings.version}")
    (path / MARKER).write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture(scope="module")
def user(lab, spark1: LabNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    folder = tmp_path_factory.mktemp("guidellm")
    with bench_user(lab, folder, {"guided": SUITE}) as made:
        install(spark1, made, folder / "wheels")
        yield made


def test_requests_at_once_and_at_a_rate(user, spark1):
    done = user("bench", "run", "guided", "--out", "guided")
    told = record(user.home / "guided")
    assert [cell["status"] for cell in told["cells"]] == ["ok", "ok"], done.printed
    assert (told["tool"]["name"], told["tool"]["version"]) == ("guidellm", guidellm.VERSION)
    for cell in told["cells"]:
        metrics = cell["metrics"]
        assert {"ttft_ms", "tpot_ms", "itl_ms", "e2el_ms", "output_tps"} < set(metrics)
        assert len(metrics["output_tps"]["values"]) == 2
        assert all(value > 0 for value in metrics["output_tps"]["values"])
        assert set(metrics["ttft_ms"]["percentiles"]) == {"p5", "p50", "p90", "p95", "p99"}
        assert all((user.home / "guided" / name).is_file() for name in cell["raw"])
    assert "p99" in user("bench", "show", "guided").printed
    owners = spark1.run(["sh", "-c", f"stat -c %U {FOLDER}/*/*/raw/*.json"]).stdout
    assert set(owners.split()) == {"nvidia"}, "it runs as the login user"
