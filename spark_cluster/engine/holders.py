"""Other programs that hold GPU memory: what to do about each, and how Ollama gives it back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from spark_cluster.engine.names import TITLE
from spark_cluster.engine.vram import NodeVram, Pids, holding
from spark_cluster.errors import Failed
from spark_cluster.facts.model import Process
from spark_cluster.node import replies
from spark_cluster.runner.session import Session

OLLAMA = "http://127.0.0.1:11434"
"""Where Ollama listens unless OLLAMA_HOST says otherwise. Source: ollama-api."""

ASK_S, UNLOAD_S = 5.0, 60.0
"""Seconds for the list of loaded models, and to unload one."""

MOST_MODELS = 64


@dataclass(frozen=True)
class Loaded:
    """A model that another program has loaded.

    Attributes:
        size_mib: memory that it takes, as that program says; None where it does not.
    """

    name: str
    size_mib: int | None = None

    def __str__(self) -> str:
        return self.name if self.size_mib is None else f"{self.name} ({self.size_mib} MiB)"


def ollama_models(session: Session, where: str) -> list[Loaded]:
    """Return the models that Ollama on a node has loaded; none where no Ollama answers.

    Raises:
        Failed: something else than Ollama answers at its port.
    """
    answer = session.http(f"{OLLAMA}/api/ps", timeout=ASK_S)
    if answer.status == 0:
        return []
    entries = replies.at(replies.decoded(answer.body), "models")
    if answer.status != 200 or not isinstance(entries, list):
        raise Failed(
            f"{OLLAMA}/api/ps answers {replies.short(answer.body)!r} (status {answer.status}), "
            "expected the list of Ollama's loaded models",
            where=where,
            hint="another program uses Ollama's port; `spark-cluster vram` names the holders",
        )
    found = []
    for entry in entries[:MOST_MODELS]:
        name, size = replies.text_of(replies.at(entry, "name")), replies.at(entry, "size")
        if name:
            known = isinstance(size, int) and size >= 0
            found.append(Loaded(name, size // 2**20 if known else None))
    return found


def unload_ollama(session: Session, where: str, models: Iterable[Loaded]) -> None:
    """Unload models, as `ollama stop` does: a request without a prompt and keep_alive 0.

    Raises:
        Failed: Ollama refuses it.
    """
    for model in models:
        body = json.dumps({"model": model.name, "keep_alive": 0, "stream": False})
        headers = {"Content-Type": "application/json"}
        answer = session.http(
            f"{OLLAMA}/api/generate", method="POST", headers=headers, body=body, timeout=UNLOAD_S
        )
        if answer.status != 200:
            told = replies.text_of(replies.at(replies.decoded(answer.body), "error"))
            raise Failed(
                f"Ollama does not unload {model.name} (status {answer.status}): "
                f"{replies.short(told or answer.reason or answer.body)}",
                where=where,
                hint=f"`ollama stop {model.name}` on the node",
            )


@dataclass(frozen=True)
class Holder:
    """A program whose models can be unloaded.

    Attributes:
        title: its name in messages.
        models: return what it has loaded on a node.
        unload: unload these.
    """

    title: str
    models: Callable[[Session, str], list[Loaded]]
    unload: Callable[[Session, str, Iterable[Loaded]], None]


HOLDERS: Mapping[str, Holder] = {"ollama": Holder("Ollama", ollama_models, unload_ollama)}


def held_by(readings: Iterable[NodeVram], ignored: Pids) -> list[tuple[str, Process]]:
    """Return node and process of all that still holds memory."""
    return [(r.name, process) for r in readings for process in holding(r, ignored)]


def described(held: Iterable[tuple[str, Process]]) -> str:
    """Return them as text: program, process id, MiB, node."""
    return "; ".join(
        f"{p.name} (pid {p.pid}, {'?' if p.used_mib is None else p.used_mib} MiB) on {node}"
        for node, p in held
    )


def advice(held: Iterable[tuple[str, Process]]) -> str:
    """Return what to do about what holds memory."""
    found = list(held)
    steps, rest = [], []
    for name, holder in HOLDERS.items():
        if any(name in process.name.lower() for _, process in found):
            steps.append(f"--unload {name} unloads {holder.title}'s models")
    for node, process in found:
        if TITLE.match(process.name):
            steps.append(f"`sudo kill {process.pid}` on {node} ends an orphaned engine process")
        elif not any(name in process.name.lower() for name in HOLDERS):
            rest.append(process)
    if rest:
        steps.append("what spark-cluster did not start is ended on its node")
    return "; ".join(steps)
