"""Playbooks of Ray alone: `ray up`, and `bench fabric` with what it leaves behind."""

import json
from dataclasses import replace
from typing import Any

import pytest
from fabric_results import told
from factories import make_recipe
from piped_cluster import Make, PipedCluster
from ray_server import RayServer
from serve_plans import server_for

from spark_cluster.bench.fabric_probe import MARK
from spark_cluster.bench.fabric_run import UNIT
from spark_cluster.engine import runtime
from spark_cluster.engine.engine import EngineProcess
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.ray import ALONE, MEASURING, TOKEN_FILE
from spark_cluster.engine.start import start_ray_alone
from spark_cluster.errors import Failed, Refused
from spark_cluster.runner.events import Event, Options, Progress

ROLES = ("network", "firewall", "containers", "caches", "images", "ray")


def ray_up(cluster: PipedCluster, ray: RayServer, **given: Any) -> Any:
    cluster.marked(*ROLES)
    recipe = make_recipe("gemma4-31b-fp8", ray={"dashboard_port": ray.port}, **given)
    return cluster.run("ray", recipe=recipe, tp=2)


def test_ray_is_started_as_under_a_model_without_the_model(piped_cluster, ray):
    cluster = piped_cluster()
    for node in cluster.nodes.values():
        node.run_container(RAY, {"spark-cluster.dashboard": str(ray.port), **ALONE})
    found = ray_up(cluster, ray)
    assert (found.state, found.version, found.model) == ("running", "2.60.0", False)
    told = [(node.name, node.alive, node.gpus) for node in found.nodes]
    assert told == [("spark1", True, 1.0), ("spark2", True, 1.0)]
    assert cluster.stages == ["prepare", "fetch", "start"]
    assert tuple(cluster.roles()) == tuple(cluster.roles("spark2")) == ROLES
    started = cluster.settings("ray").server
    assert started.labels.items() >= {**ALONE, "spark-cluster.firewall": "present"}.items()
    assert started.model_path == ""


def test_in_check_mode_there_is_nothing_to_look_at(piped_cluster, ray):
    cluster = piped_cluster(options=Options(check=True))
    assert ray_up(cluster, ray) is None
    assert ray.requests == []


def test_a_server_is_not_ended_for_it(piped_cluster, ray):
    cluster = piped_cluster()
    cluster.head.run_container(SERVER, {"spark-cluster.recipe": "lab-paris"})
    with pytest.raises(Refused, match="lab-paris is up") as caught:
        ray_up(cluster, ray)
    assert caught.value.hint == "spark-cluster down, then spark-cluster ray up"
    assert (cluster.stages, cluster.containers) == ([], {"spark1": [SERVER], "spark2": []})


def test_a_recipe_without_ray(piped_cluster, ray):
    with pytest.raises(Refused, match="joins the nodes without Ray"):
        ray_up(piped_cluster(), ray, executor="mp")


PREPARED = ["network", "firewall", "containers", "caches", "images"]
ENDED = ["stop", f"{UNIT}.timer"]


class Measuring:
    """A cluster whose Ray is a server of this machine, which runs the job."""

    def __init__(self, cluster: PipedCluster, ray: RayServer) -> None:
        self.cluster, self.server = cluster, ray
        self.armed_after: list[list[str]] = []
        cluster.marked(*PREPARED, "ray")
        for node in cluster.nodes.values():
            node.put(TOKEN_FILE, f"{'5eed' * 16}\n")
            node.programs["systemd-run"] = lambda *_: self.armed_after.append(cluster.roles()) or ""
        self.prints(f"{MARK}{json.dumps(told())}")

    def prints(self, text: str, status: int = 0) -> None:
        """Have the job print this and end so."""
        place = self.server.folder / "printed"
        place.write_text(text)
        self.server.runs = f"cat {place}; exit {status}"

    def __call__(self) -> Any:
        recipe = make_recipe("gemma4-31b-fp8", ray={"dashboard_port": self.server.port})
        return self.cluster.run("fabric", recipe=recipe, tp=2, name="r1")

    def must_have_ended(self) -> None:
        """Look that nothing of it is left, and the nodes' timers are taken back last."""
        assert self.cluster.stages[-2:] == ["stop", "prove"], "`down`"
        for node in self.cluster.nodes.values():
            assert node.calls("systemd-run"), "they end it where the laptop is gone"
            assert node.calls("systemctl")[-1] == ENDED
            assert node.containers == {}


