"""Secrets where none may be: variables and values that, by their name or look, are one.

What looks like a secret is not certain to be one; the messages never repeat it all the same.
"""

from __future__ import annotations

import re

from spark_cluster.node.masking import MASK

_ALWAYS = re.compile(
    r"(?i)(^|_)([A-Z0-9]*(token|secret|passwd|password|passphrase|apikey)|api_?key|credentials?)$"
)
"""Names of which every value is a secret."""

_WORDS = {"TOKEN", "SECRET", "KEY", "PASSWORD", "PASSWD", "PASS", "PASSPHRASE", "PAT", "APIKEY"}
"""Words between underscores that make a value with letters in it a secret."""

_LAST = re.compile(
    r"(?!(BY|COM|ENCOM|SUR|TRES|OVER|UNDER)PASS$)[A-Z0-9]*(PASS|PASSWD|PASSWORD|PWD)"
    r"|PAT|AUTH|AUTHORIZATION|WEBHOOK"
)
"""Words that do so at the end of a name, numbers too: AUTH_METHOD=ldap is no secret, a date may be
a password."""

_NO_NAME = {"PWD", "OLDPWD"}
"""The shell's own: the folder that it is in, and was in."""

_NO_SECRET = ("FILE", "PATH", "DIR", "FOLDER", "MODE", "TYPE", "NAME", "URL", "LENGTH", "SIZE")
"""Last words of names whose values speak of a secret and are none."""

_PASS_COUNT = {"NUM", "MAX", "MIN"}
_PASS_OF_COMPILER = {"COMPILE", "COMPILER", "FUSE", "FUSION", "INDUCTOR", "OPTIMIZER", "REWRITE"}
"""Words before the word PASS that make it one of a compiler's, or how many: but only with a value
that fits. Everywhere else PASS is short for password (DB_PASS, and ENABLE_PASS of a switch)."""

_COUNT = re.compile(r"\d{1,4}")
_PASS_NAME = re.compile(r"[a-z]+(_[a-z0-9]+)*")
"""What fits: a small number, and for a compiler also a lower-case name like fuse_norm."""

_PLAIN = re.compile(
    r"(?i)\d{0,2}|true|false|yes|no|on|off|none|null|auto|token"
    r"|enabled?|disabled?|required|optional"
)
"""Values that are no secret, whatever they are called."""

_NUMBER = re.compile(r"[-+.\d]*")
"""No key or token either."""

_VALUE = re.compile(
    r"\bhf_[A-Za-z0-9]{10,}"  # Hugging Face
    r"|\bsk-[A-Za-z0-9_-]{16,}"  # OpenAI, Anthropic and those that do as they do
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}"
    r"|\bglpat-[A-Za-z0-9_-]{16,}"
    r"|\b(AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bxox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|\bnvapi-[A-Za-z0-9_-]{20,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s:@]+@"  # https://user:password@host, redis://:password@
    r"|(?i:authorization)[\\\"':=\s]+(Bearer|Basic) (?![a-z]+\b|[$<{])\S{6,}"  # and no variable
    r"|\b(Bearer|Basic) (?=[A-Za-z+/._-]*[\d=])(?=[A-Za-z\d+/=._-]{12})"  # some other header:
    r"[A-Za-z\d+/._-]+={0,2}(?![\w+/.=-])"  # base64 or alike, not Basic Attention, Basic size=16
    r"|://hooks\.slack\.com/(services|workflows)/\S|://discord(app)?\.com/api/webhooks/\S"
)

_BLOCK = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_WHOLE = re.compile(rf"(?:{_VALUE.pattern})[^\s\"',;<>(){{}}\[\]\\]*")
"""A key as `_VALUE` finds it, as far as it goes on."""

_NAMED = r"(?P<name>[A-Za-z0-9_-]*(?:token|secret|key|pass|pwd|pat|auth|credential|webhook)[\w-]*)"
_ASSIGNED = re.compile(
    rf"(?i)(?<![\w-]){_NAMED}(?:\\?[\"'])?(?:\s{{0,3}}[:=]\s{{0,3}}|(?<=[\w-])\s{{1,3}}(?!-))"
    r"(?:(?P<quote>\\?[\"'])(?P<quoted>.*?)(?P=quote)|(?P<plain>[^\s\"'\\\[{(<][^\s\"'\\]*))"
)
"""`NAME=value`, `"name": "a value"`, `--name value` and the like, in text of any kind."""


def masked(text: str) -> str:
    """Return a text, such as a log, in which what looks like a secret is replaced.

    Too much rather than too little: `eos_token: x` is replaced as well.

    >>> masked("curl -H 'Authorization: Bearer abcdef123456' with HF_TOKEN=hf_abcdefghijkl")
    "curl -H '*** with HF_TOKEN=***"
    """
    text = _WHOLE.sub(MASK, _BLOCK.sub(MASK, text))
    return _ASSIGNED.sub(_masked_value, text)


def _masked_value(found: re.Match[str]) -> str:
    """Mask the value of a variable, field or flag; a word that only stands next to a name stays."""
    name, whole = found["name"], found[0]
    group = "plain" if found["quote"] is None else "quoted"
    value, start, end = found[group], *(at - found.start() for at in found.span(group))
    assigned = name.startswith("--") or not {":", "="}.isdisjoint(whole[len(name) : start])
    if not assigned or not is_secret_setting(name.lstrip("-").replace("-", "_"), value):
        return whole
    return whole[:start] + MASK + whole[end:]


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
    if name.upper() in _NO_NAME or _PLAIN.fullmatch(value):
        return False
    if _is_no_password(words, value):
        words = [word for word in words if word != "PASS"]
    if _LAST.fullmatch(words[-1]) or words[-2:] == ["WEBHOOK", "URL"]:
        return True
    if words[-1] in _NO_SECRET or _NUMBER.fullmatch(value):
        return False
    return not _WORDS.isdisjoint(words)


def _is_no_password(words: list[str], value: str) -> bool:
    """Return whether the word PASS in a name means a pass over something: NUM_PASS, FUSION_PASS."""
    before = set(words[: words.index("PASS")]) if "PASS" in words else set()
    if _COUNT.fullmatch(value):
        return not before.isdisjoint(_PASS_COUNT | _PASS_OF_COMPILER)
    return _PASS_NAME.fullmatch(value) is not None and not before.isdisjoint(_PASS_OF_COMPILER)
