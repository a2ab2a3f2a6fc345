"""A kernel module: loaded now, and at every boot."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_cluster.node import paths
from spark_cluster.node.host import Host
from spark_cluster.node.values import ResourceError
from spark_cluster.resources.base import Resource, State, checks, given, like


@dataclass(frozen=True)
class KernelModule(Resource):
    """A kernel module; what is built into the kernel counts as loaded.

    Args:
        module: its name; `-` and `_` are the same.
        loaded: whether it is in the kernel now; None leaves that.
        persistent: whether a file under /etc/modules-load.d loads it at boot; None leaves that.
        makes: what is there once it is loaded, for check mode:
            `path:/proc/sys/net/bridge/bridge-nf-call-iptables`.

    Raises:
        ResourceError: no such module for the running kernel, or it is in use.

    Example:
        KernelModule("tcp_bbr")
    """

    reverts = "the module stays as it is until the next boot"

    valid = checks(module=like("[A-Za-z0-9_-]+", "the name of a module"))

    module: str
    loaded: bool | None = field(default=True, kw_only=True)
    persistent: bool | None = field(default=True, kw_only=True)
    makes: tuple[str, ...] = field(default=(), kw_only=True)

    def validate(self) -> None:
        self.must((self.loaded, self.persistent) != (None, None), "it asks for nothing")

    def provides(self) -> tuple[str, ...]:
        own = (f"module:{self._name}", f"path:/sys/module/{self._name}")
        return (*own, *self.makes) if self.loaded else ()

    def desired(self) -> State:
        return given(loaded=self.loaded, at_boot=self.persistent)

    def observe(self, host: Host) -> State:
        content = host.read(self.file) or b""
        return {
            "loaded": host.path(f"/sys/module/{self._name}").exists() or self._built_in(host),
            "at_boot": self.module.encode() in content.split(),
        }

    def converge(self, host: Host, actual: State) -> None:
        if self.loaded is not None and actual["loaded"] != self.loaded:
            self._modprobe(host)
        if self.persistent is None or actual["at_boot"] == self.persistent:
            return
        if self.persistent:
            host.directory("/etc/modules-load.d")
            text = f"# Written by spark-cluster.\n{self.module}\n"
            host.write(self.file, text.encode(), mode=0o644)
        else:
            host.remove(self.file)

    @property
    def file(self) -> str:
        """The file that loads it at boot."""
        return paths.KERNEL_MODULES.format(self._name)

    @property
    def _name(self) -> str:
        return self.module.replace("-", "_")

    def _built_in(self, host: Host) -> bool:
        """Built-in modules without parameters are not under /sys/module."""
        release = host.path("/proc/sys/kernel/osrelease")
        if not release.is_file():
            return False
        listed = host.path(f"/lib/modules/{release.read_text().strip()}/modules.builtin")
        if not listed.is_file():
            return False
        names = (line.rsplit("/", 1)[-1] for line in listed.read_text().split())
        return self._name in {name.partition(".ko")[0].replace("-", "_") for name in names}

    def _modprobe(self, host: Host) -> None:
        argv = ("modprobe", self.module) if self.loaded else ("modprobe", "-r", self.module)
        done = host.run(argv)
        if done.status == 0:
            return
        last_line = (done.stderr.strip() or "(no output)").splitlines()[-1]
        if "not found" in last_line:
            raise ResourceError(
                f"the running kernel has no module {self.module}: {last_line}",
                "is its package installed, and was the node rebooted into the newest kernel?",
            )
        if "in use" in last_line:
            raise ResourceError(
                f"the module {self.module} is in use: {last_line}",
                f"`lsmod | grep {self._name}` there",
            )
        done.check(" ".join(argv), "`dmesg | tail` on the node may show why")
