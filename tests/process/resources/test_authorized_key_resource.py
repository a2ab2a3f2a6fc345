"""AuthorizedKey: what a user's file becomes, and what a user cannot make root do."""

import os
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from own_sshd import keygen
from resource_samples import public_key

from spark_cluster.resources import AuthorizedKey, InvalidResource
from spark_cluster.resources.authorized_key import KEY_TYPES, fingerprint, parse_key, split_line

ONE, TWO = public_key(fill=b"a"), public_key(fill=b"b")
KEY = AuthorizedKey("me", f"{ONE} me@laptop")
FILE = "/home/me/.ssh/authorized_keys"


OTHERS = f'# team\n\nno-pty,command="echo \\"ssh-rsa x\\"" {TWO} other\r\nrubbish \xff'.encode(
    "latin1"
)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_other_lines_stay_byte_for_byte(accounts, end):
    accounts.put(FILE, OTHERS + end, mode=0o600)
    accounts.apply(KEY)
    assert accounts.path(FILE).read_bytes() == OTHERS + b"\n" + f"{ONE} me@laptop\n".encode()
    gone = AuthorizedKey("me", ONE, state="absent")
    accounts.must_change(gone)
    assert accounts.path(FILE).read_bytes() == OTHERS + b"\n"
    assert accounts.apply(gone).verdict == "ok"


LIMITS = ('from="10.0.0.1,::1"', "no-port-forwarding")


@pytest.mark.parametrize("options", [LIMITS, ()])
@pytest.mark.parametrize("line", [f"{ONE} me@laptop", ONE, f'from="10.9.9.9" {ONE} me@laptop'])
def test_a_machine_that_claims_the_users_key_limits_no_one(accounts, line, options):
    """Or a node whose root is an attacker would keep the user out of the other nodes."""
    text = f"# mine\n{line}\n"
    accounts.put(FILE, text, mode=0o600)
    accounts.path("/home/me/.ssh").chmod(0o700)
    claimed = AuthorizedKey("me", f"{ONE} mesh-spark2", sole=True, options=options)
    if options == () and "from=" not in line:
        assert accounts.apply(claimed).verdict == "ok", "nothing would be changed"
    else:
        for outcome in (accounts.check(claimed), accounts.apply(claimed)):
            assert outcome.verdict == "failed"
            assert "line 2: the key that is declared as 'mesh-spark2' stands there" in outcome.error
    assert accounts.path(FILE).read_text() == text
    own = text.replace(line, f"{ONE} mesh-spark2")
    accounts.put(FILE, own, mode=0o600)
    limited = AuthorizedKey("me", f"{ONE} mesh-spark2", sole=True, options=LIMITS)
    assert accounts.apply(limited).verdict == "change", "what the mesh itself has put in"


@pytest.mark.parametrize("state", ["present", "absent"])
def test_links_are_not_followed(accounts, state):
    key = AuthorizedKey("me", ONE, state=state)
    secret = accounts.put("/etc/shadow", f"{ONE}\n", mode=0o640)
    accounts.path("/home/me/.ssh").symlink_to(accounts.path("/etc"))
    assert "/home/me/.ssh: is a link" in accounts.apply(key).error
    accounts.path("/home/me/.ssh").unlink()
    accounts.path("/home/me/.ssh").mkdir()
    for make_link in (os.symlink, os.link):
        make_link(secret, accounts.path(FILE))
        assert "authorized_keys: is" in accounts.apply(key).error
        accounts.path(FILE).unlink()
    assert secret.read_text() == f"{ONE}\n"
    assert secret.stat().st_mode & 0o7777 == 0o640


def test_a_private_key_is_not_repeated():
    with pytest.raises(InvalidResource) as caught:
        AuthorizedKey("me", "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0")
    assert "c2VjcmV0" not in str(caught.value)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen here")
def test_fingerprint_is_that_of_ssh_keygen(tmp_path):
    key = keygen(tmp_path / "id").with_suffix(".pub")
    argv = ["ssh-keygen", "-lf", str(key)]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert fingerprint(key.read_text()) in shown


@given(st.text())
def test_any_text_is_a_key_or_a_clear_refusal(text):
    try:
        kind, _blob = parse_key(text)
    except InvalidResource:
        return
    assert kind in KEY_TYPES


quoted = st.text(st.characters(codec="ascii", exclude_categories=["C"], exclude_characters='"\\'))
options = st.lists(
    st.one_of(
        st.sampled_from(["no-pty", "restrict", 'environment="A=\\"b c\\""']),
        quoted.map(lambda t: f'command="{t}"'),
    ),
    max_size=3,
).map(",".join)
comments = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=20)


@given(options, st.sampled_from([*KEY_TYPES]), comments)
def test_lines_are_taken_apart(before, kind, comment):
    key = public_key(kind)
    assert parse_key(f"{key} {comment}")[0] == kind
    line = " ".join(filter(None, (before, key, comment)))
    assert split_line(line) == (before.strip(), *key.split(" "))
