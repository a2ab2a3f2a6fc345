"""The lab's model, asked over HTTP without any of the project's code."""

import json
import urllib.error
import urllib.request
from typing import Any

QUESTION = "What is the capital of France? Please reply with one word only"


def complete(base: str, timeout: float) -> str:
    """Return its answer to the question, from a server at this URL; `timeout` in seconds."""
    body = {
        "model": "paris",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 5,
        "temperature": 0,
    }
    _, found, _ = _post(f"{base}/v1/chat/completions", body, timeout)
    return found["choices"][0]["message"]["content"]


def embed(base: str, model: str, query: str = "") -> tuple[int, dict[str, Any], str]:
    """Ask a model for the vector of a text; return the status, the document, and Retry-After.

    Args:
        query: what follows the path.
    """
    body = {"input": "capital of france", "model": model}
    return _post(f"{base}/v1/embeddings{query}", body, 60)


def _post(url: str, body: dict[str, Any], timeout: float) -> tuple[int, dict[str, Any], str]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, json.load(answer), ""
    except urllib.error.HTTPError as error:
        return error.code, json.load(error), error.headers.get("Retry-After", "")
