"""The roles haproxy and endpoint: which files with which content, and all of them away again."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hostile import user
from role_samples import a_spark, an_endpoint, one

from spark_cluster.engine import proxy
from spark_cluster.node.host import Host
from spark_cluster.node.values import Secret
from spark_cluster.resources import Directory, File, Line
from spark_cluster.resources.base import to_wire

KEY = "sk-test-5be1cf0277a04d"
PEM = "-----BEGIN CERTIFICATE-----\nx\n-----BEGIN PRIVATE KEY-----\ny\n"
HOST = "10.89.0.11"
UNIT_FILE = f"/etc/systemd/system/{proxy.UNIT}.service"


def text(resources, path):
    return str(one(resources, "File", path).content)


def test_the_key_is_nowhere_but_its_digest(role):
    found = role("endpoint", a_spark(), endpoint=an_endpoint(HOST, api_key=KEY))
    wire = json.dumps([to_wire(resource) for resource in found])
    assert KEY not in wire
    digest = hashlib.sha256(KEY.encode()).hexdigest().upper()
    keys = one(found, "File", proxy.KEYS)
    assert (keys.content, keys.mode, keys.owner) == (f"{digest}\n", 0o600, "root")
    assert isinstance(keys.content, Secret)
    for path in (proxy.CONFIG, UNIT_FILE, proxy.DESCRIPTION):
        assert digest not in text(found, path)
    assert '"${CREDENTIALS_DIRECTORY}/api-keys"' in text(found, proxy.CONFIG)
    assert f"LoadCredential=api-keys:{proxy.KEYS}\n" in text(found, UNIT_FILE)


@user.needs_root
def test_a_user_of_the_node_reads_no_digest_and_no_private_key(role, open_path):
    """A digest can be tried against guessed keys, as many a second as a machine can hash."""
    endpoint = an_endpoint(HOST, api_key=KEY, tls="certificate", pem=PEM)
    host = Host(root=user.reachable(open_path))
    for resource in role("endpoint", a_spark(), endpoint=endpoint):
        if isinstance(resource, (Directory, File, Line)):
            unchecked = {"validate_with": ()} if isinstance(resource, File) else {}
            Path(host.path(resource.path)).parent.mkdir(parents=True, exist_ok=True)
            replace(resource, **unchecked).converge(host, resource.observe(host))
    folder = host.path(proxy.FOLDER)
    looked = user.run(
        f"""
for path in sorted(Path({str(folder)!r}).iterdir()):
    try:
        path.read_bytes()
        print(path.name)
    except PermissionError:
        pass
"""
    )
    secret = {Path(path).name for path in (proxy.KEYS, proxy.NAMED_KEYS, proxy.CERTIFICATE)}
    assert secret <= {path.name for path in folder.iterdir()}
    assert set(looked.stdout.split()) == {Path(p).name for p in (proxy.CONFIG, proxy.DESCRIPTION)}


def test_what_status_reads(role):
    found = role("endpoint", a_spark(), endpoint=an_endpoint(HOST, api_key=KEY, tls="self-signed"))
    told = proxy.described(text(found, proxy.DESCRIPTION))
    assert told == proxy.Access(f"https://{HOST}:8000/v1", True, "self-signed")
    assert told.certificate == proxy.SELF_SIGNED


@pytest.mark.parametrize("broken", [None, "", "[]", "{}", "null", '{"url": 1, "tls": "x"}', "{"])
def test_a_description_that_says_nothing(broken):
    assert proxy.described(broken) is None
