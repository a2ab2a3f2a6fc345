"""A revision of a model in a node's hub cache, pulled from the hub."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from spark_cluster.node import own_program, paths, units
from spark_cluster.node.host import Host
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import is_commit, is_repository
from spark_cluster.node.values import Secret
from spark_cluster.resources.base import Resource, State, absolute, checks

PROGRAM = "spark_cluster.node.store.download"

PREVIEW_S = 300.0
"""Seconds for the description of a revision and the look at what is there."""


@dataclass(frozen=True)
class HubModel(Resource):
    """A revision of a model, whole, in the hub cache; pulled in a unit of its own if it is not.

    A commit that is there is there, without asking the hub. A branch or tag is asked for at each
    run: this is how one that moved is followed.

    Args:
        repository: ORG/NAME.
        revision: branch, tag or commit.
        cache: folder of the hub cache.
        library: folder of the virtual environment with `huggingface_hub`.
        token: of the hub; it goes through standard input only.
        endpoint: address of a mirror of the hub; it gets the token, too.
        all_files: also the files that hold the same weights in another format.
        timeout_s: seconds for the pull.

    Raises:
        ResourceError: it cannot be had, with the reason and the fix.

    Example:
        HubModel("Qwen/Qwen3-0.6B", "c1899de289a04d12100db370d81485cdf75e47ca", "/srv/hub")
    """

    valid = checks(cache=absolute, library=absolute)

    repository: str
    revision: str
    cache: str
    library: str = paths.HUB_LIBRARY
    token: Secret | None = field(default=None, kw_only=True)
    endpoint: str = field(default="", kw_only=True)
    all_files: bool = field(default=False, kw_only=True)
    timeout_s: float = field(default=24 * 3600.0, kw_only=True)

    def validate(self) -> None:
        self.must(is_repository(self.repository), "it is not ORG/NAME")
        named = self.revision and not self.revision.startswith("-")
        self.must(named, f"{self.revision!r} is not a revision")

    def desired(self) -> State:
        return {"complete": True}

    def observe(self, host: Host) -> State:
        if not is_commit(self.revision):  # it may have moved
            return {"complete": False}
        cache = HubCache(host.path(self.cache), host.path(paths.MODELS))
        _, missing, _ = cache.held(self.repository, self.revision)
        # Where that cannot be told, the pull says what is in its way.
        return {"complete": missing is not None and missing.nothing}

    def converge(self, host: Host, actual: State) -> None:
        result = self._pull(host)
        if result["unchecked"]:
            host.note(
                f"{self.repository}: the hub gives no hash of {result['unchecked']} files; "
                "only their size was checked"
            )

    def state_after(self, host: Host) -> State:
        return self.observe(host) if is_commit(self.revision) else {"complete": True}

    def preview(self, host: Host) -> dict[str, Any]:
        """Ask the hub what a pull would fetch; nothing is fetched. Raises ResourceError.

        A failure after which the hub is asked again is progress.
        """

        def on_output(line: str) -> None:
            if not line.startswith("{"):  # which is the answer
                host.progress(line)

        done = host.run(
            own_program.in_environment(self.library, PROGRAM),
            stdin=self._request(host, preview=True),
            env=host.proxies(),
            timeout=PREVIEW_S,
            on_output=on_output,
        )
        return own_program.answer_of(done.stdout, done.stderr, f"the pull of {self.repository}")

    def _pull(self, host: Host) -> dict[str, Any]:
        work = (self.repository, self.revision, self.cache, *(["all"] if self.all_files else []))
        done = units.run(
            host,
            self.id,
            own_program.in_environment(self.library, PROGRAM, *work),
            stdin=self._request(host),
            env=host.proxies(),
            timeout=self.timeout_s,
            reuse_result=False,
        )
        return own_program.answer_of(done.stdout, done.stderr, f"the pull of {self.repository}")

    def _request(self, host: Host, *, preview: bool = False) -> bytes:
        """Return what the program reads on its standard input."""
        wanted = {
            "repository": self.repository,
            "revision": self.revision,
            "cache": str(host.path(self.cache)),
            "ours": str(host.path(paths.MODELS)),
            "token": str(self.token or ""),
            "endpoint": self.endpoint,
            "all_files": self.all_files,
            "preview": preview,
        }
        return json.dumps(wanted).encode()
