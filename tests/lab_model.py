"""The lab's model, asked over HTTP without any of the project's code."""

from __future__ import annotations

import json
import urllib.request

QUESTION = "What is the capital of France? Please reply with one word only"


def complete(base: str, timeout: float) -> str:
    """Return its answer to the question, from a server at this URL; `timeout` in seconds."""
    body = {
        "model": "paris",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 5,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{base}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        text: str = json.load(answer)["choices"][0]["message"]["content"]
    return text
