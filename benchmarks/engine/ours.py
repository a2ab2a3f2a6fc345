"""Our own tool in the comparison; the play is in playbook_ours.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.engine import work
from benchmarks.engine.peers import REPOSITORY, Tool, ToolError
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
        # The display goes to standard error, which is in the output too; the document comes last.
        document = json.loads(output[("\n" + output).rindex("\n{\n") :])
        tallies: dict[str, dict[str, int]] = document["nodes"]
        if any(tally["ok"] + tally["change"] != work.RESOURCES for tally in tallies.values()):
            raise ToolError(f"ours did not do all resources:\n{output[-2000:]}")
        return {name: tally["change"] for name, tally in tallies.items()}
