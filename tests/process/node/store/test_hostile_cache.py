"""The hub cache after a container or a user has written into it: nothing is followed, read or
written outside, and nothing waits."""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import copy_ends
import pytest
from cases import cases
from hostile import container, sampled, user
from hostile.container import FILE_TRICKS, FOLDER_TRICKS, Outside, exchanged, leave, untouched
from model_content import COMMIT, REPOSITORY, content, model

from spark_cluster.agent import operations
from spark_cluster.node import paths
from spark_cluster.node.host import Host
from spark_cluster.node.store import copy_channel, copy_receiving, copy_work, download, verify
from spark_cluster.node.store.hub_cache import HubCache, Records, alone
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.node.values import ResourceError

HUB = "/var/cache/caches/huggingface/hub"
CONTENTS = {
    "config.json": b"{}",
    "model.safetensors": content(5000, 1),
    "model.safetensors.index.json": b'{"weight_map": {"a": "model.safetensors"}}',
    "sub/more.safetensors": content(700, 2),
}
REVISION = {"repository": REPOSITORY, "commit": COMMIT}


class Victim:
    """A node of which a container has written the hub cache, and an honest one next to it."""

    def __init__(self, folder: Path) -> None:
        self.outside = container.outside(folder / "outside", 5000)
        self.host = Host(root=folder / "node", run_id="test")
        self.cache = HubCache(self.host.path(HUB), self.host.path(paths.MODELS))
        self.manifest = model(self.cache.root, CONTENTS)
        Records(self.host.path(paths.MODELS)).keep(self.manifest)
        self.honest = HubCache(folder / "honest/hub", folder / "honest/ours")
        model(self.honest.root, CONTENTS)

    @property
    def repository(self) -> Path:
        return self.cache.folder(REPOSITORY)

    def blob(self, path: str = "model.safetensors") -> Path:
        [file] = [file for file in self.manifest.files if file.path == path]
        return self.cache.blob(REPOSITORY, file.blob)

    def ask(self, what: str, **request: Any) -> dict[str, Any]:
        asked = {"op": "store", "what": what, "hub": HUB, **request}
        return json.loads(json.dumps(operations.act(self.host, asked)))

    def state(self) -> dict[str, Any]:
        [found] = self.ask("state", wanted=[{"repository": REPOSITORY, "revision": "main"}])[
            "models"
        ]
        return found

    def untouched(self, *, read: bool = False) -> None:
        untouched(self.outside, self.host.root, self.honest.root, read=read)


