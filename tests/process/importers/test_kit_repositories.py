"""Kits by the URL of their repository, and on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
from cases import each_row
from factories import put
from program import run
from registry_samples import Repository, repository

from spark_cluster.config.yamlfile import load

KITS = Path(__file__).parents[2] / "data/kits"
SERVE = "#!/bin/sh\nexec vllm serve Qwen/Qwen3-8B --max-model-len $LENGTH\n"


@pytest.fixture
def theirs(tmp_path: Path) -> Repository:
    return repository(tmp_path / "two-sparks.git")


def imported(project: Path, *words: str, status: int = 0) -> dict[str, Any]:
    argv = ["--project", str(project), "--json", "recipes", "import", *words, "--offline"]
    done = run(*argv, cwd=project)
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(done.stdout or done.stderr)


def test_a_kit_by_its_url(theirs, tmp_path):
    commit = theirs.commit_files(
        {"start.sh": SERVE + ". ./.env\n", ".env": "LENGTH=8192\n", ".hidden/run.sh": SERVE}
    )
    result = imported(tmp_path, theirs.url)
    recipe = load(Path(result["file"])).data
    assert recipe["engine_args"] == {"max-model-len": 8192}
    assert recipe["sources"] == [f"{theirs.url} at {commit[:12]}: start.sh"]
    assert result["kind"] == "start script"


def test_its_patches_come_along(theirs, tmp_path):
    folder = KITS / "arrays-and-conditions"
    theirs.commit_files({path.name: path.read_text() for path in folder.iterdir()})
    result = imported(tmp_path, theirs.url, "--name", "mine")
    assert result["files"] == [str(tmp_path / "recipes/mine.patches/model_fix.py")]
    assert "stands in for" in Path(result["files"][0]).read_text()


def test_what_is_wrong_is_named_as_it_is_there(theirs, tmp_path):
    theirs.commit_files({"start.sh": "#!/bin/sh\nvllm serve 'x\n"})
    error = imported(tmp_path, theirs.url, status=2)["error"]
    assert error["where"] == "two-sparks"
    assert "start.sh: a quote is never closed" in error["message"]


def test_links_submodules_and_large_files_do_not_come(theirs, tmp_path):
    theirs.commit_files({"start.sh": SERVE})
    put(theirs.folder / "run.sh", "#" * (1 << 20))
    (theirs.folder / ".env").symlink_to("/etc/passwd")
    (theirs.folder / "up").symlink_to("..")
    theirs.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub")
    theirs.git("add", "run.sh", ".env", "up")
    theirs.git("commit", "--quiet", "--message=m")
    result = imported(tmp_path, theirs.url)
    assert "root:" not in Path(result["file"]).read_text()


@each_row(__file__, "kit_repositories.toml", "addresses_that_are_none")
def test_addresses_that_are_none(tmp_path, url, message):
    status = 1 if message == "failed" else 2
    error = imported(tmp_path, url, status=status)["error"]
    assert message in error["message"]
    assert "word" not in str(error).replace("password", "")
    assert "remains in use" not in error["hint"], "nothing of a kit was taken before"


def test_what_is_left_to_do_is_shown(tmp_path):
    done = run("recipes", "import", "--offline", str(KITS / "one-file-and-env"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "files of the kit: copy them" in " ".join(done.stdout.split())


def test_lint_reads_a_kit_as_the_import_does(tmp_path):
    done = run("lint", str(KITS / "built-image"), "--json", cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    assert "share-not-given" in done.stdout
