"""The page of known issues, from the catalogue."""

from __future__ import annotations

from docs.generate.code import Issue, known_issues
from docs.generate.markdown import code, page, paragraphs, plain
from docs.generate.sources import links

INTRODUCTION = """\
Everything that is known to go wrong, each with its cause, its fix and its [source](../sources.md).
`lint` finds them in a recipe or a command line, `explain` in logs, `doctor` on the nodes."""


def render() -> str:
    """The page."""
    found = known_issues()
    number = sum(map(len, found.values()))
    text = f"{INTRODUCTION} There are {number} of them."
    return page("Known issues", text, *(_group(name, issues) for name, issues in found.items()))


def _group(name: str, issues: list[Issue]) -> str:
    return paragraphs(f"## {name.replace('_', ' ').capitalize()}", *map(_issue, issues))


def _issue(issue: Issue) -> str:
    rows = [
        ("severity", issue.severity),
        ("symptom", plain(issue.symptom)),
        ("cause", plain(issue.cause)),
        ("fix", plain(issue.fix)),
        ("to change", code(issue.flag) if issue.flag else ""),
        ("versions of vLLM", code(issue.versions) if issue.versions else ""),
        ("found by", _found_by(issue)),
        ("source", links(issue.source)),
    ]
    return paragraphs(
        f"### {issue.id}",
        plain(issue.title),
        "\n".join(f"- **{name}**: {text}" for name, text in rows if text),
    )


def _found_by(issue: Issue) -> str:
    ways = [
        "`plan`, `lint`" if issue.when or issue.rule else "",
        "`explain`" if issue.log else "",
        f"`doctor` ({', '.join(map(code, issue.all_checks))})" if issue.all_checks else "",
        f"`up` (readiness: {', '.join(map(code, issue.rungs))})" if issue.rungs else "",
    ]
    return ", ".join(way for way in ways if way) or "nothing yet: good to know"
