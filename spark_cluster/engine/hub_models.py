"""Models of the hub on the nodes: which node has what, what is missing, and pulling it.

`Stored` is what the nodes that serve have of a recipe: its models in their hub caches, its image.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urljoin, urlsplit

from spark_cluster.config.folders import CACHE_ROOT
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.topology import Node
from spark_cluster.engine.deployment import root_of_all
from spark_cluster.engine.image_copies import Images, images_on
from spark_cluster.errors import Failed, Refused
from spark_cluster.models.hub import (
    GIVEN,
    DocumentSource,
    HubDocuments,
    HubError,
    HubLibrary,
    HubRequest,
    Listing,
    unreachable,
    wrong_answer,
)
from spark_cluster.node.output import counted, duration
from spark_cluster.node.replies import made_of
from spark_cluster.node.store import hub_problems
from spark_cluster.node.store.manifest import HUB, Manifest, is_commit, snapshot_folder
from spark_cluster.node.values import Secret
from spark_cluster.resources.base import to_wire
from spark_cluster.resources.hub_model import HubModel
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session

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
    missing: Sequence[str]
    missing_bytes: int
    links: Sequence[str]
    problem: str
    elsewhere: str
    adoptable: Manifest | None
    free: int

    @property
    def complete(self) -> bool:
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
        """Read the answer of a node."""
        manifests = {
            name: Manifest.from_document(found[name]) if found.get(name) else None
            for name in ("manifest", "adoptable")
        }
        return made_of(cls, {**found, **manifests, "free": free})

    def must_be_of(self, wanted: Wanted, node: str) -> None:
        """Raise Failed where it is of another model or commit: it would be copied to other nodes.

        Args:
            node: that has answered it.
        """
        commit = wanted.revision if is_commit(wanted.revision) else self.commit
        for one in filter(None, (self.manifest, self.adoptable)):
            if (one.repository, one.commit) != (wanted.repository, commit):
                text = f"asked for {wanted.repository}@{wanted.revision}, it answered of "
                raise Failed(f"{text}{one.repository}@{one.commit}", where=node)


def hub_folder(root: str = CACHE_ROOT) -> str:
    """The hub cache on a node whose caches are below `root` (`engine.deployment.root_on`)."""
    return f"{root}/{HUB}"


def models_on(play: Play, nodes: Iterable[Node], wanted: Wanted, hub: str) -> dict[str, Have]:
    """Return by node what it has of a model; see `all_models_on`."""
    sessions = play.sessions_of(nodes)
    return all_models_on(Nodes(sessions, dict.fromkeys(sessions, hub)), [wanted])[wanted]


def all_models_on(nodes: Nodes, wanted: Sequence[Wanted]) -> dict[Wanted, dict[str, Have]]:
    """Return of each model by node what it has of it.

    Raises:
        Failed: a node cannot read it, or its answer is no answer.
        Unreachable: a node is lost.
    """
    asked = [{"repository": one.repository, "revision": one.revision} for one in wanted]
    answers = nodes.ask("state", wanted=asked)
    for name, answer in answers.items():
        if len(answer["models"]) != len(wanted):
            text = f"asked for {len(wanted)} models, it answered for {len(answer['models'])}"
            raise Failed(text, where=name)
    found = {
        one: {
            name: Have.of(answer["models"][place], answer["free"])
            for name, answer in answers.items()
        }
        for place, one in enumerate(wanted)
    }
    for one, on in found.items():
        for name, have in on.items():
            have.must_be_of(one, name)
    return found


def complete_on(found: Mapping[str, Have]) -> tuple[str, Manifest] | None:
    """Return the first node that has a model whole, with its files; None where none has."""
    for node, have in found.items():
        if have.complete and have.manifest is not None:
            return node, have.manifest
    return None


def nowhere_complete(wanted: Wanted, found: Mapping[str, Have], hint: str) -> Refused:
    """Return the error that says what each node lacks of a model."""
    reasons = "; ".join(f"{node}: {have.shortfall}" for node, have in found.items())
    return Refused(
        f"no node has {wanted.repository}@{wanted.revision} whole ({reasons})", hint=hint
    )


def require_complete(
    play: Play, nodes: Iterable[Node], wanted: Wanted, hub: str, hint: str
) -> tuple[str, Manifest]:
    """Return the first of some nodes that has a model whole, with its files; only they are asked.

    Raises:
        Refused: none has, with what each lacks.
    """
    here = models_on(play, nodes, wanted, hub)
    found = complete_on(here)
    if found is None:
        raise nowhere_complete(wanted, here, hint)
    return found


@dataclass(frozen=True)
class Stored:
    """What nodes have of the models of a recipe.

    Attributes:
        hub: folder of the hub cache, the same on all of them.
        on: the model, and a drafter from the hub, as far as they are kept in the hub cache, to what
            each node has of them; the head first.
        images: node to the recipe's image; empty where it is not one that is copied.
    """

    hub: str
    on: Mapping[Wanted, Mapping[str, Have]]
    images: Images = field(default_factory=dict)

    def chosen(self, wanted: Wanted) -> tuple[str, Manifest] | None:
        """Return the first node that has it whole, with its files; None where none has.

        Where a branch has another commit on other nodes, this node's is the one that serves.
        """
        return complete_on(self.on[wanted])

    def missing(self, wanted: Wanted, commit: str) -> list[str]:
        """Return the nodes that do not have this commit whole."""
        found = self.on[wanted].items()
        return [node for node, have in found if not have.complete or have.commit != commit]

    def folders(self) -> dict[str, str]:
        """Return repository to the folder of the revision that some node has whole."""
        return {
            wanted.repository: snapshot_folder(self.hub, wanted.repository, chosen[1].commit)
            for wanted in self.on
            if (chosen := self.chosen(wanted)) is not None
        }

    @property
    def complete(self) -> bool:
        """True if each node has all of it."""
        found = {wanted: self.chosen(wanted) for wanted in self.on}
        return all(one and not self.missing(wanted, one[1].commit) for wanted, one in found.items())

    def gib_present(self, repository: str) -> dict[str, float]:
        """Return the GiB that each node has of one of them, infinite: all of it; empty for another
        model."""
        for wanted, found in self.on.items():
            if wanted.repository == repository:
                return {
                    name: math.inf if have.complete else have.present / 2**30
                    for name, have in found.items()
                }
        return {}


def wanted_by(recipe: Recipe) -> tuple[Wanted, ...]:
    """Return what of a recipe is kept in the hub cache."""
    model, drafter = recipe.model, recipe.drafter
    found = []
    if model.in_hub_cache:
        found.append(Wanted(model.name, model.revision))
    if drafter is not None and drafter.name and drafter.in_hub_cache:
        found.append(Wanted(drafter.name, drafter.revision))
    return tuple(dict.fromkeys(found))


def stored(play: Play, recipe: Recipe, nodes: Sequence[Node]) -> Stored:
    """Ask the nodes that will serve what they have; nothing is asked that is not wanted.

    Raises:
        Refused: the nodes have their caches in different places.
        SparkClusterError: a node cannot say what it has.
    """
    copied = recipe.venv is None and not recipe.image.archive
    models: Stored
    models, images = play.together(  # in one turn of the network
        lambda: stored_models(play, recipe, nodes),
        lambda: images_on(play, nodes, recipe.image.ref) if copied else {},
    )
    return replace(models, images=images)


def stored_models(play: Play, recipe: Recipe, nodes: Sequence[Node]) -> Stored:
    """Ask for the models only; see `stored`."""
    wanted = wanted_by(recipe)
    hub = hub_folder(root_of_all(play.inventory.nodes[node.name] for node in nodes))
    sessions = play.sessions_of(nodes if wanted else ())
    return Stored(hub, all_models_on(Nodes(sessions, dict.fromkeys(sessions, hub)), wanted))


# The hub of a node: pulling a model to it, and whether a revision on it is what the hub has.
#
# A pull goes on when the laptop is gone. Hashes show that a content is what its name says; only the
# hub knows which contents a commit has.

LARGE = 50_000_000_000
"""Bytes to fetch from which on a warning says what they cost."""
RATE = 100_000_000
"""Bytes a second at which the time is stated; an access of 1 Gbit/s gives a little more."""


@dataclass(frozen=True)
class PullPreview:
    """What a pull would do.

    Attributes:
        manifest: what the hub has, as far as it is wanted.
        missing: bytes that would be fetched.
        free: bytes free where the hub cache is.
    """

    manifest: Manifest
    missing: int
    free: int


def hub_model(
    play: Play, node: Node, wanted: Wanted, hub: str, *, endpoint: str = "", all_files: bool = False
) -> HubModel:
    """Return a revision as it is pulled to a node, by the node's settings of the role `models`.

    Args:
        hub: folder of the hub cache on the node.
        endpoint: address of a mirror that is used instead; it gets the token, too.
        all_files: also the files that hold the same weights in another format.
    """
    given = _settings(play, node)
    token = os.environ.get(str(given.get("token_env", "HF_TOKEN")), "")
    return HubModel(
        wanted.repository,
        wanted.revision,
        hub,
        token=Secret(token) if token else None,
        endpoint=endpoint or str(given.get("endpoint", "")),
        all_files=all_files,
        tags=("models",),
    )


def _settings(play: Play, node: Node) -> dict[str, Any]:
    return play.inventory.nodes[node.name].settings_for("models").data


def pull(play: Play, node: Node, model: HubModel) -> Manifest:
    """Have a revision in a node's hub cache, whole and checked.

    The node's work is a unit that outlives this process; the next call finds it running.

    Raises:
        SparkClusterError: it cannot be had, with the reason and the fix.
    """
    play.apply(node, play.role("hub_library", path=model.library), [model])
    have = models_on(play, [node], Wanted(model.repository, model.revision), model.cache)[node.name]
    if have.manifest is None:
        raise Failed(
            f"{model.repository}@{model.revision} is not in {model.cache} after its pull: "
            f"{have.problem or 'its manifest is not there'}",
            where=node.name,
            hint="run the command again; spark-cluster history shows what others changed",
        )
    return have.manifest


def preview(play: Play, node: Node, model: HubModel) -> PullPreview:
    """Ask the hub through a node what a pull would fetch; nothing is fetched.

    Raises:
        SparkClusterError: the hub does not say, or the library cannot be installed.
    """
    play.apply(node, play.role("hub_library", path=model.library))

    def on_event(event: dict[str, Any]) -> None:
        if event.get("event") == "progress":
            play.note(str(event["text"]), warning=True, node=node)

    found = play.session(node).request(
        "store", on_event, what="preview", hub=model.cache, model=to_wire(model)
    )
    return made_of(PullPreview, {**found, "manifest": Manifest.from_document(found["manifest"])})


@dataclass(frozen=True)
class PulledModel:
    """A revision that is whole on a node."""

    node: str
    repository: str
    commit: str
    files: int
    bytes: int

    @classmethod
    def of(cls, node: str, manifest: Manifest) -> PulledModel:
        """Return what a node has."""
        files = len(manifest.files)
        return cls(node, manifest.repository, manifest.commit, files, manifest.size)

    def __str__(self) -> str:
        """A line about it."""
        size = f"{counted(self.files, 'file')}, {self.bytes / 1e9:.2f} GB"
        return f"{self.repository}@{self.commit[:12]} is on {self.node}: {size}"


def warning(repository: str, node: str, found: PullPreview) -> str:
    """Return what a large download costs: bytes, time, space."""
    return (
        f"{repository}: {found.missing / 1e9:.0f} GB are to be fetched, which takes "
        f"{duration(found.missing / RATE)} at {RATE / 1e6:.0f} MB/s; {node} has "
        f"{found.free / 1e9:.0f} GB free"
    )


def must_be_the_hubs(play: Play, manifest: Manifest, holder: Node, receiver: Node) -> None:
    """Compare a revision on a node with the hub, before another one or our cache takes it over.

    The hub is asked from this machine, and where it is not reached from here by the receiver. Where
    neither reaches it, or --offline forbids to ask, it is said that nothing was compared.

    Args:
        holder: the node that has it.
        receiver: the node that gets it; the same where it is taken over from another cache there.

    Raises:
        Failed: the hub's revision has other contents.
    """
    name = f"{manifest.repository}@{manifest.commit[:12]}"
    listing, why = _asked(play, manifest, receiver)
    if listing is None:
        play.note(f"{name} is not verified against the hub ({why})", warning=True, node=holder)
        return
    for path, said in differences(manifest, listing):
        raise Failed(
            f"{name} is not what the hub has: {path} {said}",
            where=holder.name,
            hint=f"someone changed it there; `spark-cluster --limit {holder.name} models prune "
            f"{manifest.repository} --apply` removes it, and the next run fetches it",
        )


def differences(manifest: Manifest, listing: Listing) -> Iterator[tuple[str, str]]:
    """Yield path and difference of each file that the hub does not have so."""
    if listing.commit != manifest.commit:
        yield "the commit", f"is {listing.commit[:12]} there"
    for file in manifest.files:
        if file.path not in listing.names:
            yield file.path, "is not in that revision"
        elif listing.blobs.get(file.path, file.blob) != file.blob:
            yield file.path, "has another content"


def _asked(play: Play, manifest: Manifest, receiver: Node) -> tuple[Listing | None, str]:
    """Return the hub's list of the revision; without one the reason."""
    if play.options.offline:
        return None, "--offline"
    endpoint = str(_settings(play, receiver).get("endpoint", "")) or None
    why = ""
    sources: tuple[DocumentSource, ...] = (
        HubLibrary(endpoint),
        NodeDocuments(play.session(receiver), endpoint),
    )
    for source in sources:
        try:
            return source.listing(manifest.repository, manifest.commit), ""
        except HubError as error:
            why = error.message
    return None, why


