"""Secrets in files of users: references to them, and texts that look like one where none may be."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, model_validator

from spark_cluster.config.schema import EnvName, LaptopPath, Schema
from spark_cluster.config.yamlfile import MAX_BYTES, read_foreign, table_beside
from spark_cluster.errors import UsageError
from spark_cluster.node.values import MASK

_ADVICE = "expected {env: NAME} or {file: PATH}"


class SecretReference(Schema):
    """The source of a secret's value. Exactly one of the three is given."""

    env: EnvName | None = None
    """environment variable of the laptop"""
    file: LaptopPath | None = None
    """file on the laptop; its first line is the secret"""
    prompt: bool = False
    """ask on the terminal"""

    @model_validator(mode="after")
    def _one_source(self) -> SecretReference:
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
            hint = f"export {self.env}=..." if self.env is not None else ""
            raise UsageError(f"{what}: {source} is not set or empty", hint=hint)
        return value


def _first_line(path: Path, what: str) -> str:
    try:
        found = read_foreign(
            path, MAX_BYTES, f"a file with {what}", lambda seen: _check_mode(seen, path, what)
        )
        text = found.decode("utf-8-sig")  # as an editor of Windows writes it
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
    if isinstance(value, SecretReference | dict):
        return value
    raise ValueError(f"a secret is never written into the file; {_ADVICE}")


OptionalSecret = Annotated[
    SecretReference | None,
    BeforeValidator(
        _no_literal, json_schema_input_type=SecretReference | Literal["prompt", "none"] | None
    ),
]
"""`{env: NAME}`, `{file: PATH}`, `prompt` or `none`; a literal value is refused."""


# Secrets where none may be: variables and values that, by their name or look, are one.
#
# What looks like a secret is not certain to be one; the messages never repeat it all the same.

_FILE = table_beside(__file__, "secret_text.toml")
_NAMES, _VALUES = _FILE["names"], _FILE["values"]
_ALWAYS, _LAST = re.compile(_NAMES["always"]), re.compile(_NAMES["last"])
_PLAIN, _VALUE = re.compile(_VALUES["plain"]), re.compile("|".join(_VALUES["known"]))

_COUNT = re.compile(r"\d{1,4}")
_PASS_NAME = re.compile(r"[a-z]+(_[a-z0-9]+)*")
"""What fits: a small number, and for a compiler also a lower-case name like fuse_norm."""

_NUMBER = re.compile(r"[-+.\d]*")
"""No key or token either."""

_BLOCK = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_WHOLE = re.compile(rf"(?:{_VALUE.pattern})[^\s\"',;<>(){{}}\[\]\\]*")
"""A key as `_VALUE` finds it, as far as it goes on."""

# The name is taken whole, never in parts: whoever asks a model writes into its log.
_WORDS = "token|secret|key|pass|pwd|pat|auth|credential|webhook"
_NAMED = rf"(?=[A-Za-z0-9_-]*?(?:{_WORDS}))(?P<name>[\w-]++)"
# A value whose quote is not closed goes to the end of its line: a log may have cut it off.
_ASSIGNED = re.compile(
    rf"(?i)(?<![\w-])(?=(?P<option>--)?){_NAMED}"
    r"(?:(?:\\?[\"'])?\s{0,3}[:=]\s{0,3}(?:\[(?=\\?[\"']))?"
    r"|(?(option)(?:\s{1,3}(?!-)|\\?[\"'],\s{0,3}(?=\\?[\"'](?!-)))|(?!)))"
    r"(?:(?P<quote>\\?[\"'])(?P<quoted>.*?)(?:(?P=quote)|(?=\n|\Z))"
    r"|(?P<plain>[^\s\"'\\\[{(<][^\s\"'\\]{0,63}))"
)
"""`NAME=value`, `"name": "a value"`, `--name value`, lists of such words, in text of any kind."""
_REST = re.compile(r"[^\s\"'\\]*(?:(?<=:)\s{1,3}[\"']?[^\s\"'\\]+)?")
"""What follows the beginning of a plain value, which shows whether there is a secret; of one that
is a name itself its value, too: `secret:`, and on the next line `HF_TOKEN: abc`."""


def masked(text: str) -> str:
    """Return a text, such as a log, in which what looks like a secret is replaced.

    Too much rather than too little: `eos_token: x` is replaced as well.

    >>> masked("curl -H 'Authorization: Bearer abcdef123456' with HF_TOKEN=hf_abcdefghijkl")
    "curl -H '*** with HF_TOKEN=***"
    """
    text, at, parts = _WHOLE.sub(MASK, _BLOCK.sub(MASK, text)), 0, list[str]()
    while found := _ASSIGNED.search(text, at):
        group = "plain" if found["quote"] is None else "quoted"
        hidden = is_secret_setting(found["name"].lstrip("-").replace("-", "_"), found[group])
        # What follows the name of no secret may be the name of one: `keys: HF_TOKEN=abc`.
        end = found.start(group) if hidden else found.end("name")
        parts += [text[at:end], MASK] if hidden else [text[at:end]]
        at = next(_REST.finditer(text, found.end(group))).end() if hidden else end
    return "".join([*parts, text[at:]])


def is_secret(name: str) -> bool:
    """Return whether the name of a variable says that each of its values is a secret."""
    return _ALWAYS.search(name) is not None


def looks_secret(value: str) -> bool:
    """Return whether a text contains something in the form of a well-known kind of key or token."""
    return _VALUE.search(value) is not None


def is_secret_setting(name: str, value: str) -> bool:
    """Return whether a variable (or a flag) holds a secret, by its name or by its value."""
    if is_secret(name) or looks_secret(value):
        return True
    words = name.upper().replace("-", "_").split("_")
    if name.upper() in _NAMES["shell"] or _PLAIN.fullmatch(value):
        return False
    if _is_no_password(words, value):
        words = [word for word in words if word != "PASS"]
    if _LAST.fullmatch(words[-1]) or words[-2:] == ["WEBHOOK", "URL"]:
        return True
    if words[-1] in _NAMES["no_secret"] or _NUMBER.fullmatch(value):
        return False
    return not set(words).isdisjoint(_NAMES["words"])


def _is_no_password(words: list[str], value: str) -> bool:
    """Return whether the word PASS in a name means a pass over something: NUM_PASS, FUSION_PASS."""
    before = set(words[: words.index("PASS")]) if "PASS" in words else set()
    if _COUNT.fullmatch(value):
        return not before.isdisjoint(_NAMES["pass_count"] + _NAMES["pass_of_compiler"])
    return _PASS_NAME.fullmatch(value) is not None and not before.isdisjoint(
        _NAMES["pass_of_compiler"]
    )
