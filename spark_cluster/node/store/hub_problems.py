"""What a hub refuses, in words for the user: the same for a laptop that asks and a node that pulls.

Each problem has a kind, a sentence and the fix. No library is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def missing(repository: str, suggestion: str = "") -> HubProblem:
    """Say that there is no such repository, and what may have been meant."""
    spelling = f"check the spelling ({suggestion})" if suggestion else "check the spelling"
    return HubProblem(
        "missing",
        f"the hub has no model {repository!r} that is visible from here",
        f"{spelling}; for a private model set HF_TOKEN to a token that may read it",
    )


def gated(repository: str) -> HubProblem:
    """Say that the authors must give access first."""
    return HubProblem(
        "gated",
        f"the model {repository!r} is gated: its authors give access on request",
        f"accept its conditions at https://huggingface.co/{repository} and set HF_TOKEN to a "
        "token of that account; or give a folder with its config.json",
    )


def no_revision(repository: str, revision: str) -> HubProblem:
    """Say that the repository has no such branch, tag or commit."""
    return HubProblem(
        "revision",
        f"the model {repository!r} has no revision {revision!r} on the hub",
        "give a branch, tag or commit that the model's page lists under 'Files'",
    )


def no_file(repository: str, name: str = "") -> HubProblem:
    """Say that the repository lacks a file."""
    what = f"no file {name!r}" if name else "no such file"
    return HubProblem("file", f"{repository} has {what} on the hub")


def disabled(repository: str) -> HubProblem:
    """Say that the hub itself has closed the repository."""
    return HubProblem("gated", f"the hub has disabled access to {repository!r}")


def refused(repository: str, status: int) -> HubProblem:
    """Say that the token is not accepted."""
    return HubProblem(
        "gated",
        f"the hub refuses to show {repository!r} ({status})",
        "the token in HF_TOKEN is not valid or may not read it: make one with read access "
        f"at {TOKENS}, or unset it",
    )


def token_expired(repository: str, status: int) -> HubProblem:
    """Say that the token was accepted at first and is not any more."""
    return HubProblem(
        "token",
        f"the hub accepted the token for {repository!r} at first and refuses it now ({status}): "
        "it has expired or was revoked",
        f"make a token with read access at {TOKENS}, set HF_TOKEN to it and run the command "
        "again: the files and parts of files that came are kept",
    )


def seconds_of(retry_after: str) -> str:
    """Return the seconds of a header Retry-After; empty where it has none that can be believed."""
    return retry_after if retry_after.isdecimal() and len(retry_after) < 6 else ""


def busy(wait_s: str) -> HubProblem:
    """Say that too many requests came from here."""
    wait = f"wait {wait_s} s" if wait_s else "wait some minutes"
    return HubProblem(
        "busy",
        "the hub refuses more requests from this address for now (429)",
        f"{wait}, or set HF_TOKEN, which allows more; --offline uses what is known here",
    )


def unreachable(reason: str) -> HubProblem:
    """Say that no answer came."""
    return HubProblem(
        "unreachable",
        f"the hub cannot be reached: {reason}",
        "check the network and HTTPS_PROXY; --offline uses what is known here, and a folder "
        "with the model's config.json works without the hub",
    )


def wrong_answer(what: str) -> HubProblem:
    """Say that an answer came that cannot be used."""
    return HubProblem(
        "server",
        f"the hub's answer cannot be used: {what}",
        "try again later; --offline uses what is known here",
    )


def wrong_content(repository: str, name: str, expected: str) -> HubProblem:
    """Say that a file's bytes are not those that the hub's own hash names, twice."""
    return HubProblem(
        "content",
        f"{name} of {repository}: the hub says that its hash is {expected}, and what it sent, "
        "twice, has another; it was thrown away",
        "a proxy or mirror in between may change files: unset HF_ENDPOINT and HTTPS_PROXY and "
        "try again; otherwise report it on the model's page",
    )


def of_answer(
    status: int, headers: Mapping[str, str], repository: str, revision: str
) -> HubProblem:
    """Return what an answer of the hub that gives nothing means, by its status and headers."""
    code, words = headers.get("X-Error-Code", ""), headers.get("X-Error-Message", "")
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return busy(seconds_of(headers.get("Retry-After", "")))
    if code in _BY_CODE:
        return _BY_CODE[code](repository, revision)
    if words == "Access to this resource is disabled.":
        return disabled(repository)
    bad_token = status == HTTPStatus.UNAUTHORIZED and words.startswith("Invalid credentials")
    if status == HTTPStatus.FORBIDDEN or bad_token:
        return refused(repository, status)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND):
        return missing(repository)
    return wrong_answer(f"status {status}")


_BY_CODE: Mapping[str, Callable[[str, str], HubProblem]] = {
    "GatedRepo": lambda repository, _: gated(repository),
    "RepoNotFound": lambda repository, _: missing(repository),
    "RevisionNotFound": no_revision,
    "EntryNotFound": lambda repository, _: no_file(repository),
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
        return unreachable("HF_HUB_OFFLINE is set")
    if names & {"HTTPError", "InvalidURL", "StreamError", "LocalEntryNotFoundError"}:
        return unreachable(first_line(error))
    # A mirror that lacks a header, or more or fewer bytes than were announced.
    if "FileMetadataError" in names or (type(error) is OSError and error.errno is None):
        return wrong_answer(first_line(error))
    return None


def status_of(error: BaseException) -> int:
    """Return the HTTP status that an exception carries; 0 without one."""
    found = getattr(getattr(error, "response", None), "status_code", 0)
    return found if isinstance(found, int) else 0


def first_line(error: BaseException) -> str:
    """Return the first line of an error, or its kind where it has no words."""
    first = str(error).strip().partition("\n")[0][:200]
    return first or type(error).__name__
