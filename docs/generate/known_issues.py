"""The pages of known issues, from the catalogue: one a topic, and an index by symptom."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from docs.generate.code import Issue, known_issues
from docs.generate.markdown import block, code, page, paragraphs, plain, table
from docs.generate.sources import links


class Topic(NamedTuple):
    """A page of known issues: its title, and the files of the catalogue that it shows."""

    title: str
    files: tuple[str, ...]


TOPICS = {
    "launch": Topic("Flags and command lines", ("arguments", "flags", "kinds")),
    "container": Topic("Images, Docker and firewall", ("container", "daemon")),
    "engine": Topic(
        "The engine and the hub",
        (
            "engine",
            "bringup",
            "provoked",
            "requests",
            "tracebacks",
            "hub",
            "sglang",
            "sglang_options",
        ),
    ),
    "software": Topic(
        "Versions of the software", ("software", "toolchain", "torch", "transformers")
    ),
    "kernels": Topic(
        "Kernels and quantization", ("kernels", "quantization", "flashinfer", "triton")
    ),
    "gemma4": Topic("Gemma 4", ("gemma4",)),
    "others": Topic("llama.cpp, Ollama and TensorRT-LLM", ("llamacpp", "tensorrt")),
    "setup": Topic(
        "Pulling, building and scripts", ("registry", "compose", "scripts", "launchers")
    ),
    "clients": Topic("Clients and proxies", ("clients",)),
    "vllm": Topic(
        "What vLLM checks",
        (
            *("vllm_config", "vllm_parallel", "vllm_attention", "vllm_experts", "vllm_formats"),
            *("vllm_models", "vllm_cache", "vllm_drafters", "vllm_lora", "vllm_media"),
            *("vllm_parsers", "vllm_requests"),
        ),
    ),
    "memory": Topic("Memory", ("memory", "host_memory")),
    "pair": Topic("Two nodes: Ray and NCCL", ("pair", "ray", "collectives", "nccl", "remote")),
    "link": Topic("The ConnectX-7 link", ("link",)),
    "node": Topic("The node and its kernel", ("node", "driver", "kernel", "services")),
    "benchmarks": Topic("Benchmarks", ("benchmarks",)),
}
"""Name of a page to what is on it; mkdocs.yml has them in the same order."""

INTRODUCTION = """\
What is known to go wrong, by what you see. Type a word of it into the field below, or a piece of
the log into the search of the site. Each entry leads to the cause, the fix and its
[source](../sources.md). The command line finds them too: `lint` in a recipe or a command line,
[`explain`](../how-to/explain.md) in logs, `doctor` on the nodes."""

FILTER = '<input id="symptom" type="search" placeholder="Filter" aria-label="Filter symptoms">'

LONGEST_SAMPLE = 300
"""Characters of a line of a log; what is longer ends in an ellipsis."""


def pages() -> dict[str, Callable[[], str]]:
    """Place on the site to what makes the page."""
    topics = {f"reference/known-issues/{name}.md": partial(render_topic, name) for name in TOPICS}
    return {"reference/known-issues.md": render_index, **topics}


def render_index() -> str:
    """Return the index: every symptom, with a link to what it is."""
    return page("Known issues by symptom", INTRODUCTION, FILTER, *map(_symptoms, TOPICS))


def render_topic(name: str) -> str:
    """Return the page of a topic."""
    text = "The [index by symptom](../known-issues.md) has all topics."
    return page(f"Known issues: {TOPICS[name].title}", text, *map(_issue, _issues(name)))


def _issues(name: str) -> list[Issue]:
    found = known_issues()
    return [issue for file in TOPICS[name].files for issue in found[file]]


def _symptoms(name: str) -> str:
    rows = [
        (_text(issue.symptom), f"[{_text(issue.title)}](known-issues/{name}.md#{issue.id})")
        for issue in _issues(name)
    ]
    return paragraphs(f"## {TOPICS[name].title}", table(("what you see", "what it is"), rows))


def _issue(issue: Issue) -> str:
    rows = [
        ("You see", _text(issue.symptom)),
        ("Cause", _text(issue.cause)),
        ("Fix", _text(issue.fix)),
        *(
            (f"Fix for {code(name)}", _text(text))
            for name, text in (issue.fixes | issue.also_for).items()
        ),
        ("To change", code(issue.flag) if issue.flag else ""),
        ("Versions of vLLM", code(issue.versions) if issue.versions else ""),
        ("Found by", _found_by(issue)),
        ("Source", links(issue.source, "../../sources.md")),
    ]
    return paragraphs(
        f"## {_text(_sentence(issue.title))} {{#{issue.id}}}",
        f"{code(issue.id)}, {issue.severity}",
        "\n".join(f"- **{name}**: {text}" for name, text in rows if text),
        *(block(_short(sample), "{ .text .log }") for sample in issue.samples[:1]),
    )


_CODE_OR_FLAG = re.compile(r"(`[^`]*`)|(?<![\w-])(--[a-z][\w.-]*\w)")


def _text(text: str) -> str:
    """Return a text of the catalogue as Markdown, with its flags as code."""
    return plain(_CODE_OR_FLAG.sub(lambda found: found[1] or f"`{found[2]}`", text))


def _sentence(text: str) -> str:
    """Begin a title with a capital, unless it begins with a name or a flag."""
    first = text.split(maxsplit=1)[0]
    return text[0].upper() + text[1:] if first.isalpha() and first.islower() else text


def _short(sample: str) -> str:
    return sample if len(sample) <= LONGEST_SAMPLE else f"{sample[:LONGEST_SAMPLE]}…"


def _found_by(issue: Issue) -> str:
    ways = [
        "`plan`, `lint`" if issue.when or issue.rule else "",
        "`explain`" if issue.log else "",
        f"`doctor` ({', '.join(map(code, issue.all_checks))})" if issue.all_checks else "",
        f"`up` (readiness: {', '.join(map(code, issue.rungs))})" if issue.rungs else "",
    ]
    return ", ".join(way for way in ways if way) or "nothing yet: good to know"
