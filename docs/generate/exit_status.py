"""The page of exit statuses, from the errors that carry them."""

from __future__ import annotations

from itertools import groupby

from docs.generate import docstring
from docs.generate.code import WOULD_CHANGE, error_classes
from docs.generate.markdown import page, plain, table

INTRODUCTION = """\
The exit status of `spark-cluster` says what kind of failure it was; the message has the details.
With `--json` the document is `{"ok": false, "error": {"message": ..., "where": ..., "hint": ...}}`
([schema](../schema/error.json))."""


def statuses() -> dict[int, str]:
    """Exit status to its meaning."""
    meanings = {
        status: " ".join(docstring.parse(kind).summary for kind in kinds if kind.__doc__)
        for status, kinds in groupby(error_classes(), lambda kind: kind.exit_code)
    }
    meanings[0] = "It is done, or nothing had to be done."
    meanings[WOULD_CHANGE] = "`--check --exit-code`: something would change."
    meanings[141] = "What reads the output, such as `head`, has closed it (128 and SIGPIPE)."
    return dict(sorted(meanings.items()))


def render() -> str:
    """The page."""
    rows = [(str(status), plain(meaning)) for status, meaning in statuses().items()]
    return page("Exit status", INTRODUCTION, table(("status", "meaning"), rows))
