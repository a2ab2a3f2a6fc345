"""What a model file of vllm-project/recipes has for a DGX Spark besides what was chosen: variants,
and the commands of its guide, a text for people with code in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from spark_cluster.config.suggest import did_you_mean
from spark_cluster.errors import UsageError
from spark_cluster.importers import commandline
from spark_cluster.importers.importer import Choice, Offer, Source, no_choice

SPARK = ("dgx_spark_gb10", "gb10")
"""A DGX Spark in that project's words (taxonomy.yaml), now and in files of early 2026."""

HARDWARE = (*SPARK, "blackwell", "nvidia")
"""What a DGX Spark is, the most exact first."""

_GUIDE = re.compile(r"guide(?:-([1-9]\d?))?")
_NAMED = re.compile(r"\bDGX Spark\b|\bGB10\b", re.IGNORECASE)
_HEADING = re.compile(r"(#+)\s+(.*)")
_FENCE = re.compile(r"\s*(```|~~~)")
_IMAGE = re.compile(
    r"^[ \t]*#.*\b(?:container|image)\b:?[ \t]+(\S{1,200}[:/]\S{1,200})[ \t]*$", re.MULTILINE
)
"""A comment that names the image of the command below it; of a limited length, as a long word could
be split in as many ways as its length squared."""

LONGEST = 20_000
"""Characters of a code block that is looked at."""

GENERATES = {
    **dict.fromkeys(("tts", "t2a"), "speech"),
    **dict.fromkeys(("t2i", "i2i"), "images"),
    **dict.fromkeys(("t2v", "i2v", "ti2v"), "video"),
}
"""Tasks in that project's words (taxonomy.yaml, and `omni.tasks` of its files)."""


def names_guide(variant: str) -> bool:
    """Return whether a variant stands for a command of the guide: `guide`, `guide-2`."""
    return _GUIDE.fullmatch(variant) is not None


def offers(data: Mapping[str, Any], variants: Mapping[str, Any], chosen: str) -> list[Offer]:
    """Return the other variants that name the DGX Spark, and the commands for it in the guide."""
    found = [
        Offer(f"--variant {name}", _about(variant))
        for name, variant in variants.items()
        if name != chosen and isinstance(variant, dict) and any(_names_spark(variant))
    ]
    for number, command in enumerate(spark_commands(data.get("guide")), 1):
        name = "guide" if number == 1 else f"guide-{number}"
        if name != chosen:
            found.append(Offer(f"--variant {name}", f"the guide's command, {command.title}"))
    return found


def _names_spark(variant: Mapping[str, Any]) -> Iterator[bool]:
    for place in ("hardware_overrides", "supported_hardware", "precision_hardware"):
        named = variant.get(place)
        yield isinstance(named, dict | list) and bool(set(SPARK) & set(map(str, named)))
    yield _NAMED.search(str(variant.get("description") or "")) is not None


def _about(variant: Mapping[str, Any]) -> str:
    parts = [str(variant.get(key) or "") for key in ("precision", "model_id", "description")]
    return ", ".join(part for part in parts if part)


def of_guide(data: Mapping[str, Any], choice: Choice, others: list[Offer]) -> Source:
    """Return a command of the guide as a source.

    Raises:
        UsageError: there is no such command, or features were chosen for it.
    """
    no_choice(replace(choice, variant="default"))
    commands = spark_commands(data.get("guide"))
    number = _GUIDE.fullmatch(choice.variant)
    index = int(number[1] or 1) - 1 if number else 0
    if index >= len(commands):
        names = [*(data.get("variants") or {}), *("guide" for _ in commands[:1])]
        raise UsageError(
            f"the guide has {len(commands)} commands for a DGX Spark, no {choice.variant}",
            hint=did_you_mean(choice.variant, names, "variants"),
        )
    source = commands[index]
    launch, model = source.launch, str(data["model"]["model_id"])
    meta = data.get("meta") or {}
    return replace(
        source,
        launch=replace(launch, base=launch.base or (model if model != launch.model else None)),
        kind="vLLM recipe",
        title=launch.model,
        description=str(meta.get("description") or meta.get("title") or ""),
        origin=f"vllm-project/recipes: {model}, guide: {source.title}",
        generates=generates(data),
        notes=[*source.notes, "it is the guide's command, without variant and features"],
        offers=others,
    )


def spark_commands(guide: object) -> list[Source]:
    """Return each launch of vLLM below a heading that names the DGX Spark, in their order; the
    headings are its title, the last one last.
    """
    found: list[Source] = []
    for title, code in _blocks(guide) if isinstance(guide, str) else ():
        if not _NAMED.search(title) or len(code) > LONGEST:
            continue
        try:
            source = commandline.read(code)
        except UsageError:  # a download, a client, a command of a shell script
            continue
        image = _IMAGE.search(code)
        if image and not source.launch.image:
            source.launch = commandline.in_image(source.launch, image[1])
        found.append(replace(source, title=title))
    return found


def _blocks(guide: str) -> Iterator[tuple[str, str]]:
    """Yield the headings above each block of code, and the code."""
    headings: dict[int, str] = {}
    code: list[str] | None = None
    for line in guide.splitlines():
        if _FENCE.match(line):
            if code is not None:
                yield ": ".join(headings[level] for level in sorted(headings)), "\n".join(code)
            code = [] if code is None else None
        elif code is not None:
            code.append(line)
        elif heading := _HEADING.match(line):
            level = len(heading[1])
            headings = {above: text for above, text in headings.items() if above < level}
            headings[level] = heading[2].strip(" *#")


def generates(data: Mapping[str, Any]) -> str:
    """Return what a model file's model generates: speech, images or video; empty for text."""
    omni, meta = data.get("omni"), data.get("meta")
    asked = omni.get("tasks") if isinstance(omni, dict) else None
    named = meta.get("tasks") if isinstance(meta, dict) else None
    found = (GENERATES[task] for task in (*_names(asked), *_names(named)) if task in GENERATES)
    return next(found, "")


def _names(tasks: object) -> list[str]:
    if not isinstance(tasks, list):
        return []
    return [str(t.get("id") if isinstance(t, dict) else t).lower() for t in tasks]
