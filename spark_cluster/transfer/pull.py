"""Pulling a model from the hub to one node; it goes on there when the laptop is gone."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from spark_cluster.config.caches import CACHE_ROOT
from spark_cluster.errors import Failed
from spark_cluster.node.store.hub_cache import HUB, OURS, folder_name
from spark_cluster.node.store.manifest import BadManifest, Manifest, check_commit
from spark_cluster.node.values import ResourceError, Secret
from spark_cluster.resources.hub_model import CODE, HubModel, result_of
from spark_cluster.runner.payload import ROOT_FOLDER, digest
from spark_cluster.runner.play import Play
from spark_cluster.topology import Node

PREVIEW_S = 300.0
"""Longest wait for the description of a revision and the look at what is there, seconds."""
LIBRARY = "/opt/spark-cluster/hub"
"""Folder of the hub library's environment (role hub_library)."""


@dataclass(frozen=True)
class WantedModel:
    """A revision to be pulled.

    Args:
        repository: ORG/NAME.
        revision: branch, tag or commit.
        cache: folder of the hub cache on the node.
        all_files: also the files that hold the same weights in another format.
        token_env: variable of the laptop with a hub token, when it is set.
        endpoint: address of a mirror of the hub; it gets the token, too.
    """

    repository: str
    revision: str = "main"
    cache: str = f"{CACHE_ROOT}/{HUB}"
    all_files: bool = False
    token_env: str = "HF_TOKEN"  # noqa: S105  (a name)
    endpoint: str = ""

    @property
    def token(self) -> Secret | None:
        """The hub token of the laptop's environment."""
        found = os.environ.get(self.token_env, "")
        return Secret(found) if found else None


@dataclass(frozen=True)
class Preview:
    """What a pull would do.

    Attributes:
        commit: of 40 hexadecimal digits.
        size: bytes of the wanted files.
        missing: bytes that would be fetched.
        free: bytes free where the hub cache is.
    """

    commit: str
    size: int
    missing: int
    free: int

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def pull(play: Play, node: Node, wanted: WantedModel) -> Manifest:
    """Have a revision in a node's hub cache, whole and checked.

    The node's work is a unit that outlives this process; the next call finds it running.

    Raises:
        SparkClusterError: it cannot be had, with the reason and the fix.
    """
    model = HubModel(
        wanted.repository,
        wanted.revision,
        wanted.cache,
        LIBRARY,
        token=wanted.token,
        endpoint=wanted.endpoint,
        all_files=wanted.all_files,
    )
    play.apply(node, play.role("hub_library", path=LIBRARY), [model])
    return _manifest(play, node, wanted)


def preview(play: Play, node: Node, wanted: WantedModel) -> Preview:
    """Ask the hub through a node what a pull would fetch; nothing is fetched.

    Raises:
        SparkClusterError: the hub does not say, or the library cannot be installed.
    """
    play.apply(node, play.role("hub_library", path=LIBRARY))
    request = {
        "repository": wanted.repository,
        "revision": wanted.revision,
        "cache": wanted.cache,
        "ours": OURS,
        "token": str(wanted.token or ""),
        "endpoint": wanted.endpoint,
        "all_files": wanted.all_files,
        "preview": True,
    }
    code = f"{ROOT_FOLDER}/{digest()}"
    argv = [f"{LIBRARY}/bin/python", "-I", "-B", "-c", CODE, code]
    done = play.session(node).run(argv, stdin=json.dumps(request), timeout=PREVIEW_S)
    try:
        result = result_of(done.stdout, done.stderr, wanted.repository)
        numbers = (int(result[key]) for key in ("size", "missing", "free"))
        return Preview(check_commit(result["commit"]), *numbers)
    except (ResourceError, KeyError, TypeError, ValueError) as error:
        hint = error.hint if isinstance(error, ResourceError) else ""
        raise Failed(str(error), where=node.name, hint=hint) from error


def _manifest(play: Play, node: Node, wanted: WantedModel) -> Manifest:
    """Read the manifest that the pull has written."""
    folder = folder_name(wanted.repository)
    commit = _read(play, node, f"{wanted.cache}/{folder}/refs/{wanted.revision}", wanted.revision)
    text = _read(play, node, f"{OURS}/manifests/{folder}@{commit.strip()[:40]}.json", "")
    try:
        return Manifest.from_text(text)
    except BadManifest as error:
        raise Failed(
            f"the manifest of {wanted.repository}@{wanted.revision}: {error}",
            where=node.name,
            hint="spark-cluster models pull makes it again",
        ) from error


def _read(play: Play, node: Node, path: str, otherwise: str) -> str:
    done = play.session(node).run(["cat", path])
    return done.stdout if done.status == 0 else otherwise
