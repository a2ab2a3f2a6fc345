"""Clusters as programs use them: `from spark_cluster import Cluster`."""

from __future__ import annotations

import contextlib
import inspect
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from weakref import WeakSet

from spark_cluster.cli.opened import EventStream, Opened, head_must_be_selected, with_keys
from spark_cluster.config.extension import NOTHING, Allowances, where_raised
from spark_cluster.config.folders import state_folder
from spark_cluster.errors import Failed, SparkClusterError, UsageError
from spark_cluster.runner.events import Options, Selection

if TYPE_CHECKING:
    from fabric import ThreadingGroup

    from spark_cluster.cli.bench_measure import BenchResult
    from spark_cluster.cli.results import (
        FactsResult,
        PingResult,
        PlaybookResult,
        ProvisionResult,
        Reached,
        VramResult,
    )
    from spark_cluster.cli.run import Run
    from spark_cluster.cli.serving import DownResult, RayUpResult, UpResult
    from spark_cluster.config.inventory import InventoryNode
    from spark_cluster.config.launch import Changes
    from spark_cluster.config.project import Project
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.config.recipe_schema import EngineValue, Probe
    from spark_cluster.config.topology import Playbook
    from spark_cluster.engine.deployment import Deployment
    from spark_cluster.engine.ray_cluster import RayJobs, RayStatus
    from spark_cluster.engine.result import Status
    from spark_cluster.engine.verify import Verification
    from spark_cluster.runner.play import Play

    Resolve = Callable[[Play], Deployment]
    """Resolves what is served, once the nodes' facts are known."""


P = ParamSpec("P")

T = TypeVar("T")

_MADE_TAGS = re.compile(r"""tags=(?![(\[{]*["'])""")
"""Tags that are not written out in a playbook, but made by its code."""
_QUOTED = re.compile(r"""(["'])([\w.-]+)\1""")


