"""The Dockerfile of the image `lab-sglang-stand-in`: the lab's own image and one Python file.

There is no SGLang in it. It is for a recipe with `engine: sglang` that the lab's `up` brings up;
what answers is `assets/sglang_stand_in.py`, which says itself what it shows and what not.
"""

from __future__ import annotations

import base64
from importlib import resources

from spark_cluster_lab.layout import IMAGE_TAG

REF = "spark-cluster/lab-sglang-stand-in:1"
SOURCE = resources.files("spark_cluster_lab") / "assets" / "sglang_stand_in.py"
_PACKAGES = 'python3 -c "import site; print(site.getsitepackages()[0])"'


def dockerfile() -> str:
    """Return the Dockerfile; a build on a node gets it alone, so the file is a part of its text."""
    encoded = base64.b64encode(SOURCE.read_bytes()).decode()
    steps = (
        f'folder="$({_PACKAGES})/sglang"',
        'mkdir -p "$folder"',
        ': > "$folder/__init__.py"',
        f'echo {encoded} | base64 -d > "$folder/launch_server.py"',
    )
    return f"FROM {IMAGE_TAG}\nRUN {' && '.join(steps)}\n"
