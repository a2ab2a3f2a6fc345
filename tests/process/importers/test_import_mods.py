"""Mods of other tools: carried over as steps of the image's build, or left out with the reason."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest
from cases import cases
from factories import put
from program import invoke

from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import UsageError
from spark_cluster.importers import mods
from spark_cluster.importers.mods import NotCarried

CASES = cases(__file__, "import_mods.toml")

RECIPE = """\
recipe_version: "1"
name: Wren
model: example/Wren-7B
container: {container}
mods: [{mods}]
defaults: {{port: 8000}}
env: {{WREN_BACKEND: fast, OTHER: "1"}}
command: vllm serve example/Wren-7B --port {{port}}
"""
PATCHES = (
    '#!/bin/bash\nset -e\n# pip install nothing\ntest "$WREN_BACKEND" = fast\npatch -p1 < x.patch\n'
)
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PINNED = '"example/vllm:1@sha256:' + "a" * 64 + '"'


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    """A checkout of spark-vllm-docker: recipes next to mods."""
    folder = tmp_path / "spark-vllm-docker"
    put(folder / "mods/fix-wren/run.sh", PATCHES, 0o755)
    put(folder / "mods/fix-wren/x.patch", "--- a\n+++ b\n")
    put(folder / "mods/fix-wren/__pycache__/x.pyc", "x")
    put(folder / "mods/fix-net/run.sh", "curl -fsL https://example.org/1.diff | git apply\n")
    put(folder / "mods/drop-caches/run.sh", "nohup bash -c 'sleep 1' >/dev/null 2>&1 &\n")
    (folder / ".git/objects").mkdir(parents=True)
    put(folder / ".git/HEAD", "ref: refs/heads/main\n")
    put(folder / ".git/refs/heads/main", COMMIT + "\n")
    put(folder / ".git/config", '[remote "origin"]\n\turl = https://me:pw@example.org/t/m.git\n')
    return folder


def written(tool: Path, *names: str, container: str = PINNED) -> Path:
    text = RECIPE.format(container=container, mods=", ".join(names))
    return put(tool / "recipes/wren.yaml", text)


def imported(project: Path, file: Path, *words: str) -> tuple[Recipe, dict[str, list[str]]]:
    done = invoke("--json", "recipes", "import", str(file), *words, project=project)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    return load_recipe(document["file"], Project(project)), document


def test_a_mod_next_to_the_recipe_becomes_a_step(tool: Path, tmp_path: Path) -> None:
    recipe, document = imported(tmp_path, written(tool, "mods/fix-wren"))
    build = recipe.image.build
    assert build is not None
    assert build.base is not None
    assert (build.base.ref, build.network) == ("example/vllm:1", False)
    assert recipe.image.ref == "spark-cluster/wren:mods"
    (step,) = build.steps
    assert (step.name, step.origin, step.commit) == ("fix-wren", "https://example.org/t/m", COMMIT)
    assert step.env == {"WREN_BACKEND": "fast"}
    assert [file.path for file in step.files] == ["run.sh", "x.patch"]
    for file in step.files:
        content = Path(file.file).read_bytes()
        assert file.sha256 == hashlib.sha256(content).hexdigest()
        assert content == (tool / "mods/fix-wren" / file.path).read_bytes()
    assert len(document["files"]) == 2
    assert not [left for left in document["left_out"] if "mods" in str(left)]
    assert "up --allow-build`" in " ".join(document["to_do"])
    assert "pw" not in (tmp_path / "recipes/wren.yaml").read_text()


def test_a_mod_that_fetches_says_so(tool: Path, tmp_path: Path) -> None:
    recipe, document = imported(tmp_path, written(tool, "mods/fix-wren", "fix-net"))
    build = recipe.image.build
    assert build is not None
    assert build.network
    assert [step.name for step in build.steps] == ["fix-wren", "fix-net"]
    assert "fix-net fetches from the network: `up --allow-build-network`" in str(document["to_do"])


def test_a_folder_that_the_user_names(tool: Path, tmp_path: Path) -> None:
    alone = put(tmp_path / "alone/wren.yaml", written(tool, "'@eugr/fix-wren'").read_text())
    recipe, document = imported(tmp_path, alone)
    assert recipe.image.build is None
    assert "its folder is not at hand: give --mods FOLDER" in str(document["left_out"])
    for folder in (tool, tool / "mods", tool / "mods/fix-wren"):
        recipe, _ = imported(tmp_path, alone, "--force", "--mods", str(folder))
        assert recipe.image.build is not None


def test_all_mods_or_none(tool: Path, tmp_path: Path) -> None:
    recipe, document = imported(tmp_path, written(tool, "fix-wren", "fix-owl"))
    assert recipe.image.build is None
    assert not document["files"]
    reasons = {left["what"]: left["why"] for left in document["left_out"]}  # type: ignore[index]
    assert "tested together with fix-owl, which is missing" in reasons["mods: fix-wren"]
    assert "not at hand" in reasons["mods: fix-owl"]


def test_a_base_without_digest_and_a_folder_without_git_are_to_do(tool, tmp_path) -> None:
    (tool / ".git/HEAD").unlink()
    _, document = imported(tmp_path, written(tool, "fix-wren", container="vllm-node"))
    assert "write the digest into image.build.base" in str(document["to_do"])
    assert "origin and commit of the mod fix-wren" in str(document["to_do"])


def test_nothing_is_replaced_unasked(tool: Path, tmp_path: Path) -> None:
    put(tmp_path / "recipes/wren.mods/mine", "x")
    error = invoke("recipes", "import", str(written(tool, "fix-wren")), project=tmp_path).exception
    assert isinstance(error, UsageError)
    assert "wren.mods exists" in error.message
    assert (tmp_path / "recipes/wren.mods/mine").exists()
    imported(tmp_path, tool / "recipes/wren.yaml", "--force")
    assert not (tmp_path / "recipes/wren.mods/mine").exists()


@pytest.mark.parametrize(("name", "files", "text"), CASES["refused"])
def test_what_cannot_be_carried_over(tmp_path, name, files, text) -> None:
    for path, content in files.items():
        put(tmp_path / "mods/m" / path, content)
    with pytest.raises(NotCarried, match=text) as caught:
        mods.find(name, None, [tmp_path])
    assert "hf_abc" not in str(caught.value)


def test_links_out_of_the_folder_and_large_folders(tmp_path, monkeypatch) -> None:
    put(tmp_path / "secret", "s")
    put(tmp_path / "m/run.sh", "true\n")
    (tmp_path / "m/x").symlink_to(tmp_path / "secret")
    with pytest.raises(NotCarried, match="x is a link to a place outside"):
        mods.find("m", None, [tmp_path])
    (tmp_path / "m/x").unlink()
    monkeypatch.setattr(mods, "LARGEST", 3)
    with pytest.raises(NotCarried, match="more than"):
        mods.find("m", None, [tmp_path])


@pytest.mark.parametrize("link", ["mods", "mods/private"])
def test_a_folder_that_a_link_of_the_kit_leads_to_is_not_read(tmp_path: Path, link: str) -> None:
    put(tmp_path / "mine/private/run.sh", "true\n")
    recipe = put(tmp_path / "kit/recipes/wren.yaml", "name: wren\n")
    place = tmp_path / "kit" / link
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(tmp_path / "mine" / link.removeprefix("mods").strip("/"))
    with pytest.raises(NotCarried, match="not at hand"):
        mods.find("mods/private", recipe, [])


def test_scripts_that_are_no_trouble(tmp_path: Path) -> None:
    text = "# nohup and curl are words of a comment\npatch -p1 < x 2>&1 && true\nif a && b; then\n"
    put(tmp_path / "m/run.sh", text)
    put(tmp_path / "m/patch.py", "both = (a > 1) &\\\n    (b > 1)\nmask = left &\n")
    found = mods.find("m", None, [tmp_path])
    assert not found.fetches
    assert list(found.files) == ["patch.py", "run.sh"]


def test_the_origin_of_a_real_checkout(tmp_path: Path) -> None:
    """Objects that git itself writes, loose and packed."""

    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, timeout=20,
                              capture_output=True, text=True)  # fmt: skip
        return done.stdout.strip()

    git("init", "-q")
    git("remote", "add", "origin", "git@example.org:a/b.git")
    git("commit", "-q", "--allow-empty", "-m", "x")
    expected = mods.Checkout("https://example.org/a/b", git("rev-parse", "HEAD"))
    put(tmp_path / "mods/m/run.sh")
    assert mods.checkout_of(tmp_path / "mods/m") == expected
    git("pack-refs", "--all")
    assert mods.checkout_of(tmp_path / "mods/m") == expected
    git("checkout", "-q", "--detach")
    assert mods.checkout_of(tmp_path / "mods/m") == expected


def test_nothing_that_a_checkout_names_is_run(tool: Path, tmp_path: Path) -> None:
    program = put(tmp_path / "program", f"#!/bin/sh\ntouch {tmp_path}/ran\n", 0o755)
    named = "".join(f"\t{key} = {program}\n" for key in ("fsmonitor", "pager", "sshCommand"))
    put(tool / ".git/config", f"[core]\n{named}\thooksPath = {tmp_path}\n")
    assert mods.checkout_of(tool) == mods.Checkout("", COMMIT)
    assert not (tmp_path / "ran").exists()


def test_odd_checkouts_have_no_origin(tmp_path: Path) -> None:
    put(tmp_path / ".git/HEAD", "ref: ../../secret\n")
    put(tmp_path / ".git/config", '[remote "origin"\nurl = /home/me/x\n')
    assert mods.checkout_of(tmp_path) == mods.Checkout()
    assert mods.plain_url("/home/me/x") == ""
    assert mods.plain_url("ssh://git@example.org/a/b") == "https://example.org/a/b"
