"""Reads how others write down a launch of vLLM: command lines, and recipes of other tools.

`read` tells the kind of a file by what is in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_cluster.importing.source import Source
    from spark_cluster.importing.vllm_recipes import Choice

KINDS = (
    "a recipe of sparkrun",
    "a recipe of spark-vllm-docker",
    "a model file of vllm-project/recipes",
    "a command line that starts vLLM",
)
"""What can be read, in the words of messages."""


def read(path: Path, choice: Choice | None = None) -> Source:
    """What a file says, whichever kind it is.

    Args:
        path: the file.
        choice: variant and features, for a model file of vllm-project/recipes.

    Raises:
        InvalidFile: it is none of the kinds, or wrong, with the line.
        UsageError: it has no such variant or feature, or `choice` is given for another kind.
    """
    from spark_cluster.importing.files import read_file

    return read_file(path, choice)


def read_command(text: str) -> Source:
    """What a command line says.

    Raises:
        UsageError: it is no launch of vLLM.
    """
    from spark_cluster.importing.files import read_text

    return read_text(text)
