"""A secret that a file refers to and never contains."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, model_validator

from spark_cluster.config.fields import EnvName, LaptopPath
from spark_cluster.config.schema import Schema
from spark_cluster.errors import UsageError

_ADVICE = "expected {env: NAME} or {file: PATH}"


class Secret(Schema):
    """The source of a secret's value. Exactly one of the three is given."""

    env: EnvName | None = None
    """environment variable of the laptop"""
    file: LaptopPath | None = None
    """file on the laptop; its first line is the secret"""
    prompt: bool = False
    """ask on the terminal"""

    @model_validator(mode="after")
    def _one_source(self) -> Secret:
        if sum((self.env is not None, self.file is not None, self.prompt)) != 1:
            raise ValueError(f"{_ADVICE}, one of them")
        return self

    def read(self, what: str, ask: Callable[[str], str] | None = None) -> str:
        """The secret itself.

        Args:
            what: what it is for, in messages: `the sudo password`.
            ask: asks for it on the terminal; None when there is no terminal.

        Raises:
            UsageError: the variable is not set, the file cannot be read or others can read it,
                there is no one to ask, or it is empty.
        """
        if self.env is not None:
            value, source = os.environ.get(self.env, ""), f"the environment variable {self.env}"
        elif self.file is not None:
            value, source = _first_line(self.file, what), str(self.file)
        elif ask is not None:
            value, source = ask(what), "the answer"
        else:
            raise UsageError(
                f"{what} would have to be asked for, but there is no terminal", hint=_ADVICE
            )
        if not value:
            raise UsageError(f"{what}: {source} is not set or empty")
        return value


def _first_line(path: Path, what: str) -> str:
    try:
        with path.open("rb") as file:
            _check_mode(os.fstat(file.fileno()), path, what)
            text = file.read().decode()
    except OSError as error:
        raise UsageError(f"{what}: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{what}: {path} is not UTF-8 text") from None
    return text.partition("\n")[0].strip()


def _check_mode(found: os.stat_result, path: Path, what: str) -> None:
    """Refuse a file of one's own that others can read, as ssh does with private keys."""
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and mode & 0o077:
        raise UsageError(
            f"{what}: {path} has mode {mode:04o}, so other users of this machine can read it",
            hint=f"chmod 600 {shlex.quote(str(path))}",
        )


def _no_literal(value: Any) -> Any:
    # The messages never repeat the value: it may be the secret.
    if value is None or value == "none":
        return None
    if value == "prompt":
        return {"prompt": True}
    if isinstance(value, Secret | dict):
        return value
    raise ValueError(f"a secret is never written into the file; {_ADVICE}")


OptionalSecret = Annotated[
    Secret | None,
    BeforeValidator(_no_literal, json_schema_input_type=Secret | Literal["prompt", "none"] | None),
]
"""`{env: NAME}`, `{file: PATH}`, `prompt` or `none`; a literal value is refused."""
