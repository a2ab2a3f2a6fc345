"""The few lines that start an agent on a bare node; the laptop sends their text.

All of it is in the first flight from the laptop, so that a node that knows the code costs no turn
(see runner/wire.py): this text, then a JSON frame (`sha256` of the files, `folder`, `root`),
then the first request. A node that lacks the code, or has it damaged (a power cut can leave empty
files), answers `need_code` and gets a zip, which no request (JSON) can be taken for. The code is
kept in a folder that only its user may write, by the digest of its files, and is checked against it
at each start. What Python compiles is kept for one boot only: it is not synced. It must run, or say
why not, on any Python 3.
"""

import gc
import hashlib
import importlib
import json
import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import BinaryIO


def digest(files: "Iterable[tuple[str, bytes]]") -> str:
    """Return the SHA-256 (hex) of the paths and contents of files."""
    total = hashlib.sha256()
    for path, data in sorted(files):
        total.update(("%s %d\n" % (path, len(data))).encode() + data)
    return total.hexdigest()


def digest_of(folder: str) -> str:
    """Return the digest of the code in a folder; empty when it is unreadable."""
    files = []
    try:
        for package in ("spark_cluster", "spark_cluster_project"):  # ours, and the user's resources
            for at, _, names in os.walk(os.path.join(folder, package)):
                for path in [os.path.join(at, name) for name in names]:
                    with open(path, "rb") as file:
                        files.append((path[len(folder) + 1 :], file.read()))
    except OSError:
        return ""
    return digest(files)


def keep(code: bytes, folder: str) -> None:
    """Unpack a zip into a folder, synced; an existing damaged one is removed."""
    import io
    import shutil
    import threading
    import zipfile

    staged = "%s.%d" % (folder, os.getpid())
    try:
        os.makedirs(staged, 0o700)
        zipfile.ZipFile(io.BytesIO(code)).extractall(staged)
        threads = []
        for at, _, names in os.walk(staged):
            for path in [at] + [os.path.join(at, name) for name in names]:
                threads.append(threading.Thread(target=sync, args=(path,)))
                threads[-1].start()  # in parallel the disk does several at a time
        for thread in threads:
            thread.join()
        for _ in range(5):
            try:
                os.rename(staged, folder)
            except OSError:
                if digest_of(folder) == os.path.basename(folder):
                    break  # another agent was quicker
                if os.path.isdir(folder):
                    os.rename(folder, staged + ".damaged")
        sync(os.path.dirname(folder))
        if digest_of(folder) != os.path.basename(folder):
            raise OSError(5, "what was written is not what is read back")
    finally:
        shutil.rmtree(staged + ".damaged", ignore_errors=True)
        shutil.rmtree(staged, ignore_errors=True)


def sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def compiled(folder: str) -> str:
    """Return the folder of this boot's compiled Python files; those of other boots are removed."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:
        boot = "unknown"
    path = os.path.join(folder, "compiled", boot)
    if not os.path.isdir(path):
        import shutil

        shutil.rmtree(os.path.dirname(path), ignore_errors=True)
    return path


def hold(folder: str) -> None:
    """Lock a folder of code, if it is there, for as long as this process lives: agents of other
    versions leave it (`forget_others`), for much of it is imported late.
    """
    import contextlib
    import fcntl

    with contextlib.suppress(OSError):  # there is none yet, or a file system without locks
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_SH)


def boot(stream: "BinaryIO") -> None:
    """Read the head, get the code if it is not here, and hand over to the agent."""

    gc.disable()  # importing makes nothing that a collection could free

    def frame() -> "bytes | None":
        head = stream.read(4)
        return stream.read(struct.unpack(">I", head)[0]) if len(head) == 4 else None

    def say(message: "dict[str, str]") -> None:
        data = json.dumps(message).encode()
        os.write(1, struct.pack(">I", len(data)) + data)

    if sys.version_info < (3, 10):
        say({"event": "too_old", "python": sys.version.split()[0]})
        return
    head, first = frame(), frame()
    if head is None or first is None:
        return
    head = json.loads(head)
    held = [first]
    folder = os.path.join(os.path.expanduser(head["folder"]), head["sha256"])
    hold(folder)
    came = digest_of(folder) != head["sha256"]
    if came:
        say({"event": "need_code"})
        code = frame()
        while code is not None and code[:1] == b"{":
            held.append(code)  # a request that was sent together with the first
            code = frame()
        if code is None:
            return
        try:
            keep(code, folder)
        except OSError as error:
            say({"event": "no_room", "error": "%s: %s" % (folder, error.strerror)})
            return
        hold(folder)
    sys.pycache_prefix = compiled(folder)
    sys.path.insert(0, folder)
    agent = importlib.import_module("spark_cluster.agent.main")  # of that folder, not of this text
    requests = [json.loads(request) for request in held]
    agent.main(stream, requests, head["root"], folder if came else "")
