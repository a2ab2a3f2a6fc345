"""A public key that may log in as a user."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import pwd
import re
import stat
from dataclasses import dataclass, field

from spark_cluster.node.beneath import Folder, NotFollowed, pieces
from spark_cluster.node.host import Host
from spark_cluster.node.safe_paths import closing_handle
from spark_cluster.node.values import InvalidResource, Missing, ResourceError
from spark_cluster.resources.base import PRESENCE, Resource, State, checks, like
from spark_cluster.resources.file import unified, user_name
from spark_cluster.resources.group import account_name, found_by

_OPTION = re.compile(r'[A-Za-z0-9-]+(="[^"\\\x00-\x1f\x7f]*")?')
_LINES = re.compile(rb"[^\n]*\n|[^\n]+")
_FOLDER, _FILE = ".ssh", ".ssh/authorized_keys"
"""Below the user's home."""


@dataclass(frozen=True)
class AuthorizedKey(Resource):
    """A key in a user's `~/.ssh/authorized_keys` (created, with its folder, for that user only).

    Other lines, their order, options and comments stay byte for byte. A key that is there with
    another comment counts as present, and so does one with options unless `options` is given.
    Links in the home folder are not followed.

    Args:
        user: who may log in with it.
        key: one line of a `.pub` file, without options.
        state: `present` or `absent`.
        sole: other keys with the same comment go: they are of a machine that was wiped since. With
            `options` only lines with this comment, and those of `own_comments`, are changed: the
            key of such a machine is what it says, and could be the one with which the user logs in.
        own_comments: how the comments of our own lines begin, `mesh-`: goes with `sole` and
            `options`. A line with this key and another such comment is of a machine that was
            renamed since, and gets this comment and these options. A line with any other comment is
            the user's. Empty: only lines with this very comment are ours.
        options: what the key may be used for, as in sshd(8): `from="10.0.0.1"`,
            `no-port-forwarding`; () for no limits. None leaves what is there.

    Raises:
        Missing: there is no such user, or no home folder.
        ResourceError: something else than a folder or file of this user is in the place; or, with
            `sole`, the key is there with other options under a comment that is not ours.

    Example:
        AuthorizedKey("nvidia", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI... me@laptop")
    """

    reverts = ""

    valid = checks(
        user=account_name,
        state=PRESENCE,
        options=like(_OPTION, 'a word like no-port-forwarding or from="10.0.0.1"'),
    )

    user: str
    key: str
    state: str = field(default="present", kw_only=True)
    sole: bool = field(default=False, kw_only=True)
    own_comments: str = field(default="", kw_only=True)
    options: tuple[str, ...] | None = field(default=None, kw_only=True)

    def validate(self) -> None:
        parse_key(self.key)
        comment, present = comment_of(self.key), self.state == "present"
        named = not self.sole or (present and comment)
        self.must(named, "sole needs state present and a comment")
        fits = self.sole and self.options is not None and comment.startswith(self.own_comments)
        needs = "own_comments needs sole, options and a comment that begins so"
        self.must(fits or not self.own_comments, needs)

    @property
    def name(self) -> str:
        return f"{self.user} {fingerprint(self.key)}"

    def desired(self) -> State:
        if self.state == "absent":
            return {"key": "absent"}
        wanted = {"key": "present", "folder": f"0700 {self.user}", "file": f"0600 {self.user}"}
        return {**wanted, "former": 0} if self.sole else wanted

    def observe(self, host: Host) -> State:
        home = self._home(host).pw_dir
        if not host.path(home).is_dir():
            if self.state == "absent":
                return {"key": "absent"}
            raise Missing(f"path:{home}", f"{home}, the home folder of {self.user}, does not exist")
        content = self._content(host)
        self._must_be_ours(host, content)
        return {
            "key": self._state(content),
            "former": sum(map(self._is_former, content.split(b"\n"))),
            "folder": self._access(host, _FOLDER),
            "file": self._access(host, _FILE),
        }

    def converge(self, host: Host, actual: State) -> None:
        entry = self._home(host)
        shown, uid, gid = self._shown(host), entry.pw_uid, entry.pw_gid
        if self.state == "present" and actual["folder"] != self.desired()["folder"]:
            host.directory(shown.rsplit("/", 1)[0], mode=0o700, uid=uid, gid=gid)
        data = self._after(self._content(host))
        host.write(shown, data, mode=0o600, uid=uid, gid=gid)

    def plan(self, host: Host, actual: State) -> None:
        host.overlay.files[self._shown(host)] = self._after(self._content(host))

    def diff(self, host: Host, actual: State) -> str:
        before = self._content(host)
        return unified(self._shown(host), before, self._after(before))

    def _home(self, host: Host) -> pwd.struct_passwd:
        entry = found_by(pwd.getpwnam, self.user)
        if entry is None:
            raise Missing(
                f"user:{self.user}", f"there is no user {self.user!r}", "declare a User before"
            )
        return entry

    def _shown(self, host: Host) -> str:
        return f"{self._home(host).pw_dir.rstrip('/')}/{_FILE}"

    def _files(self, host: Host) -> Folder:
        """The user's home, in which no link is followed: the user could point one anywhere."""
        return Folder(host.path(self._home(host).pw_dir))

    def _content(self, host: Host) -> bytes:
        """Return all of authorized_keys; in check mode with what earlier resources will add.

        Raises:
            NotFollowed: there is a link or not a regular file, or its folder is a link.
        """
        shown = self._shown(host)
        if host.check and (shown in host.overlay.files or shown in host.overlay.opaque):
            return host.read(shown) or b""
        try:
            with closing_handle(self._files(host).open(_FILE)) as handle:
                found = os.fstat(handle)
                if found.st_nlink > 1:
                    raise NotFollowed(host.path(shown), "is a link: it has a second name")
                return b"".join(pieces(handle, found.st_size))
        except FileNotFoundError:
            return b""

    def _access(self, host: Host, path: str) -> str:
        """Return mode and owner of what is at a path in the user's home."""
        try:
            found = self._files(host).stat(path)
        except FileNotFoundError:
            return "absent"
        return f"{stat.S_IMODE(found.st_mode):04o} {user_name(found.st_uid)}"

    def _is_mine(self, line: bytes) -> bool:
        options, kind, blob = split_line(line.decode(errors="replace"))
        return (kind, blob) == parse_key(self.key) and "cert-authority" not in options

    def _is_former(self, line: bytes) -> bool:
        """Return whether, with `sole`, this is another key with the same comment."""
        text = line.decode(errors="replace")
        same = self.sole and comment_of(text) == comment_of(self.key)
        return same and bool(split_line(text)[1]) and not self._is_mine(line)

    def _is_our_own(self, line: bytes) -> bool:
        """Return whether, with `sole`, a line has our comment or that of a renamed machine."""
        comment = comment_of(line.decode(errors="replace"))
        return comment == comment_of(self.key) or self._is_earlier_name(comment)

    def _is_earlier_name(self, comment: str) -> bool:
        begins = bool(self.own_comments) and comment.startswith(self.own_comments)
        return begins and comment != comment_of(self.key)

    def _must_be_ours(self, host: Host, content: bytes) -> None:
        """Raise ResourceError where, with `sole`, lines of others would get these options."""
        if not self.sole or self.options is None:
            return
        for number, line in enumerate(content.split(b"\n"), 1):
            if not self._is_mine(line) or self._is_limited_so(line):
                continue
            if not self._is_our_own(line):
                comment = comment_of(line.decode(errors="replace"))
                raise ResourceError(
                    f"{self._shown(host)}, line {number}: the key that is declared as "
                    f"{comment_of(self.key)!r} stands there as {comment!r}; its options are left "
                    "as they are",
                    "two machines have one key, or one of them claims the key of the other: look "
                    "at the machine, or remove the line if it is not yours",
                )

    def _state(self, content: bytes) -> str:
        mine = [line for line in content.split(b"\n") if self._is_mine(line)]
        if not mine:
            return "absent"
        if not all(map(self._is_limited_so, mine)):
            return "present, with other options"
        return "present" if all(map(self._is_as_declared, mine)) else "present, with another name"

    def _is_as_declared(self, line: bytes) -> bool:
        earlier = self._is_earlier_name(comment_of(line.decode(errors="replace")))
        return self._is_limited_so(line) and not earlier

    def _is_limited_so(self, line: bytes) -> bool:
        found = split_line(line.decode(errors="replace"))[0]
        return self.options is None or found == ",".join(self.options)

    def _line(self) -> bytes:
        options = ",".join(self.options or ())
        return f"{options} {self.key.strip()}".strip().encode() + b"\n"

    def _after(self, before: bytes) -> bytes:
        lines = [x for x in _LINES.findall(before) if not self._is_former(x)]
        before = b"".join(lines)
        if self.state == "absent":
            return b"".join(line for line in lines if not self._is_mine(line))
        mine = [line for line in lines if self._is_mine(line)]
        if mine and all(map(self._is_as_declared, mine)):
            return before
        if self.own_comments:
            mine = [line for line in mine if self._is_our_own(line)]
        before = b"".join(line for line in lines if line not in mine)
        gap = b"" if not before or before.endswith(b"\n") else b"\n"
        return before + gap + self._line()


