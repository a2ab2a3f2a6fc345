"""The piped cluster itself: its nodes' facts, files and programs are what a test says."""

from __future__ import annotations

from fake_programs import Said
from piped_cluster import Make

from spark_cluster.config.facts import GpuProcess
from spark_cluster.engine import vram


def test_facts_and_memory_are_what_the_test_says(piped_cluster: Make) -> None:
    cluster = piped_cluster("spark1", "spark2")
    first, second = cluster.play.nodes
    assert (first.is_head, second.is_head) == (True, False)
    assert first.facts.gpu is not None
    assert first.facts.gpu.name == "NVIDIA GB10"
    assert [str(node.fabric_ip) for node in (first, second)] == ["192.168.177.11", "192.168.177.12"]
    cluster.nodes["spark2"].held = [GpuProcess(7, "VLLM::Worker", 900)]
    readings = vram.sample(cluster.play.sessions)
    assert [one.used_mib for one in readings] == [0, 900]


def test_a_program_gets_its_words_and_its_input_and_ends_as_it_says(piped_cluster: Make) -> None:
    cluster = piped_cluster("spark1")
    node = cluster.head
    node.programs["ip"] = lambda words, stdin: Said(f"{words} {stdin}", "no\n", 3)
    done = cluster.play.session(cluster.play.head).run(["ip", "a b", "it's\n"], stdin="in")
    assert (done.status, done.stdout, done.stderr) == (3, "['a b', \"it's\\n\"] in", "no\n")
    assert node.calls("ip") == [["a b", "it's\n"]]


def test_a_program_that_a_node_lacks_is_not_this_machines(piped_cluster: Make) -> None:
    cluster = piped_cluster("spark1")
    session = cluster.play.session(cluster.play.head)
    assert session.run(["systemd-run", "reboot"]).status == 127
