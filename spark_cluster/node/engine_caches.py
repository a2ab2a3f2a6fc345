"""Caches of an engine's programs on a node: a folder for each image, which only its programs write.

Compiled code of one image is not read by another one, so what a hostile image leaves there reaches
no other. Programs see the folder of their image in the place of the whole: paths, which are parts
of compilers' keys, are the same for all images. Beside them are tuned kernels; both can be counted
and removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import posixpath
import re
import stat
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from spark_cluster.node import durable, paths
from spark_cluster.node.beneath import Folder
from spark_cluster.node.replies import at, decoded
from spark_cluster.node.values import ResourceError

if TYPE_CHECKING:
    from spark_cluster.node.host import Host


IMAGES = "images"
"""Below the folder of the caches: a folder for each image, by its id."""

VENV = "venv-"
"""Begin of the names of folders of virtual environments' programs."""


def short(image: str) -> str:
    """Return the name of an image's folder: the first digits of its id (`sha256:...`)."""
    return image.removeprefix("sha256:")[:12]


def of_environment(path: str) -> str:
    """Return the name of the folder of a virtual environment's programs."""
    return f"{VENV}{hashlib.sha256(path.encode()).hexdigest()[:12]}"


def folder_of(root: str, name: str) -> str:
    """Return the folder of an image's caches.

    Args:
        root: folder of the caches.
        name: as `short` or `of_environment` gives it.
    """
    return f"{root}/{IMAGES}/{name}"


def prepare(host: Host, root: str, name: str, image: str = "") -> None:
    """Make the folder of an image's caches.

    Args:
        image: its whole id, of which others can be made to have the first digits.

    Raises:
        NotFollowed: a link, or another user's folder, is in the place of one of the folders.
        ResourceError: another image has these caches.
    """
    owners = host.path(paths.CACHE_OWNERS)
    known = durable.read_object(owners) if image else {}
    if (owner := known.get(name, image)) != image:
        raise ResourceError(
            f"the caches of {image} would be those of another image, {owner}: no two images have "
            "the same first digits unless one was made so",
            f"do not use the one that you know less of; {owners} on the node says whose they are",
        )
    if name not in known and image:
        durable.put_file(owners, json.dumps({**known, name: image}).encode())
    Folder(host.path(root), owners=frozenset({0, os.geteuid()})).make(f"{IMAGES}/{name}")


# Tuned parameters of an engine's kernels beside its caches: what there is, and keeping more.
#
# `tuned/IMAGE/MODEL-tpN` below the folder of the caches has the files as the tuner names them and
# the engine looks for them, by experts, shape and GPU. Another build of the same version may
# compile otherwise, so each image has its own.

TUNED = "tuned"
"""Below the folder of the caches."""

TUNED_VARIABLE = "VLLM_TUNED_CONFIG_FOLDER"
"""By which vLLM finds the files, before those that it ships. Source: vllm/envs.py."""

_LARGEST = 1 << 20
_NAME = re.compile(r"[!-.0-~]{1,250}\.json")
_OF_A_MODEL = re.compile(r"([!-~]+)-tp([1-9][0-9]{0,3})")
_SIZE = re.compile(r"[0-9]{1,7}")


def tuned_folder(root: str, image: str, model: str, tp: int) -> str:
    """Return the folder of what is tuned for a model.

    Args:
        root: folder of the caches.
        image: its id, `sha256:...`.
        model: its name.
        tp: tensor-parallel size.
    """
    return f"{root}/{TUNED}/{short(image)}/{quote(model, safe='')}-tp{tp}"


def check_name(text: object) -> None:
    """Raise ValueError unless a text is the name of a file with parameters, in whatever folder."""
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        raise ValueError(f"{str(text)[:100]!r} is not the name of a file of tuned kernels")


