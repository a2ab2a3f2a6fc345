"""A server that speaks Ray's Jobs API and runs the jobs on this machine, as Ray's dashboard does.

`ray start` takes some 10 s, hundreds of MB and the packages of `ray[default]`; the lab's tests have
it. What is answered here has the form that Ray 2.52 to 2.60 gives.
"""

import asyncio
import contextlib
import io
import os
import signal
import subprocess
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from free_ports import BESIDE_RAY, free_port
from waiting import HANG_S

TOKEN = "5eed" * 16


class RayServer:
    """Ray's dashboard.

    Attributes:
        port: that it listens on.
        jobs: by id, as `GET /api/jobs/ID` gives them.
        requests: each request's method, path and Authorization.
        replies: path to a status and a body that is answered instead; by a hostile head.
        hangs: a path that is never answered.
        cuts: the log's stream ends after its first part, as when a tunnel is cut.
        runs: a command that each job is in place of its own.
        when_asked: is called for each request, before its answer.
    """

    def __init__(self, folder: Path, *, token: str = TOKEN) -> None:
        self.folder, self.token = folder, token
        self.jobs: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str, str]] = []
        self.replies: dict[str, tuple[int, Any]] = {}
        self.hangs = ""
        self.cuts = False
        self.runs = ""
        self.when_asked: Callable[[], object] = lambda: None
        self.packages: dict[str, bytes] = {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        assert self._ready.wait(HANG_S)

    def close(self) -> None:
        for process in self.running.values():
            _kill(process)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(HANG_S)

    def has_nodes(self, *addresses: str) -> None:
        """Show these nodes, the head first, each alive and with a GPU."""
        usual = {"state": "ALIVE", "resources_total": {"GPU": 1.0}}
        rows = [
            {**usual, "node_ip": address, "is_head_node": not number}
            for number, address in enumerate(addresses)
        ]
        self.replies["/api/v0/nodes"] = 200, {"data": {"result": {"result": rows}}}

    def job(self, name: str, status: str, **more: Any) -> None:
        """Add a job that this server did not run."""
        self.jobs[name] = {
            "type": "SUBMISSION", "submission_id": name, "job_id": None, "status": status,
            "entrypoint": "python3 train.py", "message": "", "start_time": 1764113000000,
            "end_time": None, "driver_exit_code": None, **more,
        }  # fmt: skip

    # -- inside --------------------------------------------------------------------------------

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application(middlewares=[self._guard], client_max_size=1 << 30)
        app.router.add_get("/api/version", self._version)
        app.router.add_route("*", "/api/packages/{protocol}/{name}", self._package)
        app.router.add_post("/api/jobs/", self._submit)
        app.router.add_get("/api/jobs/", self._list)
        app.router.add_get("/api/jobs/{name}", self._job)
        app.router.add_get("/api/jobs/{name}/logs", self._logs)
        app.router.add_get("/api/jobs/{name}/logs/tail", self._tail)
        app.router.add_post("/api/jobs/{name}/stop", self._stop)
        runner = web.AppRunner(app, access_log=None)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", free_port(*BESIDE_RAY))
        self._loop.run_until_complete(site.start())
        self.port: int = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self._ready.set()
        self._loop.run_forever()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        self.requests.append((request.method, request.path, given))
        self.when_asked()
        if request.path == self.hangs:
            await asyncio.sleep(HANG_S)
        if request.path in self.replies:
            status, body = self.replies[request.path]
            headers = {"Location": body} if 300 <= status < 400 else {}
            if isinstance(body, bytes | str):
                return web.Response(status=status, headers=headers, body=body)
            return web.json_response(body, status=status)
        if self.token and given != f"Bearer {self.token}":
            return web.Response(status=403, text="Forbidden: Invalid authentication token")
        return await handler(request)  # type: ignore[no-any-return]

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "4", "ray_version": "2.60.0", "ray_commit": "c"})

    async def _package(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if request.method == "PUT":
            self.packages[name] = await request.read()
        return web.Response(status=200 if name in self.packages else 404)

    async def _submit(self, request: web.Request) -> web.Response:
        asked = await request.json()
        name = asked.get("submission_id") or f"raysubmit_{len(self.jobs)}"
        if name in self.jobs:
            return web.Response(status=500, text=f"ValueError: Job with id {name} exists.\n")
        place = Path(tempfile.mkdtemp(dir=self.folder))
        environment = asked.get("runtime_env") or {}
        if uri := environment.get("working_dir"):
            with zipfile.ZipFile(io.BytesIO(self.packages[uri.rpartition("/")[2]])) as packed:
                packed.extractall(place)
        self.job(name, "RUNNING", entrypoint=asked["entrypoint"], runtime_env=environment)
        self.jobs[name]["start_time"] = int(1000 * time.time())
        with (place / "job.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                ["/bin/sh", "-c", self.runs or asked["entrypoint"]],
                cwd=place,
                env={**os.environ, **environment.get("env_vars", {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.jobs[name]["log"] = str(place / "job.log")
        return web.json_response({"job_id": name, "submission_id": name})

    def _look(self, name: str) -> dict[str, Any] | None:
        job, process = self.jobs.get(name), self.running.get(name)
        if job is None or process is None or job["status"] != "RUNNING":
            return job
        if (code := process.poll()) is not None:
            job["status"] = "SUCCEEDED" if code == 0 else "FAILED"
            job["message"] = "Job finished successfully." if code == 0 else (
                f"Job entrypoint command failed with exit code {code}, last available logs "
                f"(truncated to 20,000 chars):\n{self._log(name)}"
            )  # fmt: skip
            job["driver_exit_code"], job["end_time"] = code, int(1000 * time.time())
        return job

    def _shown(self, name: str) -> dict[str, Any]:
        return {key: value for key, value in (self._look(name) or {}).items() if key != "log"}

    async def _list(self, _: web.Request) -> web.Response:
        driver = {"type": "DRIVER", "job_id": "01000000", "status": "RUNNING", "entrypoint": "vllm"}
        return web.json_response([driver, *(self._shown(name) for name in self.jobs)])

    async def _job(self, request: web.Request) -> web.Response:
        if not (found := self._shown(request.match_info["name"])):
            return web.Response(status=404, text=f"Job {request.match_info['name']} does not exist")
        return web.json_response(found)

    def _log(self, name: str) -> str:
        path = (self.jobs.get(name) or {}).get("log")
        return Path(path).read_text(errors="replace") if path else ""

    async def _logs(self, request: web.Request) -> web.Response:
        return web.json_response({"logs": self._log(request.match_info["name"])})

    async def _tail(self, request: web.Request) -> web.WebSocketResponse:
        name, socket, sent = request.match_info["name"], web.WebSocketResponse(), 0
        await socket.prepare(request)
        while True:
            ended = (self._look(name) or {}).get("status") != "RUNNING"
            log = self._log(name)
            if len(log) > sent:
                await socket.send_str(log[sent:])
                sent = len(log)
                if self.cuts:
                    break
            elif ended:
                break
            await asyncio.sleep(0.01)
        await socket.close()
        return socket

    async def _stop(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.jobs:
            return web.Response(status=404, text=f"Job {name} does not exist")
        went_on = self._shown(name)["status"] == "RUNNING"
        if went_on:
            self.jobs[name] |= {"status": "STOPPED", "message": "Job was intentionally stopped."}
            _kill(self.running.get(name))
        return web.json_response({"stopped": went_on})


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None and process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ray_server(folder: Path, *, token: str = TOKEN) -> contextlib.closing[RayServer]:
    """A server for the block; without a token it does what anyone asks, as older Ray does."""
    return contextlib.closing(RayServer(folder, token=token))
