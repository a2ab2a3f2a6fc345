"""Commands and configurations of clients for an endpoint: pure functions of its address.

Each file is made of quoted values: names of models come from the node. A key is named by its
variable unless the user asked to see it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spark_cluster.config.model_kind import ModelKind
from spark_cluster.engine.client_target import ClientTarget

NO_KEY = "none"
"""In place of a key where a client insists on one and the endpoint asks for none."""

WEBUI_PORT = 3000
"""Port of this machine's loopback on which Open WebUI is reached."""

OUTPUT_TOKENS = 8192
"""Tokens of an answer that opencode leaves room for, where the context has as many twice over."""


@dataclass(frozen=True)
class Snippet:
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

    def to_dict(self) -> dict[str, object]:
        """Return it as `clients --json` prints it."""
        return {**vars(self), "notes": list(self.notes)}


Make = Callable[[ClientTarget], Snippet]

_QUESTION = "Say hello in one sentence."


def curl(target: ClientTarget) -> Snippet:
    """A request with curl. The key is no argument of a process: others could see it in `ps`."""
    path, body = _request(target)
    words = ["curl", "--fail-with-body", "-sS"]
    if target.ca_file:
        words += ["--cacert", target.ca_file]
    command = shlex.join([*words, f"{target.url}{path}"])
    data = shlex.quote(json.dumps(body))
    if target.kind == "transcription":
        command += f" \\\n  -F file=@speech.wav -F {shlex.quote(f'model={target.model}')}"
    else:
        command += f" \\\n  -H 'Content-Type: application/json' -d {data}"
    if target.key_variable:
        key = shlex.quote(target.key) if target.key else f'"${target.key_variable}"'
        command = f"printf 'Authorization: Bearer %s' {key} |\n{command} -H @-"
    return Snippet("curl", "curl", "", f"{command}\n")


def _request(target: ClientTarget) -> tuple[str, Mapping[str, object]]:
    """Path below the base URL and body of a short request."""
    if target.kind == "embedding":
        return "/embeddings", {"model": target.model, "input": _QUESTION}
    if target.kind == "reranking":
        documents = ["Hello, world.", "The sky is blue."]
        return "/rerank", {"model": target.model, "query": "a greeting", "documents": documents}
    if target.kind == "transcription":
        return "/audio/transcriptions", {}
    messages = [{"role": "user", "content": _QUESTION}]
    return "/chat/completions", {"model": target.model, "messages": messages}


def python(target: ClientTarget) -> Snippet:
    """A program with openai-python."""
    key = repr(target.key or NO_KEY)
    if target.key_variable and not target.key:
        key = f'os.environ["{target.key_variable}"]'
    imports = ["import os"] if key.startswith("os.") else []
    client = [f"    base_url={target.url!r},", f"    api_key={key},"]
    if target.ca_file:
        imports.append("import ssl")
        context = f"ssl.create_default_context(cafile={target.ca_file!r})"
        client.append(f"    http_client=openai.DefaultHttpxClient(verify={context}),")
    lines = [
        *(f"{line}\n" for line in imports),
        "\n" if imports else "",
        "import openai\n\n",
        "client = openai.OpenAI(\n",
        *(f"{line}\n" for line in client),
        ")\n",
        *(f"{line}\n" for line in _python_call(target)),
    ]
    notes = ("pip install openai",)
    return Snippet("python", "Python (openai)", "", "".join(lines), notes)


def _python_call(target: ClientTarget) -> list[str]:
    model = f"model={target.model!r}"
    if target.kind == "embedding":
        return [
            f"answer = client.embeddings.create({model}, input={_QUESTION!r})",
            "print(len(answer.data[0].embedding))",
        ]
    if target.kind == "transcription":
        return [
            'with open("speech.wav", "rb") as file:',
            f"    answer = client.audio.transcriptions.create({model}, file=file)",
            "print(answer.text)",
        ]
    return [
        "answer = client.chat.completions.create(",
        f"    {model},",
        f'    messages=[{{"role": "user", "content": {_QUESTION!r}}}],',
        ")",
        "print(answer.choices[0].message.content)",
    ]


def environment(target: ClientTarget) -> Snippet:
    """Variables that the clients of OpenAI and many others read."""
    key = shlex.quote(target.key or NO_KEY)
    if target.key_variable and not target.key:
        key = f'"${target.key_variable}"'
    lines = [
        f"export OPENAI_BASE_URL={shlex.quote(target.url)}",
        f"export OPENAI_API_BASE={shlex.quote(target.url)}",
        f"export OPENAI_API_KEY={key}",
        f"export OPENAI_MODEL={shlex.quote(target.model)}",
    ]
    notes: tuple[str, ...] = ()
    if target.ca_file:
        file = shlex.quote(target.ca_file)
        lines += [f"export SSL_CERT_FILE={file}", f"export NODE_EXTRA_CA_CERTS={file}"]
        notes = ("SSL_CERT_FILE replaces the certificates of public servers in Python programs",)
    return Snippet("env", "Environment variables", "", "\n".join(lines) + "\n", notes)


