"""`registries.yaml` of a project: where recipes of others come from, and how they are pinned."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from spark_cluster.config.fields import Word
from spark_cluster.config.schema import Schema

GIT_SCHEMES = ("https", "ssh", "file")
"""Of git repositories; plain HTTP and git's own protocol let others change what comes."""

ARCHIVE_SCHEMES = ("https", "http")
"""Of archives: the checksum says whether it is the right one."""

Format = Literal["spark-cluster", "sparkrun", "spark-vllm-docker", "vllm-recipes"]

_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*")


def _hexadecimal(length: int) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(rf"[0-9a-f]{{{length}}}", text):
            raise ValueError(f"found {text!r}, expected {length} hexadecimal digits, all of them")
        return text

    return AfterValidator(check)


def _branch(text: str) -> str:
    if not _PATH.fullmatch(text) or ".." in text or text.endswith(".lock"):
        raise ValueError(f"found {text!r}, expected the name of a branch or tag")
    return text


def _folder(text: str) -> str:
    if not _PATH.fullmatch(text):
        raise ValueError(f"found {text!r}, expected a folder of the registry, such as recipes")
    return text


def _url(text: str) -> str:
    found = urlsplit(text)
    if found.password or (found.username and found.scheme != "ssh"):
        raise ValueError("it has a user or a password in it (not shown); git's own helpers have it")
    if found.scheme not in {*GIT_SCHEMES, *ARCHIVE_SCHEMES} or re.search(r"[\s\x00-\x1f]", text):
        raise ValueError(f"found {text!r}, expected https://, ssh:// or file://")
    if found.scheme != "file" and (not found.hostname or found.hostname.startswith("-")):
        raise ValueError(f"found {text!r}, which names no host")
    return text


class Registry(Schema):
    """A collection of recipes: a git repository, or an archive."""

    name: Word = Field(description="its name in `@NAME/RECIPE`")
    url: Annotated[str, AfterValidator(_url)] = Field(
        description="git repository (https, ssh, file), or a .tar.gz when `sha256` is given"
    )
    format: Format = Field(description="the tool that its recipes are written for")
    branch: Annotated[str, AfterValidator(_branch)] = Field(
        default="main",
        description="branch or tag of a git repository that `recipes update` looks at",
    )
    commit: Annotated[str, _hexadecimal(40)] | None = Field(
        default=None, description="commit of a git repository: no other one is ever used"
    )
    sha256: Annotated[str, _hexadecimal(64)] | None = Field(
        default=None, description="checksum of an archive"
    )
    folders: list[Annotated[str, AfterValidator(_folder)]] = Field(
        default=[], description="folders that are looked into (default: all)"
    )

    @property
    def is_archive(self) -> bool:
        """True for an archive, false for a git repository."""
        return self.sha256 is not None

    @property
    def fixed(self) -> str | None:
        """The revision that the file itself names, which does not move."""
        return self.sha256 or self.commit

    @model_validator(mode="after")
    def _one_kind(self) -> Registry:
        scheme = urlsplit(self.url).scheme
        if self.is_archive and self.commit:
            raise ValueError("'sha256' is for an archive, 'commit' for a git repository: give one")
        if self.is_archive and scheme not in ARCHIVE_SCHEMES:
            raise ValueError(f"an archive (sha256) comes by https or http, not by {scheme}")
        if not self.is_archive and scheme not in GIT_SCHEMES:
            raise ValueError(
                f"a git repository comes by https, ssh or file, not by {scheme}; an archive "
                "needs 'sha256'"
            )
        return self


class Registries(Schema):
    """The whole file."""

    registries: list[Registry] = Field(default=[], description="looked at in this order")

    @model_validator(mode="after")
    def _named_once(self) -> Registries:
        names = [one.name for one in self.registries]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two registries have the name '{min(twice)}'")
        return self