# Public keys of SSH: a line of a `.pub` file or of authorized_keys, taken apart.

KEY_TYPES = {
    "ssh-ed25519": 2,
    "sk-ssh-ed25519@openssh.com": 3,
    **{f"ecdsa-sha2-nistp{bits}": 3 for bits in (256, 384, 521)},
    "sk-ecdsa-sha2-nistp256@openssh.com": 4,
    "ssh-rsa": 3,
}
"""Types that sshd takes, with the number of the strings that a key of each is made of."""

_OPTIONS = re.compile(r'(?:[^\s"]|"(?:\\"|\\(?!")|[^"\\])*")+[ \t]+')


def parse_key(line: str) -> tuple[str, str]:
    """Return type and base64 text of a public key line.

    Raises:
        InvalidResource: it is not one whole public key of a type that sshd takes.
    """
    if "PRIVATE KEY" in line:
        raise InvalidResource("AuthorizedKey: this is a private key; give the .pub file's line")
    text = line.strip()
    if "\n" in text or "\r" in text:
        raise InvalidResource("AuthorizedKey: more than one line; declare one for each key")
    kind, _, rest = text.partition(" ")
    blob = rest.split()[0] if rest.split() else ""
    if kind not in KEY_TYPES:
        if split_line(text)[1]:
            raise InvalidResource(f"AuthorizedKey: options before the key ({kind}) are not taken")
        raise InvalidResource(
            f"AuthorizedKey: {kind[:40]!r} is not a type of key; known: {', '.join(KEY_TYPES)}"
        )
    try:
        data = base64.b64decode(blob, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidResource(f"AuthorizedKey: the {kind} key is not base64: was it cut?") from None
    parts = fields_of(data)
    if parts is None or len(parts) < 2:
        raise InvalidResource(f"AuthorizedKey: the {kind} key is incomplete: was it cut?")
    if parts[0] != kind.encode():
        inner = parts[0].decode(errors="replace")
        raise InvalidResource(f"AuthorizedKey: the line says {kind}, the key in it {inner}")
    return kind, blob


def fingerprint(line: str) -> str:
    """Return a key's fingerprint as `ssh-keygen -l` shows it: `SHA256:...`."""
    digest = hashlib.sha256(base64.b64decode(parse_key(line)[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def split_line(line: str) -> tuple[str, str, str]:
    """Return options, type and base64 text of a line of authorized_keys; empty without a key."""
    text = line.strip()
    if not text or text.startswith("#"):
        return "", "", ""
    options = ""
    if text.split()[0] not in KEY_TYPES:
        found = _OPTIONS.match(text)
        if not found:
            return "", "", ""
        options, text = found[0].strip(), text[found.end() :]
    words = text.split()
    if len(words) < 2 or words[0] not in KEY_TYPES:
        return "", "", ""
    return options, words[0], words[1]


def comment_of(line: str) -> str:
    """Return what stands after the key in a line of authorized_keys or a `.pub` file."""
    blob = split_line(line)[2]
    return line.partition(blob)[2].strip() if blob else ""


def fields_of(data: bytes) -> list[bytes] | None:
    """The length-prefixed strings that a key is made of, or None when they do not fill it."""
    parts = []
    while data:
        size = int.from_bytes(data[:4], "big")
        if len(data) < 4 + size:
            return None
        parts.append(data[4 : 4 + size])
        data = data[4 + size :]
    return parts
