"""Diagnosis: `doctor` says what is wrong and what to do, `logs` what the containers wrote.

Neither changes anything. `logs --bundle` packs all that an issue report may need; `version` says
what is installed here.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from spark_cluster import __version__
from spark_cluster.cli.api import probe_of, usual_recipe
from spark_cluster.cli.app import App
from spark_cluster.cli.console import (
    LinePrinter,
    coloured,
    lines_of,
    mark,
    painted,
    styled,
    tally,
)
from spark_cluster.cli.display import tell
from spark_cluster.cli.options import DeclaredCommand, hub
from spark_cluster.config.facts import load_pins
from spark_cluster.config.folders import state_folder
from spark_cluster.config.ports import EnginePorts
from spark_cluster.config.project import INVENTORY
from spark_cluster.config.schema import as_json
from spark_cluster.engine.names import RAY
from spark_cluster.errors import SparkClusterError, UsageError, worst
from spark_cluster.node.output import counted

if TYPE_CHECKING:
    from rich.text import Text

    from spark_cluster.config.facts import Pins
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.doctor.bundle_archive import BundleArchive
    from spark_cluster.doctor.examine import Diagnosis
    from spark_cluster.doctor.observations import CheckResult
    from spark_cluster.engine.runtime import Name
    from spark_cluster.runner.play import Play
    from spark_cluster.runner.session import Pending

AUTOMATIC = "-"
"""The name of an archive for which none was given."""

RECORDS = 3
"""Records of runs in an archive, the newest ones."""

LIBRARIES = ("paramiko", "ruamel.yaml", "pydantic", "click")
"""What reads files and talks to nodes: the usual suspects when one laptop differs from another."""

_SSH_TIMEOUT_S = 5


@click.command(cls=DeclaredCommand)
def doctor(app: App, *, probe: bool, only: tuple[str, ...]) -> int:
    """Check every node for all known issues, and compare the nodes; nothing is changed.

    Each node is asked once; --probe adds full-size pings, transfers, a completion, and a scan of
    the nodes' ports from this machine. What could not be seen is reported as unknown.

    Exit status 5 when something fails, 3 when a node cannot be reached.

    Args:
        probe: Also measure the link, ask the endpoint, and try from here the ports that listen.
        only (AREA): Run only the checks of this area, or this check; repeatable.
    """
    diagnosis = diagnose(app, only, probe=probe)
    app.show(document(diagnosis), lambda app, _: _show_findings(app, diagnosis))
    return diagnosis.exit_code


def diagnose(app: App, only: Sequence[str] = (), *, probe: bool = False) -> Diagnosis:
    """Ask the selected nodes, and judge their answers.

    Args:
        only: areas or checks; by default all.
        probe: also measure the link, ask the endpoint, and try the ports that listen.

    Raises:
        UsageError: there is no such check.
    """
    from spark_cluster.doctor import examine
    from spark_cluster.doctor.probes import Question
    from spark_cluster.issues.entries import catalogue
    from spark_cluster.runner.parallel import start

    examine.must_be_known(only)
    recipe, pins = _served_recipe(app), _known_pins(app)
    with examine.Examination(
        app.inventory, app.nodes, app.cluster.dialer, recipe, pins
    ) as examination:
        app.import_meanwhile()
        start(catalogue)  # reads the files of the catalogue meanwhile
        nodes = examination.observe()
        probed = None
        if probe and nodes:
            spans = recipe.ray.ports.spans if recipe else EnginePorts().spans
            scan = not only or bool({"network", "network.open-ports"} & set(only))
            asked = Question(probe_of(recipe), app.inventory.api_key(), scan=scan, spans=spans)
            probed = examination.probe(nodes, asked)
        found = [*examine.judge(nodes, probed), *examination.reachability()]
    return examine.Diagnosis(tuple(examine.select(found, only)), examination.unreached)


def document(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the JSON document of a diagnosis."""
    return {"checks": as_json(diagnosis.results), "issues": as_json(diagnosis.issues)}


def _served_recipe(app: App) -> Recipe | None:
    """Return the recipe that the inventory serves; doctor works without it too."""
    if app.inventory.serve.recipe is None:  # what is wrong with the inventory itself is an error
        return None
    with contextlib.suppress(SparkClusterError):
        return usual_recipe(app.cluster)
    return None


def _known_pins(app: App) -> Pins | None:
    """Return the known combinations of kernel and driver, from the role `drivers`."""

    folder = app.project.find("roles", "drivers")
    app.project.must_be_own(folder, "role drivers")
    with contextlib.suppress(SparkClusterError, OSError):
        return load_pins(folder / "pins.json")
    return None


