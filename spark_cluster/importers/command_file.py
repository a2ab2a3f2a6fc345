"""A text with a command line that starts vLLM: `docker run ...`, `vllm serve ...`."""

from __future__ import annotations

import re

from spark_cluster.config.yamlfile import shown
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.importers import commandline
from spark_cluster.importers.importer import Choice, Given, no_choice
from spark_cluster.importers.result import Left
from spark_cluster.importers.source import Source

YAML_SUFFIXES = (".yaml", ".yml", ".json")
"""Of files that are no command line, whatever is in them."""

_COMMAND = re.compile(r"(?m)(^|[\s/\"'])(docker|podman|vllm|python3?)\s")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")


def read_text(text: str, origin: str = "a pasted command line") -> Source:
    """Return what a command line says.

    Raises:
        UsageError: it is no launch of vLLM.
    """
    reading = commandline.read(text)
    left = [Left(what, "it is not part of the launch") for what in reading.left_out]
    return Source(reading.launch, origin=origin, left_out=left, notes=reading.notes)


class CommandFile:
    """The importer of files with a command line."""

    name = "a command line that starts vLLM"

    def recognises(self, given: Given) -> bool:
        if given.path.suffix.lower() in YAML_SUFFIXES or not given.error:
            return False
        text = given.text
        if len(text.encode()) > commandline.MAX_CHARACTERS or _CONTROL.search(text):
            return False
        return bool(_COMMAND.search(text))

    def read(self, given: Given, choice: Choice) -> Source:
        no_choice(choice)
        try:
            return read_text(given.text, origin=given.path.name)
        except UsageError as error:
            line = re.match(r"line (\d+)", error.where)
            where = f"{shown(given.path)}:{line[1]}" if line else shown(given.path)
            raise InvalidFile(error.message, where=where, hint=error.hint) from None
