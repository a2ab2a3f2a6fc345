"""What a recipe lacks of its source: from the launch and the rest of it together.

A part that was left out for itself has its consequence already; here stands what follows from
several of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spark_cluster.importers import vllm_flags
from spark_cluster.importers.importer import Left, Source
from spark_cluster.importers.places import Parts, shown

FILES = (".jinja", ".py", ".json", ".yaml")
"""Endings of files that a flag can name."""


def lacking(
    source: Source, parts: Parts, image: Mapping[str, Any], *, named: bool
) -> Iterator[Left]:
    """Yield what the recipe lacks, besides `parts.left_out`.

    Args:
        image: the recipe's section of that name.
        named: the user named it, and knows where it is.
    """
    if source.generates:
        yield Left(
            f"generation of {source.generates}",
            "`vllm serve` answers in text, and `up` verifies a server by its answer",
            "it is not served here",
            blocks=True,
        )
    pulled = _pulled(image)
    if "/" not in pulled and not named:
        yield Left(
            f"image {pulled}",
            "it is in no registry; the other tool builds it on the nodes",
            "it cannot be pulled: name an image, write image.build, or remove this entry where "
            "the nodes have it",
            blocks=True,
        )
    if any(left.what.startswith("mods:") for left in parts.left_out):
        yield from _of_mods(source, parts)


def _pulled(image: Mapping[str, Any]) -> str:
    """The image that must be there before anything is built on it."""
    build = image.get("build")
    words = str(build.get("dockerfile", "")).split() if isinstance(build, dict) else []
    names = [word for word in words[1:] if not word.startswith("--")]
    return names[0] if names else str(image["ref"])


def _of_mods(source: Source, parts: Parts) -> Iterator[Left]:
    """Yield the flags that the image's engine may lack without the mod."""
    known = vllm_flags.kinds(source.launch.engine)
    for flag, value in parts.engine_args.items():
        if flag not in known and flag.removeprefix("no-") not in known:
            yield Left(
                shown(flag, value),
                "no version of the engine has this flag: a mod that was not carried over adds it",
                "the engine refuses the flag and does not start",
                blocks=True,
            )
        elif isinstance(value, str) and value.endswith(FILES) and "/" not in value:
            yield Left(
                shown(flag, value),
                "the file is none of the image's own: a mod that was not carried over brings it",
                "the engine does not find the file and does not start",
                blocks=True,
            )
