"""Starts agents and workers as forks of one process, which has imported the standard library: a
third of what a new interpreter costs for each.

All else is as in a process of its own: the command line's code reads the bootstrap from its input,
which finds or asks for the agent's code and imports it from the node's folder. What a process has
imported is frozen: its end would go through all of it, and copy it.
"""

import atexit
import functools
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from waiting import HANG_S

from spark_cluster.node import own_program

ISOLATED = ("-I", "-S", "-u", "-c")
"""Options of the interpreter that the process here has, and that the agent's command line names."""

SERVER = """\
import gc, os, signal, socket, sys
import json
import bisect, contextlib, copy, dataclasses, difflib, fcntl, fnmatch, functools, glob, grp, hashlib
import http.client, importlib, io, ipaddress, itertools, pathlib, pwd, queue, re, select, selectors
import shlex, shutil, stat, struct, subprocess, tempfile, textwrap, threading, time, traceback
import runpy, secrets, typing, urllib.parse, urllib.request, zipfile
channel = socket.socket(fileno=int(sys.argv[1]))
ended, tell = os.pipe()
os.set_blocking(ended, False)
os.set_blocking(tell, False)
signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
signal.signal(signal.SIGCHLD, lambda *_: None)

def tell_the_ended():
    with contextlib.suppress(BlockingIOError):
        os.read(ended, 4096)
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        channel.send(json.dumps([pid, os.waitstatus_to_exitcode(status)]).encode())

for name in sys.argv[2:]:
    importlib.import_module(name)
gc.collect()
gc.freeze()
while True:
    ready, _, _ = select.select([channel, ended], [], [])
    if ended in ready:
        tell_the_ended()
    if channel not in ready:
        continue
    data, files, _, _ = socket.recv_fds(channel, 1 << 20, 3)
    if not data:
        os._exit(0)
    pid = os.fork()
    if pid == 0:
        break
    channel.send(json.dumps([pid]).encode())
    for file in files:
        os.close(file)
channel.close()
signal.set_wakeup_fd(-1)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
os.close(ended)
os.close(tell)
for number, file in enumerate(files):
    os.dup2(file, number)
    os.close(file)
request = json.loads(data)
os.environ.clear()
os.environ.update(request["environment"])
os.chdir(request["folder"])
sys.argv = ["-c", *request["words"]]
code = request["code"]
for name in [name for name in globals() if not name.startswith("__") and name != "code"]:
    del globals()[name]
exec(code)
"""
"""Its messages: [pid] for each request, [pid, status] for each process that has ended."""


class Forked:
    """A started process, as far as the tests need one; see `subprocess.Popen`."""

    def __init__(self, pid: int, end: Future[int], pipes: Sequence[int]) -> None:
        self.pid = pid
        self.stdin: BinaryIO = os.fdopen(pipes[0], "wb")
        self.stdout: BinaryIO = os.fdopen(pipes[1], "rb")
        self.stderr: BinaryIO | None = os.fdopen(pipes[2], "rb") if pipes[2:] else None
        self._end = end

    @property
    def returncode(self) -> int | None:
        return self._end.result() if self._end.done() else None

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, also in several threads.

        Raises:
            subprocess.TimeoutExpired: it goes on after `timeout` seconds.
        """
        try:
            return self._end.result(timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired(["agent"], timeout or 0.0) from None

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Return what it prints to its end, and wait for that."""
        deadline = time.monotonic() + timeout
        said = ["", ""]

        def read(index: int, pipe: BinaryIO) -> None:
            with pipe:
                said[index] = pipe.read().decode()

        pipes = [pipe for pipe in (self.stdout, self.stderr) if pipe is not None]
        readers = [threading.Thread(target=read, args=found) for found in enumerate(pipes)]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(max(0.0, deadline - time.monotonic()))
        self.stdin.close()
        return said[0], said[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that is forked; it ends with this one.

    Args:
        options: of its interpreter, the last one `-c`.
        modules: what it imports besides.
        environment: while it imports; this process' own if None.
    """

    def __init__(
        self,
        options: Sequence[str] = ISOLATED,
        modules: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, *options, SERVER, str(other.fileno()), *modules]
        self._process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, pass_fds=[other.fileno()], env=environment
        )
        other.close()
        atexit.register(self._process.kill)
        self._one_at_a_time = threading.Lock()
        self._started: queue.Queue[tuple[int, Future[int]]] = queue.Queue()
        self._ends: dict[int, Future[int]] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, code: str, words: Sequence[str] = (), *, stderr: str = "pipe") -> Forked:
        """Run code with these words behind it, with this process' environment and folder.

        Args:
            stderr: where its standard error goes: `pipe`, `stdout`, or `ours`.
        """
        request = {
            "code": code, "words": list(words), "environment": dict(os.environ),
            "folder": str(Path.cwd()),
        }  # fmt: skip
        inputs, *outputs = (os.pipe() for _ in range(3 if stderr == "pipe" else 2))
        theirs = [inputs[0], *(pipe[1] for pipe in outputs)]
        if stderr != "pipe":
            theirs.append(os.dup(2 if stderr == "ours" else theirs[1]))
        with self._one_at_a_time:
            socket.send_fds(self._channel, [json.dumps(request).encode()], theirs)
            pid, end = self._started.get(timeout=HANG_S)
        for file in theirs:
            os.close(file)
        return Forked(pid, end, [inputs[1], *(pipe[0] for pipe in outputs)])

    def _listen(self) -> None:
        while data := self._channel.recv(1 << 16):
            pid, *status = json.loads(data)
            if status:
                self._ends.pop(pid).set_result(status[0])
            else:
                self._ends[pid] = Future()
                self._started.put((pid, self._ends[pid]))


@functools.cache
def server() -> ForkServer:
    """The one of this process, started where it is needed first."""
    return ForkServer()


HUB_LIBRARY = (
    "huggingface_hub.constants", "huggingface_hub.file_download", "huggingface_hub.hf_api",
    "huggingface_hub.utils",
)  # fmt: skip
"""What nine tenths of the start of a pull go to."""


@functools.cache
def hub_library_server(home: str) -> ForkServer:
    """The one whose processes have this environment's packages and the hub library, which may ask
    a hub, and whose own files are in the folder `home`."""
    environment = {**os.environ, "HF_HOME": home, "HF_HUB_OFFLINE": "0"}
    return ForkServer(("-u", "-c"), HUB_LIBRARY, environment)


def hub_program(name: str, home: str) -> Forked:
    """Run the `main` of a module that needs the hub library."""
    return hub_library_server(home).start(f"from {name} import main\nmain()\n")


def program(module: str, *words: str, stderr: str = "pipe") -> Forked:
    """Run a program of ours, as `own_program.argv` does."""
    path = f"{own_program.HERE}/{own_program.STARTER}"
    words = (f"{module}:main", *words)
    code = (
        "import runpy, sys\n"
        f"sys.path.insert(0, {path!r})\n"
        f"runpy.run_path({path + '/__main__.py'!r}, run_name='__main__')\n"
    )
    return server().start(code, words, stderr=stderr)
