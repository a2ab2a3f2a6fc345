"""The agent's parts in this process: disk full, masking, faults of our own."""

import base64
import errno
import json
import os
import re
import shlex
import urllib.parse
from types import SimpleNamespace

import pytest
from factories import apply
from hostile import odd_json
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.node.host import Host
from spark_cluster.node.values import MASK, Secret, explain, mask, secrets_in
from spark_cluster.resources import Command, File, JsonKeys
from spark_cluster.resources.base import to_wire


def results(root, *resources, diff=False, **options):
    events = []
    host = Host(root=root, run_id="r", **options)
    reply = apply(resources, host, events.append, diff=diff)
    return reply["ok"], [e for e in events if e["event"] == "result"]


# -- errors of the operating system ----------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_says_where_and_how_much(tmp_path, code):
    text = explain(OSError(code, os.strerror(code), str(tmp_path / "none" / "file")))
    assert text.startswith(f"no space left on the disk of {tmp_path} (")
    assert text.endswith(" KiB free)")
    assert "no space left on the disk of /" in explain(OSError(code, os.strerror(code)))


def test_inodes_that_are_used_up_are_told_from_a_full_disk(tmp_path, monkeypatch):
    """`df -h` shows free space then, and only `df -i` the reason."""
    names = ("f_frsize", "f_bavail", "f_files", "f_favail")
    for free, files, left, says in (
        (900, 1000, 0, "no inode left on the disk of /x (df -i shows it)"),
        (0, 1000, 0, "no space left on the disk of /x (0 KiB free)"),
        (0, 0, 0, "no space left on the disk of /x (0 KiB free)"),  # btrfs counts none
        (900, 0, 0, "no space left on the disk of /x (900 KiB free)"),
    ):
        told = SimpleNamespace(**dict(zip(names, (1024, free, files, left), strict=True)))
        monkeypatch.setattr(os, "statvfs", lambda _, told=told: told)
        error = OSError(errno.ENOSPC, "", str(tmp_path / "file"))
        assert explain(error) == says.replace("/x", str(tmp_path))


def test_a_fault_of_our_own_is_reported_with_its_resource(tmp_path, monkeypatch):
    def broken(_self, _host):
        return {}["what nobody thought of"]

    monkeypatch.setattr(Command, "observe", broken)
    ok, (result,) = results(tmp_path, Command("x", ("true",)))
    assert not ok
    assert result["id"] == "Command:x"
    assert "KeyError: 'what nobody thought of' (test_agent_parts.py:" in result["error"]
    assert "report it" in result["hint"]


# -- masking ---------------------------------------------------------------------------------------


def test_masking():
    message = {
        "event": "result",
        "verdict": "ok",
        "id": "File:/ok",
        "error": "the ok key: ok",
        "changes": {"key": ["ok", None], "n": [1, True]},
    }
    assert mask(message, {"ok"}) == {
        "event": "result",
        "verdict": "ok",
        "id": "File:/ok",
        "error": "the *** key: ***",
        "changes": {"key": ["***", None], "n": [1, True]},
    }
    assert mask("abcd abc", ["abc", "abcd"]) == "*** ***", "the longest first"
    assert mask(message, ["", ""]) == message


# As people's and programs' secrets are: printable text with quotes and backslashes, several lines,
# some of Unicode. A "*" would be found again in the mask itself.
secret_texts = st.text(
    st.sampled_from("abcXYZ019 \"'\\\\$`{}%&/+=-_:;,#\n\t\r\x1b\x00äß€\u2028😀"),
    min_size=1,
    max_size=60,
).filter(lambda text: text.strip())

WRITTEN = {
    "as it is": str,
    "json": json.dumps,
    "json in UTF-8": lambda s: json.dumps(s, ensure_ascii=False),
    "repr": repr,
    "repr of bytes": lambda s: repr(s.encode()),
    "repr of a message with both quotes": lambda s: repr(f"""it's {s} "so" """),
    "repr of JSON": lambda s: repr(json.dumps(s)),
    "json in JSON": lambda s: json.dumps(json.dumps({"key": s})),
    "shell": shlex.quote,
    "URL": lambda s: urllib.parse.quote(s, safe=""),
    "URL path": urllib.parse.quote,
    "form": urllib.parse.quote_plus,
}


@given(odd_json(*"abcdef"), secret_texts)
def test_no_text_holds_the_secret_afterwards(value, secret):
    texts = list(_texts(mask([value, f"a{secret}b{secret}", {"k": [secret]}], [secret])))
    assert not any(secret in text.replace(MASK, "\x01") for text in texts)


@given(secret_texts, st.sampled_from(sorted(WRITTEN)))
def test_nor_does_one_in_which_a_program_has_escaped_it(secret, how):
    written = WRITTEN[how](secret)
    masked = mask(written, [secret])
    assert MASK in masked, written
    around = re.sub(r"[\\\"'bkey:{} it's\"so]|\*\*\*", "", masked)
    assert around == "", (written, masked)


@given(secret_texts.filter(lambda s: len(s.encode()) >= 12), st.binary(max_size=7))
def test_nor_does_base64_of_a_text_with_it(secret, before):
    encoded = base64.b64encode(before + b":" + secret.encode() + b"\n").decode()
    masked = mask(encoded, [secret])
    assert MASK in masked
    parts = [part + "=" * (-len(part) % 4) for part in masked.split(MASK)]
    assert all(len(part) < 16 for part in parts), (
        "what is around it, and no more than 2 bytes of it"
    )


@given(st.lists(secret_texts, min_size=2, max_size=4))
def test_nor_does_a_diff_of_its_lines(lines):
    secret = "\n".join(lines)
    diff = "".join(f"+  {line}  \n" for line in secret.split("\n"))
    masked = mask(diff, [secret])
    for line in secret.split("\n"):
        assert len(line.strip()) < 8 or line.strip() not in masked.replace(MASK, "\x01")


def test_what_jsonkeys_and_a_traceback_show_of_a_secret_with_quotes(tmp_path):
    secret = Secret('hun"ter\\2\n- 1st')
    (tmp_path / "c.json").write_text("{}")
    _, (result,) = results(tmp_path, JsonKeys("/c.json", keys={"a": str(secret)}), diff=True)
    assert "hun" in result["diff"]
    said = mask({**result, "error": f"ValueError: {[str(secret)]!r}"}, {str(secret)})
    assert "ter" not in json.dumps([said["diff"], said["error"], said["changes"]])


def _texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def test_secrets_of_a_document():
    command = Command("x", ("true",), env={"A": Secret("one"), "B": "plain"}, stdin=Secret("two"))
    request = {"op": "apply", "resources": [to_wire(command), to_wire(File("/a", content="three"))]}
    assert secrets_in(json.loads(json.dumps(request))) == {"one", "two"}
