"""The documentation builds strictly, and a broken link fails it."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import readme

from docs.generate.site import PAGES

CHECKOUT = Path(__file__).parents[3]

BROKEN = {
    "glossary.md": ("[x](no-such-page.md)", "no-such-page.md"),
    "kv-cache.md": ("[x](sources.md#no-such-key)", "no-such-key"),
    "promises.md": ("[x](reference/roles.md#nix)", "nix"),
}
"""Page to a link of each kind, put at its end, and its target."""


@dataclass(frozen=True)
class Built:
    """The site, and what its build printed."""

    folder: Path
    lines: list[str]


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Built:
    """The documentation with three links that are broken, built once by `make docs`: it takes
    seconds."""
    place = tmp_path_factory.mktemp("docs")
    for name in ("docs", "spark_cluster", "roles", "playbooks", "recipes", "inventories"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(CHECKOUT / name, place / name, ignore=ignored)
    shutil.copy(CHECKOUT / "mkdocs.yml", place)
    for page, (link, _) in BROKEN.items():
        with (place / "docs" / page).open("a") as out:
            out.write(f"\n{link}\n")
    printed = readme.make(*readme.words("make docs"), cwd=place, status=2)
    return Built(place / "site", printed.splitlines())


@pytest.fixture(scope="session")
def site(built: Built) -> Path:
    return built.folder


def test_every_broken_link_fails_and_nothing_else_is_wrong(built):
    for page, (_, target) in BROKEN.items():
        found = [line for line in built.lines if f"'{page}'" in line and target in line]
        assert found, (page, built.lines)
    warnings = [line for line in built.lines if line.startswith("WARNING")]
    assert len(warnings) == len(BROKEN), warnings


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
