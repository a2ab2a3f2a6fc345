"""`completion`: the scripts are loaded by the real shells, and complete commands and options."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cases import each_row
from json_schema import document as fits
from program import on_path as program_on_path

CHECKOUT = Path(__file__).parents[3]
SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def on_path(tmp_path: Path) -> dict[str, str]:
    return program_on_path(tmp_path)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_for_each_shell(program, shell):
    done = program("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_SPARK_CLUSTER_COMPLETE" in done.stdout
    found = fits("completion", program("completion", shell, "--json").stdout)
    assert found["shell"] == shell
    assert found["script"].strip() == done.stdout.strip()


def test_bash_completes(on_path):
    expected = {
        ("rec",): {"recipes"},
        ("recipes", "im"): {"import"},
        ("up", "--allow-m"): {"--allow-mount"},
        ("completion", ""): set(SHELLS),
    }
    code = 'eval "$(spark-cluster completion bash)"\n'
    for words in expected:
        line = " ".join(f"'{word}'" for word in ["spark-cluster", *words])
        code += (
            f"COMP_WORDS=({line}); COMP_CWORD={len(words)}; COMPREPLY=()\n"
            '_spark_cluster_completion spark-cluster; echo "${COMPREPLY[*]}"\n'
        )
    done = subprocess.run(
        ["bash", "-c", code], check=True, capture_output=True, text=True, env=on_path
    )
    assert [set(line.split()) for line in done.stdout.splitlines()] == [*expected.values()]
    assert done.stderr == ""


@each_row(__file__, "completion.toml", "other_shells")
def test_other_shells_load_the_script(on_path, shell, options, code, said):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    argv = [shell, *options.split(), code]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, env=on_path)
    assert done.stdout.split("\t")[0].strip() == said


def test_completing_a_command_imports_no_command(on_path):
    code = (
        "import os, sys\nos.environ.update(_SPARK_CLUSTER_COMPLETE='bash_complete', "
        "COMP_WORDS='spark-cluster re', COMP_CWORD='1')\nsys.argv = ['spark-cluster']\n"
        "from spark_cluster.cli import COMMANDS, main\n"
        "try:\n    main()\nfinally:\n"
        "    print([c for c in COMMANDS if f'spark_cluster.cli.{c}' in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=CHECKOUT
    )
    assert done.stdout.split() == ["plain,recipes", "plain,revert", "[]"]
