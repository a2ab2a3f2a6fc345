"""An SFTP server that lies or hangs, as `Subsystem sftp` of a node's sshd.

    python3 sftp.py ATTACK

It speaks version 3 (draft-ietf-secsh-filexfer-02) with lies, and needs the standard library only.
"""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Iterable

VERSION, STATUS, HANDLE, DATA, NAME, ATTRS = 2, 101, 102, 103, 104, 105
INIT, OPEN, READ, LSTAT, OPENDIR, READDIR = 1, 3, 5, 7, 11, 12
FILE, LINK, FIFO, FOLDER = 0o100644, 0o120777, 0o010644, 0o040755

NAMES = (
    b"../evil", b"/etc/evil", b"a/b", b"", b".", b"..", b"x" * 256, b"\x1b[2Jx", b"a\nb", b"a\0b",
)  # fmt: skip


def text(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def names(entries: Iterable[tuple[bytes, int, int]]) -> bytes:
    """Return a listing: name, mode, size."""
    rows = [
        text(name) + text(name) + struct.pack(">IQI", 0x5, size, mode)
        for name, mode, size in entries
    ]
    return struct.pack(">I", len(rows)) + b"".join(rows)


LISTINGS = {
    "names": names((name, FILE, 3) for name in NAMES),
    "no-text": names([(b"\xff\xfe", FILE, 3)]),
    "kinds": names([(b"link", LINK, 3), (b"pipe", FIFO, 3), (b"good", FILE, 3)]),
    "endless": names((b"f%d" % n, FILE, 1) for n in range(1000)),
    "huge": names([(b"huge", FILE, 1 << 60)]),
    "cut": struct.pack(">I", 9) + text(b"cut"),
}


def say(kind: int, number: bytes, body: bytes = b"") -> None:
    sys.stdout.buffer.write(text(bytes([kind]) + number + body))
    sys.stdout.buffer.flush()


def status(number: bytes, code: int) -> None:
    say(STATUS, number, struct.pack(">I", code) + text(b"") + text(b""))


def main(attack: str) -> None:
    listed = 0
    while head := sys.stdin.buffer.read(4):
        request = sys.stdin.buffer.read(struct.unpack(">I", head)[0])
        kind, number = request[0], request[1:5]
        if attack == "nonsense":
            sys.stdout.buffer.write(b"\x00\x00\x00\x09" + b"nonsense." * 1000)
            sys.stdout.buffer.flush()
        elif kind == INIT:
            say(VERSION, struct.pack(">I", 3))
        elif kind == LSTAT:
            say(ATTRS, number, struct.pack(">II", 0x4, FOLDER))
        elif kind in (OPEN, OPENDIR):
            say(HANDLE, number, text(b"h"))
        elif kind == READDIR and (not listed or attack == "endless"):
            listed += 1
            say(NAME, number, LISTINGS.get(attack, LISTINGS["kinds"]))
        elif kind == READ and attack == "hangs":
            time.sleep(600)
        elif kind == READ and attack == "ends":
            return
        elif kind == READ:
            say(DATA, number, text(b"x" * 100_000))
        else:
            status(number, 1 if kind in (READ, READDIR) else 0)


if __name__ == "__main__":
    main(sys.argv[1])