@pytest.fixture
def victim(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> Victim:
    monkeypatch.setattr(copy_channel, "WRITER_GONE_S", 0.3)  # for a file that nobody downloads
    return Victim(open_path)


def copied(source: HubCache, target: HubCache, manifest: Manifest) -> None:
    """Copy a model by a real sender and receiver."""
    copy_ends.copied(target.ours.parent / "ends", source, target, manifest, "main")


def _where(cache: HubCache) -> dict[str, str]:
    return {"hub": str(cache.root), "ours": str(cache.ours)}


def _received(victim: Victim) -> None:
    copied(victim.honest, victim.cache, victim.manifest)


def _sent(victim: Victim) -> None:
    third = HubCache(victim.honest.root.parent / "third", victim.honest.ours)
    copied(victim.cache, third, victim.manifest)


def _adopted_into(victim: Victim) -> None:
    other = "/root/.cache/huggingface/hub"
    model(victim.host.path(other), CONTENTS)
    whose = {"root": str(victim.host.root), "user": "root", "other": other}
    verify.done({"what": "adopt", **_where(victim.cache), **REVISION, **whose})


def _verified(victim: Victim) -> None:
    verify.done({"what": "verify", **_where(victim.cache), **REVISION})


def _published(victim: Victim) -> None:
    victim.cache.publish(victim.manifest, "main")


def _removed(victim: Victim) -> None:
    victim.ask("remove_damaged", **REVISION, paths=list(CONTENTS))


def _without_records(victim: Victim) -> None:
    Records(victim.host.path(paths.MODELS)).forget(REPOSITORY, COMMIT)
    victim.state()


def _missing(victim: Victim) -> None:
    asked = {"what": "missing", "hub": HUB, "manifest": victim.manifest.document()}
    operations.act(victim.host, {"op": "copy", **asked})


def _pulled(victim: Victim) -> None:
    """Pull with a hub of this process: files come as `HubFiles` gives them."""
    manifest = victim.manifest

    class LocalHub:
        def manifest(self) -> Manifest:
            return manifest

        def content(self, file: Any, begin: int) -> Iterator[bytes]:
            yield CONTENTS[file.path][begin:]

    wanted = download.DownloadRequest(
        REPOSITORY, "main", str(victim.cache.root), str(victim.cache.ours), room_left=0
    )
    with contextlib.suppress(ResourceError, OSError):
        download.Download(wanted, LocalHub()).run()


OPERATIONS: dict[str, Callable[[Victim], object]] = {
    "state": Victim.state,
    "state of another tool's model": _without_records,
    "missing": _missing,
    "usage": lambda victim: victim.ask("usage"),
    "verify": _verified,
    "receive": _received,
    "send": _sent,
    "adopt": _adopted_into,
    "publish": _published,
    "remove_damaged": _removed,
    "prune": lambda victim: victim.ask("prune", apply=True),
    "pull": _pulled,
    "pin": lambda victim: victim.ask("pin", name=f"{REPOSITORY}@main", pinned=True),
}
"""13: `sampled` takes one combination of four, and must not meet the same operations each time."""

FOLDERS = (".", "blobs", "refs", "snapshots", f"snapshots/{COMMIT}", f"snapshots/{COMMIT}/sub")
FILES = ("refs/main", "BLOB", "BLOB.incomplete", "BLOB.adopted.incomplete",
         f"snapshots/{COMMIT}/config.json")  # fmt: skip


def _tried(victim: Victim, operation: str) -> None:
    """Do it; that it fails with words is as good as that it works."""
    with contextlib.suppress(ResourceError, OSError):
        OPERATIONS[operation](victim)


@pytest.mark.parametrize(
    ("trick", "place", "operation"), sampled(FOLDER_TRICKS, FOLDERS, OPERATIONS)
)
def test_in_the_place_of_a_folder(victim, trick, place, operation):
    leave(trick, victim.repository / place, victim.outside, FOLDER_TRICKS)
    _tried(victim, operation)
    victim.untouched()


@pytest.mark.parametrize(("trick", "place", "operation"), sampled(FILE_TRICKS, FILES, OPERATIONS))
def test_in_the_place_of_a_file(victim, trick, place, operation):
    path = victim.repository / place.replace("BLOB", f"blobs/{victim.blob().name}")
    if ".incomplete" in place:
        victim.blob().unlink()
    leave(trick, path, victim.outside, FILE_TRICKS)
    _tried(victim, operation)
    victim.untouched(read=trick == "hard link")


@pytest.mark.parametrize("name", ["huggingface", "huggingface/hub"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_link_in_the_place_of_the_whole_hub_cache(victim, name, operation):
    """Containers could write to the folder of all caches before they had folders of their own."""
    top = victim.cache.root.parents[1]
    (top / name).rename(top / "aside")
    (top / name).symlink_to(victim.outside.cron)
    _tried(victim, operation)
    victim.untouched()


@pytest.mark.parametrize("trick", FILE_TRICKS)
@pytest.mark.parametrize("place", ["BLOB", "BLOB.incomplete"])
@pytest.mark.parametrize("by", [_received, _pulled])
def test_what_is_not_a_file_of_ours_is_put_right(victim, trick, place, by):
    victim.blob().unlink()
    leave(trick, Path(str(victim.blob()) + place[4:]), victim.outside, FILE_TRICKS)
    assert victim.state()["missing"] == ["model.safetensors"]
    by(victim)
    assert victim.ask("verify", **REVISION)["damaged"] == victim.state()["missing"] == []
    victim.untouched(read=trick == "hard link")


@pytest.mark.parametrize("by", [_received, _pulled])
def test_a_half_file_with_a_second_name_is_not_gone_on_with(victim, tmp_path, by):
    """Its other name may be any file of the host, which would be written."""
    host = container.outside(tmp_path / "shorter", 100)
    leave("hard link", Path(f"{victim.blob()}.incomplete"), host, FILE_TRICKS)
    victim.blob().unlink()
    by(victim)
    assert victim.state()["missing"] == []
    untouched(host, victim.host.root)


@pytest.mark.parametrize("operation", ["receive", "publish", "adopt", "send", "prune", "state"])
@pytest.mark.parametrize("place", ["blobs", f"snapshots/{COMMIT}", "refs"])
def test_a_folder_that_is_exchanged_for_a_link_meanwhile(victim, place, operation):
    path = victim.repository / place
    with exchanged(path, victim.outside.cron):
        for _ in range(10):
            if operation in ("receive", "adopt", "publish"):
                with contextlib.suppress(OSError):
                    victim.cache.files.remove(path / victim.blob().name)
                    victim.cache.files.remove(path / "main")
            _tried(victim, operation)
    victim.untouched()


# -- what must not be waited for -----------------------------------------------------------------


def test_a_lock_that_a_container_holds_below_the_cache_stops_nobody(victim):
    """The hub's own library has its locks there, too."""
    with _all_locked(victim.cache.root):
        _received(victim)
        victim.ask("prune", apply=True)
    assert not victim.repository.exists()


@contextlib.contextmanager
def _all_locked(root: Path) -> Iterator[None]:
    place = root / ".locks/models--org--model"
    place.mkdir(parents=True)
    (place / "spark-cluster.lock").touch()
    with contextlib.ExitStack() as stack:
        for path in root.rglob("*"):
            if not path.is_symlink():
                handle = os.open(path, os.O_RDONLY)
                stack.callback(os.close, handle)
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def test_our_locks_are_roots_alone(victim):
    with alone(victim.cache, REPOSITORY):
        [lock] = (victim.host.path(paths.MODELS) / "locks").iterdir()
        assert [p.stat().st_mode & 0o777 for p in (lock.parent, lock)] == [0o700, 0o600]


def test_a_huge_index_is_read_as_far_as_one_can_be(victim):
    Records(victim.host.path(paths.MODELS)).forget(REPOSITORY, COMMIT)
    os.truncate(victim.blob("model.safetensors.index.json"), container.HUGE)
    assert "is damaged" in victim.state()["problem"]


def test_a_folder_of_any_depth_is_pruned(victim):
    container.nest(victim.repository)
    victim.ask("prune", apply=True)
    assert not victim.repository.exists()


@pytest.mark.parametrize("blob", ["shadow", "w" * 64, "a" * 41])
def test_what_is_not_named_by_a_hash_is_no_blob(victim, blob):
    Records(victim.host.path(paths.MODELS)).forget(REPOSITORY, COMMIT)
    victim.cache.blob(REPOSITORY, blob).write_bytes(b"x")
    link = victim.cache.snapshot(REPOSITORY, COMMIT) / "config.json"
    link.unlink()
    link.symlink_to(f"../../blobs/{blob}")
    assert "is not the name of a blob" in victim.state()["problem"]
    document = victim.manifest.document()
    document["files"][0] |= {"blob": blob, "algorithm": "", "size": 1}
    with pytest.raises(ResourceError, match=r"config\.json has no hash"):
        copy_work.work({"manifest": document, **_where(victim.cache)})


def test_a_name_with_two_dots_is_refused(victim):
    outside = victim.outside
    for name in ("../outside/secret", "a/../../../outside/secret", str(outside.secret), "", "/"):
        for operation in (
            victim.cache.files.open, victim.cache.files.remove, victim.cache.files.create,
            victim.cache.files.stat,
        ):  # fmt: skip
            with pytest.raises(OSError, match=r"leads out of|is not a name in a folder"):
                operation(name)
    victim.untouched()


# -- what others can still write ------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("how", ["owner", "hard link"])
@pytest.mark.parametrize("by", ["copy", "verify"])
def test_a_blob_that_others_can_write_is_copied_once_and_not_fetched(victim, how, by, monkeypatch):
    blob, theirs = victim.blob(), victim.outside.folder.parent / "theirs"
    theirs.hardlink_to(blob)
    if how == "owner":
        theirs.unlink()
        user.owned(blob)
    found = victim.state()
    assert (found["missing"], found["missing_bytes"]) == (["model.safetensors"], 0)
    [revision] = victim.ask("usage")["revisions"]
    assert "others can write 1 file;" in revision["problem"]
    with pytest.raises(ResourceError, match="is not complete yet"):
        victim.cache.publish(victim.manifest)
    if by == "copy":
        monkeypatch.setattr(copy_receiving.Receiver, "content", None)  # nothing is asked for
        _received(victim)
    else:
        assert victim.ask("verify", **REVISION)["missing"] == []
    assert victim.state()["missing"] == []
    about = blob.stat()
    assert (about.st_uid, about.st_nlink, about.st_mode & 0o777) == (0, 1, 0o644)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_blob_of_others_that_is_wrong_is_fetched(victim):
    victim.blob().write_bytes(b"x" * len(CONTENTS["model.safetensors"]))
    user.owned(victim.blob())
    assert victim.state()["missing_bytes"] == 0
    _received(victim)
    assert victim.ask("verify", **REVISION)["damaged"] == victim.state()["missing"] == []


# -- adopting ---------------------------------------------------------------------------------


MODELS = cases(__file__, "hostile_models.toml")


@pytest.fixture
def login(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the user who has logged in, nobody, below the node's root."""
    home = victim.host.path("/nonexistent")  # as /etc/passwd has it
    home.mkdir(parents=True)
    user.owned(user.reachable(home))
    monkeypatch.setenv("SUDO_USER", "nobody")
    victim.cache.files.remove(victim.repository)
    Records(victim.host.path(paths.MODELS)).forget(REPOSITORY, COMMIT)
    return home


def _plant(home: Path, outside: Outside, trick: str = "") -> None:
    given = {"home": str(home), "outside": str(outside.folder), "commit": COMMIT}
    done = user.run(MODELS["plant"].format(**given, trick=trick.format(**given)))
    assert done.returncode == 0, done.stderr


@user.needs_root
def test_the_login_users_model_is_taken_over_as_a_copy(victim, login):
    _plant(login, victim.outside)
    found = victim.state()
    assert found["elsewhere"] == "/nonexistent/.cache/huggingface/hub"
    assert [file["path"] for file in found["adoptable"]["files"]] == ["model.safetensors"]
    victim.ask("adopt", **REVISION, revision="main", other=found["elsewhere"])
    blob = (victim.cache.snapshot(REPOSITORY, COMMIT) / "model.safetensors").resolve()
    about = blob.stat()
    assert (about.st_uid, about.st_nlink, about.st_mode & 0o777) == (0, 1, 0o644)
    theirs = login / ".cache/huggingface/hub/models--org--model/blobs" / blob.name
    theirs.write_bytes(b"WEIGHTS")
    assert blob.read_bytes() == b"weights"


@user.needs_root
@pytest.mark.parametrize("trick", MODELS["tricks"])
def test_a_hostile_model_of_the_login_user_is_not_taken_over(victim, login, trick):
    _plant(login, victim.outside, MODELS["tricks"][trick])
    assert victim.state()["elsewhere"] == ""
    with pytest.raises(ResourceError):
        place = "/nonexistent/.cache/huggingface/hub"
        victim.ask("adopt", **REVISION, revision="main", other=place)
    victim.untouched()


@user.needs_root
@pytest.mark.parametrize("other", ["home", "file", "folder"])
def test_a_model_of_another_user_is_not_taken_over(victim, login, other, monkeypatch):
    _plant(login, victim.outside)
    place = "/nonexistent/.cache/huggingface/hub"
    if other == "home":
        monkeypatch.setenv("SUDO_USER", "daemon")
    else:
        for path in (login / ".cache").rglob("*"):
            if path.is_dir() == (other == "folder"):
                os.lchown(path, 1, 1)
    assert victim.state()["elsewhere"] == ""
    with pytest.raises(ResourceError):
        victim.ask("adopt", **REVISION, revision="main", other=place)


@user.needs_root
def test_a_model_that_its_owner_exchanges_meanwhile(victim, login):
    _plant(login, victim.outside)
    found = victim.state()
    blobs = login / ".cache/huggingface/hub/models--org--model/blobs"
    with exchanged(blobs, victim.outside.cron):
        for _ in range(20):
            with contextlib.suppress(ResourceError, OSError):
                victim.ask("adopt", **REVISION, revision="main", other=found["elsewhere"] or "/")
            victim.cache.files.remove(victim.repository)
    victim.untouched()
