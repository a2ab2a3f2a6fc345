"""Clusters as programs use them: `from spark_cluster import Cluster`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from weakref import WeakSet

from spark_cluster.cluster.opened import Opened
from spark_cluster.config.allowances import NOTHING, Allowances

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

    from fabric import ThreadingGroup

    from spark_cluster.cluster.bench import BenchResult
    from spark_cluster.cluster.down import DownResult
    from spark_cluster.cluster.event_stream import EventStream
    from spark_cluster.cluster.facts import FactsResult
    from spark_cluster.cluster.ping import PingResult
    from spark_cluster.cluster.playbook import PlaybookResult
    from spark_cluster.cluster.provision import ProvisionResult
    from spark_cluster.cluster.ray import RayUpResult
    from spark_cluster.cluster.up import UpResult
    from spark_cluster.cluster.vram import VramResult
    from spark_cluster.config.recipe_schema import EngineValue
    from spark_cluster.engine.job_client import RayJobs
    from spark_cluster.engine.ray_cluster import RayStatus
    from spark_cluster.engine.status import Status
    from spark_cluster.engine.verify import Verification
    from spark_cluster.runner.options import Options

P = ParamSpec("P")
T = TypeVar("T")


class Cluster(Opened):
    """The nodes of an inventory, and what can be done with them.

    Each method connects to the nodes, does its work, ends the connections, and returns a typed
    result, whose `to_dict()` is what the command of that name prints with `--json`. It prints
    nothing and raises a `SparkClusterError` (`spark_cluster.errors`) for whatever a user or a node
    did; Ctrl-C during a run is raised as `Interrupted`, which says what each node was doing.
    Secrets are read as the inventory says; one that is to be asked for is asked for where standard
    input is a terminal.

    Methods may be called from several threads: each has connections of its own, and on a node the
    lock refuses a second run that changes it. There is one project folder in a process where
    the project has resources, known issues or checks of its own.

    See `Opened` for the arguments. As a context manager it ends at the block's end what still goes
    on in other threads, with its connections.
    """

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
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
        from spark_cluster.cluster.event_stream import EventStream

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
        from spark_cluster.cluster.ping import ping

        return ping(self)

    def facts(self) -> FactsResult:
        """Return the facts of each node: system, memory, GPU, links, Docker.

        Raises:
            SparkClusterError: that of the first node that does not answer.
        """
        from spark_cluster.cluster.facts import facts

        return facts(self)

    def vram(self) -> VramResult:
        """Return the processes that hold GPU memory on each node, and its MemAvailable, in MiB.

        Raises:
            SparkClusterError: a node is not reached, or its nvidia-smi does not answer.
        """
        from spark_cluster.cluster.vram import vram

        return vram(self)

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
        from spark_cluster.cluster.provision import provision
        from spark_cluster.config.secret import Secret

        password = Secret(prompt=True) if ask_password else None
        if password_env is not None:
            password = Secret(env=password_env)
        return provision(
            self,
            allow_reboot=allow_reboot,
            allow_restart=allow_restart,
            firmware=firmware,
            bandwidth=bandwidth,
            login_password=password,
            options=_options(options),
        )

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
        from spark_cluster.cluster.overrides import texts
        from spark_cluster.cluster.up import up

        return up(
            self,
            recipe,
            tp=tp,
            replicas=replicas,
            force=force,
            offline=offline,
            end_jobs=end_jobs,
            changes=texts(overrides),
            allow=allow,
            options=_options(options),
        )

    def status(self) -> Status:
        """Return what serves and what is wrong, after a real completion; nothing is changed.

        A server that has failed is a `state` of the result, not an error.

        Raises:
            UsageError: the head is not selected.
            Unreachable: no node is reached.
        """
        from spark_cluster.cluster.status import status

        return status(self)

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
        from spark_cluster.cluster.verify import verify

        return verify(self, only=only, skip=skip, timeout_s=timeout_s, context=context, model=model)

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
        from spark_cluster.cluster.bench import bench

        return bench(
            self,
            suite,
            recipes,
            out=None if out is None else Path(out),
            keep=keep,
            stop_at_first_failure=stop_at_first_failure,
            allow=allow,
            options=_options(options),
        )

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
        from spark_cluster.cluster.playbook import playbook

        return playbook(self, str(file), options=_options(options))

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
        from spark_cluster.cluster.down import down

        return down(self, unload=unload, end_jobs=end_jobs, options=_options(options))

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
        from spark_cluster.cluster.ray import ray_up

        return ray_up(self, recipe, end_jobs=end_jobs, allow=allow, options=_options(options))

    def ray_status(self) -> RayStatus:
        """Return the nodes, GPUs and running jobs of the Ray cluster, and each node's GPU memory.

        Raises:
            SparkClusterError: a node is not reached.
        """
        from spark_cluster.cluster.ray import ray_status

        return ray_status(self)

    def ray_jobs(self) -> AbstractContextManager[RayJobs]:
        """Return the jobs of the Ray cluster, reached by a tunnel during a `with` block.

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
        from spark_cluster.cluster.ray import open_jobs

        return open_jobs(self, "ray jobs")

    def ray_down(self, *, options: Options | None = None) -> DownResult:
        """End a Ray cluster without a model, with its jobs; see `down`.

        Args:
            options: check mode.

        Raises:
            Refused: a server is up; `down` ends both.
            VerificationFailed: a process still holds GPU memory.
            SparkClusterError: a node is not reached.
        """
        from spark_cluster.cluster.ray import ray_down

        return ray_down(self, options=_options(options))


def _options(given: Options | None) -> Options:
    if given is not None:
        return given
    from spark_cluster.runner.options import Options

    return Options()
