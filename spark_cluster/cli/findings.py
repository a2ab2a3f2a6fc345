"""The output of findings of known issues, for `lint` and `explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_cluster.cli.console import mark, painted, styled

if TYPE_CHECKING:
    from spark_cluster.cli.terminal import Console
    from spark_cluster.known_issues.entries import Issue
    from spark_cluster.known_issues.match import KnownIssueMatch


def show(console: Console, found: KnownIssueMatch, *, place: str = "") -> None:
    """A finding in full: title and id, what was seen, why, what to do.

    Args:
        place: where it was seen, and when.
    """
    from rich.padding import Padding

    named = f"  {found.id}" if found.id else ""
    console.print(styled("{} [bold]{}[/][dim]{}[/]", mark(found.severity), found.title, named))
    rows = [painted(place, "dim")] if place else []
    rows.append(painted(found.found))
    rows += [painted(found.cause, "dim")] if found.cause else []
    rows += [painted(f"→ {found.fix}", "cyan")] if found.fix else []
    for row in rows:
        console.print(Padding(row, (0, 0, 0, 2), expand=False))


def show_issue(console: Console, issue: Issue) -> None:
    """An entry of the catalogue."""
    from rich.table import Table

    title = styled("{} [bold]{}[/]  [dim]{}[/]", mark(issue.severity), issue.title, issue.id)
    console.print(title)
    table = Table(box=None, show_header=False, pad_edge=True, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    rows = {
        "symptom": issue.symptom,
        "cause": issue.cause,
        "fix": issue.fix,
        "versions": f"vLLM {issue.versions}" if issue.versions else "",
        "found by": _found_by(issue),
        "depends on": ", ".join(issue.keyed_on),
        "source": issue.source,
        "confidence": issue.confidence,
    }
    for name, text in rows.items():
        if text:
            table.add_row(name, text)
    console.print(table)


def _found_by(issue: Issue) -> str:
    ways = ["lint"] if issue.when or issue.rule else []
    ways += ["explain"] if issue.log else []
    ways += [f"doctor ({', '.join(issue.all_checks)})"] if issue.all_checks else []
    ways += [f"up (readiness: {', '.join(issue.rungs)})"] if issue.rungs else []
    return ", ".join(ways) or "nothing (for information)"
