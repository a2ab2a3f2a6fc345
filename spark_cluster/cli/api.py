"""Clusters as programs use them: `from spark_cluster import Cluster`."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from weakref import WeakSet

from spark_cluster.cli.recap import NodeError
from spark_cluster.cli.serving import Serving
from spark_cluster.config.extension import NOTHING, Allowances, where_raised
from spark_cluster.errors import Failed, SparkClusterError, UsageError
from spark_cluster.runner.events import Options

if TYPE_CHECKING:
    from fabric import ThreadingGroup

    from spark_cluster.cli.bench_measure import BenchResult
    from spark_cluster.cli.event_stream import EventStream
    from spark_cluster.cli.results import (
        FactsResult,
        PingResult,
        PlaybookResult,
        ProvisionResult,
        Reached,
        VramResult,
    )
    from spark_cluster.cli.run import Run
    from spark_cluster.config.inventory import InventoryNode
    from spark_cluster.config.topology import Playbook
    from spark_cluster.runner.play import Play

P = ParamSpec("P")
T = TypeVar("T")


class Cluster(Serving):
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
        from spark_cluster.cli.event_stream import EventStream

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

    def vram(self) -> VramResult:
        """Return the processes that hold GPU memory on each node, and its MemAvailable, in MiB.

        Raises:
            SparkClusterError: a node is not reached, or its nvidia-smi does not answer.
        """
        with self.dialer.sessions(self.nodes, "vram") as sessions:
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
        from spark_cluster.cli.first_login import with_keys
        from spark_cluster.config.secret import SecretReference

        password = SecretReference(prompt=True) if ask_password else None
        if password_env is not None:
            password = SecretReference(env=password_env)
        nodes, keys = with_keys(self.nodes, password)
        with self.play("provision", nodes, options) as run:
            playbook = self.project.load_playbook("provision")  # while connections are being made
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
            play = run.open(fail_fast=False)
            result = _run(loaded, play)
            run.finish(str(next(iter(play.out.values()), "")))
        nodes = {
            name: PlayedNode(t.ok, t.change, t.unknown, t.failed, t.skipped)
            for name, t in run.recap.nodes.items()
        }
        return PlaybookResult(run.summary(ok=not play.out), result, nodes, dict(play.out))


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
    from spark_cluster.cli.results import MeasuredBandwidth, ProvisionedNode, ProvisionResult

    nodes = {}
    for name, tally in run.recap.nodes.items():
        error = failed.get(name)
        nodes[name] = ProvisionedNode(
            *(tally.ok, tally.change, tally.unknown, tally.failed, tally.skipped),
            unreachable=tally.unreachable,
            error=None if error is None else NodeError.of(error),
            notes=done.notes.get(name, []),
            firmware=done.firmware.get(name),
        )
    measured = tuple(MeasuredBandwidth(str(b.hop), b.gbits, b.verdict) for b in done.bandwidth)
    return ProvisionResult(run.summary(ok=not failed), nodes, measured, failed)