def tuned(root: Path) -> list[dict[str, Any]]:
    """Return each file of all images: `image` (its short id), `model`, `tp` and `file` (its name).

    Containers could write here once, so names of another form are left out.
    """
    files = Folder(root)
    return [
        {"image": image, "model": unquote(about[1]), "tp": int(about[2]), "file": name}
        for image in _file_names(files, TUNED)
        for folder in _file_names(files, f"{TUNED}/{image}")
        if (about := _OF_A_MODEL.fullmatch(folder))
        for name in _file_names(files, f"{TUNED}/{image}/{folder}")
        if _NAME.fullmatch(name)
    ]


def _file_names(files: Folder, path: str) -> list[str]:
    """Return the names in a folder, sorted; none where it is not one."""
    return [name for name in _all_names(files, path) if not name.startswith(".")]


def tuned_sizes(files: Folder, folder: Path) -> set[int]:
    """Return the batch sizes for which something is tuned in a model's folder."""
    found = set[int]()
    for name in _file_names(files, str(folder)):
        with contextlib.suppress(ResourceError):
            found |= sizes_in(_parameters(files, folder / name))
    return found


def sizes_in(parameters: dict[str, Any]) -> set[int]:
    """Return the batch sizes in a file: all its keys but the version of Triton."""
    return {int(key) for key in parameters if _SIZE.fullmatch(key)}


def keep_tuned(files: Folder, folder: Path, output: Path) -> None:
    """Add what the tuner wrote to the file of that name.

    Args:
        files: the folder of the caches.
        folder: the model's, below it.
        output: the folder that the tuner wrote into.

    Raises:
        ResourceError: the tuner, or someone else, wrote another thing than one file of parameters.
        OSError: it cannot be written.
    """
    names = [name for name in _file_names(files, str(output)) if _NAME.fullmatch(name)]
    if len(names) != 1:
        listed = ", ".join(names)[:300] or "nothing"
        raise ResourceError(f"the tuner ended well and wrote {listed}, expected one file .json")
    files.make(folder)
    before = (
        _parameters(files, folder / names[0]) if names[0] in _file_names(files, str(folder)) else {}
    )
    merged = {**before, **_parameters(files, output / names[0])}
    files.write(folder / names[0], (json.dumps(merged, indent=4) + "\n").encode())


