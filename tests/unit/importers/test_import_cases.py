"""What each importer makes of a launch, a file or a kit: the recipe, and a word on all the rest."""

from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import article_commands
import foreign_samples
import pytest
from cases import cases, each_case
from factories import put

from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.importers.commandline import read
from spark_cluster.importers.files import read_file, write
from spark_cluster.importers.importer import Choice, Source

KITS = Path(__file__).parents[2] / "data/kits"
SAMPLES = {**vars(article_commands), **vars(foreign_samples)}
CASES = {
    name: case
    for group in ("commands", "files", "kits")
    for name, case in cases(__file__, f"imports/{group}.toml").items()
}


def source_of(folder: Path, case: dict[str, Any]) -> Source:
    """Return what is read of a case: a command line, a file, or a kit."""
    choice = Choice(case.get("variant", "default"), tuple(case.get("features", ())))
    text = SAMPLES[case["sample"]] if "sample" in case else case.get("text", "")
    for old, new in case.get("replace", ()):
        assert old in text
        text = text.replace(old, new)
    if "command" in case or case.get("sample") in vars(article_commands):
        return read(case.get("command", text))
    if "kit" in case:
        return read_file(KITS / case["kit"], choice)
    for name, content in case.get("files", {}).items():
        put(folder / "kit" / name, content)
    if text:
        return read_file(put(folder / case.get("file", "x.yaml"), text), choice)
    return read_file(folder / "kit", choice)


def seen(found: Any, wanted: Any) -> Any:
    """Return of an object the attributes that are wanted; anything else is compared whole."""
    if isinstance(wanted, dict) and not isinstance(found, Mapping):
        return {name: seen(getattr(found, name), part) for name, part in wanted.items()}
    if isinstance(found, Mapping):
        return dict(found)
    if isinstance(found, list | tuple):
        return [seen(one, part) for one, part in zip(found, [*wanted, *found], strict=False)]
    return found


def must_say(found: list[str], wanted: list[str]) -> None:
    assert len(found) == len(wanted), found
    for text, part in zip(found, wanted, strict=True):
        assert part in text


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_import_keeps_what_has_a_place_and_names_what_has_none(tmp_path, case):
    source = source_of(tmp_path, case)
    for name, wanted in case.get("source", {}).items():
        assert seen(getattr(source, name), wanted) == wanted
    imported = write(source, **case.get("given", {}))
    recipe = load_recipe(put(tmp_path / f"{imported.name}.yaml", imported.text), Project(tmp_path))
    assert seen(recipe, case.get("recipe", {})) == case.get("recipe", {})
    for path in case.get("none", ()):
        assert reduce(getattr, path.split("."), recipe) is None, path
    left = {one.what: one.why for one in imported.left_out}
    for what, why in case.get("left", {}).items():
        assert why in left[what]
    for what in case.get("not_left", ()):
        assert not [one for one in left if what in one]
    carried = {one.what: one.where for one in imported.carried}
    assert case.get("carried", {}).items() <= carried.items()
    for name in ("notes", "to_do"):
        if name in case:
            must_say(getattr(imported, name), case[name])
    lost = recipe.not_carried_over
    for name, found in {
        "offers": [one.option for one in imported.offers],
        "brings": list(imported.files),
        "lost": [one.what for one in lost],
        "blocks": [one.what for one in lost if one.blocks],
        "all_left": sorted(left),
    }.items():
        assert found == case.get(name, found)
    for part in case.get("written", ()):
        assert part in imported.text
    assert "s3cret" not in imported.text


def test_every_kit_is_a_case():
    assert {case["kit"] for case in CASES.values() if "kit" in case} == {
        path.name for path in KITS.iterdir()
    }


@each_case(__file__, "imports/refused.toml")
def test_what_cannot_be_imported_is_refused_in_words(tmp_path, case):
    with pytest.raises((InvalidFile, UsageError)) as caught:
        write(source_of(tmp_path, case))
    assert case["said"] in caught.value.message
    assert case.get("where", "") in caught.value.where
    assert case.get("hint", "") in caught.value.hint
