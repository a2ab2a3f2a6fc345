"""docs/sources.md has every key and title that code, catalogue, recipes and pages name."""

import json
import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from docs.generate.code import known_issues
from docs.generate.sources import PAGE, keys, links, split

CHECKOUT = Path(__file__).parents[3]
TEXT = PAGE.read_text()
KEYS = keys()
CODE = [
    path
    for folder in ("spark_cluster", "roles", "playbooks", "recipes", "docs")
    for path in sorted((CHECKOUT / folder).rglob("*"))
    if path.suffix in (".py", ".yaml", ".toml", ".json", ".j2", ".md") and path != PAGE
]
NAMED = re.compile(
    r"[Ss]ources?: ((?:[a-z0-9]+-[a-z0-9.-]*[a-z0-9])(?:[,;] (?:[a-z0-9]+-[a-z0-9.-]*[a-z0-9]))*)"
)
VLLM = re.compile(r"vLLM #?(\d{5})((?:(?:,| and) \d{5})*)")
WITH_SOURCES = (
    "roles/drivers/pins.json",
    "spark_cluster/bench/published.json",
    "tests/data/published_points.json",
)


def joined(path: Path) -> str:
    """A file's text without the ends of its lines, so that a wrapped list of keys is one."""
    return " ".join(path.read_text(encoding="utf-8").split())


def test_every_entry_has_a_link_or_says_why_not():
    own, _, rest = TEXT.partition("## Seen and measured by this project")
    others = rest.partition("\n## ")[2]
    for section in re.split(r"^### ", own + others, flags=re.M)[1:]:
        key = section.split("\n")[0]
        assert "](https://" in section or key == "image-contents", key


def test_keys_are_unique():
    found = re.findall(r"^### (.+)$", TEXT, re.M)
    assert sorted(set(found)) == sorted(found)
    assert set(found) == KEYS, "a key is lower-case letters, digits, '-' and '.'"


def test_the_catalogue_names_keys():
    for issues in known_issues().values():
        for issue in issues:
            missing = {key for key, _ in split(issue.source)} - KEYS
            assert not missing, f"{issue.id}: {missing} is not in docs/sources.md"


def test_code_names_keys():
    named = {
        (key, path.relative_to(CHECKOUT))
        for path in CODE
        for found in NAMED.findall(joined(path))
        for key in re.split(r"[,;] ", found)
    }
    assert len(named) > 10, "the pattern finds them"
    assert [pair for pair in named if pair[0] not in KEYS] == []


def test_issues_of_vllm_are_there():
    named = {
        (number, path.relative_to(CHECKOUT))
        for path in CODE
        for first, more in VLLM.findall(joined(path))
        for number in [first, *re.findall(r"\d{5}", more)]
    }
    assert len(named) > 15, "the pattern finds them"
    assert [pair for pair in named if f"vllm-{pair[0]}" not in KEYS] == []


def sources(value: object) -> set[str]:
    """Every `source` in a JSON document."""
    if isinstance(value, list):
        return {source for inner in value for source in sources(inner)}
    if not isinstance(value, dict):
        return set()
    own = {text for name, text in value.items() if name == "source" and isinstance(text, str)}
    return own | {source for inner in value.values() for source in sources(inner)}


@pytest.mark.parametrize("name", WITH_SOURCES)
def test_data_names_keys(name):
    found = sources(json.loads((CHECKOUT / name).read_text()))
    assert found
    for source in found:
        assert {key for key, _ in split(source)} <= KEYS, source


def test_recipes_name_titles_or_links():
    titles = set(re.findall(r"^\[(.+?)\]\(https", TEXT, re.M)) | set(re.findall(r'"(.+?)"', TEXT))
    known = {title.lower() for title in titles}
    for path in sorted((CHECKOUT / "recipes").glob("*.yaml")):
        data = YAML(typ="safe", pure=True).load(path)
        for source in sources(data.get("measured", [])) | set(data.get("sources", [])):
            title = re.sub(r" \(.*\)$", "", source).lower()
            its_card = title.startswith("the checkpoint's own card")
            is_link = re.fullmatch(r"https://[^\s/]+\.[^\s/]+/\S*", source)
            assert its_card or is_link or any(name.startswith(title) for name in known), (
                f"{path.name}: {source}"
            )


def test_a_source_is_keys_with_notes():
    assert split("vllm-source (2496 tokens an image); vllm-1") == [
        ("vllm-source", "2496 tokens an image"),
        ("vllm-1", ""),
    ]
    assert links("forum-kernel-6.17.0-1008") == (
        "[forum-kernel-6.17.0-1008](../sources.md#forum-kernel-6170-1008)"
    )
    with pytest.raises(ValueError, match="is no key"):
        split("somebody said so")
