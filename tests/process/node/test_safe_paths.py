"""Root at work in folders of a user who exchanges folders and files for links meanwhile."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from factories import put
from hostile import user

from spark_cluster.agent.revert import revert
from spark_cluster.node import safe_paths
from spark_cluster.node.host import Host
from spark_cluster.node.journal import shape
from spark_cluster.node.values import ResourceError
from spark_cluster.resources import AuthorizedKey, Directory, File, Line, Resource, SshKey
from spark_cluster.resources.base import differences

pytestmark = user.needs_root

FOLDER = "/var/lib/spark-cluster/bench/RUN"
"""Where load generators run as a user who may not be trusted."""

TRIES = 60
SECRET = "root:$6$never-to-be-seen"

EXCHANGE = """
libc = ctypes.CDLL(None)
os.chdir({folder!r})
print("begun", flush=True)
while True:
    libc.renameat2(-100, b{one!r}, -100, b{other!r}, 2)  # RENAME_EXCHANGE
"""


@pytest.fixture
def host(open_path: Path) -> Host:
    """A node with a folder of root's, `etc`, and one of a user's with a folder and a link to it."""
    (open_path / "etc").mkdir(mode=0o755)
    (open_path / "etc/shadow").write_text(SECRET)
    (open_path / "etc/shadow").chmod(0o600)
    run = open_path / FOLDER.lstrip("/")
    run.mkdir(parents=True)
    for name in ("d", "f"):
        (run / f"{name}-link").symlink_to(open_path / ("etc" if name == "d" else "etc/shadow"))
        os.lchown(run / f"{name}-link", user.NOBODY, user.NOBODY)
    (run / "d").mkdir()
    for path in (run / "d/shadow", run / "f"):
        path.write_text("mine\n")
    for path in (run, run / "d", run / "d/shadow", run / "f"):
        user.owned(path)
    user.reachable(run)
    return Host(root=open_path, run_id="r1")


@contextlib.contextmanager
def exchanging(host: Host, name: str, other: str) -> Iterator[None]:
    """Have the user exchange two names in their folder, again and again."""
    one, two = (os.fsencode(n).decode() for n in (name, other))
    with user.running(EXCHANGE.format(folder=str(host.path(FOLDER)), one=one, other=two)):
        yield


def converged(host: Host, resource: Resource) -> None:
    actual = resource.observe(host)
    if differences(actual, resource.desired()):
        resource.converge(host, actual)


IN_A_FOLDER: dict[str, Callable[[Host, int], None]] = {
    "it": lambda host, number: converged(
        host, Directory(f"{FOLDER}/d", mode=0o750 if number % 2 else 0o755, owner="nobody")
    ),
    "a folder": lambda host, number: converged(
        host, Directory(f"{FOLDER}/d/sub{number}/x", mode=0o700, owner="nobody")
    ),
    "a file": lambda host, number: converged(
        host, File(f"{FOLDER}/d/shadow", content=f"{number}\n", owner="nobody")
    ),
    "no file": lambda host, _: host.remove(f"{FOLDER}/d/shadow"),
    "a link": lambda host, number: host.link(
        f"{FOLDER}/d/link{number}", "anywhere", uid=user.NOBODY, gid=user.NOBODY
    ),
    "no folder": lambda host, number: (
        host.remove(f"{FOLDER}/d/sub{number - 1}"),
        host.directory(f"{FOLDER}/d/sub{number}/x"),
    ),
    "what crashes left": lambda host, _: host.temporary.clean(host.note),
}


def all_of(folder: Path) -> dict[str, object]:
    """Return what is in a folder, the folder included."""
    return {str(path): shape(path) for path in (folder, *folder.rglob("*"))}


@pytest.mark.parametrize("work", IN_A_FOLDER)
def test_a_folder_that_becomes_a_link_meanwhile_leads_nowhere(host, work):
    if work == "what crashes left":
        host.temporary.path_for(host.path(f"{FOLDER}/d/x"))
        host.temporary.path_for(host.path("/etc/x")).touch()
    etc = host.path("/etc")
    before = all_of(etc)
    done = refused = 0
    with exchanging(host, "d", "d-link"):
        for number in range(TRIES):
            try:
                IN_A_FOLDER[work](host, number)
                done += 1
            except ResourceError as error:
                assert "link" in error.message, error.message
                refused += 1
            except OSError as error:  # it was there a moment ago
                assert "/proc/" not in str(error.filename)
            assert all_of(etc) == before, f"try {number}: something of root's was changed"
    assert done + refused


def no_reading(host: Host, _: int) -> None:
    assert host.read(f"{FOLDER}/f") != SECRET.encode()


def no_line(host: Host, number: int) -> None:
    converged(host, Line(f"{FOLDER}/f", line=f"line {number}", match="^line"))


def no_file(host: Host, number: int) -> None:
    converged(host, File(f"{FOLDER}/f", content=f"{number}\n", mode=0o644))


def no_removal(host: Host, _: int) -> None:
    host.remove(f"{FOLDER}/f")
    user.owned(host.path(FOLDER))
    host.write(f"{FOLDER}/f", b"mine\n", uid=user.NOBODY, gid=user.NOBODY)


@pytest.mark.parametrize("work", [no_reading, no_line, no_file, no_removal])
def test_a_file_that_becomes_a_link_meanwhile_is_not_read(host, work):
    """Root's file would be in the user's file, or in the journal and there after a revert."""
    with exchanging(host, "f", "f-link"):
        for number in range(TRIES):
            with contextlib.suppress(ResourceError, OSError):
                work(host, number)
    kept = [*host.path(FOLDER).rglob("*"), *host.path("/var/lib/spark-cluster/journal").rglob("*")]
    for path in kept:
        if path.is_file() and not path.is_symlink():
            assert SECRET not in path.read_text(), path
    assert host.path("/etc/shadow").read_text() == SECRET


def test_a_file_that_becomes_a_pipe_meanwhile_holds_nothing_up(host):
    os.mkfifo(host.path(FOLDER) / "f-pipe")
    with exchanging(host, "f", "f-pipe"):
        for number in range(TRIES):
            with contextlib.suppress(ResourceError, OSError):
                no_file(host, number)
            with contextlib.suppress(ResourceError, OSError):
                no_reading(host, number)


def test_a_revert_follows_no_link(host):
    for resource in (
        Directory(f"{FOLDER}/d/sub", mode=0o700),
        File(f"{FOLDER}/d/sub/file", content="x"),
        File(f"{FOLDER}/d/shadow", content="theirs\n"),
    ):
        converged(host, resource)
    user.run(f"os.chdir({str(host.path(FOLDER))!r}); os.rename('d', 'e'); os.rename('d-link', 'd')")
    (host.path("/etc") / "sub").mkdir(mode=0o700)
    (host.path("/etc") / "sub/file").write_text("x")
    before = all_of(host.path("/etc"))
    with pytest.raises(ResourceError, match="is a link"):
        revert(Host(root=host.root, run_id="r2"), "r1", lambda _: None)
    assert all_of(host.path("/etc")) == before


def test_the_journal_keeps_no_file_of_roots_for_a_users_authorized_keys(host, monkeypatch):
    """The user's ~/.ssh becomes a link while the key is added."""
    entry = SimpleNamespace(pw_dir=FOLDER, pw_uid=user.NOBODY, pw_gid=user.NOBODY, pw_name="nobody")
    known = SimpleNamespace(getpwnam=lambda _: entry, getpwuid=lambda _: entry)
    monkeypatch.setattr("spark_cluster.resources.authorized_key.pwd", known)
    host.path("/etc/authorized_keys").write_text(SECRET)
    run = host.path(FOLDER)
    (run / "d").rename(run / ".ssh")
    before = all_of(host.path("/etc"))
    key = AuthorizedKey("nobody", f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'A' * 43} me")
    after = AuthorizedKey._after

    def meanwhile(self: AuthorizedKey, content: bytes) -> bytes:
        user.run(f"os.chdir({str(run)!r}); os.rename('.ssh', 'e'); os.rename('d-link', '.ssh')")
        return after(self, content)

    monkeypatch.setattr(AuthorizedKey, "_after", meanwhile)
    with pytest.raises(ResourceError, match="is a link"):
        converged(host, key)
    assert (run / ".ssh").is_symlink()
    assert all_of(host.path("/etc")) == before
    for path in host.path("/var/lib/spark-cluster/journal").rglob("*"):
        assert not path.is_file() or SECRET not in path.read_text(), path