def _show_findings(app: App, diagnosis: Diagnosis) -> None:
    """Print the verdict, then each finding once, with the nodes that it is of; what is unknown for
    one and the same reason is one finding, without --verbose."""
    app.console.print(_findings_summary(diagnosis, time.monotonic() - app.started))
    alike: dict[tuple[str, ...], list[CheckResult]] = {}
    for result in diagnosis.results:
        if app.verbose or result.status != "ok":
            told = (result.status, result.id, result.found, result.cause, result.fix)
            alike.setdefault(told, []).append(result)
    groups: dict[tuple[str, ...], list[CheckResult]] = {}
    for same, (first, *rest) in alike.items():
        nodes = ", ".join(result.node for result in (first, *rest))
        one_reason = first.status == "unknown" and not app.verbose
        key = (first.found, first.cause, first.fix) if one_reason else same
        groups.setdefault((nodes, *key), []).append(first)
    for (nodes, *_), group in groups.items():
        what = group[0].id if len(group) == 1 else counted(len(group), "check")
        app.console.say("{} [bold]{}[/]  {}", mark(group[0].status), what, nodes)
        for line in _finding_lines(app, group):
            app.console.say("    {}", line)
    if known := ", ".join(issue.id for issue in diagnosis.issues):
        text = f"known issues: {known} (spark-cluster explain --about ID)"
        app.console.print(painted(text, "dim"))


def _finding_lines(app: App, group: Sequence[CheckResult]) -> Iterator[Text]:
    """Yield what is said of a finding, or of all that is unknown for one reason."""
    result = group[0]
    yield from (painted(line) for line in result.found.splitlines())
    if result.cause:
        yield painted(result.cause, "dim")
    if result.fix:
        yield styled("[cyan]fix: {}[/]", app.to_paste(result.fix))
    if result.status == "unknown":
        whether = f"whether {result.title}" if len(group) == 1 else ", ".join(r.id for r in group)
        yield painted(f"not known: {whether}", "dim")


def _findings_summary(diagnosis: Diagnosis, seconds: float) -> Text:
    styles = {"fail": "red", "warn": "yellow", "unknown": "magenta", "ok": "green"}
    text = styled("{} [dim]in {:.1f} s[/]", tally(styles, diagnosis.count), seconds)
    if diagnosis.unreached:
        text += painted(f"; not compared: {', '.join(diagnosis.unreached)} (not reachable)")
    return text


# -- `logs`: the logs of the serving containers; all that an issue report may need -----------------


@click.command(cls=DeclaredCommand)
def logs(
    app: App,
    *,
    follow: bool,
    tail: int = 50,
    only: Literal["vllm", "ray"] | None,
    bundle: Annotated[str | None, {"flag_value": AUTOMATIC, "is_flag": False}],
) -> int:
    """Show the logs of vLLM and Ray on every node, each line with its node and container, the
    newest at the end; without the requests for /metrics and /health, which spark-cluster makes.

    Where a node is not reached, those of the others are shown, with exit status 3.

    Colours are kept on a terminal; any other control sequence of a log is shown escaped (\\x1b...).

    With --bundle nothing is shown: logs, journals, docker inspect without values of variables,
    versions, facts, doctor's findings, status, plan and the last runs' records go into an archive.

    Args:
        follow (-f, --follow): Follow the logs until Ctrl-C.
        tail (-n, --tail): Number of lines from the end, of all logs together; of each with
            --follow. [default]
        only (--container): Only this container; vllm is the server of every model.
        bundle ([FILE]): Write all that an issue report needs into one archive, secrets masked.
    """
    if bundle is not None:
        if follow or only:
            raise UsageError("--bundle cannot be combined with --follow or --container")
        _write_bundle(app, "" if bundle == AUTOMATIC else bundle)
        return 0
    from spark_cluster.engine import runtime

    with app.cluster.play("logs", app.nodes, change=False, gather_facts=False) as run:
        play = run.open(fail_fast=False)
        wanted = {
            node: [name for name in names if only is None or (only == "ray") == (name == RAY)]
            for node, names in runtime.present_programs(play).items()
        }
        found = _present(play, wanted)
        run.finish()
        if follow:
            with contextlib.suppress(KeyboardInterrupt):
                _follow(play, found, tail)
            return worst(play.out.values())
        lines = tail if app.as_json else max(tail, READ)
        texts = {
            (node, name): runtime.read_log(play.connections.session(node), name, lines=lines)
            for node, name in found
        }
    rows = [{"node": n, "container": c, "text": text} for (n, c), text in texts.items()]
    app.show({"logs": rows}, lambda _app, _found: _show_logs(texts, tail))
    return worst(play.out.values())


