"""The sources of the reference: the only module here that names places in the package."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NotRequired

import click
from pydantic import BaseModel
from typing_extensions import TypedDict

from playbooks.swap import Swapped
from spark_cluster import errors, resources
from spark_cluster.bench.compare import Comparison as RunComparison
from spark_cluster.bench.expansion import Duration, PlannedCell, PlannedSetup
from spark_cluster.bench.fabric_run import FabricRecord
from spark_cluster.bench.record import Record
from spark_cluster.bench.references import PlanComparison, PublishedComparison
from spark_cluster.bench.suite import Suite
from spark_cluster.bench.telemetry import TelemetryRow
from spark_cluster.cli import cli as root
from spark_cluster.cli.api import Cluster
from spark_cluster.cli.app import WOULD_CHANGE
from spark_cluster.cli.bench_measure import BenchResult
from spark_cluster.cli.first_steps import JumpHostKey, NodeKey, UnreadKey
from spark_cluster.cli.history import RevertedNode, RunDetails, Runs
from spark_cluster.cli.opened import EventStream, Opened
from spark_cluster.cli.options import DeclaredCommand
from spark_cluster.cli.predictions import PredictedSpeed
from spark_cluster.cli.recipes_import import NotUpdated
from spark_cluster.cli.results import (
    FactsResult,
    PingResult,
    PlaybookResult,
    PlayedNode,
    ProvisionedNode,
    ProvisionResult,
    Reached,
    RunSummary,
    VramResult,
)
from spark_cluster.cli.serving import DownResult, RayUpResult, UpModelsResult, UpResult
from spark_cluster.cli.setup_flow import SetupStep
from spark_cluster.config.extension import Allowances
from spark_cluster.config.inventory_schema import InventoryFile
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import NotCarriedOver
from spark_cluster.config.registries import Registries
from spark_cluster.config.schema import Document, ErrorKeys, Flat
from spark_cluster.doctor.bundle_archive import BundleEntry
from spark_cluster.doctor.observations import CheckResult
from spark_cluster.engine.cache_parts import CachePart, CopiedCache
from spark_cluster.engine.client_target import ClientTarget, Snippet, TunnelEvent
from spark_cluster.engine.hub_models import PulledModel
from spark_cluster.engine.image_copies import PrunedImages, StoredImages
from spark_cluster.engine.memory_phases import MemoryOfNode
from spark_cluster.engine.model_upkeep import (
    ModelSizes,
    Pruned,
    RepairedModel,
    StoredModels,
    VerifiedModel,
)
from spark_cluster.engine.node_copies import Copied
from spark_cluster.engine.proxy import NamedKey
from spark_cluster.engine.ray import Job
from spark_cluster.engine.ray_cluster import RayJobs, RayMember, RayStatus
from spark_cluster.engine.result import Served, Status
from spark_cluster.engine.supervision import Supervision
from spark_cluster.engine.tuning import Tuning
from spark_cluster.engine.verify import CheckVerdict, Verification
from spark_cluster.engine.vram import NodeVram, Stopped
from spark_cluster.importers.fetching import Update
from spark_cluster.importers.importer import Imported
from spark_cluster.issues.entries import Issue, KnownIssueMatch, files, read
from spark_cluster.models import memory_share
from spark_cluster.plan import fit, plan, room
from spark_cluster.plan.calibrate import Calibration
from spark_cluster.plan.estimate import Constants, Estimate
from spark_cluster.plan.evidence import ComparedEvidence
from spark_cluster.plan.kv import KvCache
from spark_cluster.plan.plan import Plan
from spark_cluster.plan.planner import PlanTogether
from spark_cluster.plan.proposal import Advice, SizeVerdict
from spark_cluster.resources.base import Resource, class_name, resource_class
from spark_cluster.resources.unit import Program
from spark_cluster.runner import events
from spark_cluster.runner.events import Options, Selection
from spark_cluster_lab import documents as lab

CHECKOUT = Path(__file__).parents[2]

INVENTORY: type[BaseModel] = InventoryFile
RECIPE: type[BaseModel] = Recipe
SUITE: type[BaseModel] = Suite
REGISTRIES: type[BaseModel] = Registries
BENCH_RUN: type[BaseModel] = Record

PLANNING: tuple[ModuleType, ...] = (memory_share, room, fit, plan)
SPEED = Constants

CLUSTER = Cluster
API_OPENS = Opened
API_RESULTS: tuple[type[Any], ...] = (
    RunSummary,
    PingResult,
    Reached,
    FactsResult,
    VramResult,
    NodeVram,
    ProvisionResult,
    ProvisionedNode,
    UpResult,
    Served,
    MemoryOfNode,
    Status,
    Verification,
    CheckVerdict,
    BenchResult,
    PlaybookResult,
    PlayedNode,
    DownResult,
    Stopped,
    RayUpResult,
    RayStatus,
    RayMember,
    RayJobs,
    Job,
    EventStream,
    Options,
    Selection,
    Allowances,
)
"""What the methods of `Cluster` take and return."""

_RUN = {"ok": bool, "changed": int, "seconds": dict[str, float]}
"""What every run that can change something prints."""

_STARTED = {**_RUN, "memory": [MemoryOfNode], "memory_plot": str | None}
"""What a run that starts a server prints: `memory_plot` is a file on this machine."""

_BENCH_RUN = {
    **_RUN,
    "run": {"id": str, "suite": str, "status": str},
    "folder": str,
    "cells": int,
    "failed": int,
}

Headline: Any = TypedDict(
    "Headline", {"tp": int, "decode_tok_s": float | None, "source": str, "note": str}
)

_RECIPE = {
    **dict.fromkeys(("name", "path"), str),
    **dict.fromkeys(("own", "valid"), bool),
    "error": NotRequired[ErrorKeys | None],
    **dict.fromkeys(("description", "model", "kind", "quantization"), NotRequired[str | None]),
    "base": NotRequired[str | None],
    "tensor_parallel": NotRequired[dict[str, Any]],
    "expected_tok_s": NotRequired[dict[str, Estimate]],
    "measured_by_others": NotRequired[dict[str, ComparedEvidence]],
    "measured_tok_s": NotRequired[list[Headline]],
}
"""A recipe of `recipes list`: a valid one has what is not required, another one `error`."""

# What commands print with --json that do not declare it (`output` of `DeclaredCommand`): one of
# several documents, or a class that is imported late. The others are added below.
OUTPUTS: dict[str, tuple[str, Any]] = {
    "setup": ("setup", {"ok": bool, "check": bool, "steps": [SetupStep]}),
    "trust": ("trust", {"nodes": [NodeKey | UnreadKey], "jump_hosts": [JumpHostKey]}),
    "ping": ("ping", PingResult),
    "facts": ("facts", FactsResult),
    "doctor": ("doctor", {"checks": [CheckResult], "issues": [KnownIssueMatch]}),
    "recipes-list": ("recipes list", {"recipes": [_RECIPE]}),
    "recipes-search": (
        "recipes search",
        {
            "found": int,
            "recipes": [
                {
                    **dict.fromkeys(("recipe", "origin", "model", "base", "description"), str),
                    "quantization": str,
                    "tags": list[str],
                    "verdicts": dict[str, SizeVerdict],
                }
            ],
        },
    ),
    "recipes-import": (
        "recipes import",
        (Imported, {"ok": bool, "file": str, "files": list[str]}),
    ),
    "recipes-save": (
        "recipes save NAME",
        {"name": str, "file": str, "from": str, "overrides": dict[str, Any]},
    ),
    "recipes-update": ("recipes update", {"ok": bool, "registries": [Update | NotUpdated]}),
    "recipes-show": (
        "recipes show",
        {
            "recipe": Recipe,
            "tp": int,
            "command": list[str],
            "expected_tok_s": dict[str, Estimate],
            "measured_by_others": dict[str, ComparedEvidence],
        },
    ),
    "plan": ("plan", Plan),
    "plan-several": ("plan, of several models", PlanTogether),
    "plan-for": ("plan --for PURPOSE", (Advice, {"recipe": str})),
    "lint": (
        "lint",
        {
            "issues": [KnownIssueMatch],
            "variables": [str],
            "builds": [str],
            "not_carried_over": [NotCarriedOver],
        },
    ),
    "lint-fix": (
        "lint --fix",
        {
            "issues": [KnownIssueMatch],
            "fixed": [KnownIssueMatch],
            "output": str | None,
            "text": str | None,
        },
    ),
    "explain-about": ("explain --about ID", {"issues": [Issue]}),
    "predict-speed": ("predict speed", PredictedSpeed),
    "predict-kv-device": ("predict kv --device DEVICE", KvCache),
    "predict-calibrate": (
        "predict --calibrate RESULTS",
        (Calibration, {"files": list[str], "file": str, "left_out": list[str]}),
    ),
    "provision": ("provision", ProvisionResult),
    "playbook": ("playbook", PlaybookResult),
    "models-pull": ("models pull", {**_RUN, "model": PulledModel}),
    "models-copy": ("models copy", {**_RUN, "model": str, "copies": [Copied]}),
    "images-list": ("images list", {"nodes": [StoredImages]}),
    "images-prune": ("images prune", {"applied": bool, "nodes": [PrunedImages]}),
    "models-list": ("models list", {"nodes": [StoredModels]}),
    "models-size": ("models size", {"nodes": [ModelSizes]}),
    "models-verify": ("models verify", {"models": [VerifiedModel]}),
    "models-repair": ("models repair", {**_RUN, "models": [RepairedModel]}),
    "models-prune": ("models prune", {"applied": bool, "nodes": [Pruned]}),
    "models-pin": ("models pin", {"model": str, "changed": dict[str, bool]}),
    "models-unpin": ("models unpin", {"model": str, "changed": dict[str, bool]}),
    "up": ("up", UpResult),
    "up-several": ("up, of several models", UpModelsResult),
    "swap": ("swap", (Swapped | None, _STARTED)),
    "supervise-install": ("supervise install", {**_RUN, "supervision": Supervision}),
    "supervise-remove": ("supervise remove", {**_RUN, "supervision": Supervision}),
    "supervise-status": ("supervise status", Supervision),
    "tune": ("tune RECIPE", {**_RUN, "tuned": Tuning | None}),
    "down": ("down", DownResult),
    "ray-up": ("ray up", RayUpResult),
    "ray-status": ("ray status", RayStatus),
    "ray-submit": ("ray submit", {"job": Job}),
    "ray-logs": ("ray logs JOB", {"job": Job, "log": str}),
    "ray-logs-follow": ("ray logs -f JOB", {"job": Job}),
    "ray-list": ("ray list", {"jobs": [Job]}),
    "ray-stop": ("ray stop JOB", {"job": str, "changed": bool}),
    "ray-dashboard": ("ray dashboard", {"url": str}),
    "ray-dashboard-token": ("ray dashboard --token", {"url": str, "token": str}),
    "ray-down": ("ray down", DownResult),
    "verify": ("verify", Verification),
    "status": ("status", Status),
    "tunnel": ("tunnel", TunnelEvent),
    "tunnel-install": (
        "tunnel --install",
        {"changed": bool, "unit": str, "file": str},
    ),
    "clients": ("clients", {"endpoint": ClientTarget, "clients": [Snippet]}),
    "keys-add": ("keys add NAME", {"name": str, "key": str, "added": str}),
    "keys-list": ("keys list", {"keys": [NamedKey]}),
    "keys-revoke": ("keys revoke NAME", {"name": str, "revoked": bool}),
    "logs": ("logs", {"logs": [{"node": str, "container": str, "text": str}]}),
    "logs-bundle": (
        "logs --bundle FILE",
        {"file": str, "contents": [BundleEntry], "left_out": list[str]},
    ),
    "caches-list": ("caches list", {"parts": [CachePart]}),
    "caches-prune": ("caches prune", {"applied": bool, "bytes": int, "parts": [CachePart]}),
    "caches-copy": ("caches copy", {**_RUN, "copies": [CopiedCache]}),
    "vram": ("vram", VramResult),
    "vram-run": (
        "vram --run RUN",
        {"run": str, "command": str, "memory": [MemoryOfNode], "plot": str | None},
    ),
    "vram-watch": ("vram --watch", {"at": float, "nodes": [(NodeVram, {"peak_mib": int})]}),
    "top": ("top", TelemetryRow),
    "dashboard": ("dashboard", {"url": str}),
    "exec": (
        "exec",
        {
            "nodes": [
                {
                    "name": str,
                    "status": int | None,
                    **dict.fromkeys(("stdout", "stderr", "error", "hint"), NotRequired[str]),
                    "left_out_bytes": NotRequired[int],
                }
            ]
        },
    ),
    "history": ("history", Runs),
    "history-run": ("history RUN", RunDetails),
    "revert": ("revert", {**_RUN, "run": str, "nodes": dict[str, RevertedNode]}),
    "lab-up": ("lab up", (lab.LabStatus, {"changed": bool})),
    "lab-up-gpus": ("lab up --gpus", (lab.GpuLabStatus, {"changed": bool})),
    "lab-down": ("lab down", lab.Ended),
    "lab-status": ("lab status", lab.LabStatus),
    "lab-prepare": ("lab prepare", lab.PreparedFiles),
    "lab-tools": ("lab tools", lab.InstalledPackages),
    "lab-tools-list": ("lab tools --list", lab.Packages),
    "lab-reset": ("lab reset", lab.ResetNode),
    "lab-break": ("lab break NAME", lab.Broken),
    "lab-break-list": ("lab break --list", lab.Breakages),
    "lab-repair": ("lab repair", lab.Repaired),
    "bench-suites": (
        "bench suites NAME",
        {
            "suite": str,
            "description": str,
            "nodes": int,
            "setups": list[PlannedSetup],
            "cells": list[PlannedCell],
            "estimate": Duration,
        },
    ),
    "bench-run": ("bench run", _BENCH_RUN),
    "bench-attach": ("bench attach", _BENCH_RUN),
    "bench-status": (
        "bench status",
        {"run": str, "status": str, "cells": int, "done": int, "failed": int, "measuring": str},
    ),
    "bench-stop": ("bench stop", {"stopped": list[str]}),
    "bench-fetch": ("bench fetch", {"run": str, "cells": int, "new": int}),
    "bench-repeat": ("bench repeat", _BENCH_RUN),
    "bench-fabric": (
        "bench fabric",
        {**_RUN, "folder": str | None, "fabric": FabricRecord | None},
    ),
    "bench-show": ("bench show", Record),
    "bench-report": (
        "bench report",
        {"folder": str, "verdict": str, "text": str, "headline": str, "files": list[str]},
    ),
    "bench-compare": (
        "bench compare",
        {
            "comparison": RunComparison | None,
            "published": PublishedComparison | None,
            "predicted": PlanComparison | None,
        },
    ),
}
"""Name of a schema to the command that prints it with --json, and the document: a class, a mapping,
`[each]`, or a class with the keys that the command adds to it (`| None` where there are only those
in check mode)."""


def resource_classes() -> list[type[Resource]]:
    """Every resource that roles and playbooks can use, by name."""
    modules = sorted(Path(*resources.__path__).glob("*.py"))
    names = (class_name(path.stem) for path in modules)
    found = filter(None, map(resource_class, names))
    return [kind for kind in found if kind is not Program]


SHIPPED = Project(CHECKOUT, CHECKOUT)
"""The modules of roles, where their settings are described, are there as long as it is."""


def roles() -> dict[str, Any]:
    """The shipped roles by name, loaded."""
    return {name: SHIPPED.load_role(name) for name in SHIPPED.list("roles")}


def event_classes() -> list[type[events.Event]]:
    """Every event, in the order of a run."""
    return [
        kind
        for kind in vars(events).values()
        if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event
    ]


def error_classes() -> list[type[errors.SparkClusterError]]:
    """Every error that ends a command, by exit status."""
    found = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, errors.SparkClusterError)
        and kind is not errors.SparkClusterError
    ]
    return sorted(found, key=lambda kind: kind.exit_code)


@cache
def known_issues() -> dict[str, list[Issue]]:
    """The known issues of each file of the catalogue."""
    return {path.stem: read(path) for path in files()}


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command and group with its full name, in the order of --help."""
    context = click.Context(root, info_name="spark-cluster")
    for name in root.list_commands(context):
        yield from _commands(name, root.get_command(context, name), context)


def _commands(
    name: str, command: click.Command | None, context: click.Context
) -> Iterator[tuple[str, click.Command]]:
    if command is None or command.hidden:
        return
    yield name, command
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            yield from _commands(f"{name} {inner}", command.get_command(context, inner), context)


OUTPUTS |= {
    name.replace(" ", "-"): (name, command.output)
    for name, command in commands()
    if isinstance(command, DeclaredCommand) and command.output is not None
}


__all__ = [
    "API_OPENS",
    "API_RESULTS",
    "BENCH_RUN",
    "CHECKOUT",
    "CLUSTER",
    "INVENTORY",
    "OUTPUTS",
    "PLANNING",
    "RECIPE",
    "REGISTRIES",
    "SPEED",
    "SUITE",
    "WOULD_CHANGE",
    "Document",
    "ErrorKeys",
    "Flat",
    "Issue",
    "Resource",
    "commands",
    "error_classes",
    "event_classes",
    "known_issues",
    "resource_classes",
    "roles",
    "root",
]
