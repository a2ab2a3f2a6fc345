"""What a model file of vllm-project/recipes has for a DGX Spark besides what was chosen."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from spark_cluster.config.suggest import did_you_mean
from spark_cluster.errors import UsageError
from spark_cluster.importers import model_kind
from spark_cluster.importers.guide import spark_commands
from spark_cluster.importers.importer import Choice, no_choice
from spark_cluster.importers.result import Left, Offer
from spark_cluster.importers.source import Source
from spark_cluster.models.naming import version_in

SPARK = ("dgx_spark_gb10", "gb10")
"""A DGX Spark in that project's words (taxonomy.yaml), now and in files of early 2026."""

HARDWARE = (*SPARK, "blackwell", "nvidia")
"""What a DGX Spark is, the most exact first."""

_GUIDE = re.compile(r"guide(?:-([1-9]\d?))?")
_NAMED = re.compile(r"\bDGX Spark\b|\bGB10\b", re.IGNORECASE)


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
    command = commands[index]
    launch = command.reading.launch
    base = str(data["model"]["model_id"])
    launch = replace(launch, base=launch.base or (base if base != launch.model else None))
    if not launch.image and command.image:
        reference, _, digest = command.image.partition("@")
        launch = replace(launch, image=reference, digest=digest, vllm=version_in(reference))
    meta = data.get("meta") or {}
    return Source(
        launch,
        kind="vLLM recipe",
        title=launch.model,
        description=str(meta.get("description") or meta.get("title") or ""),
        origin=f"vllm-project/recipes: {base}, guide: {command.title}",
        generates=model_kind.generates(data),
        left_out=[Left(text, "it is not part of the launch") for text in command.reading.left_out],
        notes=[*command.reading.notes, "it is the guide's command, without variant and features"],
        offers=others,
    )
