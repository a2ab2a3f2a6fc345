"""Commands and configurations of clients for an endpoint, each a template in `templates/clients`.

Templates quote every value: names of models come from the node. A key is named by its variable
unless the user asked to see it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from spark_cluster.config.model_kind import ModelKind
from spark_cluster.document import Document
from spark_cluster.engine.client_target import ClientTarget
from spark_cluster.loader.template import render

TEMPLATES = Path(__file__).parent / "templates" / "clients"

NO_KEY = "none"
"""In place of a key where a client insists on one and the endpoint asks for none."""

WEBUI_PORT = 3000
"""Port of this machine's loopback on which Open WebUI is reached."""

OUTPUT_TOKENS = 8192
"""Tokens of an answer that opencode leaves room for, where the context has as many twice over."""


@dataclass(frozen=True)
class Snippet(Document):
    """A ready-made text for one client.

    Attributes:
        client: its name on the command line.
        title: what it is, for people.
        file: where it belongs; empty for what is pasted into a shell.
        text: ends with a newline.
        notes: what to do or know besides.
    """

    client: str
    title: str
    file: str
    text: str
    notes: tuple[str, ...] = ()


QUESTION = "Say hello in one sentence."

REQUESTS: Mapping[ModelKind, tuple[str, Mapping[str, object]]] = {
    "chat": ("/chat/completions", {"messages": [{"role": "user", "content": QUESTION}]}),
    "embedding": ("/embeddings", {"input": QUESTION}),
    "reranking": (
        "/rerank",
        {"query": "a greeting", "documents": ["Hello, world.", "The sky is blue."]},
    ),
    "transcription": ("/audio/transcriptions", {}),
}
"""Path below the base URL, and what is asked besides the model."""

EVERY = frozenset(REQUESTS)
CLIENTS: Mapping[str, tuple[str, str, frozenset[ModelKind]]] = {
    "curl": ("curl", "", EVERY),
    "python": ("Python (openai)", "", EVERY - {"reranking"}),
    "env": ("Environment variables", "", EVERY),
    "open-webui": ("Open WebUI", "compose.yaml", frozenset({"chat"})),
    "opencode": ("opencode", "opencode.json", frozenset({"chat"})),
    "continue": ("Continue", "~/.continue/config.yaml", frozenset({"chat", "embedding"})),
}
"""Client, which is the name of its template, to its title, its file and the kinds it asks for."""


def snippets(target: ClientTarget) -> list[Snippet]:
    """Return a snippet for every client that has a use for the model."""
    fitting = (client for client, (*_, kinds) in CLIENTS.items() if target.kind in kinds)
    return [_snippet(client, target) for client in fitting]


def _snippet(client: str, target: ClientTarget) -> Snippet:
    title, file, _ = CLIENTS[client]
    path, asked = REQUESTS[target.kind]
    values = {
        **vars(target),
        "client": client,
        "key": target.key or NO_KEY,
        "by_variable": bool(target.key_variable and not target.key),
        "path": path,
        "body": json.dumps({"model": target.model, **asked}),
        "question": QUESTION,
        "webui_port": WEBUI_PORT,
        "output_tokens": OUTPUT_TOKENS,
        "sh": shlex.quote,
        "py": repr,
        "json": partial(json.dumps, ensure_ascii=False),
        "compose": lambda text: json.dumps(text).replace("$", "$$"),
    }
    notes = render(TEMPLATES, "notes.j2", **values).splitlines()
    return Snippet(client, title, file, render(TEMPLATES, f"{client}.j2", **values), tuple(notes))