@pytest.fixture
def measuring(piped_cluster: Make, ray: RayServer) -> Measuring:
    return Measuring(piped_cluster(), ray)


def test_ray_is_started_and_ended(measuring):
    found = measuring()
    assert (found.id, [node.name for node in found.nodes]) == ("r1", ["spark1", "spark2"])
    assert list(measuring.server.jobs) == ["fabric-r1"]
    cluster = measuring.cluster
    assert cluster.stages[:4] == ["prepare", "fetch", "start", "measure"]
    assert cluster.roles()[:6] == [*PREPARED, "ray"], "no model is fetched for it"
    assert measuring.armed_after == [PREPARED, PREPARED], "on each node, before Ray is started"
    assert cluster.settings("ray").server.labels[MEASURING] == "r1"
    measuring.must_have_ended()


def test_it_is_ended_when_measuring_fails(measuring):
    measuring.prints("no memory", 1)
    with pytest.raises(Failed, match="the job on Ray failed"):
        measuring()
    measuring.must_have_ended()


def test_it_is_ended_when_the_user_interrupts_it(measuring):
    def interrupt(event: Event) -> None:
        if isinstance(event, Progress) and event.resource == "fabric":
            measuring.cluster.on_event = lambda _event: None
            raise KeyboardInterrupt

    measuring.server.runs = "echo memory; sleep 600"
    measuring.cluster.on_event = interrupt
    with pytest.raises(KeyboardInterrupt):
        measuring()
    measuring.must_have_ended()
    assert measuring.server.jobs["fabric-r1"]["status"] == "STOPPED"


def test_a_ray_that_a_killed_run_left_is_replaced_and_ended(measuring):
    for node in measuring.cluster.nodes.values():
        node.run_container(RAY, {MEASURING: "r0"})
    assert measuring().id == "r1"
    assert measuring.cluster.settings("ray").server.labels[MEASURING] == "r1"
    measuring.must_have_ended()


def test_an_error_of_the_end_does_not_hide_the_first(measuring):
    held = "from spark_cluster.errors import Failed\n\ndef main(play):\n"
    measuring.cluster.playbook("down", f"{held}    raise Failed('the memory is still held')\n")
    with pytest.raises(Failed, match="still held"):
        measuring()
    measuring.server.jobs.clear()
    measuring.prints("", 1)
    with pytest.raises(Failed, match="the job on Ray"):
        measuring()


@pytest.mark.parametrize("status", [0, 1])
def test_a_ray_that_runs_is_used_and_stays(measuring, status):
    cluster, port = measuring.cluster, str(measuring.server.port)
    for node in cluster.nodes.values():
        node.run_container(RAY, {"spark-cluster.dashboard": port})
    if status == 0:
        assert measuring().id == "r1"
    else:
        measuring.prints("", status)
        with pytest.raises(Failed, match="the job on Ray"):
            measuring()
    assert (cluster.stages, cluster.roles()) == (["start", "measure"], [])
    assert cluster.containers == {"spark1": [RAY], "spark2": [RAY]}


def test_check_mode_starts_and_ends_nothing(piped_cluster, ray):
    measuring = Measuring(piped_cluster(options=Options(check=True)), ray)
    assert measuring() is None
    assert measuring.cluster.stages == ["prepare", "fetch", "start"]
    assert (measuring.armed_after, ray.requests) == ([], [])


def test_its_ray_has_neither_model_nor_secrets(measuring):
    """The model need not be on the nodes, and a job needs no secret of the server."""
    play = measuring.cluster.play
    recipe = make_recipe("lab-paris", ray={"dashboard_port": measuring.server.port})
    server = server_for(recipe, *play.nodes)
    start_ray_alone(play, replace(server, secret_env={"KEY": "s3cret"}), {})
    made = measuring.cluster.settings("ray").server
    assert made.on_ray
    assert made.ray_token == "5eed" * 16
    container = runtime.resource(EngineProcess("spark-ray", ("ray", "start")), made)
    assert container.mounts == ("/opt/vllm:/opt/vllm:ro",), "no folder of a model"
    assert container.caches == made.cache_root
    assert not container.secret_files
