"""Registries that tests make: a git repository, an archive, and the project that names them."""

import gzip
import io
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from factories import put

OURS = """\
name: {name}
description: "{about}"
model: {{name: org/{name}, served_name: m, base: Qwen/Qwen3-8B, quantization: bf16}}
image: {{ref: "repo/image:1"}}
tensor_parallel: {{min: 1, max: 1}}
"""

SPARKRUN = """\
recipe_version: "2"
model: {model}
runtime: vllm
max_nodes: 1
container: ghcr.io/org/image:1
metadata: {{description: made for tests}}
defaults: {{max_model_len: {length}}}
command: |
  vllm serve {{model}} --max-model-len {{max_model_len}}
"""


def ours(name: str, about: str = "") -> str:
    """A recipe in our form."""
    return OURS.format(name=name, about=about)


def sparkrun(model: str = "Qwen/Qwen3-8B", length: int = 4096) -> str:
    """A recipe of sparkrun."""
    return SPARKRUN.format(model=model, length=length)


@dataclass(frozen=True)
class Repository:
    """A git repository in a folder."""

    folder: Path

    @property
    def url(self) -> str:
        return f"file://{self.folder}"

    def git(self, *words: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        done = subprocess.run(
            ["git", "-C", str(self.folder), *identity, *words],
            check=True,
            capture_output=True,
            timeout=60,
        )
        return done.stdout.decode().strip()

    def commit(self, *, amend: bool = False, **files: str | bytes | None) -> str:
        """Write files (None removes one; `__` in a name is a `/`), and commit; its number."""
        return self.commit_files({k.replace("__", "/"): v for k, v in files.items()}, amend=amend)

    def commit_files(self, files: dict[str, str | bytes | None], *, amend: bool = False) -> str:
        for name, content in files.items():
            path = self.folder / f"{name}.yaml" if "." not in name else self.folder / name
            path.unlink(missing_ok=True) if content is None else put(path, content)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=m", *(("--amend",) if amend else ()))
        return self.git("rev-parse", "HEAD")


def repository(folder: Path) -> Repository:
    """A new repository with the branch `main`."""
    folder.mkdir(parents=True)
    made = Repository(folder)
    made.git("init", "--quiet", "--initial-branch=main")
    return made


def name_registry(project: Path, url: str, kind: str = "spark-cluster", **more: object) -> None:
    """Write `registries.yaml` with one registry named `theirs`."""
    lines = [f"  - {{name: theirs, url: {url!r}, format: {kind}"]
    lines += [f", {key}: {value}" for key, value in more.items()]
    put(project / "registries.yaml", "registries:\n" + "".join(lines) + "}\n")


def archive(members: dict[str, bytes | str], links: dict[str, str] | None = None) -> bytes:
    """A .tar.gz with files and symbolic links."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as made:
        for name, content in members.items():
            data = content if isinstance(content, bytes) else content.encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            made.addfile(info)
    return gzip.compress(stream.getvalue())
