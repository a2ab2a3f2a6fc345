"""The documentation builds strictly, and a broken link fails it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.generate.site import PAGES

CHECKOUT = Path(__file__).parents[2]


def build(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """`mkdocs build --strict` as `make docs` calls it."""
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    env.pop("PYTHONPATH", None)
    return subprocess.run(
        argv,
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env=env,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("site")
    done = build(CHECKOUT, place)
    assert done.returncode == 0, done.stderr
    return place


def test_every_generated_page_is_there(site):
    for page in PAGES:
        text = (site / page.replace(".md", ".html")).read_text()
        assert "Generated from the code" in text, page


def test_nothing_is_loaded_from_elsewhere(site):
    text = (site / "index.html").read_text()
    assert 'src="http' not in text
    assert "fonts.g" not in text


def test_schemas_are_published(site):
    names = {path.name for path in (site / "schema").glob("*.json")}
    assert {"inventory.json", "recipe.json", "event.json", "output-plan.json"} <= names
    for name in names:
        assert json.loads((site / "schema" / name).read_text())["title"]


def test_generators_are_not_published(site):
    assert not (site / "generate").exists()


def test_every_broken_link_fails(tmp_path):
    """One build with a link of each kind, each in a page of its own, as a build takes seconds."""
    links = {
        "glossary.md": ("[x](no-such-page.md)", "no-such-page.md"),
        "kv-cache.md": ("[x](sources.md#no-such-key)", "no-such-key"),
        "promises.md": ("[x](reference/roles.md#nix)", "nix"),
    }
    for name in ("docs", "spark_cluster", "roles", "playbooks", "recipes", "inventories"):
        shutil.copytree(
            CHECKOUT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "lab")
        )
    shutil.copytree(CHECKOUT / "spark_cluster/lab", tmp_path / "spark_cluster/lab")
    shutil.copy(CHECKOUT / "mkdocs.yml", tmp_path)
    for page, (link, _) in links.items():
        with (tmp_path / "docs" / page).open("a") as out:
            out.write(f"\n{link}\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    said = done.stderr.splitlines()
    for page, (_, target) in links.items():
        assert [line for line in said if f"'{page}'" in line and target in line], (page, said)
    assert len([line for line in said if line.startswith("WARNING")]) == len(links), said
