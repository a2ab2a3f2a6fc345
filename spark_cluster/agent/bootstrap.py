"""The few lines that start an agent on a bare node; the laptop sends their text.

All of it is in the first flight from the laptop, so that a node that knows the code costs no turn
(see engine/payload.py): this text, then a JSON frame (`sha256`, `folder`, `root`), then the first
request. A node that lacks the code answers `need_code` and gets a zip. The code is kept in a
folder that only its user may write, by content hash. It must run, or say why not, on any Python 3.
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
    if not os.path.isdir(folder):
        import io
        import shutil
        import zipfile

        say({"event": "need_code"})
        code = frame()
        while code is not None and hashlib.sha256(code).hexdigest() != head["sha256"]:
            held.append(code)  # requests that were sent together with the first
            code = frame()
        if code is None:
            return
        beside = "%s.%d" % (folder, os.getpid())
        try:
            os.makedirs(beside, 0o700)
            zipfile.ZipFile(io.BytesIO(code)).extractall(beside)
            try:
                os.rename(beside, folder)
            except OSError:
                if not os.path.isdir(folder):
                    raise
                shutil.rmtree(beside)
        except OSError as error:
            shutil.rmtree(beside, ignore_errors=True)
            say({"event": "no_room", "error": "%s: %s" % (folder, error.strerror)})
            return
    sys.path.insert(0, folder)
    from spark_cluster.agent.main import main

    main(stream, [json.loads(request) for request in held], head["root"])
