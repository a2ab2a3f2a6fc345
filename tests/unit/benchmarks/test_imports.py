"""The counts of what is imported and planned."""

import json
from pathlib import Path

import pytest

from benchmarks.imports.__main__ import main

FITS = "container: example/c\ncommand: vllm serve Qwen/Qwen3-8B --max-model-len 8192\n"
FILES = {
    "fits.yaml": FITS,
    "large.yaml": FITS.replace("Qwen/Qwen3-8B", "meta-llama/Llama-3.3-70B-Instruct"),
    "lacks.yaml": FITS.replace("8192", "8192 --brought-by-a-mod 1") + "mods: [mods/not-here]\n",
    "unknown.yaml": FITS.replace("Qwen/Qwen3-8B", "example/unknown-model"),
    "odd.yaml": FITS.replace("8192", "8192 --kv-cache-dtype example"),
    "broken.yaml": FITS.replace("8192", "{missing}"),
    "other.yaml": "groups: [a, b]\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_each_result(folder, capsys):
    assert main([str(folder), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {Path(row["file"]).name: row["result"] for row in rows} == {
        "fits.yaml": "go",
        "large.yaml": "no-go",
        "lacks.yaml": "lacks a part",
        "unknown.yaml": "shape not known",
        "odd.yaml": "not planned",
        "broken.yaml": "not imported",
        "other.yaml": "no recipe",
    }
    assert all(row["reason"] for row in rows if row["result"] != "go")


def test_the_least_share(folder, capsys):
    assert main([str(folder), "--least", "0.5"]) == 0
    assert main([str(folder), "--least", "0.51"]) == 1
    assert main([str(folder / "fits.yaml"), "--least", "1"]) == 0
    assert capsys.readouterr().out
