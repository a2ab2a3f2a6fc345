"""Inventories: what wrong ones say, how nodes are resolved and selected."""

import re
from ipaddress import IPv4Interface
from pathlib import Path

import factories
import pytest
from cases import cases
from factories import load_inventory, make_inventory, put
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from spark_cluster.config.inventory import fabric_addresses, selected
from spark_cluster.config.project import Project
from spark_cluster.config.schema import validate
from spark_cluster.config.secret import SecretReference
from spark_cluster.errors import InvalidFile, UsageError


def error_of(folder: Path, text: str) -> str:
    said = factories.error_of(make_inventory, folder, text, folder=folder)
    return said.replace("inventory.yaml:", "")


HEAD = "nodes:\n  a: {address: 10.0.0.1, roles: [head]}\n"
CASES = cases(__file__, "inventory.toml", HEAD=HEAD.rstrip())
TWO = CASES["two"]


@pytest.mark.parametrize(
    "case", CASES["wrong"], ids=lambda case: case["expected"].split(":")[1].strip()
)
def test_wrong_inventories(tmp_path, case):
    assert error_of(tmp_path, case["text"]) == case["expected"]


@pytest.mark.parametrize("sign", "'\"`;&<>|(){}")
@pytest.mark.parametrize("where", ["user: x%sy", "jump: x%sy@host", "jump: ho%sst"])
def test_no_name_means_something_to_the_shell_of_a_proxy_command(tmp_path, sign, where):
    """Its %r and %h are put in as they are; an ssh before 9.6 looks at neither."""
    key, _, value = (where % sign).partition(": ")
    text = value.replace("'", "''")
    said = error_of(tmp_path, f"ssh: {{{key}: '{text}'}}\n{HEAD}")
    assert said.startswith(f"1: ssh.{key}: found ")


def test_no_secret_in_a_message(tmp_path):
    for value in ("sk-1", "[sk-1]", "{value: sk-1}", "{env: 'sk-1 x'}", "{env: [sk-1]}"):
        text = error_of(tmp_path, HEAD + f"serve:\n  api_key: {value}\n")
        assert "sk-1" not in text, text


def test_nodes_are_resolved(tmp_path):
    inventory = make_inventory(tmp_path, TWO)
    head, worker = inventory.nodes.values()
    assert (head.name, head.user, head.port, head.index, head.is_head) == (
        "spark1", "nvidia", None, 0, True,
    )  # fmt: skip
    assert (worker.user, worker.port, worker.index, worker.role) == ("other", 2222, 1, "worker")
    assert head.identity_file == tmp_path / "keys/id"
    assert head.known_hosts == Path.home() / "kh"
    assert (inventory.head, list(inventory.nodes.values())) == (head, [head, worker])
    assert worker.groups == {"all", "worker"}
    assert head.connect_timeout_s == 10
    assert {head: 1, worker: 2}[worker] == 2


def test_nodes_that_are_this_machine(tmp_path):
    """Itself, and in namespaces of it; the SSH defaults of all nodes may be for the others."""
    found = make_inventory(
        tmp_path,
        "ssh: {user: me}\nnodes:\n"
        "  a: {address: 10.0.0.1, connection: local, namespaces_of: pid, roles: [head]}\n"
        "  b: {address: 10.0.0.2, connection: local, namespaces_of: /p}\n"
        "  c: {address: 10.0.0.3, connection: local}\n  d: {address: 10.0.0.4}\n",
    ).nodes
    assert [node.is_local for node in found.values()] == [True, True, True, False]
    assert [node.is_this_machine for node in found.values()] == [False, False, True, False]
    assert (found["a"].namespaces_of, found["b"].namespaces_of) == (tmp_path / "pid", Path("/p"))


def test_same_address_with_another_port_is_another_node(tmp_path):
    text = "nodes: {a: {address: x, port: 1, roles: [head]}, b: {address: x, port: 2}}"
    assert len(make_inventory(tmp_path, text).nodes) == 2


class Settings(BaseModel, extra="forbid"):
    size: int = 1
    names: list[str] = []
    deep: dict[str, int] = {}


LAYERS = CASES["layers"]


def test_settings_are_laid_over_each_other(tmp_path):
    inventory = make_inventory(tmp_path, LAYERS)
    first, second = (node.settings_for("r") for node in inventory.nodes.values())
    assert first.data == {"size": 1, "names": ["a"], "deep": {"x": 1, "y": 1}}
    assert second.data == {"size": 2, "names": ["b", "c"], "deep": {"x": 1, "y": 2, "z": 3}}
    assert validate(Settings, second).deep == {"x": 1, "y": 2, "z": 3}
    assert inventory.head.settings_for("other").data == {}


def test_an_error_in_settings_names_its_own_line(tmp_path):
    text = LAYERS.replace("z: 3", "z: q").replace("size: 2", "sise: 2").replace("[b, c]", "[b, 7]")
    inventory = make_inventory(tmp_path, text)
    with pytest.raises(InvalidFile) as caught:
        validate(Settings, inventory.nodes["spark2"].settings_for("r"))
    assert str(caught.value).replace(f"{tmp_path}/inventory.yaml:", "") == (
        "5: group_settings.worker.r.sise: unknown field; did you mean 'size'?\n"
        "7: group_settings.g.r.names[1]: found 7, expected text; put it in quotes\n"
        "13: nodes.spark2.settings.r.deep.z: found 'q', expected a whole number"
    )


