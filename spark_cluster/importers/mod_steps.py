"""Mods of an imported recipe as steps of its image's build, where their folders are at hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_cluster.importers.importer import Carried, Source
from spark_cluster.importers.mods import Mod, NotCarried, find
from spark_cluster.importers.places import Parts


def carry_over(
    data: dict[str, Any], source: Source, parts: Parts, folders: Sequence[Path]
) -> dict[str, bytes]:
    """Make steps of the mods that can be, in `data`, the recipe; what cannot be stays left out.

    A mod may build on the one before it: where one of them is missing, none is carried over.

    Args:
        folders: of mods, which the user named.

    Returns:
        The files of the steps, by their path relative to the recipe.
    """
    if not source.mods or "build" in data["image"]:
        return {}
    found, missing = _found(source, folders)
    if missing:
        _explain(parts, missing, found)
        return {}
    folder = f"{data['name']}.mods"
    steps = [mod.step(folder, source.launch.env) for mod in found]
    fetching = [mod.name for mod in found if mod.fetches]
    build: dict[str, Any] = {"base": data["image"], "steps": steps}
    if fetching:
        build["network"] = True
    build["why"] = f"mods of the {source.kind}: {', '.join(mod.name for mod in found)}"
    plain = re.sub(r"[^a-z0-9]+", "-", data["name"].lower()).strip("-") or "imported"
    data["image"] = {"ref": f"spark-cluster/{plain}:mods", "build": build}
    _say(parts, found, fetching, folder, pinned="digest" in build["base"])
    parts.left_out[:] = [left for left in parts.left_out if not left.what.startswith("mods:")]
    return {
        f"{folder}/{mod.name}/{path}": content
        for mod in found
        for path, content in mod.files.items()
    }


def _found(source: Source, folders: Sequence[Path]) -> tuple[list[Mod], dict[str, str]]:
    """The mods that can be carried over, and why the others cannot."""
    found: list[Mod] = []
    missing: dict[str, str] = {}
    for reference in source.mods:
        try:
            mod = find(reference, source.path, folders)
        except NotCarried as error:
            missing[reference] = str(error)
        except OSError as error:
            missing[reference] = f"its folder cannot be read: {error.strerror}"
        else:
            if mod.name in [other.name for other in found]:
                missing[reference] = "another mod of this name is there"
            found.append(mod)
    return found, missing


def _explain(parts: Parts, missing: dict[str, str], found: list[Mod]) -> None:
    """Give what stays left out its own reason."""
    names = ", ".join(missing)
    for at, left in enumerate(parts.left_out):
        reference = left.what.removeprefix("mods: ")
        if not left.what.startswith("mods:"):
            continue
        why = missing.get(reference)
        if why is None and any(reference.endswith(mod.name) for mod in found):
            why = f"it is at hand, and was tested together with {names}, which is missing"
        if why is not None:
            parts.left_out[at] = replace(left, why=f"{why}; {left.why}")


def _say(parts: Parts, found: list[Mod], fetching: list[str], folder: str, *, pinned: bool) -> None:
    for mod in found:
        where = f"image.build.steps, files in {folder}/{mod.name}"
        parts.carried.append(Carried(f"mods: {mod.name}", where))
        if not mod.checkout.commit:
            parts.to_do.append(
                f"write origin and commit of the mod {mod.name} into image.build.steps: its folder "
                "is no git checkout"
            )
    option = "--allow-build-network" if fetching else "--allow-build"
    reach = f"; {', '.join(fetching)} fetches from the network" if fetching else ""
    parts.to_do.append(
        f"read the scripts in {folder}, which run as root in the image's build{reach}: "
        f"`up {option}` allows it"
    )
    if not pinned:
        parts.to_do.append(
            "write the digest into image.build.base: the scripts were written for one version of it"
        )
