"""Real output of `--json` compared with its published JSON Schema."""

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from docs.generate import schemas


@cache
def validator(name: str) -> Draft202012Validator:
    """Return the validator of a document by its name in `docs.generate.code.OUTPUTS`."""
    return Draft202012Validator(schemas.output(name))


def document(name: str, text: str) -> Any:
    """Parse what a command printed.

    Raises:
        ValidationError: it does not fit its schema.
    """
    found = json.loads(text)
    validator(name).validate(found)
    return found
