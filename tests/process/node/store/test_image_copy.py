"""An image from one Docker to another: a real channel and zstd, and a docker that is a script."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories import put
from free_ports import free_port
from model_content import content
from waiting import HANG_S

from spark_cluster.node import dockerd
from spark_cluster.node.processes import SEARCH_PATH, Processes
from spark_cluster.node.store import copy_channel, copy_receiving, copy_work
from spark_cluster.node.store.copy_channel import Broken, CopyChannel
from spark_cluster.node.values import ResourceError

REF = "repo/image:1"
ARCHIVE = content(3_000_000, 7) + bytes(2_000_000)
DOCKER = Path(__file__).with_name("docker.sh").read_text()
ENDLESS = """\
#!/bin/sh
case "$1" in
save) while [ -e "$0" ]; do head -c 1000000 /dev/zero; done ;;
load) exec cat > /dev/null ;;
info) echo / ;;
esac
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A docker on PATH, which has the image and wants the same."""
    path = put(tmp_path / "bin/docker", DOCKER % (REF, REF), 0o755)
    for name in ("saved", "wanted"):
        path.with_name(f"docker.{name}").write_bytes(ARCHIVE)
    monkeypatch.setenv("PATH", f"{path.parent}:{SEARCH_PATH}")
    return path


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    monkeypatch.setattr(copy_receiving, "SILENT_S", 2.0)

    def copy(ref: str) -> dict[str, Any]:
        place = tmp_path / "sender"
        place.mkdir(mode=0o700)
        secrets = {**copy_channel.make_secrets(place, Processes()), "port": free_port()}
        ends = {"addresses": ["127.0.0.1"], "spare": [], "secrets": secrets}
        given = {"image": ref, "size": len(ARCHIVE), "encrypted": True, "place": str(place)}
        with ThreadPoolExecutor(1) as pool:
            serve = {**given, "serve": ends, "receive": None}
            sent = pool.submit(copy_work.work, serve)
            receive = {**ends, "sender": "spark1"}
            try:
                done = copy_work.work({**given, "serve": None, "receive": receive})
                assert sent.result(HANG_S)["moved"] == 0, "the sender has ended by itself"
                return done
            finally:
                channel = CopyChannel.of(secrets, sender=False, encrypted=True)
                with suppress(Broken), channel.connected("127.0.0.1", "spark1") as stream:
                    stream.leave()

    return copy


def test_it_arrives_as_it_was(docker, copied):
    done = copied(REF)
    assert (done["moved"], done["kept"]) == (len(ARCHIVE), 0)
    assert docker.with_name("docker.loaded").read_bytes() == ARCHIVE


@pytest.mark.parametrize("refused", [False, True])
def test_no_other_image_is_taken(docker, copied, refused):
    """An archive can hold others, which get their names in place of what the node has; also one
    that Docker refuses in the end. What a user has built meanwhile keeps its name where the load
    ends well: then Docker has named all that it loaded."""
    before = f"sha256:1 own:1\nsha256:9 lost:1\nsha256:2 {REF}\nsha256:5 rebuilt:1\n"
    docker.with_name("docker.names").write_text(before)
    after = f"sha256:3 own:1\nsha256:3 lost:1\nsha256:4 {REF}\nsha256:6 rebuilt:1\n"
    docker.with_name("docker.names.after").write_text(after)
    others = ("own:2", "docker.io/library/own:1", "lost:1")[
        : 2 if refused else 3
    ]  # what it says before it ends
    docker.with_name("docker.others").write_text("".join(f"Loaded image: {n}\n" for n in others))
    docker.with_name("docker.wanted").write_bytes(ARCHIVE + b"more" * refused)
    why = "unexpected EOF" if refused else "spark1 sent other images than .*: lost:1, own:1, "
    with pytest.raises(ResourceError, match=why):
        copied(REF)
    given_back = docker.with_name("docker.given_back").read_text()
    rebuilt = "tag sha256:5 rebuilt:1\n" * refused
    assert given_back == f"tag sha256:1 own:1\n{rebuilt}image rm -- lost:1 own:2\n"


def test_more_names_than_are_read_are_taken_away(docker, copied, monkeypatch):
    monkeypatch.setattr(dockerd, "MOST_SAID", 200)
    docker.with_name("docker.names").write_text(f"sha256:2 {REF}\nsha256:3 <none>:<none>\n")
    docker.with_name("docker.names.after").write_text(f"sha256:4 {REF}\nsha256:4 own:1\n")
    docker.with_name("docker.others").write_text(20 * f"Loaded image: {REF}\n")
    with pytest.raises(ResourceError, match="spark1 sent other images than repo/image:1"):
        copied(REF)
    assert docker.with_name("docker.given_back").read_text() == "image rm -- own:1\n"


@pytest.mark.parametrize("ref", ["docker.io/library/ubuntu", "index.docker.io/library/ubuntu"])
def test_docker_shows_names_in_short(ref):
    assert dockerd.shown(ref) == "ubuntu:latest"
    assert dockerd.shown("localhost:5000/a/b") == "localhost:5000/a/b:latest"
    assert dockerd.shown(REF) == REF


def test_a_sender_that_falls_silent_is_given_up(docker, copied, monkeypatch):
    """Its connection may live: it is the sender's Docker that says nothing more."""
    monkeypatch.setattr(copy_work, "QUIET_S", 1.0)
    waits = "while [ -e $0 ] && [ ! -e $0.enough ]; do sleep 0.1; done"
    save = DOCKER.replace('cat "$0.saved"', f"head -c 100 $0.saved; {waits}")
    docker.write_text(save % (REF, REF))
    try:
        with pytest.raises(ResourceError, match=r"sends nothing more of repo/image:1: .*timed out"):
            copied(REF)
    finally:
        docker.with_name("docker.enough").touch()


def frees(monkeypatch, *found):
    """Have the disk of Docker's store say what is free, the last one for good."""
    left = list(found)
    usage = lambda _: SimpleNamespace(free=left.pop(0) if len(left) > 1 else left[0])  # noqa: E731
    monkeypatch.setattr(copy_work.shutil, "disk_usage", usage)


def test_a_small_image_fits_on_a_disk_with_little_room(docker, copied, monkeypatch):
    frees(monkeypatch, 1 << 30)
    assert copied(REF)["moved"] == len(ARCHIVE)


def test_a_sender_without_an_end_does_not_fill_the_disk(docker, copied, monkeypatch):
    """Packed zeros are as good as nothing on the way."""
    frees(monkeypatch, *range(4 << 30, 0, -(1 << 30)))
    docker.write_text(ENDLESS)
    try:
        with pytest.raises(ResourceError, match="the disk of Docker's store has less than"):
            copied(REF)
    finally:
        docker.unlink()


def test_what_docker_refuses_is_said_with_its_words(docker, copied):
    docker.with_name("docker.wanted").write_bytes(ARCHIVE + b"more")
    with pytest.raises(ResourceError, match="docker load: unexpected EOF"):
        copied(REF)


def test_an_image_that_the_sender_lacks_is_said_with_its_words(docker, copied):
    with pytest.raises(ResourceError, match=r"spark1 gives no image: No such image: other"):
        copied("other:1")


def test_a_name_runs_nothing(docker, copied, tmp_path):
    with pytest.raises(ResourceError, match="gives no image"):
        copied(f"x; touch {tmp_path}/run")
    assert not (tmp_path / "run").exists()
