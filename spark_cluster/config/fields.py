"""The kinds of text that files of users contain, each with its check in plain words."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from spark_cluster.config.suggest import nearest

_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_NODE_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_USER = r"(?!\d+$|\.{1,2}$)[^-+~\s:,/\x00-\x1f\x7f][^\s:,/\x00-\x1f\x7f]{0,255}"
_JUMP = r"([^@:\s]+@)?[^@:\s]+(:\d{1,5})?"
UNMOUNTABLE = re.compile(r'[,:"\x00-\x1f\x7f]')
"""What a path of a mount cannot have: after a comma the next option would begin."""

_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def matching(pattern: str, expected: str) -> AfterValidator:
    """Return the check of a text against a pattern, which is said in words."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"found {text!r}, expected {expected}")
        return text

    return AfterValidator(check)


def _host_name(text: str) -> str:
    if not _NODE_NAME.fullmatch(text) or len(text) > 253:
        fixed = re.sub(r"[^a-z0-9.-]+", "-", text.lower()).strip("-.")
        advice = f"; did you mean '{fixed}'?" if fixed and fixed != text else ""
        raise ValueError(f"found {text!r}, expected a host name: a-z, 0-9 and '-'{advice}")
    return text


def _address(text: str) -> str:
    if is_ip(text):
        return text
    user, at, rest = text.partition("@")
    if at:
        raise ValueError(f"found {text!r}; the user '{user}' goes into 'user', '{rest}' stays here")
    host, colon, port = text.partition(":")
    if colon and port.isdigit():
        raise ValueError(f"found {text!r}; the port {port} goes into 'port', '{host}' stays here")
    numeric = re.fullmatch(r"[\d.]+(/\d+)?", text)
    if numeric or not _NODE_NAME.fullmatch(text.lower()):
        raise ValueError(f"found {text!r}, expected an IP address or a host name")
    return text


def _bind(text: str) -> str:
    expected = "expected 'loopback', 'management' or an IPv4 address of the head"
    if text in ("loopback", "management"):
        return text
    if not is_ip(text) or ":" in text:
        near = nearest(text, ["loopback", "management"])
        advice = f"; did you mean '{near}'?" if near else ""
        raise ValueError(f"found {text!r}, {expected}{advice}")
    address = ipaddress.ip_address(text)
    if address.is_loopback:
        raise ValueError(f"found {text!r}; did you mean 'loopback'?")
    if address.is_unspecified:
        raise ValueError(f"found {text!r}, which is every network, the fabric too; {expected}")
    return text


def _subnet(value: object) -> object:
    if isinstance(value, str):
        try:
            network = ipaddress.IPv4Network(value, strict=False)
        except ValueError:
            raise ValueError(f"found {value!r}, expected a subnet like 192.168.177.0/24") from None
        if str(network) != value:
            raise ValueError(f"found {value!r}; did you mean '{network}'?")
    return value


def node_path(text: str) -> str:
    """An absolute path on a node, as it is compared.

    Raises:
        ValueError: it is none, or Docker does not take it.
    """
    if not text.startswith("/") or ".." in text.split("/"):
        raise ValueError(f"found {text!r}, expected an absolute path on the node such as /srv/x")
    if UNMOUNTABLE.search(text):
        raise ValueError(f"found {text!r}; Docker takes no comma, colon or quote in a path")
    return text.rstrip("/") or "/"


def env_name(text: str) -> str:
    """The name of an environment variable.

    Raises:
        ValueError: it is none.
    """
    # What stands here by mistake may be the secret itself: never repeat it.
    if not _ENV.fullmatch(text):
        raise ValueError("not the name of an environment variable (the value is not shown)")
    return text


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"found {text!r}, expected a regular expression: {error}") from None
    return text


def _laptop_path(path: Path) -> Path:
    try:
        path.expanduser()
    except RuntimeError:
        user = path.parts[0].removeprefix("~")
        raise ValueError(f"found '{path}', but there is no user '{user}' on this machine") from None
    return path


def is_ip(text: str) -> bool:
    """Return whether the text is an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


HostName = Annotated[str, AfterValidator(_host_name)]
Address = Annotated[str, AfterValidator(_address)]
Word = Annotated[str, matching(_WORD, "a name: letters, digits, '_', '-' and '.'")]
UserName = Annotated[str, matching(_USER, "a user name")]
Jump = Annotated[str, matching(_JUMP, "[user@]host[:port]")]
Bind = Annotated[str, AfterValidator(_bind)]
EnvName = Annotated[str, AfterValidator(env_name)]
NodePath = Annotated[str, AfterValidator(node_path)]
LaptopPath = Annotated[Path, AfterValidator(_laptop_path)]
Pattern = Annotated[str, AfterValidator(_pattern)]
Port = Annotated[int, Field(ge=1, le=65535)]
Subnet = Annotated[ipaddress.IPv4Network, BeforeValidator(_subnet)]


def user_word(user: str) -> str:
    r"""A user as a rule of sudoers(5) names it: special characters as `\xHH`.

    A word of capital letters would be an alias, so its first letter is written so, too.
    """
    word = "".join(
        c if re.fullmatch(r"[A-Za-z0-9_.-]", c) else "".join(rf"\x{b:02x}" for b in c.encode())
        for c in user
    )
    return rf"\x{ord(user[0]):02x}{word[1:]}" if re.fullmatch(r"[A-Z][A-Z0-9_]*", user) else word


def file_name(user: str) -> str:
    """A user as a part of a file's name in sudoers.d; sudo ignores one with a dot or `~`."""
    return re.sub(
        r"[^A-Za-z0-9_-]", lambda found: "".join(f"%{b:02x}" for b in found[0].encode()), user
    )
