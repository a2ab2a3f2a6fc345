"""What `up` ends with: the endpoint, the answer, who holds the memory, the versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spark_cluster.engine.play import Play
from spark_cluster.engine.session import Answer
from spark_cluster.serving import replies
from spark_cluster.serving.endpoint import Endpoint
from spark_cluster.serving.engine import SERVER
from spark_cluster.serving.proxy import Access
from spark_cluster.serving.ray_state import RayState
from spark_cluster.serving.vram import NodeVram


@dataclass(frozen=True)
class Served:
    """A verified endpoint.

    Attributes:
        before, peak, now: VRAM before the run, the largest while loading, and when ready.
        versions: name to version, for the record.
        rungs: what was asked, all of it with success.
        fingerprint: SHA-256 of the certificate that the endpoint presents; empty without TLS.
    """

    endpoint: Endpoint
    recipe: str
    tp: int
    answer: str
    before: list[NodeVram]
    peak: list[NodeVram]
    now: list[NodeVram]
    versions: dict[str, str] = field(default_factory=dict)
    rungs: tuple[str, ...] = ()
    fingerprint: str = ""

    @property
    def access(self) -> Access:
        """Who can reach the endpoint, and how it is guarded."""
        return self.endpoint.access(self.fingerprint)

    def document(self) -> dict[str, Any]:
        """As in `up --json`."""
        return {
            "endpoint": self.endpoint.url,
            "access": self.access.to_dict(),
            "model": self.endpoint.model,
            "recipe": self.recipe,
            "tp": self.tp,
            "answer": self.answer,
            "verified": list(self.rungs),
            "vram": {
                "nodes": [reading.document() for reading in self.now],
                "before": [reading.document() for reading in self.before],
                "peak": [reading.document() for reading in self.peak],
            },
            "versions": self.versions,
        }


def versions(play: Play, asked: Answer, dashboard: int | None) -> dict[str, str]:
    """What runs: vLLM and Ray as they say themselves, the rest from the facts.

    Args:
        asked: the endpoint's answer to /version.
        dashboard: port of Ray's dashboard on the head's loopback; None without Ray.
    """
    session = play.session(play.head)
    ray = RayState(session, dashboard).ask("/api/version") if dashboard else None
    image = session.run(["docker", "container", "inspect", "-f", "{{.Image}}", SERVER])
    facts = play.head.facts
    found = {
        "vllm": _field(asked, "version"),
        "ray": _field(ray, "ray_version"),
        "image": image.stdout.strip(),
        "docker": facts.docker or "",
        "driver": facts.gpu.driver if facts.gpu else "",
        "dgx": facts.dgx_version or "",
        "kernel": facts.kernel,
    }
    return {name: version for name, version in found.items() if version}


def _field(answer: Answer | None, name: str) -> str:
    if answer is None or answer.status != 200:
        return ""
    return replies.text_of(replies.at(replies.decoded(answer.body), name))
