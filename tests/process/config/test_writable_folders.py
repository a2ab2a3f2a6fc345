"""Code from folders that others can write is not run."""

from __future__ import annotations

import errno
import os
import struct
import sys
from pathlib import Path

import pytest
from cases import each_row
from hostile import user
from program import invoke

from spark_cluster.config import extension
from spark_cluster.config.project import Project
from spark_cluster.errors import Refused, SparkClusterError

CODE = """\
from pathlib import Path
from pydantic import BaseModel
Path(__file__).with_name("was-run").touch()
class Settings(BaseModel): pass
def role(node, settings): yield from ()
def main(play): pass
"""
OTHER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


@pytest.fixture
def folder(open_path: Path) -> Path:
    project = open_path / "project"
    for name in ("roles/drivers/__init__.py", "playbooks/p.py"):
        (project / name).parent.mkdir(parents=True)
        (project / name).write_text(CODE)
    (project / "inventory.yaml").write_text("nodes: {a: {address: 127.0.0.1, port: 1}}\n")
    return project


def grant(path: Path, kind: int, number: int, *, mask: int = 7, name: str = "access") -> None:
    """Give a user (`kind` 2) or a group (8) all rights by an ACL, as `setfacl` writes it."""
    everyone = 0xFFFFFFFF
    entries = [(1, 7, everyone), (kind, 7, number), (4, 5, everyone), (0x10, mask, everyone),
               (0x20, 5, everyone)]  # fmt: skip
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in sorted(entries))
    try:
        os.setxattr(path, f"system.posix_acl_{name}", acl)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        pytest.skip("the file system has no ACLs")


def was_run(folder: Path) -> bool:
    return any(folder.rglob("was-run"))


def load(folder: Path) -> None:
    project = Project(folder)
    project.load_role("drivers")
    project.load_playbook("p")


def test_the_users_own_is_run(folder: Path) -> None:
    load(folder)
    assert was_run(folder)


@each_row(__file__, "writable_folders.toml", "what_everybody_can_write_is_not_run")
def test_what_everybody_can_write_is_not_run(folder: Path, part: str, mode: int) -> None:
    (folder / part).chmod(mode)
    with pytest.raises(Refused, match=r"role drivers is not used: .* is writable by everyone") as e:
        load(folder)
    assert f"chmod o-w {folder / part}" in e.value.hint
    assert not was_run(folder)


needs_acls = pytest.mark.skipif(sys.platform != "linux", reason="ACLs are looked at on Linux only")


@needs_acls
@pytest.mark.parametrize(("kind", "who"), [(2, "user"), (8, "group")])
@pytest.mark.parametrize("part", [".", "roles", "roles/drivers", "roles/drivers/__init__.py"])
def test_what_an_acl_lets_others_write_is_not_run(folder, part, kind, who) -> None:
    grant(folder / part, kind, OTHER)
    with pytest.raises(
        Refused, match=rf"role drivers is not used: .* lets {who} {OTHER} write"
    ) as e:
        load(folder)
    assert f"setfacl -b {folder / part}" in e.value.hint
    assert not was_run(folder)


@needs_acls
def test_an_acl_for_what_will_be_made_in_a_folder(folder: Path) -> None:
    """Compiled modules are among it."""
    grant(folder / "roles/drivers", 2, OTHER, name="default")
    with pytest.raises(
        Refused, match=rf"role drivers is not used: .* lets user {OTHER} write"
    ) as e:
        load(folder)
    assert f"setfacl -b {folder / 'roles/drivers'}" in e.value.hint


@needs_acls
def test_an_acl_that_lets_no_one_else_write(folder: Path) -> None:
    """Its mask takes the right from all that it names; or it names the user."""
    grant(folder / "roles/drivers/__init__.py", 2, OTHER, mask=5)
    grant(folder / "roles/drivers", 2, os.getuid())
    grant(folder / "roles", 8, os.getgid(), name="default")
    load(folder)
    assert was_run(folder)


@needs_acls
@user.needs_root
def test_who_an_acl_names_can_write(folder: Path) -> None:
    path = user.reachable(folder / "roles/drivers") / "__init__.py"
    grant(path, 2, user.NOBODY)
    done = user.run(f"open({str(path)!r}, 'a').write('pass')")
    assert done.returncode == 0, done.stderr
    with pytest.raises(Refused, match="lets user 65534 write"):
        load(folder)


@pytest.mark.parametrize("part", [".", "roles", "roles/drivers/__init__.py"])
def test_nor_in_a_checkout(folder: Path, tmp_path: Path, part: str) -> None:
    """Shipped files lie in folders of the user there, as do the recipes of `recipes import`."""
    path = folder / part
    path.chmod(path.stat().st_mode | 0o002)
    for where in (folder, Path(__file__).parent):
        with pytest.raises(Refused, match="role drivers is not used"):
            Project(where, shipped=folder).load_role("drivers")
    assert not was_run(folder)


@needs_root
def test_a_checkout_of_who_owns_the_program(folder, tmp_path, monkeypatch) -> None:
    """Whoever could write it could write the code that runs: as root, from a user's checkout."""
    for name in ("SUDO_UID", "SUDO_GID"):
        monkeypatch.delenv(name, raising=False)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, OTHER, OTHER)
        path.chmod(path.stat().st_mode | 0o020)
    with pytest.raises(Refused, match="belongs to another user"):
        Project(tmp_path, shipped=folder).load_role("drivers")
    program = tmp_path / "program"
    program.mkdir()
    os.chown(program, OTHER, OTHER)
    monkeypatch.setattr("spark_cluster.config.project._PACKAGE", program)
    Project(tmp_path, shipped=folder).load_role("drivers")
    with pytest.raises(Refused, match="belongs to another user"):
        Project(folder, shipped=tmp_path / "elsewhere").load_role("drivers")


