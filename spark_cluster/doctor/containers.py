"""Checks of how Docker gives containers the GPU, and of where it keeps images."""

from __future__ import annotations

import re

from spark_cluster.doctor.check import check
from spark_cluster.doctor.observations import Observations
from spark_cluster.doctor.verdict import NotSeen, Verdict, fail, ok, warn
from spark_cluster.node import container_gpu
from spark_cluster.resources.docker import CONTAINERD_STORE

NGC_FAILS_FROM = (29, 5)
"""Version of Docker from which on tags of nvcr.io fail (source: nvidia-vss-572)."""


@check(
    "driver.cdi",
    title="the CDI specifications describe the GPU and its driver",
    needs=("cdi",),
    effect="blocks",
)
def cdi(seen: Observations) -> Verdict:
    rows = [line.partition("\t") for line in seen.output("cdi").splitlines() if line.strip()]
    found = {spec for spec, tab, _ in rows if not tab}
    if not found:
        return ok("no CDI specification describes the GPU")
    stale: dict[str, list[str]] = {}
    for spec, tab, path in rows:
        if tab and spec:
            stale.setdefault(spec, []).append(path[:200])
    shown = [f"{spec} names {_and_more(paths)}, not there" for spec, paths in stale.items()]
    first, second = ({s for s in found if s.startswith(f)} for f in container_gpu.FOLDERS)
    if stale and stale.keys() <= first and second:
        return warn(f"{'; '.join(shown)}; {', '.join(sorted(second))} goes before it")
    if stale:
        return fail("; ".join(shown))
    if missing := [path[:200] for spec, tab, path in rows if tab and not spec]:
        return warn(f"no CDI specification names {', '.join(missing)}")
    return ok(f"{', '.join(sorted(found))}: all that is named is there")


@check(
    "serving.gpu-access",
    title="running containers can open the GPU and keep it",
    needs=("tools", "gpu_access"),
    effect="blocks",
)
def gpu_access(seen: Observations) -> Verdict:
    if not seen.has("docker"):
        return ok("Docker is not installed")
    rows = container_gpu.states(seen.output("gpu_access"))
    names = {state: ", ".join(n for n, s, _ in rows if s == state) for _, state, _ in rows}
    if "lost" in names:
        return fail(f"{names['lost']}: started with the GPU, and may not open it")
    if "unknown-to-systemd" in names:
        return warn(f"{names['unknown-to-systemd']}: loses the GPU when systemd next reloads")
    return ok(f"{names['kept']}: may open it" if names else "no container runs with the GPU")


@check(
    "serving.image-store",
    title="Docker pulls images of nvcr.io by their tags",
    needs=("tools", "docker", "image_store"),
    effect="risks",
)
def image_store(seen: Observations) -> Verdict:
    if not seen.has("docker"):
        return ok("Docker is not installed")
    version = seen.output("docker").strip()
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        raise NotSeen(f"docker version: {version[:80]!r} is not a version")
    containerd = CONTAINERD_STORE in seen.output("image_store")
    shown = f"Docker {version[:80]} with {'containerd' if containerd else 'its own'} image store"
    affected = containerd and (int(numbers[1]), int(numbers[2])) >= NGC_FAILS_FROM
    return warn(shown) if affected else ok(shown)


def _and_more(paths: list[str]) -> str:
    """`/a`, or `/a and 2 other paths`."""
    return paths[0] + (f" and {len(paths) - 1} other paths" if paths[1:] else "")
