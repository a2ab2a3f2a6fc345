"""The built wheel has all that the program needs, and installs in fresh environments."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import readme

from spark_cluster import __version__
from spark_cluster.cli import cli, main

CHECKOUT = Path(__file__).parents[3]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
OFFLINE = ("--no-index", "--no-build-isolation")
PIP = (sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check")
FROM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from spark_cluster.cli import main; main()"


def run(*argv: str | Path, cwd: Path) -> str:
    """Standard output of a program that must succeed."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in argv], check=False, capture_output=True, text=True, cwd=cwd, env=env
    )
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=CHECKOUT)
    (found,) = folder.glob("*.whl")
    assert found.name.startswith(f"spark_cluster-{__version__}-py3")
    return found


def works(tmp_path: Path, *program: str | Path) -> dict[str, object]:
    """Run what a new user runs first; what `version` tells."""
    assert "recipes" in run(*program, "--help", cwd=tmp_path)
    recipes = json.loads(run(*program, "--json", "recipes", "list", cwd=tmp_path))["recipes"]
    shipped = {path.stem for path in (CHECKOUT / "recipes").glob("*.yaml")}
    assert {recipe["name"] for recipe in recipes if recipe["valid"]} == shipped
    run(*program, "plan", "gemma4-31b-fp8", "--offline", cwd=tmp_path)
    run(*program, "explain", "--about", "share-too-high", cwd=tmp_path)
    run(*program, "init", "--node", "192.0.2.1", "--yes", cwd=tmp_path)
    told: dict[str, object] = json.loads(run(*program, "version", "--json", cwd=tmp_path))
    assert told["version"] == __version__
    assert told["inventory"] == str(tmp_path / "inventory.yaml")
    return told


def test_the_program_runs_from_what_is_installed(tmp_path):
    target = tmp_path / "installed"
    more = (*OFFLINE, "--quiet", "--no-deps", "--target", target)
    run(*PIP, *readme.words("pipx install ."), *more, cwd=CHECKOUT)
    assert (target / "bin/spark-cluster").exists()
    folder = tmp_path / "project"
    folder.mkdir()
    told = works(folder, sys.executable, "-c", FROM, target)
    assert told["program"] == str(target / "spark_cluster")


def test_the_extra_for_benchmarks():
    more = (*OFFLINE, "--dry-run")
    said = run(*PIP, *readme.words("pipx install '.[bench]'"), *more, cwd=CHECKOUT)
    assert "Requirement already satisfied: matplotlib" in said


def test_what_is_not_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert tops == {"spark_cluster", f"spark_cluster-{__version__}.dist-info"}


def test_the_lab_is_a_distribution_of_its_own(tmp_path):
    lab = CHECKOUT / "packages/spark-cluster-lab"
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=lab)
    with zipfile.ZipFile(tmp_path / f"spark_cluster_lab-{__version__}-py3-none-any.whl") as archive:
        names = set(archive.namelist())
        (points,) = [archive.read(name) for name in names if name.endswith("entry_points.txt")]
    here = {str(p.relative_to(lab)) for p in (lab / "spark_cluster_lab").rglob("*.py")}
    assert here <= names
    assert b"lab = spark_cluster_lab.commands:command" in points


def test_the_lab_is_not_installed(monkeypatch, capsys):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    monkeypatch.setattr(sys, "argv", ["spark-cluster", "lab", "status"])
    monkeypatch.delitem(cli.commands, "lab", raising=False)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "install the lab, in a checkout" in capsys.readouterr().err


@pytest.mark.soak
@pytest.mark.parametrize("version", PYTHONS)
def test_it_installs_in_a_fresh_environment(wheel, tmp_path, version):
    python = shutil.which(f"python{version}")
    probe = [python or "python", "-c", "import venv, ensurepip"]
    if python is None or subprocess.run(probe, check=False, capture_output=True).returncode != 0:
        pytest.skip(f"there is no Python {version} on this machine")
    environment, folder = tmp_path / "environment", tmp_path / "project"
    folder.mkdir()
    run(python, "-m", "venv", environment, cwd=tmp_path)
    pip = (environment / "bin/pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, wheel, cwd=tmp_path)
    told = works(folder, environment / "bin/spark-cluster")
    assert str(told["python"]).startswith(version)
    run(environment / "bin/pip", "check", cwd=tmp_path)
