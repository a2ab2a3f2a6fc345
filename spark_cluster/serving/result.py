"""The result of `up`: the endpoint, the answer, who holds the memory, the versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from spark_cluster.inference.ray import RayState
from spark_cluster.node import replies
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Answer
from spark_cluster.serving import vram
from spark_cluster.serving.endpoint import Endpoint
from spark_cluster.serving.plan import ServePlan
from spark_cluster.serving.proxy import Access
from spark_cluster.serving.readiness import container_state
from spark_cluster.serving.replicas import Member
from spark_cluster.serving.vram import NodeVram, sample
from spark_cluster.serving.vram import peak as largest


@dataclass(frozen=True)
class Served:
    """A verified endpoint.

    Attributes:
        plan: what is served.
        before, peak, now: VRAM before the run, the largest while loading, and when ready.
        under_load: the largest VRAM during a short load; empty where nothing was started.
        versions: name to version, for the record.
        fingerprint: SHA-256 of the certificate that the endpoint presents; empty without TLS.
    """

    plan: ServePlan
    answer: str
    before: list[NodeVram]
    peak: list[NodeVram]
    now: list[NodeVram]
    versions: dict[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    under_load: list[NodeVram] = field(default_factory=list)

    @property
    def access(self) -> Access:
        """The access to the endpoint: who can reach it, and how it is protected."""
        return self.plan.endpoint.access(self.fingerprint)

    def to_dict(self) -> dict[str, Any]:
        """Return it as `up --json` prints it."""
        return {
            "endpoint": self.plan.endpoint.url,
            "access": self.access.to_dict(),
            "model": self.plan.endpoint.model,
            "recipe": self.plan.recipe.name,
            "kind": self.plan.recipe.kind,
            "tp": self.plan.tp,
            "replicas": [replica.node for replica in self.plan.endpoint.replicas],
            "overrides": dict(self.plan.recipe.overrides),
            "answer": self.answer,
            "verified": list(self.plan.recipe.readiness.rungs),
            "vram": {
                **_vram(self),
                "under_load": [reading.to_dict() for reading in self.under_load],
            },
            "versions": self.versions,
        }


@dataclass(frozen=True)
class ServedPart:
    """One of several models that are verified.

    Attributes:
        plan: what is served of it, at its server's own address.
        names: by which it is asked for, its own first.
        versions: name to version.
    """

    plan: ServePlan
    names: tuple[str, ...]
    answer: str
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def verified(self) -> bool:
        """False for a model that is loaded on request and was verified when it was added."""
        return bool(self.answer) or not self.plan.deployment.on_request

    @property
    def version(self) -> str:
        """The engine's version; empty when it is not known."""
        return self.versions.get(self.plan.recipe.engine, "")

    def to_dict(self) -> dict[str, Any]:
        """Return it as `up --json` prints it."""
        return {
            "model": self.names[0],
            "aliases": list(self.names[1:]),
            "recipe": self.plan.recipe.name,
            "kind": self.plan.recipe.kind,
            "node": self.plan.nodes[0].name,
            "tp": self.plan.tp,
            "answer": self.answer,
            "verified": list(self.plan.recipe.readiness.rungs) if self.verified else [],
            "versions": self.versions,
            **({"on_request": True} if self.plan.deployment.on_request else {}),
        }


@dataclass(frozen=True)
class ServedTogether:
    """A verified endpoint with several models.

    Attributes:
        endpoint: that of all of them.
        before, peak, now: VRAM before the run, the largest while loading, and when ready.
    """

    endpoint: Endpoint
    parts: tuple[ServedPart, ...]
    before: list[NodeVram]
    peak: list[NodeVram]
    now: list[NodeVram]
    fingerprint: str = ""

    @property
    def access(self) -> Access:
        """The access to the endpoint: who can reach it, and how it is protected."""
        return self.endpoint.access(self.fingerprint)

    def to_dict(self) -> dict[str, Any]:
        """Return it as `up --json` prints it."""
        return {
            "endpoint": self.endpoint.url,
            "access": self.access.to_dict(),
            "models": [part.to_dict() for part in self.parts],
            "vram": _vram(self),
        }


def _vram(found: Served | ServedTogether) -> dict[str, Any]:
    return {
        "nodes": [reading.to_dict() for reading in found.now],
        "before": [reading.to_dict() for reading in found.before],
        "peak": [reading.to_dict() for reading in found.peak],
    }


def served(
    play: Play, plan: ServePlan, answer: str, before: list[NodeVram], peak: list[NodeVram]
) -> Served:
    """Return the result of an `up`: the memory that is held now, and what runs.

    Args:
        answer: to the recipe's own question; of another kind than chat, what its rung found.
        before, peak: VRAM before the run, and the largest while loading.
    """
    now, (answered, found) = play.together(
        lambda: sample(play.sessions), lambda: versions(play, plan)
    )
    vram.record(play.bus, "ready", now)
    return Served(plan, answer, before, largest(peak, now), now, found, answered.certificate)


def served_together(
    play: Play,
    endpoint: Endpoint,
    found: Sequence[Member],
    answers: Sequence[str],
    *,
    before: list[NodeVram],
    peak: list[NodeVram],
) -> ServedTogether:
    """Return the result of an `up` of several models, as `served` does for one.

    Args:
        answers: of each to its own question.
        before, peak: VRAM before the run, and the largest while loading.
    """
    now, asked, *each = play.together(
        lambda: sample(play.sessions),
        lambda: endpoint.request(play.session(play.head), "/health"),
        *[partial(versions, one.play, one.plan) for one in found],
    )
    vram.record(play.bus, "ready", now)
    parts = tuple(
        ServedPart(one.plan, server.names, answer, known)
        for one, server, answer, (_, known) in zip(
            found, endpoint.models, answers, each, strict=True
        )
    )
    return ServedTogether(endpoint, parts, before, largest(peak, now), now, asked.certificate)


def versions(play: Play, plan: ServePlan) -> tuple[Answer, dict[str, str]]:
    """Return the engine's answer for its version, and the versions by name; asked in parallel."""
    dashboard = plan.deployment.ray.dashboard_port if plan.deployment.on_ray else None
    session = play.session(play.head)
    name = plan.deployment.engine
    path, key = plan.engine.version
    asked, ray, server = play.together(
        lambda: plan.endpoint.request(session, path),
        lambda: RayState(session, dashboard).version() if dashboard else "",
        lambda: container_state(play, plan.server),
    )
    facts = play.head.facts
    found = {
        name: _field(asked, key),
        "ray": ray,
        "image": server.image,
        "docker": facts.docker or "",
        "driver": facts.gpu.driver if facts.gpu else "",
        "dgx": facts.dgx_version or "",
        "kernel": facts.kernel,
    }
    return asked, {name: version for name, version in found.items() if version}


def _field(answer: Answer | None, name: str) -> str:
    if answer is None or answer.status != 200:
        return ""
    return replies.text_of(replies.at(replies.decoded(answer.body), name))
