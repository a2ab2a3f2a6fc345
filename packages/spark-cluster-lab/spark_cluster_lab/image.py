"""The lab's container image: a thin system for the vLLM environment, as `docker load` takes it.

The environment itself (/opt/vllm) stays outside: nodes show it read-only, containers mount it.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

from spark_cluster_lab.artefact import Artefact, clear
from spark_cluster_lab.base import bootstrap
from spark_cluster_lab.layout import IMAGE_TAG, Layout
from spark_cluster_lab.machine import Distribution
from spark_cluster_lab.shell import run

TAR = "spark-vllm.tar"
PACKAGES = ["python3", "python3-venv", "libgomp1", "libnuma1", "ca-certificates"]
NOT_NEEDED = ("var/lib/apt/lists", "var/cache/apt", "usr/share/doc", "usr/share/locale", "var/log")
# What vLLM on a CPU wants of its surroundings; on a Spark the image brings its own.
ENVIRONMENT = {
    "PATH": "/opt/vllm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
CREATED = "2026-01-01T00:00:00Z"


def image_tree(layout: Layout, machine: Distribution) -> Artefact:
    """The image's file system. Its Python is the machine's own, so wheels for it are at hand."""
    recipe = "\n".join([*PACKAGES, *NOT_NEEDED, machine.sources(), "2"])

    def build(tree: Path) -> None:
        bootstrap(tree, machine, PACKAGES, layout.prepared / "image-tree.log")
        for name in NOT_NEEDED:
            clear(tree / name)
            (tree / name).mkdir()
        (tree / "opt/vllm").mkdir()

    return Artefact(layout.prepared, "image-tree", recipe, build, usual_s=35, usual_mb=130)


def image(layout: Layout, tree: Artefact) -> Artefact:
    """A directory with the image as a file, like a disk that someone plugs in."""
    recipe = "\n".join([tree.recipe, json.dumps(ENVIRONMENT), IMAGE_TAG, CREATED])

    def build(folder: Path) -> None:
        layer = folder / "layer.tar"
        options = ["--sort=name", "--numeric-owner", f"--mtime={CREATED}", "--one-file-system"]
        run(["tar", *options, "-C", tree.path, "-cf", layer, "."])
        write_docker_archive(folder / TAR, layer, IMAGE_TAG, ENVIRONMENT)
        layer.unlink()

    return Artefact(layout.prepared, "image", recipe, build, usual_mb=130)


def write_docker_archive(
    target: Path, layer: Path, tag: str, environment: dict[str, str], machine: str = ""
) -> str:
    """Write an image of one layer in the form `docker load` reads; returns its id.

    Args:
        layer: a tar of the file system, not compressed.
        machine: as `uname -m` says it; this machine's when empty.
    """
    digest = file_digest(layer)
    config = {
        "architecture": ARCHITECTURES.get(machine or platform.machine(), "amd64"),
        "os": "linux",
        "created": CREATED,
        "config": {"Env": [f"{name}={value}" for name, value in environment.items()]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created": CREATED, "created_by": "spark-cluster lab"}],
    }
    config_text = json.dumps(config).encode()
    image_id = hashlib.sha256(config_text).hexdigest()
    manifest = [
        {"Config": f"{image_id}.json", "RepoTags": [tag], "Layers": [f"{digest}/layer.tar"]}
    ]
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        add_bytes(archive, "manifest.json", json.dumps(manifest).encode())
        add_bytes(archive, f"{image_id}.json", config_text)
        with layer.open("rb") as content:
            member = tarfile.TarInfo(f"{digest}/layer.tar")
            member.size = layer.stat().st_size
            archive.addfile(member, content)
    return f"sha256:{image_id}"


def add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
