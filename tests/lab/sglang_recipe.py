"""The recipe `lab-sglang`: the lab's model folder, served by the stand-in for SGLang."""

from __future__ import annotations

import json
import textwrap

from spark_cluster_lab.sglang_stand_in import REF, dockerfile

NAME = "lab-sglang"
_RECIPE = """\
name: lab-sglang
description: The lab's stand-in for SGLang, which has no model
engine: sglang
model:
  name: paris
  source: directory
  directory: {directory}
  path: /srv/models/paris
  served_name: paris
image:
  ref: {ref}
  build:
    why: a stand-in, as no GPU is here that SGLang needs
    dockerfile: |
{dockerfile}
tensor_parallel: {{min: 1, max: 1}}
gpu_memory_utilization: {share}
engine_args: {arguments}
probe:
  question: What is the capital of France? Please reply with one word only
  expect: Paris
  max_tokens: 5
readiness:
  rungs: [answer]
  log_expect: ["The server is fired up and ready to roll"]
ready_timeout_s: 120
"""


def recipe_text(directory: str, *, share: float = 0.1, **arguments: object) -> str:
    """Return the recipe.

    Args:
        directory: the laptop's folder of the model.
        share: of the memory, as `gpu_memory_utilization`.
        arguments: more flags, with underscores.
    """
    flags = {"context-length": 4096, "max-running-requests": 8}
    flags |= {name.replace("_", "-"): value for name, value in arguments.items()}
    return _RECIPE.format(
        directory=directory,
        ref=REF,
        dockerfile=textwrap.indent(dockerfile(), " " * 6).rstrip(),
        share=share,
        arguments=json.dumps(flags),
    )
