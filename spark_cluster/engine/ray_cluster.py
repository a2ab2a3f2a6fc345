"""A Ray cluster without a model: where it may start, its preparation, its state, its jobs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import shlex
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from spark_cluster.config.ports import LOOPBACK
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.schema import Document
from spark_cluster.config.topology import Node
from spark_cluster.engine import readiness, vram
from spark_cluster.engine.deployment import Deployment, Server
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.ray import (
    LARGEST_FOLDER,
    MEASURING,
    SILENT,
    SILENT_HINT,
    TOKEN_FILE,
    Job,
    RayState,
    dashboard_port,
    job_of,
    must_be_an_id,
    newest_first,
    question,
)
from spark_cluster.engine.runtime import present_servers
from spark_cluster.engine.start import prepare_nodes, ray_would_restart
from spark_cluster.errors import Failed, Refused, SparkClusterError, Unreachable, UsageError
from spark_cluster.node.containers import RECIPE
from spark_cluster.node.replies import short
from spark_cluster.node.values import looks
from spark_cluster.runner.parallel import start
from spark_cluster.runner.play import Play

# Jobs on a head's Ray, over Ray's own `JobSubmissionClient` (source: ray-docs-jobs).
#
# The head's dashboard listens on its loopback only, so the client reaches it at the end of a
# tunnel; Ray's token is sent over it and is kept in this process's memory only. The head is not
# believed: each request has a limit in time and size, and follows no redirection.

T = TypeVar("T")

ANSWER_S = 30.0
"""Seconds for an answer."""

SUBMIT_S = 600.0
"""Seconds for taking a job: its folder is sent first, and Ray starts its supervisor."""

SILENT_S = 30.0
"""Seconds without a line of a job after which Ray is asked whether it still goes on."""

LARGEST = 64 << 20
"""Bytes of an answer; a job's whole log is one."""

TOKEN = re.compile(r"[0-9A-Za-z_.~+/=-]{16,512}")

OF_RAY = ("Running entrypoint for job", "Runtime env is setting up")
"""Words of the lines that Ray itself writes into a job's log, one of them with the command."""
NOT_FOUND = "Request failed with status code 404: "
"""How Ray's client begins its answer about a job that does not exist, before the words for it."""

_ENVIRONMENT = threading.Lock()
ELSEWHERE = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
"""Variables that would lead Ray's client to another cluster than the one that it is given."""


@contextlib.contextmanager
def ray_jobs(play: Play, port: int) -> Iterator[RayJobs]:
    """Return the jobs of the head's Ray, reached by a tunnel during the block.

    Args:
        port: of Ray's dashboard on the head.

    Raises:
        Failed: there is no Ray, or it does not answer.
        Unreachable: there is no tunnel to the head.
    """
    token, name = token_of(play, port), play.head.name
    at = play.connections
    with at.dialer.forward(at.nodes[name], port) as local:
        yield RayJobs(f"http://{LOOPBACK}:{local}", token, name)


def token_of(play: Play, port: int) -> str:
    """Return the token of the head's Ray.

    Args:
        port: of its dashboard, which the head asks first: another user may listen there.

    Raises:
        Failed: there is none, the file holds something else, or Ray does not answer.
    """
    told = play.session(play.head).request(
        "gather", files={"token": TOKEN_FILE}, requests={"ray": question(port)}
    )
    token = (told["files"]["token"] or "").strip()
    ray = told["requests"].get("ray", {"status": 0, "reason": "it hangs"})
    if not TOKEN.fullmatch(token):
        what = f"{TOKEN_FILE} {'is not a token' if token else 'does not exist'}"
        why = f"{what}: no Ray cluster was started there"
        raise Failed(why, where=play.head.name, hint="spark-cluster ray up")
    if not ray["status"]:
        raise Failed(f"{SILENT}: {ray['reason']}", where=play.head.name, hint=SILENT_HINT)
    return token


