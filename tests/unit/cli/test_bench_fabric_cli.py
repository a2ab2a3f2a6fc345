"""`bench fabric`: what people see of a result, and what is refused before a node is asked."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from fabric_results import save
from factories import make_inventory
from program import invoke

from spark_cluster.bench.fabric_run import judged, load_fabric
from spark_cluster.bench.report.rendering import size_text
from spark_cluster.cli.bench import show_fabric
from spark_cluster.cli.terminal import Console
from spark_cluster.errors import Refused, UsageError
from spark_cluster.plan.estimate import Constants


def shown(folder: str) -> str:
    out = io.StringIO()
    app = SimpleNamespace(console=Console(file=out, width=80))
    show_fabric(app, judged(load_fabric(Path(folder))), Path(folder))  # type: ignore[arg-type]
    return out.getvalue()


def test_a_result_in_80_columns(tmp_path):
    said = shown(save(tmp_path / "f", left_out=(64, 1 << 20)))
    assert said.strip().startswith("as expected nccl")
    assert "one token" in said
    assert "22-24" in said
    assert f"of {Constants().bandwidth / 1e9:.0f}" in said
    assert "no time was left for 64 B, 1 MiB" in said
    assert max(map(len, said.splitlines()[:-1])) <= 80


def test_a_slow_one_says_why_first(tmp_path):
    said = shown(save(tmp_path / "f", token_s=900e-6))
    assert said.strip().startswith("slow")
    assert said.index("an all-reduce of one token takes 900 us") < said.index("all-reduce of ")
    gloo = shown(save(tmp_path / "g", backend="gloo"))
    assert "gloo on CPUs" in gloo
    assert "22-24" not in gloo


@pytest.mark.parametrize(
    ("size", "text"), [(8, "8 B"), (10752, "10,752 B"), (2048, "2 KiB"), (256 << 20, "256 MiB")]
)
def test_sizes(size, text):
    assert size_text(size) == text


def test_what_is_refused(tmp_path):
    make_inventory(tmp_path, "nodes:\n  a: {address: 192.0.2.1, roles: [head]}\n")

    def run(*words: str) -> None:
        invoke("bench", "fabric", *words, project=tmp_path, catch_exceptions=False,
               standalone_mode=False)  # fmt: skip

    save(tmp_path / "f")
    with pytest.raises(UsageError, match=r"holds a fabric\.json already"):
        run("--out", str(tmp_path / "f"))
    with pytest.raises((UsageError, Refused)):
        run()
