"""The floor of a command that asks nodes: Python, paramiko, a login and `true` on each of them.

`python -m benchmarks.commands.floor NODES.json` does it on the nodes that are listed there, side by
side, with the settings that `paramiko.SSHClient.connect` takes.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import paramiko


def ask(known_hosts: list[str], settings: dict[str, Any], statuses: list[int]) -> None:
    """Run `true` on one node."""
    client = paramiko.SSHClient()
    for path in known_hosts:
        client.load_host_keys(path)
    client.connect(**settings)
    channel = client.exec_command("true")[1].channel
    statuses.append(channel.recv_exit_status())
    client.close()


def main(nodes_file: str) -> int:
    """Ask all nodes; 0 when each did it."""
    nodes = json.loads(Path(nodes_file).read_text("utf-8"))
    statuses: list[int] = []
    threads = [threading.Thread(target=ask, args=(*node, statuses)) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0 if statuses == [0] * len(nodes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
