"""`bench fabric` with gloo on real Ray over two nodes, and `bench repeat` of a run of one cell."""

import signal
from collections.abc import Iterator

import pytest
import readme
from bench_results import bench_user, record
from commandline import WAIT_S, CommandLine, until
from on_nodes import containers, left_of_ray

from spark_cluster.bench.fabric_run import LARGEST, UNIT, load_fabric
from spark_cluster.engine.names import RAY

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def user(lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with bench_user(lab, tmp_path_factory.mktemp("fabric"), "one-cell") as made:
        made("down")
        yield made


def run_bench(user: CommandLine, *words: str) -> str:
    """Run a benchmark to its end; on a busy machine its one cell may fail."""
    started = user.start("bench", *words)
    out, err = started.process.communicate(timeout=WAIT_S)
    assert started.process.returncode in (0, 1), out + err
    return out + err


def test_fabric_on_two_nodes(user, lab):
    """A Ray is started for it, the job measures, and nothing of it stays."""
    told = user.json(*readme.words("spark-cluster bench fabric"), "--out", "fabric")
    found = load_fabric(user.home / "fabric")
    assert told["fabric"]["id"] == found.id
    assert (found.backend, found.verdict) == ("gloo", "not judged")
    assert [node.name for node in found.nodes] == ["spark1", "spark2"]
    assert {row.use for row in found.allreduce} == {"one token", "prefill chunk", ""}
    assert max(row.bytes for row in found.allreduce) == LARGEST or LARGEST in found.left_out
    assert all(row.latency_us > 0 for row in found.allreduce)
    assert all(node.copy_gb_s > 0 and node.triad_gb_s > 0 for node in found.nodes)
    for name in ("spark1", "spark2"):
        node = lab.node(name)
        until(lambda node=node: not left_of_ray(node), what=f"{name} is clean")


def test_a_ray_of_a_killed_run_is_ended_by_its_nodes(user, lab):
    """By the timer's own service, which is started here instead of waiting for the timer."""
    started = user.start("bench", "fabric", "--out", "killed")
    nodes = [lab.node(name) for name in ("spark1", "spark2")]
    for node in nodes:
        until(lambda node=node: RAY in containers(node), what="Ray")
    started.interrupt(signal.SIGKILL)
    started.end(status=None)
    for node in nodes:
        node.run(["systemctl", "is-active", f"{UNIT}.timer"])
        node.run(["systemctl", "start", f"{UNIT}.service"])
        until(lambda node=node: RAY not in containers(node), what="Ray's end")
    user("down")


def test_a_run_is_repeated_from_its_record(user):
    run_bench(user, "run", "one-cell", "--out", "first", "--keep")
    (user.home / "suites/one-cell.yaml").unlink()  # the record has all that it takes
    ran = user("bench", "fabric", status=4)
    assert "lab-paris is up" in ran.printed
    user(*readme.words("spark-cluster bench repeat THEIRS --check", {"THEIRS": "first"}))
    said = run_bench(user, "repeat", "first", "--out", "second")
    assert "bench compare second/repeated.json second" in said
    first, second = record(user.home / "first"), record(user.home / "second")
    assert second["repeats"]["id"] == first["id"]
    assert second["status"] == "complete"
    assert [cell["id"] for cell in second["cells"]] == [cell["id"] for cell in first["cells"]]
    assert second["setups"][0]["recipe_text"] == first["setups"][0]["recipe_text"]
    found = user.json("bench", "compare", "second/repeated.json", "second")
    assert found["comparison"]["a"] == first["id"]
