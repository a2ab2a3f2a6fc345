"""JsonKeys: our keys in a file that others own too."""

import json

import pytest

from spark_cluster.node.values import Secret
from spark_cluster.resources import File, InvalidResource, JsonKeys

PATH = "/etc/docker/daemon.json"


def own_files(node):
    """All that our own files on the node hold."""
    own = node.path("/var/lib/spark-cluster").rglob("*")
    return b"".join(path.read_bytes() for path in own if path.is_file())


def document(node):
    return json.loads(node.path(PATH).read_text())


@pytest.mark.parametrize("keys", [{"a": object()}, {"a": b"x"}])
def test_refused(keys):
    with pytest.raises(InvalidResource, match="JsonKeys"):
        JsonKeys(PATH, keys=keys)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('pa"ss\\word-one', 'pa"ss\\word-two'),
        ("short-1", "short-2"),
        ("pässword-one", "pässword-two"),
    ],
)
@pytest.mark.parametrize("by_us", [True, False])
def test_an_old_secret_is_neither_shown_nor_kept(node, old, new, by_us):
    """Whoever wrote it: the request knows the new one only."""

    def keys(secret):
        return JsonKeys(PATH, keys={"auths": {"hub": Secret(secret)}, "debug": secret == new})

    node.put(PATH, json.dumps({"auths": {"hub": old}}))
    if by_us:
        node.put(PATH, "{}")
        node.apply(keys(old), host=node.host(secrets=frozenset({old})))
    host = node.host(secrets=frozenset({new}))
    for result in (node.check(keys(new)), node.apply(keys(new), host=host)):
        assert result.diff == f"{PATH}: secret content, not shown\n"
        held = "***" if by_us else "another"
        assert result.event["changes"]["auths.hub"] == [held, "as declared"]
        assert "one" not in str(result.event)
        assert "short" not in str(result.event)
    assert json.dumps(old)[1:-1].encode() not in own_files(node)
    assert old.encode() not in own_files(node)
    assert document(node) == {"auths": {"hub": new}, "debug": True}
    assert node.apply(keys(new)).verdict == "ok"


def test_a_file_that_holds_an_escaped_secret_of_the_request_is_not_kept(node):
    """Also where the resource itself is not told that it writes a secret."""
    secret = 'pa"ss\\word-one'
    node.put(PATH, json.dumps({"a": secret}))
    host = node.host(secrets=frozenset({secret}))
    assert node.apply(File(PATH, content="{}"), host=host).verdict == "change"
    other = "/etc/docker/other.json"
    host = node.host(secrets=frozenset({secret}))
    node.apply(File(other, content=json.dumps({"a": secret})), host=host)
    node.apply(File(other, content="{}"))
    assert b"word-one" not in own_files(node)
    assert host.is_secret(other)
