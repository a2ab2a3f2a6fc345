"""Mods of sparkrun and spark-vllm-docker: folders with a `run.sh` that changes the container.

A mod whose folder is at hand becomes a step of `image.build`, with its files, their SHA-256 and
where they come from. Nothing of it is run here. Where sparkrun looks for one (its core/mods.py),
it is looked for here: next to the recipe, and in a registry's folder, which `--mods` names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_cluster.config.image_build import part_of_folder
from spark_cluster.config.secret_text import is_secret_setting, looks_secret
from spark_cluster.importers.checkout import Checkout, checkout_of

SCRIPT = "run.sh"
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

_SKIPPED = ("__pycache__",)


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

    @property
    def text(self) -> str:
        """The text of its scripts, in which it is looked for what they need."""
        return self._text((".sh", ".py"))

    @property
    def shell(self) -> str:
        """The text of its shell scripts, without comments."""
        return _without_comments(self._text((".sh",)))

    def _text(self, endings: tuple[str, ...]) -> str:
        return "\n".join(
            content.decode("utf-8", errors="replace")
            for path, content in self.files.items()
            if path.endswith(endings)
        )

    @property
    def fetches(self) -> bool:
        """True if a script looks like fetching something from the network."""
        return bool(_NETWORK.search(_without_comments(self.text)))

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
        step: dict[str, Any] = {"name": self.name, "files": files}
        if seen := _named(self.text, env):
            step["env"] = seen
        if self.checkout.url:
            step["origin"] = self.checkout.url
        if self.checkout.commit:
            step["commit"] = self.checkout.commit
        return step


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
    places = [*_next_to(recipe), *folders]
    found = next((place for place in _candidates(name, places) if _is_mod(place)), None)
    if found is None:
        raise NotCarried(
            "its folder is not at hand: give --mods FOLDER, a checkout of the repository that it "
            "comes from"
        )
    return _checked(Mod(name.rpartition("/")[2], _files(found), checkout_of(found)))


def _next_to(recipe: Path | None) -> list[Path]:
    """The recipe's folder and the one above: spark-vllm-docker has recipes/ next to mods/."""
    if recipe is None:
        return []
    folder = recipe.absolute().parent
    return [folder, folder.parent]


def _candidates(name: str, places: Iterable[Path]) -> Iterable[Path]:
    for place in places:
        yield place / "mods" / name
        yield place / name
        if place.name == name:
            yield place


def _is_mod(folder: Path) -> bool:
    return (folder / SCRIPT).is_file()


def _files(folder: Path) -> dict[str, bytes]:
    """The files of a mod.

    Raises:
        NotCarried: one is a link out of the folder or has an odd name, or they are too large.
    """
    root, found, size = folder.resolve(), dict[str, bytes](), 0
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if any(part in _SKIPPED or part.startswith(".") for part in inside.parts):
            continue
        if not path.resolve().is_relative_to(root):
            raise NotCarried(f"{inside} is a link to a place outside its folder")
        if path.is_dir():
            continue
        if not path.is_file():
            raise NotCarried(f"{inside} is no regular file")
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
    if _BACKGROUND.search(mod.shell):
        raise NotCarried("it leaves a process running next to the server, which an image cannot")
    if _KERNEL.search(mod.shell):
        raise NotCarried("it changes settings of the running kernel, which an image cannot")
    if looks_secret(mod.text):
        raise NotCarried("it contains what looks like a secret, which would stay in the image")
    return mod


def _named(text: str, env: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in env.items()
        if re.search(rf"\$\{{?{re.escape(name)}\b|environ\W+(?:get\W+)?{re.escape(name)}\b", text)
        and not is_secret_setting(name, value)
    }


def _without_comments(text: str) -> str:
    return re.sub(r"(?m)^[ \t]*#.*$", "", text)
