"""What a hub refuses, in words for the user: the same for a laptop that asks and a node that pulls.

Each problem has a kind, a sentence and the fix. No library is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from spark_cluster.node.values import ResourceError

TOKENS = "https://huggingface.co/settings/tokens"


class HubProblem(ResourceError):
    """The hub does not give what is asked for.

    Attributes:
        kind: `missing` (or private), `gated`, `revision` or `file` (not in the repository), `busy`
            (too many requests), `unreachable`, `server` (it answers, but not as it should),
            `token` (no longer valid), `content` (not what the hub's own hash says).
    """

    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.kind = kind

    @property
    def passing(self) -> bool:
        """True if it may pass by waiting."""
        return self.kind in ("unreachable", "server", "busy")


PROBLEMS = {
    "missing": (
        "the hub has no model {repository!r} that is visible from here",
        "check the spelling{suggestion}; for a private model set HF_TOKEN to a token that may read "
        "it",
    ),
    "gated": (
        "the model {repository!r} is gated: its authors give access on request",
        "accept its conditions at https://huggingface.co/{repository} and set HF_TOKEN to a "
        "token of that account; or give a folder with its config.json",
    ),
    "gated, disabled": ("the hub has disabled access to {repository!r}", ""),
    "gated, refused": (
        "the hub refuses to show {repository!r} ({status})",
        "the token in HF_TOKEN is not valid or may not read it: make one with read access at "
        f"{TOKENS}, or unset it",
    ),
    "revision": (
        "the model {repository!r} has no revision {revision!r} on the hub",
        "give a branch, tag or commit that the model's page lists under 'Files'",
    ),
    "file": ("{repository} has no such file on the hub", ""),
    "token": (
        "the hub accepted the token for {repository!r} at first and refuses it now ({status}): "
        "it has expired or was revoked",
        f"make a token with read access at {TOKENS}, set HF_TOKEN to it and run the command "
        "again: the files and parts of files that came are kept",
    ),
    "busy": (
        "the hub refuses more requests from this address for now (429)",
        "wait {wait}, or set HF_TOKEN, which allows more; --offline uses what is known here",
    ),
    "unreachable": (
        "the hub cannot be reached: {reason}",
        "check the network and HTTPS_PROXY (of a node in its /etc/environment); --offline uses "
        "what is known here, and a folder with the model's config.json works without the hub",
    ),
    "server": (
        "the hub's answer cannot be used: {what}",
        "try again later; --offline uses what is known here",
    ),
    "content": (
        "{path} of {repository}: the hub says that its hash is {expected}, and what it sent, "
        "twice, has another; it was thrown away",
        "a proxy or mirror in between may change files: unset HF_ENDPOINT and HTTPS_PROXY and "
        "try again; otherwise report it on the model's page",
    ),
}
"""Kind of a problem, and after a comma which one of this kind, to its message and its fix."""


def problem(name: str, **told: object) -> HubProblem:
    """Return a problem.

    Args:
        name: in PROBLEMS.
        told: what its sentences name in braces.
    """
    message, hint = PROBLEMS[name]
    return HubProblem(name.partition(",")[0], message.format(**told), hint.format(**told))


def missing(repository: str, suggestion: str = "") -> HubProblem:
    """Say that there is no such repository, and what may have been meant."""
    return problem(
        "missing", repository=repository, suggestion=f" ({suggestion})" if suggestion else ""
    )


def seconds_of(retry_after: str) -> str:
    """Return the seconds of a header Retry-After; empty where it has none that can be believed."""
    return retry_after if retry_after.isdecimal() and len(retry_after) < 6 else ""


def of_answer(
    status: int, headers: Mapping[str, str], repository: str, revision: str
) -> HubProblem:
    """Return what an answer of the hub that gives nothing means, by its status and headers."""
    code, words = headers.get("X-Error-Code", ""), headers.get("X-Error-Message", "")
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        wait_s = seconds_of(headers.get("Retry-After", ""))
        return problem("busy", wait=f"{wait_s} s" if wait_s else "some minutes")
    if code in _BY_CODE:
        told = {"repository": repository, "revision": revision, "suggestion": ""}
        return problem(_BY_CODE[code], **told)
    if words == "Access to this resource is disabled.":
        return problem("gated, disabled", repository=repository)
    bad_token = status == HTTPStatus.UNAUTHORIZED and words.startswith("Invalid credentials")
    if status == HTTPStatus.FORBIDDEN or bad_token:
        return problem("gated, refused", repository=repository, status=status)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND):
        return missing(repository)
    return problem("server", what=f"status {status}")


_BY_CODE = {
    "GatedRepo": "gated",
    "RepoNotFound": "missing",
    "RevisionNotFound": "revision",
    "EntryNotFound": "file",
}
"""The hub's X-Error-Code. Source: huggingface_hub/utils/_http.py, hf_raise_for_status."""


def of_library(error: BaseException, repository: str, revision: str) -> HubProblem | None:
    """Return the problem behind an exception of `huggingface_hub` or its HTTP client.

    Classes are told by their names, so that this module needs neither.

    Returns:
        None when it is none of these.
    """
    response = getattr(error, "response", None)
    if response is not None:
        return of_answer(response.status_code, response.headers, repository, revision)
    names = {kind.__name__ for kind in type(error).__mro__}
    if "HFValidationError" in names:
        return missing(repository)
    if "OfflineModeIsEnabled" in names:
        return problem("unreachable", reason="HF_HUB_OFFLINE is set")
    if names & {"HTTPError", "InvalidURL", "StreamError", "LocalEntryNotFoundError"}:
        return problem("unreachable", reason=first_line(error))
    # A mirror that lacks a header, or more or fewer bytes than were announced.
    if "FileMetadataError" in names or (type(error) is OSError and error.errno is None):
        return problem("server", what=first_line(error))
    return None


def status_of(error: BaseException) -> int:
    """Return the HTTP status that an exception carries; 0 without one."""
    found = getattr(getattr(error, "response", None), "status_code", 0)
    return found if isinstance(found, int) else 0


def first_line(error: BaseException) -> str:
    """Return the first line of an error, or its kind where it has no words."""
    first = str(error).strip().partition("\n")[0][:200]
    return first or type(error).__name__
