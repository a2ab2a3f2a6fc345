"""The operations of the API on what serves: up, status, verify, down, and Ray without a model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from spark_cluster.cli.opened import Opened, head_must_be_selected
from spark_cluster.config.extension import NOTHING, Allowances
from spark_cluster.config.folders import state_folder
from spark_cluster.engine.memory_phases import MemoryPhases
from spark_cluster.errors import SparkClusterError, UsageError
from spark_cluster.runner.events import Options

if TYPE_CHECKING:
    from spark_cluster.cli.serving_results import DownResult, RayUpResult, UpResult
    from spark_cluster.config.launch import Changes
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.config.recipe_schema import EngineValue, Probe
    from spark_cluster.engine.deployment import Deployment
    from spark_cluster.engine.launches import Upcoming
    from spark_cluster.engine.ray_cluster import RayJobs, RayStatus
    from spark_cluster.engine.result import Status
    from spark_cluster.engine.verify import Verification
    from spark_cluster.runner.play import Play

    Resolve = Callable[[Play], Deployment]
    """Resolves what is served, once the nodes' facts are known."""


class Serving(Opened):
    """The operations of `Cluster` on what serves."""

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
        from spark_cluster.cli.recipes_to_serve import serves_several, texts

        changes = texts(overrides)
        several = recipe is None and serves_several(self)
        if several:
            what, resolve = _models(self, tp=tp, replicas=replicas, changes=changes, allow=allow)
        else:
            what, resolve = _recipe(
                self, recipe, tp=tp, replicas=replicas, changes=changes, allow=allow
            )
        port = "" if self.port is None else f"--port {self.port}"
        memory = MemoryPhases()
        with self.play(" ".join(filter(None, ["up", what, port])), self.nodes, options) as run:
            from spark_cluster.cli.run import keep_plot  # while connections are being made

            run.bus.add(memory)
            playbook = self.project.load_playbook("up")
            play = run.open()
            served = playbook.function(
                play, deployment=resolve(play), force=force, offline=offline, end_jobs=end_jobs
            )
            plot = None if several else keep_plot(run.id, run.bus, memory)
        from spark_cluster.cli.serving_results import UpModelsResult, UpResult

        kind = UpModelsResult if several else UpResult
        return kind(run.summary(), served, tuple(memory.nodes.values()), plot)

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
            upcoming = self._upcoming(recipe)
            return state.status(run.open(fail_fast=False), key, probe_of(recipe), upcoming)

    def _upcoming(self, recipe: Recipe | None) -> Upcoming | None:
        if recipe is None:
            return None
        from spark_cluster.engine.deployment import root_on
        from spark_cluster.engine.launches import Upcoming

        return Upcoming(recipe, {node.name: root_on(node) for node in self.nodes})

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
            SparkClusterError: a node is not reached.
        """
        with self.play("down", self.nodes, options, gather_facts=False) as run:
            stopped = self.project.load_playbook("down").function(
                run.open(), unload=tuple(unload), end_jobs=end_jobs
            )
        from spark_cluster.cli.serving_results import DownResult

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
        from spark_cluster.cli.recipes_to_serve import recipe_for_ray
        from spark_cluster.cli.serving_results import RayUpResult

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
        from spark_cluster.cli.serving_results import DownResult

        return DownResult(run.summary(), stopped)


def _models(
    opened: Opened, *, tp: int | None, replicas: int, changes: Changes, allow: Allowances
) -> tuple[str, Resolve]:
    """Return the names of the inventory's models, and what resolves them; no node is asked.

    Raises:
        UsageError: an option is for one recipe.
        SparkClusterError: a recipe is wrong, or they cannot be served next to each other.
    """
    from spark_cluster.cli.recipes_to_serve import OVERRIDE, models_to_serve, must_be_for_all
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
    from spark_cluster.cli.recipes_to_serve import recipe_to_serve, size_on
    from spark_cluster.config.launch import options_text
    from spark_cluster.engine.resolve import must_have_nodes, resolve

    name = name or opened.inventory.serve.recipe
    if name is None:
        raise UsageError(
            "no recipe is given",
            hint="give --recipe NAME, or `serve: {recipe: NAME}` in the inventory",
        )
    recipe = recipe_to_serve(opened, name, changes, allow)
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
