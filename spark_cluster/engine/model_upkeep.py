"""Looking after the models on the nodes: copies, usage, pins, pruning, verification, repair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from spark_cluster.config.extension import Allowances
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipes import load_recipe
from spark_cluster.config.schema import WhenSet
from spark_cluster.config.topology import Node
from spark_cluster.engine import runtime
from spark_cluster.engine.deployment import root_of_all
from spark_cluster.engine.hub_models import (
    Nodes,
    OnProgress,
    Wanted,
    hub_folder,
    hub_model,
    models_on,
    must_be_the_hubs,
    pull,
    require_complete,
)
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.node_copies import Copied, copy, copy_folder
from spark_cluster.errors import Failed, UsageError
from spark_cluster.node import containers
from spark_cluster.node.output import counted, gigabytes
from spark_cluster.node.replies import made_of
from spark_cluster.node.store.usage import Revision
from spark_cluster.runner.parallel import all_of
from spark_cluster.runner.play import Play


def short(repository: str, commit: str) -> str:
    """Return ORG/NAME@ and the first digits of the commit."""
    return f"{repository}@{commit[:8]}"


@dataclass(frozen=True)
class Need:
    """A model that a recipe needs.

    Attributes:
        recipe: the recipe's name.
        revision: branch, tag or commit.
    """

    recipe: str
    repository: str
    revision: str


@dataclass(frozen=True)
class StoredModel(Revision):
    """A revision in a node's hub cache.

    Attributes:
        recipes: recipes that name the model with a revision that this may be.
    """

    recipes: list[str]

    @property
    def shown(self) -> str:
        """Its name, with the beginning of the commit."""
        return short(self.repository, self.commit)

    @property
    def remarks(self) -> str:
        """What is to be said of it: problems first."""
        parts = [self.problem, f"in use by {self.in_use}" if self.in_use else ""]
        parts += ["pinned" if self.pinned else "", ", ".join(self.recipes)]
        return "; ".join(part for part in parts if part)


MODEL_FOLLOWS = ("serve", "--model-path")
"""Words of an engine's command before its model: vLLM's, SGLang's."""


@dataclass(frozen=True)
class StoredModels:
    """The hub cache of a node.

    Attributes:
        models: the least recently used first.
        size: bytes of all contents, each counted once.
        unfinished: bytes of half files.
        unused: bytes of contents that no revision has.
        free: bytes that are free on the disk.
        served_outside: folder of the node from which a server runs, and which is not in the cache.
    """

    node: str
    models: list[StoredModel]
    size: int
    unfinished: int
    unused: int
    free: int
    served_outside: WhenSet[str] = ""


@dataclass(frozen=True)
class KeptModel:
    """A revision that pruning leaves.

    Attributes:
        reason: why it stays.
    """

    repository: str
    commit: str
    reason: str

    @property
    def shown(self) -> str:
        """Its name, with the beginning of the commit."""
        return short(self.repository, self.commit)


@dataclass(frozen=True)
class Pruned:
    """What pruning removes from a node, or would remove.

    Attributes:
        removed: in the order in which they go.
        kept: revisions that stay.
        freed: bytes.
    """

    node: str
    removed: list[StoredModel]
    kept: list[KeptModel]
    freed: int


@dataclass(frozen=True)
class ModelSizes:
    """The space that models take on a node, in bytes.

    Attributes:
        size: all contents, each counted once.
        recipes: recipe to the sizes of its models; two recipes can need the same.
        prunable: what `models prune --apply` would free.
        unfinished: half files.
        unused: contents that no revision has.
        free: free on the disk.
    """

    node: str
    size: int
    recipes: dict[str, int]
    prunable: int
    unfinished: int
    unused: int
    free: int


@dataclass(frozen=True)
class VerifiedModel:
    """A revision on a node, after each byte of it was read.

    Attributes:
        damaged: files whose content is not what their hash says.
        missing: files that are not there, or not whole.
        unchecked: files without a hash; their sizes are right.
        read: bytes.
        error: why it could not be read; empty if it was.
    """

    node: str
    repository: str
    commit: str
    damaged: list[str]
    missing: list[str]
    unchecked: list[str]
    read: int
    error: str

    @property
    def sound(self) -> bool:
        """True if nothing is damaged or missing."""
        return not (self.damaged or self.missing or self.error)

    def __str__(self) -> str:
        """A line about it, and a line for each file of it that is not sound."""
        name = f"{self.node}  {short(self.repository, self.commit)}"
        if self.error:
            return f"{name}  cannot be read: {self.error}"
        if self.sound:
            unchecked = (
                f", {counted(len(self.unchecked), 'file')} without a hash" if self.unchecked else ""
            )
            return f"{name}  sound, {gigabytes(self.read)} read{unchecked}"
        lines = [f"{name}  {len(self.damaged)} damaged, {len(self.missing)} missing"]
        lines += [f"  damaged  {path}" for path in self.damaged]
        lines += [f"  missing  {path}" for path in self.missing]
        return "\n".join(lines)


