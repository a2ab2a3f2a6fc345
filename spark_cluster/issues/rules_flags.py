"""Rules on flags and variables that contradict each other, and on what is not pinned."""

from __future__ import annotations

import re

from spark_cluster.issues.match import Edit
from spark_cluster.issues.rules import Case, Found, rule, written

MOVING = re.compile(
    r"^(?:latest|main|master|dev|stable|nightly)(?:[-_](?:arm64|aarch64|cu\d+|tf5))*$"
)
"""Tags that name whatever is newest."""

COMMIT = re.compile(r"[0-9a-f]{40}$")
"""A revision that cannot move."""

SITE = re.compile(r"/(?:dist|site)-packages/vllm/.+\.py$")
KNOWN_SITE = {"vllm/vllm-openai": "/usr/local/lib/python3.12/dist-packages/vllm/"}
"""Where images keep vLLM (source: muninn-gemma4-26b)."""

_CLONE = re.compile(r"git clone\b[^&|;\n]*vllm")
_COMMIT = re.compile(r"\b[0-9a-f]{7,40}\b|git checkout|--branch[ =]v?\d|--revision|-b v\d")
_COMPILATION = ("compilation-config", "cudagraph-capture-sizes", "max-cudagraph-capture-size")
FIRST_START_S = 600
"""A first start compiles for about five minutes (Gemma-4-31B NVFP4 on a single DGX Spark)."""


@rule("image-not-pinned")
def image_not_pinned(case: Case) -> Found | None:
    launch = case.launch
    if not launch.image or launch.digest or launch.dockerfile:
        return None
    folder, _, name = launch.image.rpartition("/")
    _, _, tag = name.partition(":")
    if not folder and tag and not MOVING.match(tag):
        return None  # a name without a registry: an image of one's own
    moves = not tag or MOVING.match(tag)
    found = f"image {launch.image}" + ("" if tag else ", which means :latest")
    return Found(found, severity="warning" if moves else "info")


@rule("revision-not-pinned")
def revision_not_pinned(case: Case) -> Found | None:
    moving = [f"{name} at {r}" for name, r in case.launch.revisions.items() if not COMMIT.match(r)]
    return Found(", ".join(moving)) if moving else None


@rule("image-overlay-not-pinned")
def overlay_not_pinned(case: Case) -> Found | None:
    text = case.launch.dockerfile.replace("\\\n", " ")
    clone = _CLONE.search(text)
    if clone is None or _COMMIT.search(text[clone.start() :]):
        return None
    return Found(clone[0].strip()[:80])


@rule("patch-path")
def patch_path(case: Case) -> Found | None:
    place = KNOWN_SITE.get(case.image.partition(":")[0])
    patches = [v.target for v in case.launch.volumes if SITE.search(v.target)]
    wrong = [target for target in patches if place and not target.startswith(place)]
    return Found(f"{wrong[0]}; {case.image} has vLLM in {place}") if wrong else None


@rule("patched-file")
def patched_file(case: Case) -> Found | None:
    """A patch fits one version: with an image that moves it is known to fail."""
    patches = [v for v in case.launch.volumes if SITE.search(v.target)]
    if not patches or case.launch.digest:
        return None
    _, _, tag = case.image.rpartition("/")[2].partition(":")
    moves = bool(case.image) and (not tag or MOVING.match(tag) is not None)
    found = f"{patches[0].source.rpartition('/')[2]} over {patches[0].target.rpartition('/')[2]}"
    shown = f"{found}; {case.image or 'the image'} is not pinned"
    return Found(shown, severity="error" if moves else "info")


@rule("tool-choice-without-parser")
def tool_choice_without_parser(case: Case) -> Found | None:
    known = case.family.startswith("gemma4")
    edit = Edit("flag", "tool-call-parser", "gemma4") if known else None
    return Found("--enable-auto-tool-choice alone", edit=edit)


@rule("eager-and-compilation")
def eager_and_compilation(case: Case) -> Found | None:
    given = [flag for flag in _COMPILATION if flag in case.flags]
    given += [flag for flag in ("O", "cc") if flag in case.flags]
    if not given:
        return None
    shown = ", ".join(f"--{flag}" for flag in given)
    return Found(f"--enforce-eager with {shown}", edit=Edit("flag", given[0], None))


@rule("batched-tokens-below-seqs")
def batched_below_seqs(case: Case) -> Found | None:
    batched, seqs = case.launch.number("max-num-batched-tokens"), case.launch.number("max-num-seqs")
    if batched is None or seqs is None:
        return None
    each = 1 + case.launch.drafted_tokens
    if batched >= seqs * each:
        return None
    need = int(seqs * each)
    found = f"--max-num-batched-tokens {batched:g} for {seqs:g} requests of {each} tokens a step"
    return Found(
        found,
        severity="error" if batched < seqs else "warning",
        edit=Edit("flag", "max-num-batched-tokens", max(need, 2048)),
    )


@rule("batched-tokens-below-context")
def batched_below_context(case: Case) -> Found | None:
    batched = case.launch.number("max-num-batched-tokens")
    length = case.launch.number("max-model-len")
    if batched is None or length is None or batched >= length:
        return None
    return Found(f"--max-num-batched-tokens {batched:g}, --max-model-len {length:g}")


@rule("compile-cache-lost")
def compile_cache_lost(case: Case) -> Found | None:
    root = case.launch.env.get("VLLM_CACHE_ROOT", "/root/.cache/vllm")
    kept = any(f"{root}/".startswith(v.target.rstrip("/") + "/") for v in case.launch.volumes)
    kept = kept or case.launch.env.get("VLLM_DISABLE_COMPILE_CACHE") == "1"
    return None if kept else Found(f"no volume holds {root}")


@rule("ready-wait-short")
def ready_wait_short(case: Case) -> Found | None:
    wait = case.launch.ready_timeout_s
    if wait is None or wait >= FIRST_START_S:
        return None
    return Found(f"ready_timeout_s: {wait:g}")


@rule("moe-setting-on-dense")
def moe_setting_on_dense(case: Case) -> Found | None:
    flags = [name for name in case.flags if name == "moe-backend"]
    env = [n for n in case.launch.env if "MOE" in n.split("_") and n.startswith("VLLM_")]
    seen = [written(f"--{name}", case.flags[name]) for name in flags]
    seen += [written(name, case.launch.env[name]) for name in env]
    if not seen:
        return None
    kind, name = ("flag", flags[0]) if flags else ("env", env[0])
    edit = Edit("flag" if kind == "flag" else "env", name, None)
    return Found(", ".join(seen), edit=edit, fix=f"leave {' and '.join(flags + env)} out")
