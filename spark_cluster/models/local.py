"""A model's checkpoint in a folder of this machine, or in the hub's own cache there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from spark_cluster.errors import InvalidFile
from spark_cluster.models.checkpoint import Checkpoint, read_checkpoint
from spark_cluster.models.hub.documents import Listing
from spark_cluster.models.safetensors_header import SUFFIX


class Folders:
    """Folders of this machine as a source of their models' documents, each a repository.

    Raises:
        InvalidFile: of each method, for a file that cannot be read.
    """

    def listing(self, repository: str, revision: str = "") -> Listing:
        """The files; of weights those that are missing behind a link, too."""
        entries = Path(repository).iterdir()
        names = [one.name for one in entries if one.is_file() or one.name.endswith(SUFFIX)]
        return Listing(revision, tuple(names))

    def read(
        self, repository: str, commit: str, name: str, *, begin: int = 0, most: int
    ) -> tuple[bytes, bool]:
        """Bytes of a file from a place on, `most` at most, and whether the file ends there."""
        del commit  # a folder has one state only
        path = Path(repository, name)
        try:
            if not path.is_file():
                raise InvalidFile("is not here", where=str(path))
            with path.open("rb") as file:
                file.seek(begin)
                text = file.read(most + 1)
        except OSError as error:
            raise InvalidFile(f"cannot be read: {error.strerror}", where=str(path)) from error
        return text[:most], len(text) <= most

    def beginnings(
        self, repository: str, commit: str, names: Sequence[str], most: int
    ) -> list[bytes]:
        """The first bytes of several files, `most` of each at most."""
        return [self.read(repository, commit, name, most=most)[0] for name in names]


def read_folder(path: Path) -> Checkpoint:
    """Read what a folder tells of its model.

    Raises:
        InvalidFile: as `read_checkpoint`.
    """
    source, name = Folders(), str(path)
    return read_checkpoint(source, name, source.listing(name), lambda file: str(path / file))


def own_folder(name: str, folders: Iterable[Path] = ()) -> Path | None:
    """A folder of that name with a config.json, as given or below one of `folders`."""
    for parent in (Path(), *folders):
        folder = parent / Path(name).expanduser()
        if (folder / "config.json").is_file():
            return folder
    return None


def hub_cache() -> Path:
    """Return where the hub's library keeps its downloads, by its own variables."""
    if given := os.environ.get("HF_HUB_CACHE"):
        return Path(given)
    home = os.environ.get("HF_HOME") or Path(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "huggingface"
    )
    return Path(home) / "hub"


def looks_like_path(text: str) -> bool:
    """Return whether a name can only be meant as a folder."""
    return text.startswith(("/", "./", "../", "~")) or text in (".", "..")


def snapshot(name: str, cache_dir: Path) -> Path | None:
    """The newest snapshot in the hub's cache; that of `main` first."""
    if name.count("/") != 1 or looks_like_path(name):
        return None
    repository = cache_dir / f"models--{name.replace('/', '--')}"
    main = repository / "refs" / "main"
    snapshots = sorted(
        (repository / "snapshots").glob("*/config.json"),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    if main.is_file():
        first = repository / "snapshots" / main.read_text().strip() / "config.json"
        snapshots = [first, *snapshots] if first.is_file() else snapshots
    return snapshots[0].parent if snapshots else None