READ = 2000
"""Lines of each log that are read at least: many may be requests of our own."""

_OWN_REQUEST = re.compile(r'"GET /(metrics|health)\b[^"]*" 200')
"""What `status`, `top`, `dashboard` and the supervision ask of a server, as vLLM logs it."""

_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\S*Z ")
_SECOND_STAMP = re.compile(r"\b(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:,\d+)? ")


def _show_logs(texts: Mapping[tuple[str, str], str], tail: int) -> None:
    """Print the last lines of all logs, the newest at the end, with node and container."""
    if not texts:
        tell("no container of spark-cluster is on these nodes")
    for line in last_lines(texts, tail):
        click.echo(coloured(line))


def last_lines(texts: Mapping[tuple[str, str], str], tail: int) -> list[str]:
    """Return the last lines of all logs by time, each with one time stamp (UTC), node and
    container; without the requests that spark-cluster itself makes all the time.

    Args:
        texts: by node and container, with Docker's time stamps.
        tail: most lines, of all logs together.
    """
    found: list[tuple[str, str]] = []
    for (node, name), text in texts.items():
        stamp = ""
        for line in lines_of(text):
            began = _STAMP.match(line)
            stamp = line[: began.end()] if began else stamp
            told = line[began.end() :] if began else line
            if _OWN_REQUEST.search(told) is None:
                told = _SECOND_STAMP.sub("", told, count=1) if began else told
                whose = f"{node} {name.removeprefix('spark-')}: {told}"
                found.append((stamp, f"{stamp[:19]}Z {whose}" if stamp else whose))
    found.sort(key=lambda one: one[0])
    return [line for _, line in found[max(0, len(found) - tail) :]]


def _present(play: Play, names: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Name]:
    """Node and program of all that is there, to what runs it.

    Args:
        names: by node the programs that are looked for.
    """
    from spark_cluster.engine.readiness import container_state

    states = {
        (node, name): container_state(play, name, node)
        for node, wanted in names.items()
        for name in wanted
    }
    return {key: state.runtime for key, state in states.items() if state.status != "absent"}


def _follow(play: Play, found: dict[tuple[str, str], Name], tail: int) -> None:
    """Stream all logs at once; whole lines only, so that they do not mix.

    Raises:
        SparkClusterError: the first error of a log, as soon as it is there.
    """
    from spark_cluster.engine.runtime import follow
    from spark_cluster.runner.parallel import start

    def stream(pending: Pending, printer: LinePrinter) -> None:
        try:
            pending.wait(lambda event: printer.add(event.get("text", "")))
        finally:
            printer.end()

    streams = []
    for (node, name), runtime in found.items():
        argv = follow(name, tail, runtime)
        pending = play.connections.session(node).submit("stream", argv=argv)
        printer = LinePrinter(f"{node} {name.removeprefix('spark-')}: ")
        streams.append(partial(stream, pending, printer))
    for ended in as_completed(map(start, streams)):
        error = ended.result()
        if error is not None:
            raise error


def _write_bundle(app: App, file: str) -> None:
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
        app.console.print(f"  {entry.name}  {entry.bytes:,} bytes{cut}")
    app.console.print(f"{path}: {path.stat().st_size:,} bytes")
    app.console.print("secrets are masked; look through it before you publish it")


def _collect(app: App, archive: BundleArchive) -> None:

    archive.add_json("versions.json", as_json(versions(app)))
    _attempt(archive, "doctor", lambda: archive.add_json("doctor.json", document(diagnose(app))))
    with app.cluster.play("logs --bundle", app.nodes, change=False) as run:
        play = run.open(fail_fast=False)
        for name, error in play.out.items():
            archive.add_json(f"nodes/{name}/error.json", error.to_dict())
        for node in play.nodes:
            facts = {"name": node.name, "links": node.links, **as_json(node.facts)}
            archive.add_json(f"nodes/{node.name}/facts.json", facts)
            _attempt(archive, f"nodes/{node.name}/logs", partial(_node, archive, play, node.name))
        _attempt(archive, "status", lambda: archive.add_json("status.json", _status(app, play)))
        _attempt(archive, "plan", lambda: _plan(app, play, archive))
    records = sorted((state_folder() / "runs").glob("*.jsonl"), reverse=True)
    for path in records[:RECORDS]:
        archive.add(f"runs/{path.name}", path.read_text(errors="replace"))


