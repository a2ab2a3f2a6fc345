"""Asks real vLLM about every family and writes down what it says.

`python -m benchmarks.kv_oracle [NAME...]`: all questions, or some, to the lab's own vLLM. The
answers are `tests/data/kv_oracle.json`; those of other questions are kept.

`python -m benchmarks.kv_oracle --sources FOLDER`: the functions of other versions, whose sources
are in FOLDER/VERSION/vllm. The answers are `tests/data/kv_versions.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from packaging.version import Version

from benchmarks.kv_oracle.questions import Question, questions
from benchmarks.kv_oracle.start import ask, older
from spark_cluster.errors import Failed
from spark_cluster_lab import Lab
from spark_cluster_lab.prepare import Prepared

DATA = Path(__file__).parents[2] / "tests" / "data"


def main(words: list[str]) -> int:
    """The exit status: 1 when something could not be asked."""
    prepared = Lab.default().prepared()
    if not (prepared.vllm.ready and prepared.image_tree.ready):
        print("the lab's vLLM is not built yet: spark-cluster lab up builds it", file=sys.stderr)
        return 1
    try:
        if words[:1] == ["--sources"]:
            versions(prepared, Path(words[1]))
        else:
            families(prepared, words)
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def families(prepared: Prepared, names: list[str]) -> None:
    """Start an engine for each question, and keep what there is after each."""
    path = DATA / "kv_oracle.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    order = [question.name for question in questions()]
    for question in questions():
        if names and question.name not in names:
            continue
        kept[question.name] = entry(question, ask(prepared, question))
        print(question.name, kept[question.name]["answer"]["started"], flush=True)
        path.write_text(written({name: kept[name] for name in order if name in kept}))


def versions(prepared: Prepared, sources: Path) -> None:
    """Ask the functions of each version below a folder."""
    found = {}
    for folder in sorted(sources.iterdir(), key=lambda path: Version(path.name)):
        found[folder.name] = older(prepared, folder)
        print(folder.name, len(found[folder.name]), flush=True)
    (DATA / "kv_versions.json").write_text(written(found))


def entry(question: Question, answer: dict[str, Any]) -> dict[str, Any]:
    """Question and answer, as data."""
    return {"like": question.like, **question.to_dict(), "answer": answer}


def written(kept: dict[str, Any]) -> str:
    """Return the cases as one line each, so that a change of one is a change of one line."""
    lines = [f"{json.dumps(name)}: {json.dumps(case)}" for name, case in kept.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
