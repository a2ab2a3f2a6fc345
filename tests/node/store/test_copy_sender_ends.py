"""The servers of a copy's sender end with it, however it ends."""

from __future__ import annotations

import subprocess
import sys

from waiting import HANG_S

from spark_cluster.node.store.copy_sending import ending_with_this

GATED = """
import subprocess
from spark_cluster.node.store.copy_sending import ending_with_this
argv = ending_with_this(["echo", "begun"])
subprocess.Popen(["sh", "-c", 'read gate; exec "$@"', "sh", *argv])
"""
"""A process that is gone before its server has begun."""


def test_a_server_begins_while_its_sender_lives() -> None:
    done = subprocess.run(ending_with_this(["echo", "begun"]), capture_output=True, check=True)
    assert done.stdout == b"begun\n"


def test_a_server_whose_sender_is_gone_does_not_begin() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", GATED], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as sender:
        assert sender.wait(HANG_S) == 0
        said, _ = sender.communicate(b"\n", timeout=HANG_S)
    assert said == b""