# -- which links are followed --------------------------------------------------------------------


@pytest.mark.parametrize("target", ["{root}/disk/state", "../disk/state", "../disk/./x/../state"])
def test_links_of_roots_in_folders_of_roots_are_followed(tmp_path, target):
    """`/var/lib` on another disk is common."""
    (tmp_path / "disk/state").mkdir(parents=True)
    (tmp_path / "disk/x").mkdir()
    (tmp_path / "var").mkdir()
    (tmp_path / "var/state").symlink_to(target.format(root=tmp_path))
    host = Host(root=tmp_path)
    converged(host, Directory("/var/state/a", mode=0o700))
    converged(host, File("/var/state/a/file", content="x\n"))
    assert host.read("/var/state/a/file") == b"x\n"
    assert (tmp_path / "disk/state/a/file").read_text() == "x\n"
    (tmp_path / "var/file").symlink_to("state/a/file")
    assert host.read("/var/file") == b"x\n"


@pytest.mark.parametrize(
    ("owner", "mode"), [(user.NOBODY, 0o755), (0, 0o777), (0, 0o1777), (0, 0o775)]
)
def test_links_that_others_can_replace_are_refused(tmp_path, owner, mode):
    (tmp_path / "real").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/link").symlink_to(tmp_path / "real")
    os.lchown(tmp_path / "folder/link", owner, owner)
    (tmp_path / "folder").chmod(mode)
    host = Host(root=tmp_path)
    with pytest.raises(ResourceError, match=r"folder/link is a link that other users") as refused:
        host.write("/folder/link/file", b"x")
    assert "belong to root" in refused.value.hint
    assert list((tmp_path / "real").iterdir()) == []


