"""Our own tool in the comparison; the play is in playbook_ours.py."""

from __future__ import annotations

from benchmarks.engine.peers import Tool, ToolError


class Ours(Tool):
    """spark-cluster playbook ..."""

    name = "ours"

    def prepare(self) -> None:
        raise ToolError("the engine is not there yet")

    def command(self) -> list[str]:
        return []

    def changes(self, output: str) -> dict[str, int]:
        return {}
