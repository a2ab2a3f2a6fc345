"""Our own tool in the comparison; the play is in playbook_ours.py."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.engine.peers import REPOSITORY, Tool
from benchmarks.engine.playbook_ours import SOURCES

PLAYBOOK = Path(__file__).with_name("playbook_ours.py")


class Ours(Tool):
    """spark-cluster, as a user runs it."""

    name = "ours"

    def prepare(self) -> None:
        nodes: dict[str, dict[str, Any]] = {
            node.name: {"address": node.address, "roles": ["worker"]} for node in self.site.nodes
        }
        nodes[self.site.nodes[0].name]["roles"] = ["head"]
        ssh = {
            "user": self.site.user,
            "identity_file": str(self.site.key),
            "known_hosts": str(self.site.known_hosts),
        }
        inventory = {"ssh": ssh, "nodes": nodes}
        self.write("inventory.yaml", json.dumps(inventory, indent=1) + "\n")  # JSON is YAML

    def command(self) -> list[str]:
        options = ["--inventory", "inventory.yaml", "--json"]
        return [sys.executable, "-m", "spark_cluster", *options, "playbook", str(PLAYBOOK)]

    def variables(self) -> dict[str, str]:
        return {"PYTHONPATH": str(REPOSITORY), SOURCES: str(self.sources)}

    def changes(self, output: str) -> dict[str, int]:
        lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        results = [line for line in lines if line.get("event") == "Result"]
        changed = Counter(line["node"] for line in results if line["verdict"] == "change")
        return {line["node"]: changed[line["node"]] for line in results}
