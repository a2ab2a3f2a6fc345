"""Mods of sparkrun and spark-vllm-docker: folders with a `run.sh` that changes the container.

A mod whose folder is at hand becomes a step of the recipe's `image.build`, with its files, their
SHA-256 and where they come from. Nothing of it is run here. It is looked for where sparkrun looks
(its core/mods.py): next to the recipe, and in a registry's folder, which `--mods` names.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spark_cluster.config.image_build import part_of_folder
from spark_cluster.config.secret import is_secret_setting, looks_secret
from spark_cluster.importers.importer import Left, Parts, Source

GIT_S = 10.0
"""Seconds that git may take to say where a checkout comes from."""

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SCP = re.compile(r"(?:[\w.-]+@)?([\w.-]+):(?!/)(.+)")


@dataclass(frozen=True)
class Checkout:
    """The origin of files; empty where nothing tells.

    Attributes:
        url: of the remote `origin`, without user and password.
        commit: that is checked out.
    """

    url: str = ""
    commit: str = ""


def checkout_of(folder: Path) -> Checkout:
    """Return the checkout that a folder lies in; an empty one where it lies in none, or where there
    is no git on this machine.
    """
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    url = _git(folder, "config", "--get", "remote.origin.url")
    return Checkout(plain_url(url), commit if _COMMIT.fullmatch(commit) else "")


def _git(folder: Path, *words: str) -> str:
    """Return what git says of a checkout, whoever owns it; nothing of it is run by these words."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    argv = ["git", "-c", "safe.directory=*", "-C", str(folder), *words]
    try:
        done = subprocess.run(argv, env=env, check=False, capture_output=True, timeout=GIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""


def plain_url(url: str) -> str:
    """Return an address without user and password, as https where it is SSH's short form.

    >>> plain_url("https://me:secret@github.com/a/b.git")
    'https://github.com/a/b'
    >>> plain_url("git@github.com:a/b.git")
    'https://github.com/a/b'
    """
    short = _SCP.fullmatch(url) if "://" not in url else None
    if short:
        return f"https://{short[1]}/{short[2]}".removesuffix(".git")
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https", "ssh", "git") or not parts.hostname:
        return ""  # a folder of this machine, which says nothing to others
    return f"https://{parts.hostname}{parts.path}".removesuffix(".git")


SCRIPT = "run.sh"
_MODS = "mods: "
MOST_FILES = 200
LARGEST = 8 << 20
"""Bytes of all files of a mod; the largest that is published has a hundredth of it."""

_NETWORK = re.compile(
    r"\b(?:curl|wget|git\s+(?:clone|fetch|pull|submodule)|pip3?\s+(?:install|download)|"
    r"uv\s+(?:pip|sync)|apt(?:-get)?\s|hf\s+download|huggingface-cli|npm\s+install|"
    r"urllib\.request|urlopen|import\s+requests|snapshot_download)"
)
"""What fetches something; a script often goes on without a word when it cannot."""

_BACKGROUND = re.compile(r"(?m)\bnohup\b|\bsetsid\b|\bdisown\b|(?<![&>|])&[ \t]*(?:#.*)?$")
"""What leaves a process behind, which ends with the build."""

_KERNEL = re.compile(r">[ \t]*/(?:proc|sys)/|\bsysctl\s+-w\b")
"""What changes the running kernel, of which nothing is in an image."""

_COMMENT = re.compile(r"(?m)^[ \t]*#.*$")
_USES = r"\$\{{?{0}\b|environ\W+(?:get\W+)?{0}\b"
"""How a script names the variable {0}."""


@dataclass(frozen=True)
class Mod:
    """A mod that can be carried over.

    Attributes:
        name: of its folder.
        files: path in the folder to content.
        checkout: where it comes from.
    """

    name: str
    files: Mapping[str, bytes]
    checkout: Checkout

    def text(self, *endings: str) -> str:
        """Return the text of the scripts with these endings."""
        return "\n".join(
            content.decode("utf-8", errors="replace")
            for path, content in self.files.items()
            if path.endswith(endings)
        )

    @property
    def fetches(self) -> bool:
        """True if a script looks like fetching something from the network."""
        return bool(_NETWORK.search(_COMMENT.sub("", self.text(".sh", ".py"))))

    def step(self, folder: str, env: Mapping[str, str]) -> dict[str, Any]:
        """Return the step of a recipe.

        Args:
            folder: of the files, relative to the recipe.
            env: of the recipe; a step gets what its scripts name, and no secret.
        """
        files = [
            {
                "path": path,
                "file": f"{folder}/{self.name}/{path}",
                "sha256": hashlib.sha256(content).hexdigest(),
            }
            for path, content in self.files.items()
        ]
        text = self.text(".sh", ".py")
        named = {
            name: value
            for name, value in env.items()
            if re.search(_USES.format(re.escape(name)), text) and not is_secret_setting(name, value)
        }
        origin = {"env": named, "origin": self.checkout.url, "commit": self.checkout.commit}
        told = {key: value for key, value in origin.items() if value}
        return {"name": self.name, "files": files, **told}


class NotCarried(ValueError):
    """A mod that cannot be carried over; its text says why."""


def find(reference: str, recipe: Path | None, folders: Sequence[Path]) -> Mod:
    """Return the mod that a recipe refers to.

    Args:
        reference: as the recipe has it: `mods/fix-x`, `fix-x` or `@registry/fix-x`.
        recipe: the file, next to which mods may lie.
        folders: that the user named: a mod, a folder of mods, or a checkout with `mods` in it.

    Raises:
        NotCarried: it is not at hand, or cannot be a step of a build.
    """
    name = reference.partition("/")[2] if reference.startswith("@") else reference
    name = name.removeprefix("./").removeprefix("mods/").rstrip("/")
    try:
        part_of_folder(name)
    except ValueError:
        raise NotCarried("it is not the name of a folder of mods") from None
    # spark-vllm-docker has recipes/ next to mods/.
    beside = [recipe.absolute().parent, recipe.absolute().parent.parent] if recipe else []
    for place in [*beside, *folders]:
        for folder in (place / "mods" / name, place / name, place):
            if not folder.resolve().is_relative_to(place.resolve()):
                continue  # by a link: what is outside is no part of the kit
            if (folder / SCRIPT).is_file() and (folder is not place or place.name == name):
                return _checked(Mod(name.rpartition("/")[2], _files(folder), checkout_of(folder)))
    raise NotCarried(
        "its folder is not at hand: give --mods FOLDER, a checkout of the repository that it comes "
        "from; links that lead out of FOLDER are not followed"
    )


def _files(folder: Path) -> dict[str, bytes]:
    """The files of a mod.

    Raises:
        NotCarried: one is a link out of the folder or has an odd name, or they are too large.
    """
    root, found, size = folder.resolve(), dict[str, bytes](), 0
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if any(part == "__pycache__" or part.startswith(".") for part in inside.parts):
            continue
        if not path.resolve().is_relative_to(root):
            raise NotCarried(f"{inside} is a link to a place outside its folder")
        if path.is_dir():
            continue
        if not path.is_file():
            raise NotCarried(f"{inside} is not a regular file")
        try:
            part_of_folder(str(inside))
        except ValueError as error:
            raise NotCarried(str(error)) from None
        size += path.stat().st_size
        if size > LARGEST or len(found) >= MOST_FILES:
            raise NotCarried(f"its folder has more than {MOST_FILES} files or {LARGEST >> 20} MiB")
        found[str(inside)] = path.read_bytes()
    return found


def _checked(mod: Mod) -> Mod:
    """The mod, when a build can do what it does.

    Raises:
        NotCarried: it leaves a process running, changes the kernel, or holds a secret.
    """
    shell = _COMMENT.sub("", mod.text(".sh"))
    if _BACKGROUND.search(shell):
        raise NotCarried("it leaves a process running next to the server, which an image cannot")
    if _KERNEL.search(shell):
        raise NotCarried("it changes settings of the running kernel, which an image cannot")
    if looks_secret(mod.text(".sh", ".py")):
        raise NotCarried("it contains what looks like a secret, which would stay in the image")
    return mod


def carry_over(
    data: dict[str, Any], source: Source, parts: Parts, folders: Sequence[Path]
) -> dict[str, bytes]:
    """Make steps of the mods that can be, in `data`, the recipe; what cannot be stays left out.

    A mod may build on the one before it: where one of them is missing, none is carried over.

    Args:
        folders: of mods, which the user named.

    Returns:
        The files of the steps, by their path relative to the recipe.
    """
    if not source.mods or "build" in data["image"]:
        return {}
    found, missing = _found(source, folders)
    if missing:
        parts.left_out[:] = [_explained(left, missing, found) for left in parts.left_out]
        return {}
    folder, base = f"{data['name']}.mods", data["image"]
    fetching = [mod.name for mod in found if mod.fetches]
    plain = re.sub(r"[^a-z0-9]+", "-", data["name"].lower()).strip("-") or "imported"
    build = {
        "base": base,
        "steps": [mod.step(folder, source.launch.env) for mod in found],
        **({"network": True} if fetching else {}),
        "why": f"mods of the {source.kind}: {', '.join(mod.name for mod in found)}",
    }
    data["image"] = {"ref": f"spark-cluster/{plain}:mods", "build": build}
    _say(parts, found, fetching, folder, pinned="digest" in base)
    parts.left_out[:] = [left for left in parts.left_out if not left.what.startswith(_MODS)]
    return {
        f"{folder}/{mod.name}/{path}": content
        for mod in found
        for path, content in mod.files.items()
    }


def _found(source: Source, folders: Sequence[Path]) -> tuple[list[Mod], dict[str, str]]:
    """The mods that can be carried over, and why the others cannot."""
    found: list[Mod] = []
    missing: dict[str, str] = {}
    for reference in source.mods:
        try:
            mod = find(reference, source.path, folders)
        except NotCarried as error:
            missing[reference] = str(error)
        except OSError as error:
            missing[reference] = f"its folder cannot be read: {error.strerror}"
        else:
            if mod.name in [other.name for other in found]:
                missing[reference] = "another mod of this name is there"
            found.append(mod)
    return found, missing


def _explained(left: Left, missing: dict[str, str], found: list[Mod]) -> Left:
    """Give a mod that stays left out its own reason."""
    if not left.what.startswith(_MODS):
        return left
    reference = left.what.removeprefix(_MODS)
    why = missing.get(reference)
    if why is None and any(reference.endswith(mod.name) for mod in found):
        why = f"it is at hand, and was tested together with {', '.join(missing)}, which is missing"
    return left if why is None else replace(left, why=f"{why}; {left.why}")


def _say(parts: Parts, found: list[Mod], fetching: list[str], folder: str, *, pinned: bool) -> None:
    for mod in found:
        where = f"image.build.steps, files in {folder}/{mod.name}"
        parts.carry(f"mods: {mod.name}", where)
        if not mod.checkout.commit:
            parts.to_do.append(
                f"write origin and commit of the mod {mod.name} into image.build.steps: its folder "
                "is no git checkout"
            )
    option = "--allow-build-network" if fetching else "--allow-build"
    reach = f"; {', '.join(fetching)} fetches from the network" if fetching else ""
    parts.to_do.append(
        f"read the scripts in {folder}, which run as root in the image's build{reach}: "
        f"`up {option}` allows it"
    )
    if not pinned:
        parts.to_do.append(
            "write the digest into image.build.base: the scripts were written for one version of it"
        )
