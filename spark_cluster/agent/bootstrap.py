"""The few lines that start an agent on a bare node; the laptop sends their text.

All of it is in the first flight from the laptop, so that a node that knows the code costs no turn
(see runner/payload.py): this text, then a JSON frame (`sha256` of the files, `folder`, `root`),
then the first request. A node that lacks the code, or has it damaged (a power cut can leave empty
files), answers `need_code` and gets a zip, which no request (JSON) can be taken for. The code is
kept in a folder that only its user may write, by the digest of its files, and is checked against it
at each start. What Python compiles is kept for one boot only: it is not synced. It must run, or say
why not, on any Python 3.
"""

import gc
import hashlib
import json
import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO


def digest_of(folder: str) -> str:
    """Names and contents of all code below a folder in one digest; nothing when unreadable."""
    total, found = hashlib.sha256(), []
    for package in ("spark_cluster", "spark_cluster_project"):  # ours, and the user's resources
        for at, _, names in os.walk(os.path.join(folder, package)):
            found += [os.path.join(at, name) for name in names]
    try:
        for path in sorted(found):
            with open(path, "rb") as file:
                data = file.read()
            total.update(("%s %d\n" % (path[len(folder) + 1 :], len(data))).encode() + data)
    except OSError:
        return ""
    return total.hexdigest()


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
        forget_others(folder)
    finally:
        shutil.rmtree(staged + ".damaged", ignore_errors=True)
        shutil.rmtree(staged, ignore_errors=True)


def sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def forget_others(folder: str) -> None:
    """Remove older versions but the last one, and what was left of an agent that was killed."""
    import re
    import shutil

    parent, versions = os.path.dirname(folder), []
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        found = re.match(r"[0-9a-f]{64}(?:\.([0-9]+)(?:\.damaged)?)?$", name)
        if found and found.group(1):
            if not os.path.exists("/proc/" + found.group(1)):
                shutil.rmtree(path, ignore_errors=True)
        elif found and path != folder:
            versions.append((os.stat(path).st_mtime, path))
    for _, path in sorted(versions)[:-1]:
        shutil.rmtree(path, ignore_errors=True)


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
    if digest_of(folder) != head["sha256"]:
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
    sys.pycache_prefix = compiled(folder)
    sys.path.insert(0, folder)
    from spark_cluster.agent.main import main

    main(stream, [json.loads(request) for request in held], head["root"])