def test_what_is_installed_is_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever could write it could write the code that looks."""
    inside = Path(extension.__file__).parent / "role.py"
    monkeypatch.setattr(extension, "why_foreign", lambda path, _program: (f"{path} is foreign", ""))
    assert Project(tmp_path).foreign(inside) is None


def test_doctor_and_playbook_run_nothing_in_such_a_folder(folder, monkeypatch) -> None:
    folder.chmod(0o777)
    monkeypatch.chdir(folder)
    for words in (["doctor"], ["playbook", "p"], ["playbook", "./playbooks/p.py"], ["provision"]):
        done = invoke(*words)
        assert isinstance(done.exception, SparkClusterError), (words, done.output)
    assert not was_run(folder)


@pytest.mark.parametrize("words", [["ping"], ["doctor"], ["up"], ["-i", "inventory.yaml", "ping"]])
@pytest.mark.parametrize("part", [".", "inventory.yaml"])
def test_an_inventory_that_others_can_write_is_not_used(folder, monkeypatch, words, part) -> None:
    """It says where sudo passwords are sent, and which host keys are believed."""
    monkeypatch.chdir(folder)
    (folder / part).chmod(0o777)
    done = invoke(*words)
    assert isinstance(done.exception, Refused), done.output
    assert "inventory is not used: " in str(done.exception)
    assert "is writable by everyone" in str(done.exception)
    assert "chmod o-w" in done.exception.hint


@needs_root
def test_an_inventory_that_someone_left_in_tmp(folder, monkeypatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    folder.chmod(0o1777)
    os.chown(folder / "inventory.yaml", OTHER, OTHER)
    monkeypatch.chdir(folder)
    done = invoke("ping")
    assert isinstance(done.exception, Refused), done.output
    assert "belongs to another user" in str(done.exception)


def test_a_playbook_by_path(folder: Path, tmp_path: Path) -> None:
    (folder / "playbooks").chmod(0o777)
    with pytest.raises(Refused, match="playbook p is not used"):
        Project(tmp_path).load_playbook(folder / "playbooks/p.py")
    (folder / "playbooks").chmod(0o755)
    Project(tmp_path).load_playbook(folder / "playbooks/p.py")


def test_a_folder_like_tmp(folder: Path) -> None:
    """Others may make files in it, and not replace this user's."""
    folder.chmod(0o1777)
    load(folder)


@needs_root
def test_what_belongs_to_others_or_their_group(folder, monkeypatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.delenv("SUDO_GID", raising=False)
    path = folder / "roles/drivers"
    os.chown(path, OTHER, 0)
    assert "belongs to another user" in str(extension.why_foreign(path))
    with pytest.raises(Refused, match="belongs to another user"):
        load(folder)
    monkeypatch.setenv("SUDO_UID", str(OTHER))
    assert extension.why_foreign(path) is None
    os.chown(path, 0, OTHER)
    path.chmod(0o775)
    assert "another group" in str(extension.why_foreign(path))
    monkeypatch.setenv("SUDO_GID", str(OTHER))
    assert extension.why_foreign(path) is None, "the group of who became root with sudo"
    os.chown(path, 0, 0)
    assert extension.why_foreign(path) is None


@needs_root
def test_a_module_that_someone_put_into_a_role(folder: Path) -> None:
    module = folder / "roles/drivers/helper.py"
    module.write_text("")
    os.chown(module, OTHER, OTHER)
    with pytest.raises(Refused, match=r"helper\.py belongs to another user"):
        load(folder)


@needs_root
@pytest.mark.parametrize("link", ["roles", "roles/drivers", "playbooks/p.py"])
def test_a_link_of_another_user_is_not_followed(folder: Path, link: str, monkeypatch) -> None:
    """It may lead to this user's own files when they are looked at, and elsewhere when they run."""
    monkeypatch.delenv("SUDO_UID", raising=False)
    place = folder / link
    place.rename(folder.parent / "own")
    place.symlink_to(folder.parent / "own")
    load(folder)
    os.chown(place, OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(Refused, match=f"{place.name} belongs to another user") as error:
        load(folder)
    assert f"chown -h {os.getuid()} {place}" in error.value.hint
    os.chown(place, 0, 0, follow_symlinks=False)
    os.chown(place, OTHER, OTHER)
    with pytest.raises(Refused, match=f"{place.name} belongs to another user") as error:
        load(folder)
    assert f"chown {os.getuid()} {place}" in error.value.hint, "of what the link leads to"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["doctor"], "checks/a.py"),
        (["explain", "inventory.yaml"], "known_issues/a.toml"),
        (["provision"], "resources/a.py"),
    ],
)
def test_nothing_that_others_left_in_such_a_folder_is_waited_for(folder, words, name) -> None:
    """It is read before it is known whose it is: a folder may be another program's."""
    place = folder / name
    place.parent.mkdir()
    os.mkfifo(place)
    with place.with_name(f"huge{place.suffix}").open("wb") as huge:
        huge.truncate(1 << 40)
    invoke(*words, project=folder)


def test_a_recipe_that_others_can_write_is_not_served(folder, monkeypatch) -> None:
    (folder / "recipes").mkdir()
    text = "name: r\nmodel: {name: org/m, served_name: m}\nimage: {ref: x}\n"
    (folder / "recipes/r.yaml").write_text(text)
    (folder / "recipes").chmod(0o777)
    monkeypatch.chdir(folder)
    done = invoke("up", "--recipe", "r")
    assert "recipe r is not used" in str(done.exception)
    assert invoke("recipes", "show", "r").exit_code == 0  # it is only read