class RayJobs:
    """Requests to one head's Jobs API.

    Args:
        url: of its dashboard, as this machine reaches it.
        token: of the cluster.
        where: name of the head, for errors.

    Raises:
        Failed: it does not answer as Ray does.
    """

    def __init__(self, url: str, token: str, where: str) -> None:
        self._where = where
        self._client = self._asked(lambda: _client(url, token), SILENT, hint=SILENT_HINT)

    def submit(
        self,
        command: Sequence[str],
        *,
        name: str | None = None,
        working_dir: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Have a command run on the head, and return the job's id.

        Args:
            command: the program and its arguments.
            name: the job's id, which must be new; by default Ray makes one.
            working_dir: a folder of this machine, which Ray unpacks wherever the job runs.
            env: variables of the job. Ray shows them to everyone who has its token.

        Raises:
            Failed: Ray does not take it.
        """
        runtime_env: dict[str, Any] = {}
        if working_dir is not None:
            runtime_env["working_dir"] = str(working_dir)
        if env:
            runtime_env["env_vars"] = dict(env)
        return self._asked(
            lambda: str(
                self._client.submit_job(
                    entrypoint=shlex.join(command), submission_id=name, runtime_env=runtime_env
                )
            ),
            "Ray did not take the job",
            SUBMIT_S,
        )

    def list(self) -> list[Job]:
        """Return the jobs that were submitted, the newest first."""
        rows = self._asked(self._client.list_jobs, "Ray did not list its jobs")
        return newest_first(job for row in rows if (job := _of_details(row)) is not None)

    def job(self, name: str) -> Job:
        """Return a job as it stands.

        Raises:
            UsageError: there is none of that name.
            Failed: Ray does not answer.
        """
        must_be_an_id(name)
        found = _of_details(
            self._asked(lambda: self._client.get_job_info(name), f"Ray did not show job {name}")
        )
        if found is None:
            raise UsageError(f"{name} was not submitted as a job", hint="spark-cluster ray list")
        return found

    def log(self, name: str) -> str:
        """Return all that a job has printed so far."""
        must_be_an_id(name)
        log = self._asked(lambda: self._client.get_job_logs(name), f"Ray has no log of {name}")
        return str(log)

    def stop(self, name: str) -> bool:
        """Have a job end; return False where it had ended."""
        must_be_an_id(name)
        what = f"Ray did not stop job {name}"
        return bool(self._asked(lambda: self._client.stop_job(name), what))

    def follow(self, name: str, limit_s: float | None = None) -> Generator[str]:
        """Return what a job prints, from its beginning to its end.

        Args:
            limit_s: seconds; None for no limit but the job's own end.

        Raises:
            TimeoutError: the limit is over.
            Unreachable: the log was cut while the job went on.
            Failed: Ray does not answer any more.
        """
        self.job(name)
        until = math.inf if limit_s is None else time.monotonic() + limit_s
        why = ""
        log, coming = self._client.tail_job_logs(name), None
        with asyncio.Runner() as runner:
            while True:
                coming = coming or runner.get_loop().create_task(_next(log))
                wait_s = min(SILENT_S, until - time.monotonic())
                if wait_s <= 0:
                    raise TimeoutError
                if not runner.run(asyncio.wait({coming}, timeout=wait_s))[0]:
                    self.job(name)  # raises where there is no Ray any more
                    continue
                try:
                    chunk = coming.result()
                except Exception as error:  # noqa: BLE001  (what a head can make Ray's client raise)
                    why = f": {short(str(error))}"
                    break
                if chunk is None:
                    break
                coming = None
                yield chunk
        if not self.job(name).has_ended:
            raise Unreachable(
                f"the log was cut while the job goes on{why}",
                where=self._where,
                hint=f"spark-cluster ray logs -f {name}",
            )

    def wait(self, name: str, limit_s: float, on_line: Callable[[str], None]) -> str:
        """Wait for a job's end, and return all that it has printed.

        Args:
            limit_s: seconds after which it is stopped.
            on_line: is given the last line that it has printed, as often as there is a new one.

        Raises:
            Failed: it failed or was stopped, took too long, or Ray does not answer any more.
        """
        log = ""
        try:
            with contextlib.closing(self.follow(name, limit_s)) as chunks:
                for chunk in chunks:
                    log = (log + chunk)[-LARGEST:]
                    if line := last_line(chunk):
                        on_line(line)
        except TimeoutError:
            self.stop(name)
            raise Failed(
                f"the job on Ray: no end after {limit_s:g} s; it last printed: {last_line(log)}",
                where=self._where,
            ) from None
        job = self.job(name)
        if job.status != "SUCCEEDED":
            why = last_line(log) or job.why
            raise Failed(f"the job on Ray {job.status.lower()}: {why}", where=self._where)
        return log

    def _asked(
        self,
        question: Callable[[], T],
        what: str,
        limit_s: float | None = None,
        hint: str = "spark-cluster ray list shows the jobs",
    ) -> T:
        """Return Ray's answer to a question.

        Raises:
            Failed: there is none in time, or one that Ray does not give; with `what`.
        """
        answer, limit_s = start(question), limit_s or ANSWER_S
        try:
            found = answer.result(limit_s)
        except TimeoutError:
            why = f"nothing came within {limit_s:g} s"
        except Exception as error:  # noqa: BLE001  (what a head can make Ray's client raise)
            why = last_line(str(error).rstrip(". \n")) or type(error).__name__
        else:
            if not isinstance(found, SparkClusterError):
                return found
            why = found.message
        raise Failed(f"{what}: {why}", where=self._where, hint=hint)


def last_line(text: str) -> str:
    """Return the last line with anything in it, cut to a line's length."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not any(words in line for words in OF_RAY)]
    return lines[-1].removeprefix(NOT_FOUND)[:200] if lines else ""


async def _next(log: AsyncIterator[str]) -> str | None:
    """Return the next part of a log; None at its end."""
    return await anext(log, None)


def _of_details(details: Any) -> Job | None:
    """Read what Ray's client made of an answer: a model, whose state is an enumeration."""
    row = dict(vars(details))
    return job_of({**row, "status": str(row.get("status"))})


def _client(url: str, token: str) -> Any:
    """Return Ray's client for a dashboard; it goes there only, and to no proxy."""
    client = _bounded_client()
    with _ENVIRONMENT:
        hidden = {name: os.environ.pop(name) for name in ELSEWHERE if name in os.environ}
        try:
            return client(url, headers={"Authorization": f"Bearer {token}"})
        finally:
            os.environ.update(hidden)


@cache
def _bounded_client() -> Any:
    """Import Ray's client and return its class, with limits."""
    is_ours = "ray" not in sys.modules
    import requests
    from ray.job_submission import JobSubmissionClient

    if is_ours:  # its progress is not ours to print
        for handler in logging.getLogger("ray").handlers:
            handler.setLevel(logging.ERROR)

    class BoundedJobClient(JobSubmissionClient):  # type: ignore[misc]  # without strict types
        """Ray's own, with limits."""

        def _do_request(
            self, method: str, endpoint: str, *, data: Any = None, json_data: Any = None, **_: Any
        ) -> requests.Response:
            if len(data or b"") > LARGEST_FOLDER:
                raise ValueError(
                    f"the working folder is {len(data) >> 20} MiB packed, and Ray takes at most "
                    f"{LARGEST_FOLDER >> 20}: list what is not needed in .gitignore"
                )
            with requests.Session() as session:
                session.trust_env = False  # neither a proxy nor ~/.netrc is for this
                answer = session.request(
                    method,
                    self._address + endpoint,
                    data=data,
                    json=json_data,
                    headers=self._headers,
                    timeout=ANSWER_S if data is None else SUBMIT_S,
                    allow_redirects=False,
                    stream=True,
                )
                answer._content = _bounded(answer.iter_content(1 << 16))
            if answer.status_code in (401, 403):
                raise PermissionError(f"it refuses the token (status {answer.status_code})")
            return answer

    return BoundedJobClient


def _bounded(pieces: Iterator[bytes]) -> bytes:
    """Return a body.

    Raises:
        ValueError: it is larger than any that Ray sends.
    """
    found = bytearray()
    for piece in pieces:
        found += piece
        if len(found) > LARGEST:
            raise ValueError(f"an answer of more than {LARGEST >> 20} MiB")
    return bytes(found)


ENDS_WITHIN_S = 60.0
"""Seconds that jobs have to end after they were stopped: Ray kills them after a few."""

POLL_S = 0.5


@dataclass(frozen=True)
class RayMember(Document):
    """A node of a Ray cluster.

    Attributes:
        name: in the inventory.
        address: for Ray, on the fabric; empty without a link.
        alive: whether Ray counts on it.
        gpus: as Ray knows them.
        vram: the processes that hold its GPU memory, by compute-apps.
    """

    name: str
    address: str
    alive: bool
    gpus: float
    vram: vram.NodeVram


@dataclass(frozen=True)
class RayStatus(Document):
    """A Ray cluster.

    Attributes:
        state: `stopped` (there is none), `running` (all nodes are alive), `degraded` (some are) or
            `failed` (it should run and does not answer).
        nodes: the selected nodes, the head first.
        jobs: those that go on.
        recipe: whose image it runs in; empty when it is stopped.
        version: Ray's own; empty when it does not answer.
        model: whether a server of a model runs on it.
    """

    state: str
    nodes: tuple[RayMember, ...]
    jobs: tuple[Job, ...] = ()
    recipe: str = ""
    version: str = ""
    model: bool = False


def must_suit(recipe: Recipe, nodes: int, command: str) -> None:
    """Look whether Ray can join this number of nodes in the image of a recipe.

    Args:
        command: that wants it, for the message.

    Raises:
        Refused: there is one node only, or the recipe has no Ray.
    """
    if nodes < 2:
        raise Refused(
            f"{command} works between nodes, and one node is chosen",
            hint="widen --limit, or add the other Spark to the inventory",
        )
    if recipe.executor != "ray":
        raise Refused(
            f"recipe {recipe.name} joins the nodes without Ray (executor: {recipe.executor}), and "
            f"{command} needs Ray",
            hint="--recipe NAME with another one, whose image has Ray",
        )


def must_serve_nothing(play: Play, nodes: Sequence[Node], command: str) -> None:
    """Look whether a server is up on the nodes.

    Args:
        command: that needs the nodes, for the hint.

    Raises:
        Refused: one is.
    """
    several = present_servers(play)
    for node in nodes:
        for name in (SERVER, *several.get(node.name, ())):
            state = readiness.container_state(play, name, node.name)
            if not state.holds_nothing:
                raise Refused(
                    f"{state.labels.get(RECIPE, 'a server')} is up: it holds the GPU's memory",
                    where=node.name,
                    hint="`spark-cluster down` ends both"
                    if command == "ray down"
                    else f"spark-cluster down, then spark-cluster {command}",
                )


def running_port(play: Play) -> int:
    """Return the port of the dashboard of the head's Ray.

    Raises:
        Failed: no Ray runs there.
    """
    state = readiness.container_state(play, RAY)
    if not state.running:
        raise Failed("no Ray cluster is running", where=play.head.name, hint="spark-cluster ray up")
    return dashboard_port(state)


def running_jobs(play: Play) -> list[Job]:
    """Return the jobs of users that go on; none where Ray does not run or does not answer.

    A measurement that a killed `bench fabric` left is not a user's.
    """
    state = readiness.container_state(play, RAY)
    if not state.running or MEASURING in state.labels:
        return []
    found = RayState(play.session(play.head), dashboard_port(state)).jobs()
    return [job for job in found if not job.has_ended]


def must_have_no_jobs(play: Play, jobs: Sequence[Job], *, end_jobs: bool | None) -> None:
    """Refuse to go on while jobs are running on Ray, whose memory or Ray itself is needed.

    Every command that ends or replaces the engine asks this: `up`, `swap`, `down`, `bench`.

    Args:
        jobs: those that are running.
        end_jobs: end them; None where the command has no flag for it.

    Raises:
        Refused: jobs are running, and are not to be ended.
        Failed: one of them does not end.
    """
    if jobs and not end_jobs:
        raise _refused(play, jobs, with_flag=end_jobs is not None)
    if jobs and play.check:
        play.note(f"would end {_named(jobs)}")
    elif jobs:
        _end(play, jobs)


def must_keep_its_jobs(
    play: Play,
    jobs: Sequence[Job],
    server: Server,
    labels: Mapping[str, str] | None = None,
    *,
    end_jobs: bool | None,
) -> None:
    """Refuse to restart Ray for a server while jobs are running on it.

    Args:
        jobs: those that are running.
        labels: more labels of a Ray without a model; None for the Ray under the server.
        end_jobs: restart it all the same; None where the command has no flag for it.

    Raises:
        Refused: jobs are running, and are not to be ended.
    """
    if not jobs or not ray_would_restart(play, server, labels):
        return
    if not end_jobs:
        raise _refused(play, jobs, with_flag=end_jobs is not None)
    play.note(f"Ray is restarted, which ends {_named(jobs)}", warning=True)


def _refused(play: Play, jobs: Sequence[Job], *, with_flag: bool) -> Refused:
    one = jobs[0].id
    flag = "; --end-jobs goes on and ends them" if with_flag else ""
    return Refused(
        f"{_named(jobs)} {'is' if len(jobs) == 1 else 'are'} running on Ray",
        where=play.head.name,
        hint=f"spark-cluster ray logs -f {one} waits for its end, spark-cluster ray stop {one} "
        f"ends it{flag}",
    )


def _named(jobs: Sequence[Job]) -> str:
    names = ", ".join(job.id for job in jobs[:3])
    more = f" and {len(jobs) - 3} more" if len(jobs) > 3 else ""
    return f"{'job' if len(jobs) == 1 else 'jobs'} {names}{more}"


def _end(play: Play, jobs: Sequence[Job]) -> None:
    with ray_jobs(play, running_port(play)) as client:
        for job in jobs:
            client.stop(job.id)
        every_look = looks(ENDS_WITHIN_S, POLL_S)
        if not any(all(client.job(job.id).has_ended for job in jobs) for _ in every_look):
            raise Failed(
                f"{_named(jobs)} did not end within {ENDS_WITHIN_S:g} s",
                where=play.head.name,
                hint="spark-cluster ray down ends Ray with its jobs",
            )
    play.note(f"ended {_named(jobs)}", warning=True)


def prepare_ray(play: Play, deployment: Deployment) -> Server:
    """Prepare link, firewall, Docker, caches and image, as `up` does it, without a model.

    Returns:
        The server in whose place Ray starts, labelled with whether there is a firewall.
    """
    with play.stage("prepare"):
        server = prepare_nodes(play, deployment).first
    with play.stage("fetch"):
        venv = server.recipe.venv
        image = (
            play.role("venv", **venv.model_dump())
            if venv
            else play.role("images", **server.image_settings)
        )
        play.apply(deployment.nodes, image)
    return server


def look(play: Play) -> RayStatus:
    """Return the state of the Ray cluster over the run's nodes."""
    held = {reading.name: reading for reading in vram.sample(play.sessions)}
    nodes = sorted(play.nodes, key=lambda node: not node.is_head)
    state = readiness.container_state(play, RAY)
    ray = RayState(play.session(play.head), dashboard_port(state))
    known = {node.address: node.gpus for node in ray.nodes()} if state.running else {}
    members = tuple(
        RayMember(
            node.name,
            node.fabric_ip or "",
            node.fabric_ip in known,
            known.get(node.fabric_ip or "", 0.0),
            held[node.name],
        )
        for node in nodes
    )
    if state.status == "absent":
        return RayStatus("stopped", members)
    alive = sum(member.alive for member in members)
    server = readiness.container_state(play, SERVER)
    return RayStatus(
        "running" if alive == len(members) else "degraded" if alive else "failed",
        members,
        tuple(job for job in ray.jobs() if not job.has_ended) if known else (),
        state.labels.get(RECIPE, ""),
        ray.version() if known else "",
        model=server.running,
    )