def _attempt(archive: BundleArchive, name: str, part: Callable[[], None]) -> None:
    """Add a part, or why there is none."""
    try:
        part()
    except SparkClusterError as error:
        archive.add_json(f"{name}.error.json", error.to_dict())


def _node(archive: BundleArchive, play: Play, name: str) -> None:
    from spark_cluster.doctor.bundle_archive import ask

    for file, text in ask(play.connections.session(name)).items():
        archive.add(f"nodes/{name}/{file}", text)


def _status(app: App, play: Play) -> dict[str, Any]:
    """As `status` says it, without the caches; no password is asked for."""
    from spark_cluster.engine import state

    secret = app.inventory.serve.api_key
    key = secret.read("the API key") if secret is not None else None
    return state.status(play, key, probe_of(None)).to_dict()


def _plan(app: App, play: Play, archive: BundleArchive) -> None:
    """The inventory's recipe and its plan on these nodes; the hub is not asked."""
    from spark_cluster.bench.references import own_evidence
    from spark_cluster.config.launch import of_recipe
    from spark_cluster.engine.survey import survey
    from spark_cluster.plan.planner import PlannedLoad, Planner, of_a_recipe

    recipe = usual_recipe(app.cluster)
    if recipe is None:
        return
    archive.add_json("recipe.json", recipe.model_dump(mode="json", exclude={"env"}))
    launch = of_recipe(recipe, recipe.size_for(len(play.nodes)))
    subject = of_a_recipe(recipe, launch)
    rooms, facts = survey(play, subject.node_path, venv=subject.launch.venv)
    planner = Planner(app.project, hub(offline=True), partial(own_evidence, app.project))
    archive.add_json("plan.json", planner.plan(subject, rooms, PlannedLoad(), facts).to_dict())


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


# -- `version`: this installation, for a bug report ------------------------------------------------


@dataclass(frozen=True)
class Versions:
    """The installation, the laptop and the project, as `--json` prints them.

    Attributes:
        version: of spark-cluster.
        program: folder that the package is imported from.
        python: version and path of the interpreter.
        system: operating system, release and architecture of the laptop.
        ssh: what `ssh -V` prints; empty where OpenSSH's client is not installed.
        libraries: name to version; empty text for one that is not installed.
        project: the project folder.
        inventory: the inventory file that commands would read; None when there is none.
        inventory_error: why there is none.
    """

    version: str
    program: str
    python: str
    system: str
    ssh: str
    libraries: dict[str, str]
    project: str
    inventory: str | None
    inventory_error: str = ""


@click.command(cls=DeclaredCommand, output=Versions)
def version(app: App) -> None:
    """Show the versions, the system and the files in use, for a bug report.

    No node is contacted, and the inventory is located but not read.
    """
    found = versions(app)
    app.show(found, "\n".join(_lines(found)))


def versions(app: App) -> Versions:
    """Return the versions and files that this laptop has now.

    Raises:
        UsageError: the folder given with --project does not exist.
    """
    inventory, error = _inventory(app)
    return Versions(
        version=__version__,
        program=str(Path(__file__).parents[1]),
        python=f"{platform.python_version()} ({sys.executable})",
        system=f"{_system()}, {platform.machine()}",
        ssh=_ssh_version(),
        libraries={name: _library(name) for name in LIBRARIES},
        project=str(app.project.folder),
        inventory=inventory,
        inventory_error=error,
    )


def _inventory(app: App) -> tuple[str | None, str]:

    try:
        path = app.project.resolve("inventories", str(app.cluster.named or f"./{INVENTORY}"))
    except SparkClusterError as error:
        return None, error.message
    return str(path.absolute()), ""


def _library(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _system() -> str:
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):  # not Linux, or a minimal image
        return platform.platform()
    return f"{name}, {platform.system()} {platform.release()}"


def _ssh_version() -> str:
    ssh = shutil.which("ssh")
    if ssh is None:
        return ""
    try:
        done = subprocess.run(
            [ssh, "-V"], check=False, capture_output=True, text=True, timeout=_SSH_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{ssh} -V failed: {error}"
    return (done.stderr or done.stdout).strip()


def _lines(found: Versions) -> list[str]:
    rows = {
        "spark-cluster": f"{found.version} ({found.program})",
        "Python": found.python,
        "system": found.system,
        "ssh": found.ssh or "not installed",
        **{name: version or "not installed" for name, version in found.libraries.items()},
        "project": found.project,
        "inventory": found.inventory or f"none ({found.inventory_error})",
    }
    width = max(map(len, rows))
    return [f"{name:<{width}}  {value}" for name, value in rows.items()]