class Cluster(Opened):
    """The nodes of an inventory, and what can be done with them.

    Each method connects to the nodes, does its work, ends the connections, and returns a typed
    result, whose `to_dict()` is what the command of that name prints with `--json`. It prints
    nothing and raises a `SparkClusterError` (`spark_cluster.errors`) for whatever a user or a node
    did; Ctrl-C during a run is raised as `Interrupted`, which says what each node was doing.
    Secrets are read as the inventory says; one that is to be asked for is asked for where standard
    input is a terminal.

    Methods may be called from several threads: each has connections of its own, and on a node the
    lock refuses a second run that changes it.

    See `Opened` for the arguments. As a context manager it ends at the block's end what still goes
    on in other threads, with its connections.
    """

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """End what still goes on in other threads as Ctrl-C does, and wait for streams of events.

        Raises:
            Failed: one of them has not ended in time.
        """
        super().close()
        for stream in list(self._streams):
            stream.cancel()

    @cached_property
    def _streams(self) -> WeakSet[EventStream[Any]]:
        return WeakSet()

    def events(
        self, operation: Callable[P, T], /, *args: P.args, **given: P.kwargs
    ) -> EventStream[T]:
        """Return the events of a method of this class while it goes on, and then its result.

        Args:
            operation: `cluster.up`, or another function that calls such methods.
            args, given: its arguments.

        Example:
            with cluster.events(cluster.up, tp=2) as events:
                for event in events:
                    print(event)
            print(events.result().served)
        """
        stream = EventStream(partial(operation, *args, **given))
        self._streams.add(stream)
        return stream

    def group(self) -> ThreadingGroup:
        """Return the nodes as a `fabric.Group`, so that a fabfile's tasks run on them.

        Each is connected when it is first used, with its host keys verified, and stays so until the
        group is closed.

        Raises:
            Refused: a node is not reached over SSH.
            InvalidFile: ssh_config cannot be read.

        Example:
            with cluster.group() as group:
                group.run("uptime")
        """
        from fabric import ThreadingGroup

        return ThreadingGroup.from_connections(
            self.dialer.dial(node).fabric(owned=True) for node in self.nodes
        )

    def ping(self) -> PingResult:
        """Connect to every node without sudo and measure a round trip.

        Returns:
            Each node's figures, or the error of a node that is not reached, which is not raised.

        Raises:
            SparkClusterError: the inventory is wrong; this holds for every method.
        """
        from spark_cluster.cli.results import PingResult
        from spark_cluster.runner.parallel import in_parallel

        return PingResult(in_parallel({n.name: partial(self._reach, n) for n in self.nodes}))

    def _reach(self, node: InventoryNode) -> Reached:
        from spark_cluster.cli.results import Reached

        started = time.monotonic()
        with self.dialer.session(node, "ping", become=False) as session:
            python = session.request("gather")["machine"]["python"]
            connected = time.monotonic()
            session.request("gather")
            rtt = time.monotonic() - connected
        return Reached(round(rtt * 1000, 2), round((connected - started) * 1000, 1), python)

    def facts(self) -> FactsResult:
        """Return the facts of each node: system, memory, GPU, links, Docker.

        Raises:
            SparkClusterError: that of the first node that does not answer.
        """
        with self.play("facts", self.nodes, change=False) as run:
            from spark_cluster.cli.results import FactsResult  # while connections are being made

            return FactsResult(tuple(run.open().nodes))

    def vram(self, lost: dict[str, SparkClusterError] | None = None) -> VramResult:
        """Return the processes that hold GPU memory on each node, and its MemAvailable, in MiB.

        Args:
            lost: takes the errors of nodes that are not reached, which are raised otherwise.

        Raises:
            SparkClusterError: no node is reached, or an nvidia-smi does not answer; without `lost`
                also: a node is not reached.
        """
        with self.dialer.sessions(self.nodes, "vram", lost) as sessions:
            from spark_cluster.cli.results import VramResult  # `vram` imports it meanwhile
            from spark_cluster.engine.runtime import models_by_process
            from spark_cluster.engine.vram import sample

            readings, models = sample(sessions), models_by_process(sessions)
        return VramResult(tuple(one.serving(models.get(one.name, {})) for one in readings))

    def provision(
        self,
        *,
        allow_reboot: bool = False,
        allow_restart: bool = False,
        firmware: bool = False,
        bandwidth: bool = False,
        ask_password: bool = False,
        password_env: str | None = None,
        options: Options | None = None,
    ) -> ProvisionResult:
        """Make the nodes ready to serve; a second time nothing is changed.

        Args:
            allow_reboot: reboot a node when a change requires it.
            allow_restart: restart Docker for new settings even if that stops what serves.
            firmware: update firmware with fwupd.
            bandwidth: measure the link even when nothing of it was changed.
            ask_password: first contact: log in with a password that is asked for on the terminal.
            password_env: first contact: the environment variable with that password.
            options: check mode, diffs, a selection of roles.

        Returns:
            Each node's part. A node that fails does not stop the others, and its error is not
            raised: see `ok`, `errors` and `raise_for_errors()`.

        Raises:
            SparkClusterError: no node is reached.
        """
        from spark_cluster.config.secret import SecretReference

        password = SecretReference(prompt=True) if ask_password else None
        if password_env is not None:
            password = SecretReference(env=password_env)
        nodes, keys = with_keys(self.nodes, password)
        with self.play("provision", nodes, options) as run:
            playbook = self.project.load_playbook("provision")  # while connections are being made
            _refuse_unknown(self.project, playbook, run.options.selection)
            play = run.open(fail_fast=False)
            done = playbook.function(
                play,
                allow_reboot=allow_reboot,
                allow_restart=allow_restart,
                firmware=firmware,
                bandwidth=bandwidth,
                laptop_keys=keys,
            )
            failed = {name: errors[0] for name, errors in done.failures.items()} | play.out
            run.finish(str(next(iter(failed.values()), "")))
        return _provisioned(run, done, failed)

    def bench(
        self,
        suite: str,
        recipes: Sequence[str] = (),
        *,
        out: str | Path | None = None,
        keep: bool = False,
        stop_at_first_failure: bool = False,
        allow: Allowances = NOTHING,
        options: Options | None = None,
    ) -> BenchResult:
        """Measure a suite: bring each server up, verify it, measure it, and take it down.

        Args:
            suite: name or file.
            recipes: to measure instead of the suite's.
            out: folder for the results; by default one of the run's id in `bench-results/`.
            keep: leave the last server up.
            stop_at_first_failure: end at the first server that does not start, instead of failing
                its cells.
            allow: what the recipes may use beyond what every recipe may.
            options: check mode.

        Returns:
            The record. Cells that failed are in `failed`, and are not raised.

        Raises:
            UsageError: `out` holds a run already.
            SparkClusterError: a node is not reached, or an extra is not installed.
        """
        from spark_cluster.cli.bench_measure import begun, measure

        made = begun(self, suite, tuple(recipes), allow, None if out is None else Path(out))
        how = {"keep": keep, "stop_at_first_failure": stop_at_first_failure}
        return measure(self, made, options or Options(), how, run_id=made.record.id)

    def playbook(self, file: str | Path, *, options: Options | None = None) -> PlaybookResult:
        """Run a playbook.

        Args:
            file: a Python file with a function `main(play)`, or a name in `playbooks/`.
            options: check mode, diffs, a selection of roles.

        Returns:
            What `main` returned, and each node's part. A node that drops out is in `errors`; see
            `raise_for_errors()`.

        Raises:
            InvalidFile: there is no such file, or its code is wrong.
            SparkClusterError: no node is reached, or the playbook raised.
        """
        from spark_cluster.cli.results import PlaybookResult, PlayedNode

        name = self.project.resolve("playbooks", file).stem
        with self.play(f"playbook {name}", self.nodes, options, gather_facts=False) as run:
            loaded = self.project.load_playbook(file)  # while the connections are being made
            _must_need_nothing(loaded)
            _refuse_unknown(self.project, loaded, run.options.selection)
            play = run.open(fail_fast=False)
            result = _run(loaded, play)
            run.finish(str(next(iter(play.out.values()), "")))
        nodes = {name: PlayedNode(*tally.counts) for name, tally in run.recap.nodes.items()}
        return PlaybookResult(run.summary(ok=not play.out), result, nodes, dict(play.out))

    # -- what is served

    def up(
        self,
        recipe: str | None = None,
        *,
        tp: int | None = None,
        replicas: int = 1,
        force: bool = False,
        offline: bool = False,
        end_jobs: bool = False,
        overrides: Mapping[str, EngineValue | None] | Sequence[str] = (),
        allow: Allowances = NOTHING,
        options: Options | None = None,
    ) -> UpResult:
        """Bring the nodes from any state to a verified endpoint; a second time nothing is changed.

        Args:
            recipe: name or file; by default the inventory's, which may be several models next to
                each other (`serve: [CHAT, EMBEDDING]`).
            tp: number of nodes to split each layer over; by default the recipe's, else all.
            replicas: number of nodes that each serve the whole model, behind one endpoint.
            force: launch even if the plan says that the configuration cannot work.
            offline: ask no hub, serve from what the nodes have.
            end_jobs: end jobs that run on Ray; otherwise they are a reason to refuse.
            overrides: of the recipe, such as `{"max-model-len": 32768, "env.NCCL_DEBUG": "INFO"}`,
                or `KEY=VALUE` texts; `image.ref` is the image, None takes an argument away.
            allow: what the recipe may use beyond what every recipe may.
            options: check mode, diffs, a selection of roles.

        Raises:
            Refused: the plan says that it cannot work, or something is not allowed.
            VerificationFailed: it is up, and does not answer as it should.
            SparkClusterError: a node is not reached, or a part of it failed.
        """
        from spark_cluster.cli.serving import serves_several, texts

        changes = texts(overrides)
        several = recipe is None and serves_several(self)
        if several:
            what, resolve = _models(self, tp=tp, replicas=replicas, changes=changes, allow=allow)
        else:
            what, resolve = _recipe(
                self, recipe, tp=tp, replicas=replicas, changes=changes, allow=allow
            )
        port = "" if self.port is None else f"--port {self.port}"
        options = replace(options or Options(), force=force, offline=offline)
        with self.play(" ".join(filter(None, ["up", what, port])), self.nodes, options) as run:
            from spark_cluster.cli.run import keep_plot  # while connections are being made

            playbook = self.project.load_playbook("up")
            play = run.open()
            served = playbook.function(play, deployment=resolve(play), end_jobs=end_jobs)
            plot = None if several else keep_plot(run.id, run.bus, run.memory)
        from spark_cluster.cli.serving import UpModelsResult, UpResult

        kind = UpModelsResult if several else UpResult
        return kind(run.summary(), served, tuple(run.memory.nodes.values()), plot)

    def status(self) -> Status:
        """Return what serves and what is wrong, after a real completion; nothing is changed.

        A server that has failed is a `state` of the result, not an error.

        Raises:
            UsageError: the head is not selected.
            Unreachable: no node is reached.
        """
        key = self.inventory.api_key()
        head_must_be_selected(self, "; spark-cluster ping reaches single nodes")
        with self.play("status", self.nodes, change=False) as run:
            from spark_cluster.engine import state  # while the connections are being made

            recipe = usual_recipe(self)
            return state.status(run.open(fail_fast=False), key, probe_of(recipe), recipe)

    def verify(
        self,
        *,
        only: Sequence[str] = (),
        skip: Sequence[str] = (),
        timeout_s: float | None = None,
        context: int | None = None,
        model: str | None = None,
    ) -> Verification:
        """Ask the running server what users will ask it, and judge the answers.

        Args:
            only: ids of checks, or of rungs with all their checks; by default all.
            skip: those to leave out.
            timeout_s: longest time that one answer may take, seconds; by default 900.
            context: longest prompt of the context check with its answer, tokens; by default what
                the server states.
            model: to verify, where the endpoint has several.

        Returns:
            A verdict for each check; those that failed are in `failed`, and are not raised.

        Raises:
            UsageError: there is no such check, or the head is not selected.
            SparkClusterError: nothing serves, or the head is not reached.
        """
        from spark_cluster.engine import verify as in_depth
        from spark_cluster.engine.answer_checks import PATIENCE_S

        selection = in_depth.CheckSelection(tuple(only), tuple(skip))
        selection.must_be_known()
        key = self.inventory.api_key()
        head_must_be_selected(self)
        with self.play("verify", self.nodes, change=False) as run:
            play = run.open(fail_fast=False)
            server = in_depth.running_server(play, key, model)
            recipe = _started_with(self, server.recipe)
            limit = timeout_s if timeout_s is not None else PATIENCE_S
            checks = partial(in_depth.verify, patience_s=limit, context=context)
            found = in_depth.with_memory(play, partial(checks, play, server, recipe, selection))
            return in_depth.with_other_sizes(found, server, recipe, state_folder() / "verify")

    def down(
        self,
        *,
        unload: Sequence[str] = (),
        end_jobs: bool = False,
        options: Options | None = None,
    ) -> DownResult:
        """Stop what serves on all nodes, and wait until its memory is free again.

        Args:
            unload: other programs whose models are unloaded, too: `ollama`.
            end_jobs: end jobs that run on Ray; otherwise they are a reason to refuse.
            options: check mode.

        Raises:
            Refused: jobs are running on Ray.
            VerificationFailed: a process still holds GPU memory; with its id, program and node.
            SparkClusterError: a node is not reached; the others are stopped.
        """
        with self.play("down", self.nodes, options, gather_facts=False) as run:
            play = run.open(fail_fast=False)
            stopped = self.project.load_playbook("down").function(
                play, unload=tuple(unload), end_jobs=end_jobs
            )
            for name in play.out:
                play.note(f"what runs on {name} was not stopped", warning=True)
            if play.out:
                raise next(iter(play.out.values()))
        from spark_cluster.cli.serving import DownResult

        return DownResult(run.summary(), stopped)

    # -- Ray without a model -------------------------------------------------------------------

    def ray_up(
        self,
        recipe: str | None = None,
        *,
        end_jobs: bool = False,
        allow: Allowances = NOTHING,
        options: Options | None = None,
    ) -> RayUpResult:
        """Start a Ray cluster without a model; a second time nothing is changed.

        Args:
            recipe: name or file of the recipe whose image Ray runs in; by default the inventory's.
            end_jobs: restart Ray for new settings even if that ends jobs.
            allow: what the recipe may use beyond what every recipe may.
            options: check mode, diffs, a selection of roles.

        Raises:
            Refused: a server is up, jobs would be ended, or there is one node only.
            SparkClusterError: a node is not reached, or Ray's nodes do not join.
        """
        from spark_cluster.cli.serving import RayUpResult, recipe_for_ray

        found, size = recipe_for_ray(self, recipe, "ray up", allow)
        with self.play("ray up", self.nodes, options) as run:
            cluster = self.project.load_playbook("ray").function(
                run.open(), recipe=found, tp=size, end_jobs=end_jobs
            )
        return RayUpResult(run.summary(), cluster)

    def ray_status(self) -> RayStatus:
        """Return the nodes, GPUs and running jobs of the Ray cluster, and each node's GPU memory.

        Raises:
            SparkClusterError: a node is not reached.
        """

        head_must_be_selected(self)
        with self.play("ray status", self.nodes, change=False) as run:
            from spark_cluster.engine.ray_cluster import look

            return look(run.open())

    @contextlib.contextmanager
    def ray_jobs(self, *, command: str = "ray jobs") -> Iterator[RayJobs]:
        """Return the jobs of the Ray cluster, reached by a tunnel during a `with` block.

        Args:
            command: that wants them, for the record of the run.

        Raises:
            Failed: no Ray is running.
            SparkClusterError: the head is not reached.

        Example:
            with cluster.ray_jobs() as jobs:
                job = jobs.submit(["python3", "train.py"], working_dir=Path("train"))
                for text in jobs.follow(job):
                    print(text, end="")
                print(jobs.job(job).exit_status)
        """
        head = [self.inventory.head]
        with self.play(command, head, change=False, gather_facts=False) as run:
            from spark_cluster.engine.ray_cluster import ray_jobs, running_port

            play = run.open()
            with ray_jobs(play, running_port(play)) as jobs:
                run.finish()
                yield jobs

    def ray_down(self, *, options: Options | None = None) -> DownResult:
        """End a Ray cluster without a model, with its jobs; see `down`.

        Args:
            options: check mode.

        Raises:
            Refused: a server is up; `down` ends both.
            VerificationFailed: a process still holds GPU memory.
            SparkClusterError: a node is not reached.
        """
        with self.play("ray down", self.nodes, options, gather_facts=False) as run:
            from spark_cluster.engine.ray_cluster import must_serve_nothing

            play = run.open()
            must_serve_nothing(play, play.nodes, "ray down")
            stopped = self.project.load_playbook("down").function(play, end_jobs=True)
        from spark_cluster.cli.serving import DownResult

        return DownResult(run.summary(), stopped)