def _parameters(files: Folder, path: Path) -> dict[str, Any]:
    """Return the object of JSON in a file that containers could write.

    Raises:
        ResourceError: it is not one.
    """
    try:
        found = json.loads(files.read(path, _LARGEST))
    except (OSError, ValueError, RecursionError) as error:
        raise ResourceError(f"{path.name} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ResourceError(f"{path.name} is not an object of JSON")
    return found


# Usage of the engine's caches on this node, and the removal of what is chosen from it.
#
# The entries are what can be removed by itself: a compiled configuration of vLLM, the kernels of a
# version of FlashInfer, Triton's and Inductor's folders as wholes. Containers wrote all of it, so
# names, links and sizes in there are not trusted: `beneath` follows no link.

WALK_S = 20.0
"""Seconds that counting may take; what was not counted by then makes the sum a lower bound."""

MOST_FILES = 2_000_000
"""Files that are counted."""

MOST_ENTRIES = 2000
"""Entries of one kind that are listed."""

COMPILED_IN = "torch_compile_cache"
"""vLLM's folder of compiled configurations, one for each key."""

_FLASHINFER = "flashinfer/.cache/flashinfer"
_HEX = frozenset("0123456789abcdef")
_LEFTOVER = ".removing-"
_REMOVED_FROM = (
    "vllm",
    f"vllm/{COMPILED_IN}",
    f"vllm/{COMPILED_IN}/torch_aot_compile",
    "triton",
    "torchinductor",
    _FLASHINFER,
    "",
)


@dataclass(frozen=True)
class CacheEntry:
    """A part of the caches that can be removed by itself.

    Attributes:
        kind: compile, triton, inductor, flashinfer, vllm (its other files), downloads (of an
            engine itself), tuned or huggingface (models).
        path: below the folder of the caches.
        bytes: on the disk.
        files: how many.
        modified: when a file in it was last written, seconds since 1970 (UTC); of an empty folder
            when it was.
        whole: False when not all of it could be counted.
    """

    kind: str
    path: str
    bytes: int
    files: int
    modified: float
    whole: bool = True


class Count:
    """A count of files that ends at its limits, shared by all folders of one question."""

    def __init__(self) -> None:
        self._until = time.monotonic() + WALK_S
        self._left = MOST_FILES

    def entry(self, kind: str, root: Path, path: str) -> CacheEntry:
        """Count one folder or file below `root`."""
        size = files = 0
        modified, whole = 0.0, True
        for found in _found(Folder(root), path, self._left):
            self._left -= 1
            if found is None or self._left < 0 or time.monotonic() > self._until:
                whole = False
                break
            size += found.st_blocks * 512
            files += 1
            modified = max(modified, found.st_mtime)
        return CacheEntry(kind, path, size, files, modified or _modified(root, path), whole)


def places(root: Path) -> list[tuple[str, str]]:
    """Return kind and path of every entry below the folder of the caches.

    Those of an image are below `images/ID`; what all images shared before is next to that.
    """
    found = []
    for above in _owners(root):
        found += [(kind, f"{above}{path}") for kind, path in _of_an_image(root / above)]
    models = [("huggingface", "huggingface")] if _is_folder(root, "huggingface") else []
    tuned = (("tuned", f"{TUNED}/{name}") for name in _names(root, TUNED) if name[0] != ".")
    return [*found, *models, *tuned]


def _owners(root: Path) -> list[str]:
    """Return what stands before the paths of each image's caches; nothing before shared ones."""
    return ["", *(f"{IMAGES}/{name}/" for name in _names(root, IMAGES))]


def _of_an_image(root: Path) -> Iterator[tuple[str, str]]:
    """Yield kind and path of what is in the folder that programs of one image see."""
    yield from _compiled(root)
    yield from (("vllm", f"vllm/{name}") for name in _names(root, "vllm") if name != COMPILED_IN)
    single = [("triton", "triton"), ("inductor", "torchinductor")]
    if root.parent.name == IMAGES:
        single.append(("downloads", "huggingface"))
    yield from ((kind, name) for kind, name in single if _is_folder(root, name))
    yield from _flashinfer(root)


def usage(root: Path) -> list[CacheEntry]:
    """Return every entry with its size."""
    count = Count()
    return [count.entry(kind, root, path) for kind, path in places(root)]


def compiled_keys(root: Path) -> dict[str, list[str]]:
    """Return the compiled configurations by the folder of their image (engine_caches.py).

    They are named as records name them (`KEY` or `torch_aot_compile/KEY`); only those in which a
    rank has left something, and that are found in WALK_S: a container may have made millions.
    """
    prefix, until = f"vllm/{COMPILED_IN}/", time.monotonic() + WALK_S

    def found(at: Path, path: str) -> bool:
        return time.monotonic() < until and _has_rank(at, path)

    return {
        name: [path.removeprefix(prefix) for _, path in _compiled(at) if found(at, path)]
        for name in _names(root, IMAGES)
        for at in [root / IMAGES / name]
    }


def remove(root: Path, chosen: Collection[str]) -> list[str]:
    """Remove entries; what is none of them is left alone. Also what a cut left of an earlier one.

    A whole folder that the containers expect (Triton's, Inductor's) is left there, empty.

    Returns:
        What was removed.

    Raises:
        OSError: a file cannot be removed.
    """
    files, removed = Folder(root), []
    for kind, path in places(root):
        if path not in chosen or kind == "huggingface":
            continue
        keep = kind in ("triton", "inductor")
        for part in [f"{path}/{name}" for name in _names(root, path)] if keep else [path]:
            _remove(files, part)
        removed.append(path)
    for folder in (TUNED, *(f"{above}{name}" for above in _owners(root) for name in _REMOVED_FROM)):
        for name in _all_names(files, folder):
            if name.startswith(_LEFTOVER):
                files.remove(f"{folder}/{name}")
    return removed


def _remove(files: Folder, path: str) -> None:
    """Give it another name first: what is half removed must not be taken for a cache."""
    aside = posixpath.join(posixpath.dirname(path), f"{_LEFTOVER}{uuid.uuid4().hex[:12]}")
    files.rename(path, aside)
    files.remove(aside)


def _compiled(root: Path) -> Iterator[tuple[str, str]]:
    for folder in (f"vllm/{COMPILED_IN}", f"vllm/{COMPILED_IN}/torch_aot_compile"):
        for name in _names(root, folder):
            if len(name) in (10, 64) and set(name) <= _HEX:
                yield "compile", f"{folder}/{name}"


def _flashinfer(root: Path) -> Iterator[tuple[str, str]]:
    """Yield a folder for each version, in which there is one for each set of architectures.

    Source: flashinfer/jit/env.py, `_get_workspace_dir_name`.
    """
    for version in _names(root, _FLASHINFER):
        if _is_folder(root, f"{_FLASHINFER}/{version}"):
            yield "flashinfer", f"{_FLASHINFER}/{version}"


def _has_rank(root: Path, path: str) -> bool:
    return any(n.startswith("rank_") and _names(root, f"{path}/{n}") for n in _names(root, path))


def _names(root: Path, path: str) -> list[str]:
    return [name for name in _all_names(Folder(root), path) if not name.startswith(_LEFTOVER)]


def _all_names(files: Folder, path: str) -> list[str]:
    """Return the names in a folder that is reached without a link; as many as are listed."""
    try:
        return sorted(name for name, _ in files.entries(path))[:MOST_ENTRIES]
    except OSError:
        return []


def _is_folder(root: Path, path: str) -> bool:
    """Return True for a folder, none of whose parents below `root` is a link."""
    try:
        with Folder(root).at(path):
            return True
    except OSError:
        return False


def _modified(root: Path, path: str) -> float:
    try:
        return Folder(root).stat(path).st_mtime
    except OSError:
        return 0.0


def _found(files: Folder, path: str, most: int) -> Iterator[os.stat_result | None]:
    """Yield the files at or below a path; None where not all of it can be counted."""
    try:
        about = files.stat(path)
        if not stat.S_ISDIR(about.st_mode):
            yield from [about] if stat.S_ISREG(about.st_mode) else []
            return
        for entry in files.walk(path, most):
            if stat.S_ISREG(entry.about.st_mode):
                yield entry.about
            elif stat.S_ISDIR(entry.about.st_mode):
                yield None  # too deep
    except OSError:
        yield None


# Records of launches that became ready, kept on each node: what was started, what its log said.
#
# Root's file, bounded and written durably. The laptop reads its text with `status`, so it is parsed
# with the same code on both sides; what does not have the form of a record is left out.

MOST_LAUNCHES = 48
"""Records that are kept, the ones used last; a record takes 1 to 3 KiB."""

LARGEST_RECORDS = 256 * 1024
"""Bytes of the file that are read; more is not ours."""

LATEST = 1e11
"""Seconds that no clock shows and nothing takes."""

MOST_KEYS = 32
"""Folders of compiled code in a record, and models."""


@dataclass(frozen=True)
class LaunchRecord:
    """A launch that became ready.

    Attributes:
        recipe: its name.
        engine, version: the inference engine, and the version that it answered with.
        image: id of the image (`sha256:...`); empty for a virtual environment.
        reference: as the recipe names the image, or the folder of the virtual environment.
        arguments: SHA-256 of the arguments and the environment that the engine is given.
        keys: folders below `torch_compile_cache` that its log named.
        models: those of the hub cache that it serves, ORG/NAME@COMMIT.
        outcome: `compiled` or `loaded` (from the cache) by its log; empty where it says neither.
        compile_s: seconds that torch.compile took by its log, of the slowest rank.
        run: id of the container, or of the unit's start, by which it is known again.
        last: when it last became ready, seconds since 1970 (UTC).
    """

    recipe: str
    engine: str = ""
    version: str = ""
    image: str = ""
    reference: str = ""
    arguments: str = ""
    keys: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    outcome: str = ""
    compile_s: float = 0.0
    run: str = ""
    last: float = 0.0

    @property
    def launch(self) -> tuple[str, ...]:
        """What makes two records the same launch."""
        engine = (self.engine, self.version, self.image, self.reference)
        return (self.recipe, *engine, self.arguments)


def parse_launches(text: str | None) -> list[LaunchRecord]:
    """Read the file's text, newest first; anything else than a record is left out."""
    if not text or len(text) > LARGEST_RECORDS:
        return []
    records = at(decoded(text), "launches")
    listed = records[:MOST_LAUNCHES] if isinstance(records, list) else []
    made = [record for one in listed if (record := launch_from_dict(one)) is not None]
    return sorted(made, key=lambda record: -record.last)


def launch_from_dict(one: Any) -> LaunchRecord | None:
    """Return a record from its JSON; None when a field has another type, or a time cannot be."""
    if not isinstance(one, dict) or not one.get("recipe"):
        return None
    found = {field.name: one[field.name] for field in fields(LaunchRecord) if field.name in one}
    keys, models = found.pop("keys", []), found.pop("models", [])
    numbers = {name: found[name] for name in ("compile_s", "last") if name in found}
    right = all(type(v) in (int, float) and 0 <= v < LATEST for v in numbers.values())
    right &= all(isinstance(found[name], str) for name in found.keys() - numbers.keys())
    if not (right and _are_texts(keys) and _are_texts(models)):
        return None
    return LaunchRecord(**found, keys=tuple(keys[:MOST_KEYS]), models=tuple(models[:MOST_KEYS]))


def _are_texts(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(one, str) for one in found)


def launches(root: Path) -> list[LaunchRecord]:
    """Return the records of this node, newest first; none without the file."""
    try:
        with (root / paths.LAUNCHES.lstrip("/")).open("rb") as source:
            text = source.read(LARGEST_RECORDS + 1).decode(errors="replace")
    except OSError:
        return []
    return parse_launches(text)


def served(root: Path) -> dict[str, float]:
    """Return when each model last became ready, ORG/NAME@COMMIT to seconds since 1970 (UTC)."""
    return {model: record.last for record in reversed(launches(root)) for model in record.models}


def add_launch(root: Path, record: LaunchRecord) -> LaunchRecord:
    """Keep a record; one of the same launch is replaced, and keeps its keys.

    A warm start loads the outer layout and logs that one only; both are of this launch.

    Raises:
        OSError: the disk is full, or not writable; the file is as it was.
    """
    known = launches(root)
    same = next((one for one in known if one.launch == record.launch), None)
    if same is not None:
        keys = tuple(dict.fromkeys([*record.keys, *same.keys]))[:MOST_KEYS]
        record = replace(record, keys=keys)
    write_launches(root, [record, *(one for one in known if one is not same)])
    return record


def write_launches(root: Path, records: Iterable[LaunchRecord]) -> None:
    """Write the newest of these records.

    Raises:
        OSError: the disk is full, or not writable; the file is as it was.
    """
    path = root / paths.LAUNCHES.lstrip("/")
    kept = sorted(records, key=lambda record: -record.last)[:MOST_LAUNCHES]
    listed = {"launches": [asdict(record) for record in kept]}
    durable.put_file(path, json.dumps(listed, sort_keys=True, separators=(",", ":")).encode())
