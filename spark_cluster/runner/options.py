"""The options of a run: check mode, diffs, which resources. Light: needed before connecting."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from spark_cluster.resources.base import Resource


@dataclass
class Selection:
    """The selection of a run's resources: `--tags`, `--skip-tags`, `--start-at`.

    Args:
        tags: only resources that have one of these.
        skip_tags: not the ones that have one of these.
        start_at: a role's name, or a resource's id (`File:/etc/hosts`, globs allowed); what comes
            before the first match is skipped, on each node.
    """

    tags: frozenset[str] = frozenset()
    skip_tags: frozenset[str] = frozenset()
    start_at: str = ""
    _begun: set[str] = field(default_factory=set)
    _seen: set[str] = field(default_factory=set)

    @property
    def partial(self) -> bool:
        """True if anything may be left out."""
        return bool(self.tags or self.skip_tags or self.start_at)

    def wants(self, node: str, role: str, resource: Resource) -> bool:
        return self._wants([node], (role, resource.id), {role, *resource.tags})

    def wants_part(self, nodes: Iterable[str], name: str) -> bool:
        """Return whether a part of a run that is no resource is to be done, by its name."""
        return self._wants(list(nodes), (name,), {name})

    def _wants(self, nodes: Sequence[str], names: Sequence[str], tags: set[str]) -> bool:
        """Return whether what has these names and tags is to be done on these nodes."""
        self._seen.update(names, tags)
        if self.start_at:
            if any(fnmatch.fnmatchcase(name, self.start_at) for name in names):
                self._begun.update(nodes)
            if not self._begun.issuperset(nodes):
                return False
        return (not self.tags or bool(tags & self.tags)) and not tags & self.skip_tags

    def unmatched(self) -> UsageError | None:
        """An error when a name that was asked for was never met in the whole run."""
        if self.start_at and not self._begun:
            return self._unknown("--start-at", self.start_at)
        for option, names in (("--tags", self.tags), ("--skip-tags", self.skip_tags)):
            for name in names - self._seen:
                return self._unknown(option, name)
        return None

    def _unknown(self, option: str, name: str) -> UsageError:
        import difflib

        close = difflib.get_close_matches(name, self._seen, n=3)
        return UsageError(
            f"{option} {name}: nothing in this run has that name",
            hint=f"did you mean {' or '.join(close)}?" if close else "",
        )


@dataclass
class Options:
    """The options of a run.

    Args:
        check: change nothing, tell what would be changed.
        diff: with unified diffs.
        selection: `--tags`, `--skip-tags`, `--start-at`.
        step: a person is asked before each change.
        ask: how: the node and what would be changed in, `yes`, `no`, `all` or `stop` out.
        adopt: models that other tools have downloaded to a node are taken over.
        consent: how a person is asked a question with yes or no; None: there is no one to ask.
    """

    check: bool = False
    diff: bool = False
    selection: Selection = field(default_factory=Selection)
    step: bool = False
    ask: Callable[[str, dict[str, Any]], str] | None = None
    adopt: bool = False
    consent: Callable[[str], bool] | None = None

    @property
    def may_adopt(self) -> bool:
        """True if models of other caches are taken over, or someone can be asked."""
        return self.adopt or self.consent is not None
