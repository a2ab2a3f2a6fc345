"""A virtual environment of Python, as it is there or made of pinned requirements."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from spark_cluster.node import units
from spark_cluster.node.host import Host
from spark_cluster.node.values import PINNED, Missing, ResourceError, Secret
from spark_cluster.resources.base import Resource, State, absolute, checks

MARKER = ".spark-cluster-requirements"
"""File in an environment of ours: the requirements that it was made of, whole."""

SCRIPT = """\
set -e
path=$1 python=$2 marker=$3
rm -rf "$path"
if command -v uv >/dev/null 2>&1; then
  uv venv --python "$python" "$path"
  cat > "$path/$marker.new"
  uv pip install --python "$path/bin/python" --requirement "$path/$marker.new"
else
  "$python" -m venv "$path"
  cat > "$path/$marker.new"
  "$path/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off \\
    --requirement "$path/$marker.new"
fi
sync -f "$path"
mv "$path/$marker.new" "$path/$marker"
"""
"""uv where it is, else the venv and pip of the node's Python. The marker comes last,
behind all else on the disk: an environment that was made in part is made again."""


@dataclass(frozen=True)
class VirtualEnvironment(Resource):
    """A virtual environment with exactly these requirements; without any it must be there.

    Made with uv where the node has it, else with the venv and pip of its Python. One that someone
    else made is used as it is, and never changed.

    Args:
        path: its folder.
        requirements: lines of a requirements file, each pinned (`NAME==VERSION`, `NAME @ URL`) or
            an option of pip's (`--extra-index-url=...`).
        python: the interpreter that it is made with.
        timeout_s: seconds for making it.

    Raises:
        Missing: it is to be there, and is not.
        ResourceError: the folder is someone else's, or it cannot be made (with pip's own words).

    Example:
        VirtualEnvironment("/opt/vllm", ("vllm==0.19.0", "ray==2.60.0"))
    """

    valid = checks(path=absolute)

    path: str
    requirements: tuple[str, ...] = ()
    python: str = field(default="python3", kw_only=True)
    timeout_s: float = field(default=3600.0, kw_only=True)

    def validate(self) -> None:
        for line in self.requirements:
            plain = not isinstance(line, Secret) and "\n" not in line
            self.must(plain, "a requirement is one line, and no secret")
            pinned = line.startswith("--") or PINNED.fullmatch(line)
            self.must(pinned, f"{line!r} is not pinned; expected NAME==VERSION or NAME @ URL")

    def provides(self) -> tuple[str, ...]:
        return (f"path:{self.path}", f"path:{self.path}/bin/python")

    def desired(self) -> State:
        return {"python": "there", "requirements": self._digest or "as they are"}

    def observe(self, host: Host) -> State:
        python = host.path(f"{self.path}/bin/python").exists()
        if not self.requirements:
            if not python:
                raise Missing(
                    f"path:{self.path}",
                    f"there is no virtual environment in {self.path}",
                    "make one there, or give its pinned requirements",
                )
            return self.desired()
        made_of = host.read(f"{self.path}/{MARKER}")
        folder = host.path(self.path)
        unfinished = (folder / f"{MARKER}.new").exists()
        if made_of is None and not unfinished and folder.is_dir() and any(folder.iterdir()):
            raise ResourceError(
                f"{self.path} is there and was not made by spark-cluster",
                "leave `requirements` out to use it as it is, or name another folder",
            )
        found = "none" if made_of is None else hashlib.sha256(made_of).hexdigest()[:12]
        return {"python": "there" if python else "not there", "requirements": found}

    def converge(self, host: Host, actual: State) -> None:
        path = str(host.path(self.path))
        host.path(self.path).parent.mkdir(parents=True, exist_ok=True)
        done = units.run(
            host,
            self.id,
            ("sh", "-c", SCRIPT, "venv", path, self.python, MARKER),
            stdin=self._text.encode(),
            env=host.proxies(),
            timeout=self.timeout_s,
            on_output=host.progress,
        )
        done.check(f"making the virtual environment {self.path}")

    @property
    def _text(self) -> str:
        return "".join(f"{line}\n" for line in self.requirements)

    @property
    def _digest(self) -> str:
        if not self.requirements:
            return ""
        return hashlib.sha256(self._text.encode()).hexdigest()[:12]
