"""A private SSH key that is made on the node and never leaves it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from spark_cluster.node.host import Host
from spark_cluster.resources.base import Resource, State, absolute, checks, one_of
from spark_cluster.resources.file import expect_kind, observe_path, owner_ids
from spark_cluster.resources.group import account_name

KINDS = ("ed25519", "ecdsa", "rsa")


@dataclass(frozen=True)
class SshKey(Resource):
    """A key pair without a passphrase: `path` for its owner only, `path.pub` for all to read.

    A key that is there is kept; its public half is made again when it is missing or another's.

    Args:
        path: the private key, absolute.
        owner: whose it is.
        kind: `ed25519`, `ecdsa` or `rsa` (only when it is made).
        comment: at the end of the public key (only when it is made).

    Raises:
        Missing: its folder or its owner does not exist.
        ResourceError: what is there is no private key, or has a passphrase.

    Example:
        SshKey("/etc/spark-cluster/mesh/id_ed25519", owner="nvidia", comment="spark1 mesh")
    """

    reverts = ""
    valid = checks(path=absolute, owner=account_name, kind=one_of(*KINDS))

    path: str
    owner: str = field(kw_only=True)
    kind: str = field(default="ed25519", kw_only=True)
    comment: str = field(default="", kw_only=True)

    def provides(self) -> tuple[str, ...]:
        return (f"path:{self.path}", f"path:{self.path}.pub")

    def desired(self) -> State:
        return {"kind": "file", "access": f"0600 {self.owner}", "public": "there"}

    def observe(self, host: Host) -> State:
        state = observe_path(host, self.path, needs_parent=True)
        expect_kind("file", self.path, state)
        if state["kind"] == "absent":
            return {"kind": "absent", "access": None, "public": "absent"}
        access = f"{state.get('mode')} {state.get('owner')}"
        if access != f"0600 {self.owner}":  # ssh-keygen refuses a key that others can read
            return {"kind": "file", "access": access, "public": "not checked"}
        there = (host.read(f"{self.path}.pub") or b"").split()[:2]
        whole = there == self._public(host).split()[:2]
        public = "there" if whole else "another's" if there else "absent"
        return {"kind": "file", "access": access, "public": public}

    def converge(self, host: Host, actual: State) -> None:
        uid, gid = owner_ids(self.owner, None)
        if actual["kind"] == "absent":
            host.progress(f"making an {self.kind} key")
            private = self._make(host)
        else:
            private = host.read(self.path) or b""
        if actual["access"] != f"0600 {self.owner}":
            host.write(self.path, private, mode=0o600, uid=uid, gid=gid)
        if actual["public"] != "there":
            host.write(f"{self.path}.pub", self._public(host), mode=0o644, uid=uid, gid=gid)

    def _public(self, host: Host) -> bytes:
        argv = ("ssh-keygen", "-y", "-P", "", "-f", str(host.path(self.path)))
        done = host.run(argv)
        done.check(
            f"{self.path} is not a private key without a passphrase",
            "move it away; a new one is made then",
        )
        return done.stdout.encode()

    def _make(self, host: Host) -> bytes:
        # Not next to its place, which may be a folder that other users can write.
        with tempfile.TemporaryDirectory(prefix="spark-cluster-key-") as folder:
            return generate(host, Path(folder) / "key", self.kind, self.comment)[0]


def generate(host: Host, staged: Path, kind: str, comment: str) -> tuple[bytes, bytes]:
    """Private and public half of a new key; `staged` is in a folder that no one else can read."""
    argv = ("ssh-keygen", "-q", "-t", kind, "-N", "", "-C", comment, "-f", str(staged))
    host.run(argv).check(f"making an {kind} key")
    return staged.read_bytes(), staged.with_name(f"{staged.name}.pub").read_bytes()