def test_links_in_a_circle_end(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"), safe_paths.folder(tmp_path / "a/x"):
        pass


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError) as missing:
        Host(root=tmp_path).write("/no/folder/file", b"x")
    assert missing.value.filename == f"{tmp_path}/no"


def test_a_private_key_is_made_out_of_the_users_reach(host):
    """In the user's folder, `ssh-keygen` would write it wherever the user has a link by then."""
    script = f'#!/bin/sh\necho "$*" >>{host.root}/asked\nexec /usr/bin/ssh-keygen "$@"\n'
    put(host.path("/usr/local/bin/ssh-keygen"), script, 0o755)
    converged(host, SshKey(f"{FOLDER}/d/id", owner="nobody", comment="x"))
    made = next(line for line in (host.root / "asked").read_text().splitlines() if "-t " in line)
    folder = Path(made.rpartition(" ")[2]).parent
    assert not folder.is_relative_to(host.path(FOLDER))
    assert not folder.exists(), "nothing of it is left"
    assert host.look(f"{FOLDER}/d/id").st_uid == user.NOBODY


def test_a_file_in_an_open_folder_is_no_link_and_no_pipe(host):
    """The journal keeps what it reads there, so a link would give away where it leads."""
    os.mkfifo(host.path(f"{FOLDER}/pipe"))
    with safe_paths.entry(host.path(f"{FOLDER}/f")) as place:
        with safe_paths.file_in(place) as own:
            assert own.read() == b"mine\n"
        with pytest.raises(OSError, match="symbolic links"):
            safe_paths.file_in(place.with_name("f-link"))
        with pytest.raises(ResourceError, match=f"{FOLDER}/pipe is not a regular file"):
            safe_paths.file_in(place.with_name("pipe"))