def needed(recipes: Iterable[Recipe]) -> list[Need]:
    """Return the models of the hub that recipes need, drafters among them."""
    found = []
    for recipe in recipes:
        model = recipe.model if recipe.model.source == "hub" else None
        of_hub = (one for one in (model, recipe.drafter) if one is not None and one.name)
        found += [Need(recipe.name, str(one.name), one.revision) for one in of_hub]
    return list(dict.fromkeys(found))


def kept_recipes(project: Project, served: Iterable[str], allow: Allowances) -> list[Recipe]:
    """Return the recipes whose models and images are never pruned: the inventory's, and the user's
    own.

    Raises:
        SparkClusterError: one of them cannot be read, so that its needs are unknown.
    """
    shipped = project.shipped / "recipes"
    own = [path for path in project.list("recipes").values() if not path.is_relative_to(shipped)]
    recipes = [load_recipe(path, project, allow) for path in own]
    return recipes + [load_recipe(name, project, allow) for name in served]


def stored(nodes: Nodes, needs: Sequence[Need]) -> list[StoredModels]:
    """Return the hub cache of each node; no content is read."""
    asked = {
        name: session.submit("gather", commands={SERVER: runtime.question(SERVER)})
        for name, session in nodes.sessions.items()
    }
    return [
        made_of(
            StoredModels,
            answer,
            node=name,
            models=[_model(one, needs) for one in answer["revisions"]],
            served_outside=_served_outside(asked[name].wait(), nodes.hubs[name]),
        )
        for name, answer in nodes.ask("usage").items()
    ]


def _served_outside(answer: Mapping[str, Any], hub: str) -> str:
    """Return the folder of the node that its server reads, if it is not in the hub's cache."""
    state = containers.answered(answer["commands"][SERVER])
    words = state.command
    named = [words[at + 1] for at, word in enumerate(words[:-1]) if word in MODEL_FOLLOWS]
    if not state.running or not named or not named[0].startswith("/"):
        return ""
    inside = PurePosixPath(named[0])
    found = [
        str(PurePosixPath(there) / inside.relative_to(here))
        for there, here in state.mounts.items()
        if inside.is_relative_to(here)
    ]
    folder = max(found, key=len, default=named[0])
    return "" if PurePosixPath(folder).is_relative_to(hub) else folder


def _model(found: Mapping[str, Any], needs: Sequence[Need]) -> StoredModel:
    repository, may_be = found["repository"], {found["commit"], *found["refs"]}
    recipes = {n.recipe for n in needs if n.repository == repository and n.revision in may_be}
    return made_of(StoredModel, found, recipes=sorted(recipes))


def prune(
    nodes: Nodes,
    needs: Sequence[Need],
    *,
    only: Sequence[str] = (),
    free: int = 0,
    unused_s: float = 0.0,
    apply: bool = False,
) -> list[Pruned]:
    """Remove the least recently used models, or with `apply=False` say which would go.

    Args:
        needs: what stays.
        only: ORG/NAME or ORG/NAME@REVISION; empty for all.
        free: bytes on each node at which it stops; 0 for all that may go.
        unused_s: only what was not used for so many seconds.

    Raises:
        Failed: a name of `only` is on no node.
    """
    # Before any node removes one: a name may be on another, and a branch differ between them.
    chosen = named(nodes, only) if only else {node: [] for node in nodes.sessions}
    limits: dict[str, Any] = {"bytes": free, "unused_s": unused_s, "apply": apply}
    limits["keep"] = [[need.repository, need.revision] for need in needs]
    names = {node: [f"{m.repository}@{m.commit}" for m in found] for node, found in chosen.items()}
    jobs = {
        node: partial(nodes.only(node).ask, "prune", only=listed, **limits)
        for node, listed in names.items()
        if listed or not only  # no name at all would be all of them
    }
    answers = all_of(jobs)
    return [_pruned(node, answers.get(node, {node: {}})[node], needs) for node in chosen]