def _must_need_nothing(playbook: Playbook) -> None:
    """Raises:
    UsageError: the playbook has a command of its own, which gives it arguments.
    """
    needed = [
        p.name
        for p in list(inspect.signature(playbook.function).parameters.values())[1:]
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise UsageError(
            f"the playbook {playbook.name} has a command of its own (it needs {', '.join(needed)})",
            hint=f"spark-cluster {playbook.name} --help",
        )


def _refuse_unknown(project: Project, playbook: Playbook, selection: Selection) -> None:
    """Refuse a name of --tags or --skip-tags before anything is applied, if files tell all names.

    Where code makes tags, or in a playbook of ours that does more than apply roles, the names are
    checked at the end of the run.

    Raises:
        UsageError: neither a role nor a text in the playbook or in a role has that name.
    """
    roles, shipped = project.list("roles"), project.shipped
    files = [playbook.path, *(file for role in roles.values() for file in role.glob("*.py"))]
    texts = {file: file.read_text(errors="replace") for file in files if selection.partial}
    own = (text for file, text in texts.items() if not file.is_relative_to(shipped))
    ours = playbook.path.is_relative_to(shipped)
    if (ours and playbook.name != "provision") or any(map(_MADE_TAGS.search, own)):
        return
    quoted = {name for text in texts.values() for _, name in _QUOTED.findall(text)}
    known = replace(selection, start_at="", _seen={"playbook", *roles, *quoted})
    if unmatched := known.unmatched():
        if ours:  # of all words in our roles none is meant
            applied = {name for _, name in _QUOTED.findall(texts[playbook.path])}
            unmatched.hint = f"roles of {playbook.name}: {', '.join(sorted(applied & {*roles}))}"
        raise unmatched


def _run(playbook: Playbook, play: Play) -> object:
    try:
        return playbook.function(play)
    except SparkClusterError:
        raise
    except Exception as error:
        raise Failed(
            f"the playbook raised {type(error).__name__}: {error}",
            where=where_raised(error, playbook.path) or str(playbook.path),
            hint="what was applied before it stays; fix the playbook and run it again",
        ) from error


def _provisioned(run: Run, done: Any, failed: dict[str, SparkClusterError]) -> ProvisionResult:
    from spark_cluster.cli.results import (
        MeasuredBandwidth,
        NodeError,
        ProvisionedNode,
        ProvisionResult,
    )

    nodes = {}
    for name, tally in run.recap.nodes.items():
        error = failed.get(name)
        nodes[name] = ProvisionedNode(
            *tally.counts,
            unreachable=tally.unreachable,
            error=None if error is None else NodeError(error.message, error.hint),
            notes=done.notes.get(name, []),
            firmware=done.firmware.get(name),
        )
    measured = tuple(MeasuredBandwidth(str(b.hop), b.gbits, b.verdict) for b in done.bandwidth)
    return ProvisionResult(run.summary(ok=not failed), nodes, measured, failed)


def _models(
    opened: Opened, *, tp: int | None, replicas: int, changes: Changes, allow: Allowances
) -> tuple[str, Resolve]:
    """Return the names of the inventory's models, and what resolves them; no node is asked.

    Raises:
        UsageError: an option is for one recipe.
        SparkClusterError: a recipe is wrong, or they cannot be served next to each other.
    """
    from spark_cluster.cli.serving import OVERRIDE, models_to_serve, must_be_for_all
    from spark_cluster.engine.resolve import resolve_models

    must_be_for_all({"--tp": tp not in (None, 1), "--replicas": replicas > 1, OVERRIDE: changes})
    models = models_to_serve(opened, allow)
    names = ", ".join(model.recipe.name for model in models)
    return names, lambda play: resolve_models(models, play.inventory, play.nodes)


def _recipe(
    opened: Opened,
    name: str | None,
    *,
    tp: int | None,
    replicas: int,
    changes: Changes,
    allow: Allowances,
) -> tuple[str, Resolve]:
    """Return how a recipe is served, in words, and what resolves it; no node is asked.

    Raises:
        UsageError: no recipe is given, or replicas of several nodes each are asked for.
        SparkClusterError: the recipe or the number of nodes does not do this.
    """
    from spark_cluster.cli.serving import must_be_given, recipe_to_serve, size_on
    from spark_cluster.config.launch import options_text
    from spark_cluster.engine.resolve import must_have_nodes, resolve

    given = must_be_given(name or opened.inventory.serve.recipe, "no recipe is given")
    recipe = recipe_to_serve(opened, given, changes, allow)
    size = size_on(opened, recipe, _size(tp, replicas))
    if replicas > 1:
        must_have_nodes([node.name for node in opened.nodes], replicas)
    how = f"--tp {size}" if replicas == 1 else f"--replicas {replicas}"
    return f"{how} {options_text(recipe.overrides)}".rstrip(), lambda play: resolve(
        recipe, play.inventory, play.nodes, size, replicas=replicas
    )


def _size(tp: int | None, replicas: int) -> int | None:
    """Return the tensor-parallel size that is asked for; None for the recipe's.

    Raises:
        UsageError: replicas of several nodes each.
    """
    if replicas == 1:
        return tp
    if tp not in (None, 1):
        raise UsageError(
            f"--replicas {replicas} with --tp {tp}: each replica is on one node",
            hint="leave --tp out; `spark-cluster plan RECIPE --for throughput` compares the two",
        )
    return 1


def usual_recipe(opened: Opened) -> Recipe | None:
    """Return the inventory's recipe; None when it names none.

    Raises:
        SparkClusterError: there is none of that name, or it is wrong.
    """
    from spark_cluster.config.recipes import load_recipe

    name = opened.inventory.serve.recipe
    return None if name is None else load_recipe(name, opened.project)


def probe_of(recipe: Recipe | None) -> Probe:
    """Return what a server of a recipe is asked; the usual question where none is known."""
    if recipe is not None:
        return recipe.probe
    from spark_cluster.config.recipe import Recipe

    usual: Probe = Recipe.model_fields["probe"].default
    return usual


def _started_with(opened: Opened, name: str) -> Recipe:
    """The recipe that the server was started with.

    Raises:
        SparkClusterError: it is not there any more, or wrong; with what it is needed for.
    """
    from spark_cluster.config.recipes import load_recipe

    try:
        return load_recipe(name, opened.project)
    except SparkClusterError as error:
        raise type(error)(
            f"the server was started with recipe {name or 'without a name'}, which cannot be read: "
            f"{error.message}",
            where=error.where,
            hint=error.hint or "run it in the project folder that `up` was run in",
        ) from None