def password_of(folder: Path, password: str) -> SecretReference:
    """Return where the sudo password of the head is to be had."""
    found = make_inventory(folder, f"{HEAD}become: {{password: {password}}}\n").head.become.password
    assert found is not None
    return found


@pytest.mark.parametrize("content", ["s\u00e9cret\n", "\ufeffs\u00e9cret\r\n", "s\u00e9cret"])
def test_a_secret_of_an_editor_of_windows(tmp_path, content):
    (tmp_path / "pw").write_bytes(content.encode())
    (tmp_path / "pw").chmod(0o600)
    assert password_of(tmp_path, "{file: pw}").read("the password") == "s\u00e9cret"


def test_secrets_are_read_where_they_are(tmp_path, monkeypatch):
    (tmp_path / "pw").write_text("from-file\n")
    (tmp_path / "pw").chmod(0o600)
    text = HEAD + "serve: {api_key: {env: SPARK_KEY}}\nbecome: {password: {file: pw}}\n"
    inventory = make_inventory(tmp_path, text)
    monkeypatch.setenv("SPARK_KEY", "from-env")
    key, password = inventory.serve.api_key, inventory.head.become.password
    assert key is not None and password is not None
    assert key.read("the API key") == "from-env"
    assert password.read("the sudo password") == "from-file"
    monkeypatch.delenv("SPARK_KEY")
    with pytest.raises(UsageError, match="environment variable SPARK_KEY is not set") as unset:
        key.read("the API key")
    assert unset.value.hint == "export SPARK_KEY=..."
    (tmp_path / "pw").unlink()
    with pytest.raises(UsageError, match="No such file"):
        password.read("the sudo password")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_secret_that_others_can_read_is_refused(tmp_path, mode):
    secret = tmp_path / "my pw"
    secret.write_text("very secret\n")
    secret.chmod(mode)
    password = password_of(tmp_path, "{file: my pw}")
    with pytest.raises(UsageError, match=f"mode {mode:04o}") as caught:
        password.read("the sudo password")
    assert caught.value.hint == f"chmod 600 '{secret}'"
    assert "very secret" not in str(caught.value)
    secret.chmod(0o400)
    assert password.read("the sudo password") == "very secret"


@pytest.mark.parametrize("user", ["some.body", "Some", "u@example.org", "DOM\\user", "a" * 40])
def test_users_of_a_directory_service(tmp_path, user):
    inventory = make_inventory(tmp_path, f"ssh: {{user: '{user}'}}\n" + HEAD)
    assert inventory.head.user == user


def test_a_prompt_asks(tmp_path):
    password = password_of(tmp_path, "prompt")
    assert password.read("x", ask=lambda what: f"answer to {what}") == "answer to x"
    with pytest.raises(UsageError, match="no terminal"):
        password.read("x")


def test_load_by_name_path_and_default(tmp_path):
    project = Project(tmp_path)
    with pytest.raises(InvalidFile, match=r"no such inventory\n  `spark-cluster init`"):
        load_inventory(None, project)
    path = put(tmp_path / "inventory.yaml", TWO)
    assert load_inventory(None, project).path == path
    assert load_inventory(str(path), project).path == path
    assert (
        load_inventory("two-sparks", project).path
        == project.shipped / "inventories/two-sparks.yaml"
    )
    with pytest.raises(UsageError, match="did you mean 'two-sparks'"):
        load_inventory("two-spark", project)
    with pytest.raises(InvalidFile, match=r"nope\.yaml: no such inventory"):
        load_inventory(tmp_path / "nope.yaml", project)


def test_settings_of_a_role_that_does_not_exist(tmp_path):
    path = put(tmp_path / "inventory.yaml", CASES["no_such_roles"])
    with pytest.raises(InvalidFile) as caught:
        load_inventory(None, Project(tmp_path))
    text = str(caught.value)
    assert "inventory.yaml:2: nodes.spark1.settings.memroy: no role 'memroy'" in text
    assert "did you mean 'memory'?" in text
    assert "settings.nosuch: no role 'nosuch'; roles: bootstrap, caches" in text
    assert "group_settings.worker.mine" in text
    assert "settings.power" not in text
    for name in ("memroy", "mine", "nosuch"):
        (tmp_path / "roles" / name).mkdir(parents=True)
    assert load_inventory(None, Project(tmp_path)).path == path


@pytest.mark.parametrize("name", ["one-spark", "two-sparks", "lab"])
def test_shipped_inventories_are_sound(name, tmp_path):
    inventory = load_inventory(name, Project(tmp_path))
    assert inventory.head.user == "nvidia"


# --- patterns ---------------------------------------------------------------------------------

NODES = ["spark1", "spark2", "spark3", "box"]
GROUPS = {
    "all": frozenset(NODES),
    "head": frozenset({"spark1"}),
    "worker": frozenset(NODES[1:]),
    "lab": frozenset({"spark2", "spark3"}),
}