def _pruned(node: str, answer: Mapping[str, Any], needs: Sequence[Need]) -> Pruned:
    """Return what a node has answered, if it had anything of it."""
    removed = [_model(one, needs) for one in answer.get("removed", ())]
    kept = [made_of(KeptModel, one) for one in answer.get("kept", ())]
    return Pruned(node, removed, kept, answer.get("freed", 0))


def sizes(nodes: Nodes, needs: Sequence[Need]) -> list[ModelSizes]:
    """Return what the models take on each node, by recipe, and what pruning would free."""
    found = []
    for one, pruned in zip(stored(nodes, needs), prune(nodes, needs), strict=True):
        recipes: Counter[str] = Counter()
        for model in one.models:
            recipes.update(dict.fromkeys(model.recipes, model.size))
        rest = (one.unfinished, one.unused, one.free)
        found.append(ModelSizes(one.node, one.size, recipes, pruned.freed, *rest))
    return found


def verify(nodes: Nodes, names: Sequence[str], on_progress: OnProgress) -> list[VerifiedModel]:
    """Read models on their nodes and compare them with their hashes, one a node at a time.

    Args:
        names: ORG/NAME or ORG/NAME@REVISION; empty for all.

    Raises:
        Failed: a name is on no node.
    """
    jobs = {
        node: partial(_verified_on, nodes.only(node), node, models, on_progress)
        for node, models in named(nodes, names).items()
    }
    return [one for verified in all_of(jobs).values() for one in verified]


def _verified_on(
    nodes: Nodes, node: str, models: Sequence[StoredModel], on_progress: OnProgress
) -> list[VerifiedModel]:
    found = []
    for model in models:
        repository, commit = model.repository, model.commit
        revision = {"repository": repository, "commit": commit}
        try:
            answer = nodes.ask("verify", on_progress, **revision)[node]
        except Failed as error:
            found.append(VerifiedModel(node, repository, commit, [], [], [], 0, str(error.message)))
        else:
            found.append(made_of(VerifiedModel, answer, node=node, **revision, error=""))
    return found


def named(nodes: Nodes, names: Sequence[str]) -> dict[str, list[StoredModel]]:
    """Return the models of each node that have these names; all where there are none.

    Raises:
        Failed: a name is on no node.
    """
    answers = nodes.ask("usage")
    found = {node: [_model(one, []) for one in said["revisions"]] for node, said in answers.items()}
    for name in names:
        if not any(matches(model, [name]) for models in found.values() for model in models):
            raise Failed(f"{name} is on no node", hint="`spark-cluster models list` shows them")
    return {node: [m for m in models if matches(m, names)] for node, models in found.items()}


def matches(model: StoredModel, names: Sequence[str]) -> bool:
    """Return whether a revision is one of ORG/NAME or ORG/NAME@REVISION, also as it is listed; any
    is where none is."""
    known = {f"{model.repository}@{ref}" for ref in (model.commit, *model.refs)}
    known.add(short(model.repository, model.commit))
    return not names or bool({model.repository, *known} & set(names))


@dataclass(frozen=True)
class RepairedModel:
    """A revision on a node that was damaged or incomplete.

    Attributes:
        removed: damaged contents.
        links: links that were made again.
        fetched: bytes that were fetched again.
        source: the node that they were copied from; "hub" for a pull; empty for neither.
    """

    node: str
    repository: str
    commit: str
    removed: int
    links: int
    fetched: int
    source: str

    def __str__(self) -> str:
        """A line about it."""
        source = f", {gigabytes(self.fetched)} from {self.source}" if self.source else ""
        name = f"{self.node}  {short(self.repository, self.commit)}"
        return f"{name}  {self.removed} damaged removed, {self.links} links made{source}"


