"""Values that several tests of resources use."""

import base64
import os

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
DIGEST, WRONG = "sha256:" + "d" * 64, "sha256:" + "e" * 64


def image(architecture=MACHINE, number="1", digest=DIGEST):
    """The output of `docker image inspect` for an image."""
    return {
        "Id": f"sha256:{number * 64}",
        "RepoDigests": [f"vllm/vllm-openai@{digest}"] if digest else [],
        "Os": "linux",
        "Architecture": architecture,
    }


def public_key(kind="ssh-ed25519", fill=b"a", inner=None):
    """A key line without a comment; `inner` is the type that is inside."""

    def text(data):
        return len(data).to_bytes(4, "big") + data

    blob = text((inner or kind).encode()) + text(fill * 32)
    return f"{kind} {base64.b64encode(blob).decode()}"
