"""Which models are on which node, and the bytes that are missing; asked in one turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_cluster.config.caches import CACHE_ROOT
from spark_cluster.errors import Failed
from spark_cluster.node.store.layout import HUB
from spark_cluster.node.store.manifest import BadManifest, Manifest, is_commit

if TYPE_CHECKING:
    from spark_cluster.runner.play import Play
    from spark_cluster.runner.session import Session
    from spark_cluster.topology import Node

OnProgress = Callable[[str, str], None]
"""Gets a node and a line of progress."""


@dataclass(frozen=True)
class Wanted:
    """A model that is to be on nodes.

    Attributes:
        repository: ORG/NAME.
        revision: branch, tag or commit.
    """

    repository: str
    revision: str = "main"

    @classmethod
    def named(cls, text: str) -> Wanted:
        """Return what ORG/NAME or ORG/NAME@REVISION names."""
        repository, _, revision = text.partition("@")
        return cls(repository, revision or cls.revision)


@dataclass(frozen=True)
class Nodes:
    """The agents that are asked about their models.

    Args:
        sessions: node to agent.
        hubs: node to its hub cache.
    """

    sessions: Mapping[str, Session]
    hubs: Mapping[str, str]

    def ask(
        self, what: str, on_progress: OnProgress | None = None, **request: Any
    ) -> dict[str, dict[str, Any]]:
        """Ask all nodes at the same time; what they answer, by node.

        Raises:
            Failed: a node cannot do it.
            Unreachable: a node is lost.
        """
        pending = {
            name: session.submit("store", what=what, hub=self.hubs[name], **request)
            for name, session in self.sessions.items()
        }
        return {
            name: one.wait(_shown(name, on_progress) if on_progress else None)
            for name, one in pending.items()
        }

    def only(self, name: str) -> Nodes:
        """Return one of them."""
        return Nodes({name: self.sessions[name]}, self.hubs)


def _shown(node: str, on_progress: OnProgress) -> Callable[[dict[str, Any]], None]:
    def on_event(event: dict[str, Any]) -> None:
        if event.get("event") == "progress":
            on_progress(node, str(event.get("text", "")))

    return on_event


@dataclass(frozen=True)
class Have:
    """What a node has of a model.

    Attributes:
        commit: the revision's commit as the node knows it; None if it does not.
        manifest: the files that the revision consists of; None where they are not known.
        missing: paths of files that are not there, or not whole.
        missing_bytes: what is still to be moved, half files counted as there.
        links: paths whose link is missing or broken.
        problem: why what is there cannot be used; empty when it is whole or simply not there.
        elsewhere: hub cache of another tool on the node that has it whole; empty for none.
        adoptable: the files there.
        free: bytes that are free on the disk of the hub cache.
    """

    commit: str | None
    manifest: Manifest | None
    missing: tuple[str, ...]
    missing_bytes: int
    links: tuple[str, ...]
    problem: str
    elsewhere: str
    adoptable: Manifest | None
    free: int

    @property
    def whole(self) -> bool:
        """True if nothing is missing."""
        return self.manifest is not None and not self.missing and not self.links

    @property
    def present(self) -> int:
        """Bytes of it that the node has, those of half files too; 0 where its files are unknown."""
        return 0 if self.manifest is None else max(0, self.manifest.size - self.missing_bytes)

    @property
    def shortfall(self) -> str:
        """Why it is not whole, in words."""
        if self.problem:
            return self.problem
        if self.commit is None:
            return f"not there, but whole in {self.elsewhere}" if self.elsewhere else "not there"
        return f"{self.missing_bytes / 1e9:.1f} GB are missing"

    @classmethod
    def of(cls, found: Mapping[str, Any], free: int) -> Have:
        """Read the answer of a node. Raises BadManifest, LookupError, TypeError, ValueError."""
        commit, manifest, adoptable = found["commit"], found["manifest"], found.get("adoptable")
        if commit is not None and not is_commit(str(commit)):
            raise BadManifest(f"{str(commit)[:60]!r} is not a commit")
        return cls(
            commit,
            None if manifest is None else Manifest.from_document(manifest),
            tuple(map(str, found["missing"])),
            int(found["missing_bytes"]),
            tuple(map(str, found["links"])),
            str(found["problem"]),
            str(found["elsewhere"]),
            None if adoptable is None else Manifest.from_document(adoptable),
            free,
        )


def hub_folder(root: str = CACHE_ROOT) -> str:
    """The hub cache on a node whose caches are below `root` (engine/caches.py: `root_on`)."""
    return f"{root}/{HUB}"


def models_on(play: Play, nodes: Iterable[Node], wanted: Wanted, hub: str) -> dict[str, Have]:
    """Return by node what it has of a model; see `all_models_on`."""
    sessions = {node.name: play.session(node) for node in nodes}
    found = all_models_on(sessions, [wanted], dict.fromkeys(sessions, hub))
    return {name: haves[0] for name, haves in found.items()}


def all_models_on(
    sessions: Mapping[str, Session], wanted: Sequence[Wanted], hubs: Mapping[str, str]
) -> dict[str, list[Have]]:
    """Return by node what it has of each model, in the order of `wanted`.

    Args:
        hubs: the hub cache of each node.

    Raises:
        Failed: a node cannot read it, or its answer is no answer.
        Unreachable: a node is lost.
    """
    asked = [{"repository": one.repository, "revision": one.revision} for one in wanted]
    answers = Nodes(sessions, hubs).ask("state", wanted=asked)
    return {name: _read(name, answer, len(wanted)) for name, answer in answers.items()}


def _read(node: str, answer: Mapping[str, Any], count: int) -> list[Have]:
    try:
        found = [Have.of(model, int(answer["free"])) for model in answer["models"]]
    except (BadManifest, LookupError, TypeError, ValueError) as error:
        raise Failed(
            f"the list of its models cannot be used: {error}",
            where=node,
            hint="`spark-cluster models list` shows what is there",
        ) from error
    if len(found) != count:
        raise Failed(f"asked for {count} models, it answered for {len(found)}", where=node)
    return found