# The hub, asked by a node: for a laptop that does not reach it where its Sparks do.
#
# The node's agent makes the requests (HTTPS, verified, limited in size and time) and no token goes
# with them: the laptop's stays there. What is asked for are addresses of the hub and, where it
# sends large files' readers on, of its own stores; nothing else.

HUB_URL = "https://huggingface.co"
STORES = (".huggingface.co", ".hf.co")
"""Hosts below these are the hub's own."""
KEPT = ("Location", "Content-Range", "X-Error-Code", "X-Error-Message", "Retry-After")
REDIRECTS = 3
AT_A_TIME = 16
"""Requests in one exchange with the node."""
TIMEOUT_S = 30.0
"""Longest that one exchange may take, seconds."""
MOVED = (301, 302, 303, 307, 308)


class NodeDocuments(HubDocuments):
    """The hub as a node reaches it.

    Args:
        session: with the node.
        endpoint: of another hub than HF_ENDPOINT names.
    """

    def __init__(self, session: Session, endpoint: str | None = None) -> None:
        self._session = session
        named = (endpoint or os.environ.get("HF_ENDPOINT") or HUB_URL).rstrip("/")
        self._endpoint = _without_password(named)

    def _answers(
        self, repository: str, revision: str, asked: Sequence[HubRequest]
    ) -> list[tuple[bytes, bool]]:
        """Ask AT_A_TIME in one exchange, and in one more for each time that they are sent on."""
        found: list[tuple[bytes, bool]] = []
        for place in range(0, len(asked), AT_A_TIME):
            some = asked[place : place + AT_A_TIME]
            for one, reply in zip(some, self._replies(some), strict=True):
                _must_be_an_answer(reply, repository, revision)
                body = str(reply["body"]).encode("latin-1", errors="replace")
                content_range = str(reply["headers"].get("Content-Range", ""))
                found.append(one.answered(reply["status"], content_range, body))
        return found

    def _replies(self, asked: Sequence[HubRequest]) -> list[dict[str, Any]]:
        """Return the last reply to each; one that is sent on without end has one that says so."""
        replies: dict[int, dict[str, Any]] = {}
        urls = {i: self._endpoint + one.path for i, one in enumerate(asked)}
        for _ in range(REDIRECTS + 1):
            replies |= self._exchange(urls, asked)
            urls = {
                i: self._sent_on(url, replies[i])
                for i, url in urls.items()
                if replies[i]["status"] in MOVED
            }
            if not urls:
                break
        return [replies[i] for i in range(len(asked))]

    def _exchange(
        self, urls: Mapping[int, str], asked: Sequence[HubRequest]
    ) -> dict[int, dict[str, Any]]:
        requests = {
            str(i): {
                "url": url,
                "headers": {**asked[i].headers, "User-Agent": "spark-cluster"},
                "timeout": TIMEOUT_S,
                "encoding": "latin-1",
                "keep": KEPT,
            }
            for i, url in urls.items()
        }
        answer = self._session.request("gather", requests=requests, timeout=TIMEOUT_S)
        found = answer.get("requests", {})
        silent = {"status": 0, "body": "", "reason": "the node gave no answer"}
        return {i: {"headers": {}, **found.get(str(i), silent)} for i in urls}

    def _sent_on(self, url: str, reply: dict[str, Any]) -> str:
        """Where an answer sends its reader.

        Raises:
            HubError: to a host that is not the hub's.
        """
        try:
            target = urljoin(url, str(reply["headers"].get("Location", "")))
            where, home = urlsplit(target), urlsplit(self._endpoint)
        except ValueError:
            raise wrong_answer("it sends on to what is no address") from None
        own = where.scheme == "https" and f".{where.hostname}".endswith(STORES)
        if not own and (where.scheme, where.netloc) != (home.scheme, home.netloc):
            raise wrong_answer(f"it sends on to {(where.hostname or 'nowhere')[:100]!r}")
        return target


def _without_password(url: str) -> str:
    """Return an address without user and password: those are the laptop's, as its token is."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _must_be_an_answer(reply: dict[str, Any], repository: str, revision: str) -> None:
    """Raises:
    HubError: it is a refusal, or none came.
    """
    status = reply["status"]
    if status in GIVEN:
        return
    if status == 0:
        raise unreachable(f"from the node: {str(reply.get('reason', ''))[:200]}")
    raise HubError(hub_problems.of_answer(status, reply["headers"], repository, revision))
