"""An nftables table of our own: these rules in force, and kept in a file that loads them again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_cluster.node import paths
from spark_cluster.node.durable import write_file
from spark_cluster.node.host import Host
from spark_cluster.node.values import Missing, ResourceError
from spark_cluster.resources.base import PRESENCE, State, checks, like
from spark_cluster.resources.file import EditedFile, sha256

PREFIX = "spark_cluster"
"""Begins the name of every table of ours: the user's own are never touched."""


@dataclass(frozen=True)
class NftTable(EditedFile):
    """A table of the family `inet`, in force now and written to a file that loads it whole.

    The file replaces the table in one transaction, so that there is no moment without rules. What
    is in force is compared with what was in force right after the file was loaded: nft prints rules
    in a form of its own, and a rule that someone took out, added or flushed is noticed.

    Args:
        table: its name, which begins with `spark_cluster`.
        chains: what stands between its braces.
        state: `present` or `absent`.
        if_refused: what to do when nft does not take the rules.

    Raises:
        Missing: there is no nft.
        ResourceError: nft refuses the rules (no nf_tables in the kernel, not permitted).

    Example:
        NftTable("spark_cluster", "chain input { type filter hook input priority -10; }")
    """

    reverts = "the rules stay in force until the next boot"

    valid = checks(
        table=like(f"{PREFIX}[a-z0-9_]*", f"a name that begins with {PREFIX}"),
        state=PRESENCE,
    )

    table: str
    chains: str = ""
    state: str = field(default="present", kw_only=True)
    if_refused: str = field(default="", kw_only=True)

    def validate(self) -> None:
        told = (self.state == "present") == bool(self.chains.strip())
        self.must(told, "chains are required with state present, and only there")

    def provides(self) -> tuple[str, ...]:
        return (f"path:{self.file}",) if self.state == "present" else ()

    @property
    def file(self) -> str:
        """The file that loads it: `nft -f FILE`."""
        return f"{paths.NFTABLES}/{self.table}.nft"

    def desired(self) -> State:
        if self.state == "absent":
            return {"file": "absent", "in_force": "no"}
        return {"file": sha256(self._content())[:12], "in_force": "yes"}

    def observe(self, host: Host) -> State:
        content = host.read(self.file)
        state = {"file": "absent" if content is None else sha256(content)[:12], "in_force": "no"}
        if host.which("nft") is None:
            if self.state == "absent":
                return state
            raise Missing("command:nft", "there is no nft", "declare the package nftables before")
        try:
            live = self._live(host)
        except ResourceError:
            if self.state == "present":
                raise
            return state  # where nftables does not work, no table of it is in force
        if live is not None:
            state["in_force"] = "yes" if live == self._as_loaded(host) else "changed since"
        return state

    def converge(self, host: Host, actual: State) -> None:
        if self.state == "absent":
            if actual["in_force"] != "no":
                self._nft(host, "delete", "table", "inet", self.table)
            if actual["file"] != "absent":
                host.remove(self.file)
            host.path(self.listing).unlink(missing_ok=True)
            return
        host.directory(paths.NFTABLES)

        def check(staged: Path) -> None:
            self._nft(host, "-c", "-f", str(staged))

        if actual["file"] != self.desired()["file"]:
            host.write(self.file, self._content(), mode=0o644, validate=check)
        self._nft(host, "-f", str(host.path(self.file)))
        live = self._live(host)
        if live is not None:
            self._keep(host, live)

    @property
    def edited(self) -> str:
        return self.file

    def text_after(self, host: Host) -> bytes | None:
        return self._content() if self.state == "present" else None

    # -- inside ----------------------------------------------------------------------------------

    def _content(self) -> bytes:
        body = "".join(f"\t{line}\n" if line else "\n" for line in self.chains.strip().split("\n"))
        return (
            "# Written by spark-cluster; loaded at each boot, before Docker starts.\n"
            f"table inet {self.table}\ndelete table inet {self.table}\n"
            f"table inet {self.table} {{\n{body}}}\n"
        ).encode()

    @property
    def listing(self) -> str:
        """The file that keeps what was in force right after the ruleset was loaded."""
        return f"{paths.NFTABLES_SCRIPTS}/{self.table}.json"

    def _live(self, host: Host) -> str | None:
        """The rules in force, as JSON without what changes by itself; None without the table."""
        done = host.run(("nft", "-j", "list", "table", "inet", self.table))
        if done.status != 0:
            if "No such file or directory" in done.stderr:
                return None
            raise self._refused(done.stderr)
        try:
            return normalised(done.stdout)
        except ValueError:
            raise ResourceError(
                f"`nft -j list table` printed no JSON: {done.stdout[:80]}"
            ) from None

    def _as_loaded(self, host: Host) -> str:
        path = host.path(self.listing)
        return path.read_text() if path.is_file() else ""

    def _keep(self, host: Host, live: str) -> None:
        """Keep the listing, not journaled: it notes what the file means to this nft."""
        path = host.path(self.listing)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_file(path, live.encode())

    def _nft(self, host: Host, *arguments: str) -> None:
        done = host.run(("nft", *arguments))
        if done.status != 0:
            raise self._refused(done.stderr)

    def _refused(self, printed: str) -> ResourceError:
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        why = next((line for line in lines if "Error" in line), lines[-1] if lines else "no reason")
        return ResourceError(
            f"nft refuses the table {self.table}: {why}",
            self.if_refused or "is nf_tables in the kernel (`modprobe nf_tables`)?",
        )


def normalised(listing: str) -> str:
    """`nft -j list table` without handles, counters' values and nft's own version.

    Raises:
        ValueError: it is no such listing.
    """
    try:
        rows = json.loads(listing)["nftables"]
        kept = [_plain(row) for row in rows if "metainfo" not in row]
    except (LookupError, TypeError, RecursionError):
        raise ValueError("no listing of nft") from None
    return json.dumps(kept, sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        dropped = {"handle", "packets", "bytes"}
        return {k: _plain(v) for k, v in value.items() if k not in dropped}
    return [_plain(v) for v in value] if isinstance(value, list) else value
