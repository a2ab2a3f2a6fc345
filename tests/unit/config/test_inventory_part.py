"""Some nodes of an inventory as a cluster of their own."""

from factories import make_inventory

from spark_cluster.config.inventory import fabric_addresses, merged, part_of
from spark_cluster.config.yamlfile import load

TEXT = """\
nodes:
  spark1: {address: 10.0.0.1, roles: [head]}
  spark2: {address: 10.0.0.2, settings: {vllm: {stop_timeout_s: 5}}}
group_settings: {worker: {vllm: {master_port: 29600}}}
serve: {recipe: r, bind: management, port: 8100, api_key: {env: KEY}, tls: self-signed}
"""


def test_a_worker_alone_is_the_head_of_its_own_part(tmp_path):
    whole = make_inventory(tmp_path, TEXT)
    part = part_of(whole, ["spark2"])
    assert list(part.nodes) == ["spark2"]
    assert part.head.name == "spark2"
    assert list(part.nodes) == [part.head.name]
    assert part.groups["all"] == part.groups["head"] == {"spark2"}
    before, after = whole.nodes["spark2"], part.nodes["spark2"]
    assert after.settings_for("vllm").data == {"master_port": 29600, "stop_timeout_s": 5}
    assert fabric_addresses(part, after) == fabric_addresses(whole, before)


def test_only_the_heads_own_part_is_served_as_the_inventory_says(tmp_path):
    whole = make_inventory(tmp_path, TEXT)
    assert part_of(whole, ["spark1"]).serve == whole.serve
    serve = part_of(whole, ["spark2"]).serve
    assert serve.on_loopback
    assert not serve.proxied
    assert (serve.port, serve.recipe) == (8100, "r")


def test_the_whole_is_unchanged(tmp_path):
    whole = make_inventory(tmp_path, TEXT)
    part_of(whole, ["spark2", "spark1"])
    assert whole.head.name == "spark1"
    assert part_of(whole, list(whole.nodes)) == whole


def test_a_setting_is_told_where_the_value_in_force_stands(tmp_path):
    """`<<` brings origins of values that the mapping itself replaces."""
    path = tmp_path / "layers.yaml"
    path.write_text("y: &y\n  m:\n    p: 2\na:\n  m:\n    p: bad\nb:\n  <<: *y\n  m:\n    q: 3\n")
    found = merged(load(path, "layers"), [("a",), ("b",)])
    assert found.data["m"] == {"p": "bad", "q": 3}
    assert found.origin(("m", "p")).line == 6
