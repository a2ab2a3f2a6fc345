"""A kernel setting, now and after every boot."""

from __future__ import annotations

import difflib
import errno
import re
from dataclasses import dataclass

from spark_cluster.node import paths
from spark_cluster.node.host import Host
from spark_cluster.node.values import Missing, ResourceError
from spark_cluster.resources.base import State, lines_of
from spark_cluster.resources.file import EditedFile

_FOLDERS = ("/usr/lib/sysctl.d", "/run/sysctl.d", "/etc/sysctl.d")
_WHY = {
    errno.EROFS: (
        "the kernel's settings are read-only there",
        "a container cannot change them; set it on the machine that it runs on",
    ),
    errno.EINVAL: ("the kernel refuses the value", "see `sysctl` and the kernel's documentation"),
    errno.EPERM: ("the kernel does not permit it", "is the agent root there (become: true)?"),
    errno.EACCES: ("it may not be written", "is the agent root there (become: true)?"),
}


@dataclass(frozen=True)
class Sysctl(EditedFile):
    """A setting under /proc/sys, with a file of its own under /etc/sysctl.d.

    Args:
        key: `vm.swappiness`; with slashes where a part has a dot of its own:
            `net/ipv4/conf/eth0.10/rp_filter`.
        value: what it shall be; how the numbers in it are spaced does not matter.

    Raises:
        ResourceError: there is no such setting, or the kernel refuses the value.

    Example:
        Sysctl("vm.swappiness", "1")
    """

    reverts = "the current value stays until the next boot"

    key: str
    value: str

    def validate(self) -> None:
        usual = re.fullmatch(r"[A-Za-z0-9_:@/-]+([.][A-Za-z0-9_:@/.-]+)*", self.key)
        odd = ".." in self._place or "//" in self._place or "/" not in self._place
        self.must(usual and not odd, "it is not a name like vm.swappiness")
        text = isinstance(self.value, str) and "\n" not in self.value and self.value.strip()
        self.must(text, f"value {self.value!r} is not a text")

    def provides(self) -> tuple[str, ...]:
        return (f"path:{self.file}",)

    @property
    def file(self) -> str:
        """The file that sets it at boot."""
        return paths.SYSCTL.format(self._place.replace("/", "."))

    def desired(self) -> State:
        return {"live": _plain(self.value), "at_boot": _plain(self.value)}

    def observe(self, host: Host) -> State:
        live = host.path(self._live)
        try:
            text = live.read_text()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise self._missing(host) from None
        return {"live": _plain(text), "at_boot": self._at_boot(host)}

    def converge(self, host: Host, actual: State) -> None:
        wanted = _plain(self.value)
        if actual["live"] != wanted:
            try:
                host.path(self._live).write_text(f"{wanted}\n")
            except OSError as error:
                why, hint = _WHY.get(error.errno or 0, (error.strerror or str(error), ""))
                raise ResourceError(f"{self.key} = {wanted}: {why}", hint) from None
        if actual["at_boot"] != wanted:
            host.directory("/etc/sysctl.d")
            host.write(self.file, self.text_after(host) or b"", mode=0o644)

    def state_after(self, host: Host) -> State:
        after = self.observe(host)
        value, by, file = str(after["at_boot"]).partition(", by ")
        if by:
            raise ResourceError(
                f"at boot {file} sets {self.key} to {value}, after {self.file}",
                f"take that line out of {file}",
            )
        return after

    @property
    def edited(self) -> str:
        return self.file

    @property
    def _place(self) -> str:
        """The key with slashes, as sysctl(8) has it: the first separator decides."""
        first = re.search(r"[./]", self.key)
        if first is None or first[0] == "/":
            return self.key
        return self.key.translate(str.maketrans("./", "/."))

    @property
    def _live(self) -> str:
        return f"/proc/sys/{self._place}"

    def text_after(self, host: Host) -> bytes | None:
        if self._at_boot(host) == _plain(self.value):
            return host.read(self.file)
        key = self._place if "." in self._place else self._place.replace("/", ".")
        return f"# Written by spark-cluster.\n{key} = {_plain(self.value)}\n".encode()

    def _at_boot(self, host: Host) -> str | None:
        """Return the value of the files: of all, sorted by name, the last counts (sysctl.d(5))."""
        files = {
            path.name: f"{folder}/{path.name}"
            for folder in _FOLDERS
            for path in host.path(folder).glob("*.conf")
        }
        files[self.file.rsplit("/", 1)[1]] = self.file
        found = None
        for _, file in sorted(files.items()):
            value = self._set_by((host.read(file) or b"").decode(errors="replace"))
            if value is not None:
                ours = file == self.file or value == _plain(self.value)
                found = value if ours else f"{value}, by {file}"
        return found

    def _set_by(self, content: str) -> str | None:
        """The value that a file gives, if it does."""
        found, own = None, self._place.replace(".", "/")
        for line in lines_of(content):
            key, equals, value = line.partition("=")
            if equals and key.strip().lstrip("-").replace(".", "/") == own:
                found = _plain(value)
        return found

    def _missing(self, host: Host) -> ResourceError:
        claim = f"path:{self._live}"
        if host.will_provide(claim):
            return Missing(claim, f"the kernel has no setting {self.key} yet")
        parent = host.path(self._live).parent
        while not parent.is_dir() and parent != host.root:
            parent = parent.parent
        name = self._place.rsplit("/", 1)[-1]
        near = difflib.get_close_matches(name, [p.name for p in parent.iterdir()], n=3)
        hint = "is the kernel module that brings it loaded?"
        if near:
            hint = f"did you mean {' or '.join(near)}? Otherwise: {hint}"
        return ResourceError(f"the kernel has no setting {self.key}", hint)


def _plain(value: str) -> str:
    """Replace the kernel's tabs by single spaces."""
    return " ".join(value.split())
