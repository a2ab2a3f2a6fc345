"""`recipes update`: what has changed in the registries, and the decision to take it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import mark, styled
from spark_cluster.errors import SparkClusterError, UsageError

if TYPE_CHECKING:
    from spark_cluster.config.registries import Registry
    from spark_cluster.registries.update import Update

_SHOWN = 40
"""Names of each kind that are shown without --verbose."""


@click.command("update")
@click.argument("names", nargs=-1, metavar="[REGISTRY]...")
@click.option("--check", is_flag=True, help="Show what has changed and take nothing.")
@click.option("--yes", is_flag=True, help="Take what has changed without asking.")
@click.option(
    "--allow-rewritten",
    is_flag=True,
    help="Also take a branch whose history no longer has the commit in use.",
)
@click.pass_context
def command(
    ctx: click.Context, names: tuple[str, ...], *, check: bool, yes: bool, allow_rewritten: bool
) -> None:
    """Fetch the recipes of the project's registries (default: of all in registries.yaml).

    A branch that has moved is shown as the names of recipes that were added, changed and removed,
    and is taken when you agree. Recipes are converted, never run; use them as @REGISTRY/RECIPE.
    """
    from spark_cluster.loader import registries
    from spark_cluster.registries.update import update

    app: App = ctx.obj
    folder = app.project.folder
    chosen = [registries.registry_named(name, folder) for name in dict.fromkeys(names)]
    chosen = chosen or list(registries.registries(folder))
    if not chosen:
        raise UsageError(
            f"no registries: {registries.FILE} is not in {folder}",
            hint="see the how-to page 'Share recipes'",
        )
    decision = _Decision(app, check=check, yes=yes, allow_rewritten=allow_rewritten)
    rows: list[dict[str, Any]] = []
    for registry in chosen:
        try:
            found = update(registry, folder, decision.agree)
        except SparkClusterError as error:
            rows.append(NotUpdated(registry.name, error).to_dict())
            decision.failed(registry, error)
        else:
            rows.append(found.to_dict())
            decision.done(found)
    if app.as_json:
        app.print_json({"ok": decision.status == 0, "registries": rows})
    ctx.exit(decision.status)


@dataclass(frozen=True)
class NotUpdated:
    """A registry that could not be looked at."""

    registry: str
    error: SparkClusterError

    def to_dict(self) -> dict[str, Any]:
        """Return it as `recipes update --json` prints it."""
        return {"registry": self.registry, "error": self.error.to_dict()}


class _Decision:
    """Shows what was found, asks, and keeps the exit status."""

    def __init__(self, app: App, *, check: bool, yes: bool, allow_rewritten: bool) -> None:
        self.app = app
        self.check = check
        self.yes = yes
        self.allow_rewritten = allow_rewritten
        self.status = 0
        self._shown: set[str] = set()

    def agree(self, found: Update) -> bool:
        """Show what has changed, and return whether it is taken."""
        self._show(found)
        if self.check:
            return False
        if found.rewritten and not self.allow_rewritten:
            self.status = 4
            return False
        if found.taken is None or self.yes:
            return True
        interactive = sys.stdin.isatty() and sys.stdout.isatty() and not self.app.as_json
        return interactive and click.confirm("Take it?", default=False)

    def done(self, found: Update) -> None:
        """Say what is in use now."""

        self._show(found)
        name, revision = found.registry.name, found.found.revision[:12]
        if found.in_use:
            usable = len(found.found.recipes) - len(found.broken)
            text = styled("{} {}: {} recipes at {}", mark("ok"), name, usable, revision)
        elif found.rewritten and not self.check:
            text = styled(
                "{} {}: not taken; if its owner says why: recipes update {} --allow-rewritten",
                mark("fail"),
                name,
                name,
            )
        else:
            text = styled("{} {}: not taken; to take it: recipes update {} --yes", "-", name, name)
        self.app.console.print(text, soft_wrap=True)

    def failed(self, registry: Registry, error: SparkClusterError) -> None:
        """Say why a registry could not be looked at; the others are."""

        self.status = error.exit_code
        text = styled("{} {}: {}", mark("fail"), registry.name, error)
        self.app.console.print(text, soft_wrap=True)

    def _show(self, found: Update) -> None:
        """Show the names that differ, once for each registry."""

        name = found.registry.name
        if name in self._shown:
            return
        self._shown.add(name)
        out = self.app.console.print
        if found.changes or found.rewritten:
            old = (found.taken or "nothing")[:12]
            out(styled("[bold]{}[/]  {} → {}", name, old, found.found.revision[:12]))
        if found.rewritten:
            out(styled("  [red]its history was rewritten[/]: the commit in use is not in it"))
        changes = found.changes
        for sign, kind, names in (
            ("+", "added", changes.added),
            ("~", "changed", changes.changed),
            ("-", "removed", changes.removed),
        ):
            limit = None if self.app.verbose else _SHOWN
            for one in names[:limit]:
                out(styled("  {} {} [dim]{}[/]", sign, one, kind), soft_wrap=True)
            if limit and len(names) > limit:
                out(styled("  [dim]and {} more {} (-v shows them)[/]", len(names) - limit, kind))
        self._show_unusable(found)

    def _show_unusable(self, found: Update) -> None:

        out = self.app.console.print
        broken, skipped = found.broken, found.found.skipped
        if self.app.verbose:
            for one in broken:
                out(styled("  [dim]not usable:[/] {}: {}", one.name, one.error), soft_wrap=True)
            for text in skipped:
                out(styled("  [dim]not taken:[/] {}", text), soft_wrap=True)
        elif broken or skipped:
            counts = (len(broken), len(skipped))
            out(styled("  [dim]{} cannot be used, {} files not taken (-v says why)[/]", *counts))