@pytest.mark.parametrize(("pattern", "expected"), CASES["patterns"])
def test_patterns(pattern, expected):
    assert selected(pattern, NODES, GROUPS) == expected


@pytest.mark.parametrize(("pattern", "expected"), CASES["wrong_patterns"])
def test_wrong_patterns(pattern, expected):
    with pytest.raises(UsageError) as caught:
        selected(pattern, NODES, GROUPS)
    assert expected in str(caught.value)


TERMS = st.lists(
    st.tuples(st.sampled_from(["", "!", "&"]), st.sampled_from([*NODES, *GROUPS])),
    min_size=1,
    max_size=6,
)


def members(name: str) -> set[str]:
    return set(GROUPS.get(name, {name}))


@given(TERMS, st.sampled_from(",:"), st.randoms())
def test_select_is_set_algebra_in_any_order(terms, joint, random):
    named = [members(n) for sign, n in terms if not sign]
    expected = set().union(*named) if named else set(NODES)
    for sign, name in terms:
        if sign == "&":
            expected &= members(name)
    for sign, name in terms:
        if sign == "!":
            expected -= members(name)
    shuffled = list(terms)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    pattern = joint.join(sign + name for sign, name in shuffled)
    if expected:
        assert selected(pattern, NODES, GROUPS) == [n for n in NODES if n in expected]
    else:
        with pytest.raises(UsageError):
            selected(pattern, NODES, GROUPS)


@given(st.text(max_size=30))
def test_any_text_selects_or_is_refused(pattern):
    try:
        chosen = selected(pattern, NODES, GROUPS)
    except UsageError:
        return
    assert chosen and chosen == [n for n in NODES if n in chosen]


# --- fabric addresses -------------------------------------------------------------------------


@settings(max_examples=settings.default.max_examples // 3)
@given(st.integers(1, 60), st.integers(0, 255))
def test_detected_addresses_are_stable_unique_and_in_their_subnet(count, third):
    import tempfile

    text = "nodes:\n" + "".join(
        f"  n{i}: {{address: h{i}, roles: [{'worker' if i else 'head'}]}}\n" for i in range(count)
    )
    pool = [f"10.77.{third}.0/24", f"10.78.{third}.0/24"]
    with tempfile.TemporaryDirectory() as folder:
        text += f"fabric: {{pool: [{', '.join(pool)}]}}\n"
        inventory = make_inventory(Path(folder), text)
    pairs = [fabric_addresses(inventory, node) for node in inventory.nodes.values()]
    assert len({address.ip for pair in pairs for address in pair}) == 2 * count
    for index, pair in enumerate(pairs):
        assert [str(address.network) for address in pair] == pool
        assert [int(address.ip) & 0xFF for address in pair] == [11 + index] * 2


def test_addresses_given_by_hand_are_taken(tmp_path):
    text = "nodes: {a: {address: x, fabric: {interfaces: [{name: e, address: 192.168.7.1/24}]}}}"
    inventory = make_inventory(tmp_path, text)
    assert fabric_addresses(inventory, inventory.head) == (IPv4Interface("192.168.7.1/24"),)


@pytest.mark.parametrize(("serve", "on_loopback", "proxied"), CASES["endpoints"])
def test_a_proxy_is_in_front_wherever_others_reach_the_endpoint(
    tmp_path, serve, on_loopback, proxied
):
    found = make_inventory(tmp_path, f"{HEAD}serve: {serve}\n").serve
    assert (found.on_loopback, found.proxied) == (on_loopback, proxied)


def test_files_of_the_certificate_start_at_the_inventory(tmp_path):
    text = HEAD + "serve: {tls: {certificate: tls/a.pem, key: /k.pem}}\n"
    tls = make_inventory(tmp_path, text).serve.tls
    assert (tls.certificate, str(tls.key)) == (tmp_path / "tls/a.pem", "/k.pem")
    assert not tls.self_signed
    made = make_inventory(tmp_path, HEAD + "serve: {tls: self-signed}\n").serve.tls
    assert made.self_signed
    assert made.read() is None


SEVERAL = "nodes: {{a: {{address: 10.0.0.1, roles: [head]}}}}\nserve: {}\n"


def test_a_list_of_recipes_is_served_next_to_each_other(tmp_path):
    found = make_inventory(tmp_path, SEVERAL.format("[chat, {recipe: words, aliases: [small]}]"))
    assert found.serve.recipe_names == ("chat", "words")
    assert found.serve.recipes[1].aliases == ["small"]
    assert found.serve.proxied
    assert list(found.serve.engine_ports) == [18000, 18001]
    long = make_inventory(tmp_path, SEVERAL.format("{port: 9000, recipes: [chat, words]}"))
    assert (long.serve.port, long.serve.recipe_names) == (9000, ("chat", "words"))


@pytest.mark.parametrize(("serve", "why"), CASES["wrong_lists"])
def test_lists_that_cannot_be_served(tmp_path, serve, why):
    with pytest.raises(InvalidFile, match=re.escape(why)):
        make_inventory(tmp_path, SEVERAL.format(serve))