def repair(
    play: Play, hubs: Mapping[str, str], names: Sequence[str], on_progress: OnProgress
) -> list[RepairedModel]:
    """Verify models, remove what is damaged, and have it again: from a node where the same
    revision is sound, else from the hub.

    Args:
        hubs: node to its hub cache.
        names: ORG/NAME or ORG/NAME@REVISION; empty for all.

    Raises:
        SparkClusterError: a name is on no node, or a content cannot be had again.
    """
    nodes = Nodes(play.sessions, hubs)
    found = verify(nodes, names, on_progress)
    at = {node.name: node for node in play.nodes}
    repaired = []
    for revision in dict.fromkeys((one.repository, one.commit) for one in found):
        group = [one for one in found if (one.repository, one.commit) == revision]
        sound = [at[one.node] for one in group if one.sound and one.node in at]
        for one in group:
            if not one.sound and one.node in at:
                repaired.append(_repaired(play, nodes, one, at[one.node], sound))
    return repaired


def _repaired(
    play: Play, nodes: Nodes, model: VerifiedModel, node: Node, sound: Sequence[Node]
) -> RepairedModel:
    wanted, hub = Wanted(model.repository, model.commit), nodes.hubs[node.name]
    removed = links = 0
    if not model.error:
        revision = {"repository": model.repository, "commit": model.commit}
        answer = nodes.only(node.name).ask("remove_damaged", None, **revision, paths=model.damaged)
        removed, links = (int(answer[node.name][key]) for key in ("removed", "links"))
    have = models_on(play, [node], wanted, hub)[node.name]
    source, size = "", have.missing_bytes
    if not have.complete:
        where = nodes.hubs[sound[0].name] if sound else hub
        manifest = next(
            (h.manifest for h in models_on(play, sound[:1], wanted, where).values()), None
        )
        if manifest is not None:
            must_be_the_hubs(play, manifest, sound[0], node)
            copy(play, manifest, sound[0], [node], hub=where)
            source, size = sound[0].name, size or (0 if have.manifest else manifest.size)
        else:
            pull(play, node, hub_model(play, node, wanted, hub))
            source = "hub"
    return RepairedModel(node.name, model.repository, model.commit, removed, links, size, source)


# The copy of a model by its name or folder: which node sends it, and which get it.


def copy_model(
    play: Play,
    name: str,
    *,
    source: str = "",
    targets: Sequence[str] = (),
    encrypt: bool = True,
    streams: int = 0,
) -> list[Copied]:
    """Copy a model or a plain folder from a node to the others.

    Args:
        name: ORG/NAME or ORG/NAME@REVISION; or the absolute path of a folder on all nodes.
        source: name of a node; by default the first one that has the model whole, and for a folder
            the first one of the run.
        targets: names of nodes; by default all others of the run.

    Raises:
        UsageError: a node is not in the run, or there is none to copy to.
        Refused: the source does not have the model whole.
        SparkClusterError: see `copy` and `copy_folder`.
    """
    nodes = named_nodes(play, (source, *targets))
    if name.startswith("/"):
        sender = nodes[source or next(iter(nodes))]
        others = _others(nodes, targets, sender, name)
        return copy_folder(play, name, sender, others, encrypt=encrypt, streams=streams)
    wanted = Wanted.named(name)
    hub = hub_folder(root_of_all(play.inventory.nodes[name] for name in nodes))
    senders = [nodes[source]] if source else list(nodes.values())
    hint = f"`spark-cluster models pull {name}` fetches it from the hub"
    sending, manifest = require_complete(play, senders, wanted, hub, hint)
    sender = nodes[sending]
    others = _others(nodes, targets, sender, wanted.repository)
    if not play.check:
        must_be_the_hubs(play, manifest, sender, others[0])
    return copy(
        play,
        manifest,
        sender,
        others,
        hub=hub,
        revision=wanted.revision,
        encrypt=encrypt,
        streams=streams,
    )


def _others(
    nodes: Mapping[str, Node], targets: Sequence[str], sender: Node, what: str
) -> list[Node]:
    """Return the nodes to copy to. Raises UsageError if there are none."""
    chosen = [nodes[name] for name in dict.fromkeys(targets or nodes) if name != sender.name]
    if not chosen:
        raise UsageError(
            f"{sender.name} has {what}, and there is no other node to copy to",
            hint="widen --limit or --to, or add a node to the inventory",
        )
    return chosen


def named_nodes(play: Play, names: Sequence[str]) -> dict[str, Node]:
    """Return the nodes of the run by name. Raises UsageError if one of `names` is not there."""
    nodes = {node.name: node for node in play.nodes}
    for name in filter(None, names):
        if name not in nodes:
            raise UsageError(f"{name} is not in this run", hint=f"it has {', '.join(nodes)}")
    return nodes