def open_webui(target: ClientTarget) -> Snippet:
    """A Compose file for Open WebUI."""
    key = _compose(target.key or NO_KEY)
    if target.key_variable and not target.key:
        key = json.dumps("${" + target.key_variable + ":?}")
    variables = {"OPENAI_API_BASE_URL": _compose(target.url), "OPENAI_API_KEY": key}
    network = [f'    ports: ["127.0.0.1:{WEBUI_PORT}:8080"]']
    volumes = ["open-webui:/app/backend/data"]
    notes = ["docker compose up -d, then http://127.0.0.1:3000"]
    if target.tunnel:
        network = ["    network_mode: host"]
        variables |= {"HOST": '"127.0.0.1"', "PORT": f'"{WEBUI_PORT}"'}
        notes.append(
            "host networking reaches the tunnel's end on Linux; with Docker Desktop use `ports` "
            "and host.docker.internal in place of 127.0.0.1 in the base URL"
        )
    if target.ca_file:
        volumes.append(f"{target.ca_file}:/etc/ssl/spark-cluster.pem:ro")
        variables["SSL_CERT_FILE"] = '"/etc/ssl/spark-cluster.pem"'
    lines = [
        "services:",
        "  open-webui:",
        "    image: ghcr.io/open-webui/open-webui:main",
        *network,
        "    environment:",
        *(f"      {name}: {value}" for name, value in variables.items()),
        "    volumes:",
        *(f"      - {_compose(volume)}" for volume in volumes),
        "    restart: unless-stopped",
        "volumes:",
        "  open-webui: {}",
    ]
    text = "\n".join(lines) + "\n"
    return Snippet("open-webui", "Open WebUI", "compose.yaml", text, tuple(notes))


def _compose(value: str) -> str:
    """Return a YAML string that Compose takes literally."""
    return json.dumps(value).replace("$", "$$")


def opencode(target: ClientTarget) -> Snippet:
    """A provider for opencode."""
    model: dict[str, object] = {"name": target.model}
    if target.context is not None:
        output = min(OUTPUT_TOKENS, target.context // 2)
        model["limit"] = {"context": target.context, "output": output}
    key = target.key or NO_KEY
    if target.key_variable and not target.key:
        key = f"{{env:{target.key_variable}}}"
    document = {
        "$schema": "https://opencode.ai/config.json",
        "model": f"spark/{target.model}",
        "provider": {
            "spark": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "DGX Spark",
                "options": {"baseURL": target.url, "apiKey": key},
                "models": {target.model: model},
            }
        },
    }
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return Snippet("opencode", "opencode", "opencode.json", text, _node_notes(target))


def _node_notes(target: ClientTarget) -> tuple[str, ...]:
    if not target.ca_file:
        return ()
    return (f"start it with NODE_EXTRA_CA_CERTS={shlex.quote(target.ca_file)}",)


def continue_dev(target: ClientTarget) -> Snippet:
    """A configuration of Continue (VS Code, JetBrains)."""
    key = json.dumps(target.key or NO_KEY)
    notes: tuple[str, ...] = ()
    if target.key_variable and not target.key:
        key = json.dumps("${{ secrets." + target.key_variable + " }}")
        notes = (f"Continue reads {target.key_variable} from ~/.continue/.env",)
    roles = "[embed]" if target.kind == "embedding" else "[chat, edit, apply]"
    lines = [
        "name: DGX Spark",
        "version: 1.0.0",
        "schema: v1",
        "models:",
        f"  - name: {json.dumps(target.model)}",
        "    provider: openai",
        f"    model: {json.dumps(target.model)}",
        f"    apiBase: {json.dumps(target.url)}",
        f"    apiKey: {key}",
        f"    roles: {roles}",
    ]
    if target.context is not None and target.kind == "chat":
        lines += ["    defaultCompletionOptions:", f"      contextLength: {target.context}"]
    if target.ca_file:
        lines += ["    requestOptions:", f"      caBundlePath: {json.dumps(target.ca_file)}"]
    text = "\n".join(lines) + "\n"
    return Snippet("continue", "Continue", "~/.continue/config.yaml", text, notes)


CLIENTS: Mapping[str, tuple[Make, frozenset[ModelKind]]] = {
    "curl": (curl, frozenset({"chat", "embedding", "reranking", "transcription"})),
    "python": (python, frozenset({"chat", "embedding", "transcription"})),
    "env": (environment, frozenset({"chat", "embedding", "reranking", "transcription"})),
    "open-webui": (open_webui, frozenset({"chat"})),
    "opencode": (opencode, frozenset({"chat"})),
    "continue": (continue_dev, frozenset({"chat", "embedding"})),
}
"""Name on the command line to what makes the snippet, and the kinds of models it is for."""


def snippets(target: ClientTarget) -> list[Snippet]:
    """Return the snippets of all clients that can use such a model."""
    return [make(target) for make, kinds in CLIENTS.values() if target.kind in kinds]
