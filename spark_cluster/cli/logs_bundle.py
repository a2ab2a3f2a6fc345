"""`logs --bundle`: everything that an issue report may need, of all nodes, in one archive."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cluster.errors import SparkClusterError

if TYPE_CHECKING:
    from spark_cluster.cli.app import App
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.doctor.bundle_archive import BundleArchive
    from spark_cluster.runner.play import Play

RECORDS = 3
"""Records of runs, the newest ones."""


def command(app: App, file: str) -> None:
    """Collect and write it; what cannot be had is said in the archive, and ends nothing.

    Args:
        file: its path; empty where a name is to be made.
    """
    from spark_cluster.doctor.bundle_archive import BundleArchive, listed, must_be_new

    name = f"spark-cluster-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    path = Path(file or f"{name}.tar.gz").absolute()
    must_be_new(path)
    archive = BundleArchive(name, frozenset(_secrets(app)))
    _collect(app, archive)
    archive.write(path)
    if app.as_json:
        contents = listed(archive.entries)
        app.print_json({"file": str(path), "contents": contents, "left_out": archive.left_out})
        return
    for entry in archive.entries:
        cut = ", its middle is cut" if entry.cut else ""
        app.console.print(f"  {entry.name}  {entry.bytes:,} bytes{cut}", soft_wrap=True)
    app.console.print(f"{path}: {path.stat().st_size:,} bytes", soft_wrap=True)
    app.console.print("secrets are masked; look through it before you publish it", soft_wrap=True)


def _collect(app: App, archive: BundleArchive) -> None:
    from spark_cluster.cli.version import versions
    from spark_cluster.runner.options import Options

    archive.add_json("versions.json", dataclasses.asdict(versions(app)))
    _attempt(archive, "doctor", lambda: archive.add_json("doctor.json", _doctor(app)))
    with app.play("logs --bundle", app.nodes, Options(), change=False) as run:
        play = run.open(fail_fast=False)
        for name, error in play.out.items():
            archive.add_json(f"nodes/{name}/error.json", error.to_dict())
        for node in play.nodes:
            facts = {"name": node.name, "links": node.links, **dataclasses.asdict(node.facts)}
            archive.add_json(f"nodes/{node.name}/facts.json", facts)
            _attempt(archive, f"nodes/{node.name}/logs", partial(_node, archive, play, node.name))
        _attempt(archive, "status", lambda: archive.add_json("status.json", _status(app, play)))
        _attempt(archive, "plan", lambda: _plan(app, play, archive))
        run.finish()
    _records(archive)


def _attempt(archive: BundleArchive, name: str, part: Callable[[], None]) -> None:
    """Add a part, or why there is none."""
    try:
        part()
    except SparkClusterError as error:
        archive.add_json(f"{name}.error.json", error.to_dict())


def _node(archive: BundleArchive, play: Play, name: str) -> None:
    from spark_cluster.doctor.bundle_questions import ask

    for file, text in ask(play.connections.session(name)).items():
        archive.add(f"nodes/{name}/{file}", text)


def _doctor(app: App) -> dict[str, Any]:
    from spark_cluster.cli.doctor import known_pins, served_recipe
    from spark_cluster.doctor import examine

    recipe, pins = served_recipe(app), known_pins(app)
    with examine.Examination(
        app.inventory, app.nodes, app.cluster.dialer, recipe, pins
    ) as examination:
        nodes = examination.observe()
        found = [*examine.judge(nodes), *examination.reachability()]
    diagnosis = examine.Diagnosis(tuple(examine.select(found, ())), examination.unreached)
    return {
        "checks": [result.to_dict() for result in diagnosis.results],
        "issues": [issue.to_dict() for issue in diagnosis.issues],
    }


def _status(app: App, play: Play) -> dict[str, Any]:
    """As `status` says it, without the caches; no password is asked for."""
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.engine import state

    secret = app.inventory.serve.api_key
    key = secret.read("the API key") if secret is not None else None
    return state.status(play, key, Recipe.model_fields["probe"].default).to_dict()


def _plan(app: App, play: Play, archive: BundleArchive) -> None:
    """The inventory's recipe and its plan on these nodes; the hub is not asked."""
    from spark_cluster.bench.planned_speed import own_evidence
    from spark_cluster.cli.hub_option import hub
    from spark_cluster.config.launch import of_recipe
    from spark_cluster.engine.survey import survey
    from spark_cluster.planning.planner import Planner, Question
    from spark_cluster.planning.subject import of_a_recipe

    recipe = _recipe(app)
    if recipe is None:
        return
    archive.add_json("recipe.json", recipe.model_dump(mode="json", exclude={"env"}))
    launch = of_recipe(recipe, recipe.size_for(len(play.nodes)))
    subject = of_a_recipe(recipe, launch)
    rooms, facts = survey(play, subject.node_path)
    planner = Planner(app.project, hub(offline=True), partial(own_evidence, app.project))
    archive.add_json("plan.json", planner.plan(subject, rooms, Question(), facts).to_dict())


def _recipe(app: App) -> Recipe | None:
    from spark_cluster.loader.recipes import load_recipe

    name = app.inventory.serve.recipe
    return None if name is None else load_recipe(name, app.project)


def _records(archive: BundleArchive) -> None:
    from spark_cluster.config.caches import state_folder

    records = sorted((state_folder() / "runs").glob("*.jsonl"), reverse=True)
    for path in records[:RECORDS]:
        archive.add(f"runs/{path.name}", path.read_text(errors="replace"))


def _secrets(app: App) -> Iterator[str]:
    """The secrets that the inventory names and that are at hand: none is asked for."""
    named = (app.inventory.serve.api_key, *(node.become.password for node in app.nodes))
    for secret in named:
        if secret is None or secret.prompt:
            continue
        try:
            yield secret.read("a secret")
        except SparkClusterError:
            continue  # it is not at hand, so nothing of it can be told from other text
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if value := os.environ.get(name):
            yield value
