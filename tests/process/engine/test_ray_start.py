"""Ray's nodes and the server over them: started at once, waited for, and ended together."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cases import cases
from factories import make_recipe
from fake_programs import Said
from free_ports import free_port
from piped_cluster import Make, PipedCluster, PipedNode
from ray_server import TOKEN, RayServer, ray_server
from serve_plans import deployment_for, located, own_programs, starting

from spark_cluster.engine import readiness, runtime
from spark_cluster.engine.deployment import Deployment
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.ray import TOKEN_FILE, RayNode, RayState
from spark_cluster.engine.ray_cluster import must_keep_its_jobs
from spark_cluster.engine.start import ray_would_restart, start, start_ray_alone, token
from spark_cluster.errors import Failed, Refused, VerificationFailed
from spark_cluster.runner.events import NodeFailed

ADDRESSES = ("192.168.177.11", "192.168.177.12")


class Starts:
    """Two nodes, and the dashboard of Ray on the head."""

    def __init__(self, cluster: PipedCluster, ray: RayServer) -> None:
        self.cluster, self.ray = cluster, ray
        self._seen: dict[str, int] = {}
        ray.has_nodes(*ADDRESSES)
        cluster.marked("endpoint")
        own_programs(cluster.project, "ray", "vllm")
        for node in cluster.nodes.values():
            node.have_image(self.deployment().first.image)
            node.put(TOKEN_FILE, TOKEN)

    def deployment(self, join_timeout_s: float = 60) -> Deployment:
        told = {"dashboard_port": self.ray.port, "join_timeout_s": join_timeout_s}
        recipe = located(make_recipe(executor="ray", ray=told))
        return deployment_for(recipe, *self.cluster.play.nodes)

    def __call__(self, join_timeout_s: float = 60) -> None:
        play = self.cluster.play
        start(play, starting(play, self.deployment(join_timeout_s), 0.4))

    def runs(self, node: str) -> list[str]:
        """The containers that were started on a node since the last call, in their order."""
        calls = [words for words in self.cluster.nodes[node].calls("docker") if words[0] == "run"]
        names = [words[words.index("--name") + 1] for words in calls]
        seen, self._seen[node] = self._seen.get(node, 0), len(names)
        return names[seen:]


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[RayServer]:
    with ray_server(tmp_path) as made:
        yield made


@pytest.fixture
def starts(piped_cluster: Make, dashboard: RayServer, no_pauses: None) -> Starts:
    return Starts(piped_cluster(), dashboard)


def test_the_server_is_started_before_rays_nodes_have_joined(starts):
    """vLLM imports its modules meanwhile."""
    before: list[dict[str, list[str]]] = []
    starts.ray.when_asked = lambda: before.append(starts.cluster.containers)
    starts()
    assert before[0] == {"spark1": [RAY, SERVER], "spark2": [RAY]}
    assert starts.cluster.head.containers[SERVER] == "running"


def test_a_new_ray_has_no_token_that_was_read_before_the_last_one_ended(starts):
    """Another recipe's containers had that token, and can have told it to anyone."""
    play = starts.cluster.play
    own_programs(starts.cluster.project, "ray", words='"ray", made.ray_token')
    start(play, replace(starting(play, starts.deployment(), 0.4), ray_token="told to others"))
    words = [word for call in starts.cluster.head.calls("docker") for word in call]
    assert TOKEN in words
    assert "told to others" not in words


@pytest.mark.parametrize("ran", [False, True])
def test_a_node_that_does_not_join_is_named_and_only_a_new_server_is_stopped(starts, ran):
    """A dashboard that hangs is no reason to end what serves."""
    if ran:
        starts()
        starts.ray.replies["/api/v0/nodes"] = 500, "busy"
        told = "Ray shows 0 of 2 nodes"
    else:
        starts.ray.has_nodes(ADDRESSES[0])
        told = r"Ray shows 1 of 2 nodes .* missing: spark2"
    with pytest.raises(VerificationFailed, match=told):
        starts(join_timeout_s=0.5)
    found = starts.cluster.head.containers
    assert (found[SERVER], found[RAY]) == ("running" if ran else "exited", "running")


@pytest.mark.parametrize(("gone", "again"), cases(__file__, "ray_again.json"))
def test_what_belongs_to_a_ray_that_was_replaced_is_started_again(starts, gone, again):
    """Neither a worker follows to another head, nor does a server find another Ray."""
    starts()
    for node in again:
        starts.runs(node)
    for node, name in gone:
        starts.cluster.nodes[node].remove_container(name)
    starts()
    assert {node: starts.runs(node) for node in again} == again
    assert starts.cluster.containers == {"spark1": [RAY, SERVER], "spark2": [RAY]}


def test_ray_is_restarted_under_jobs_only_with_the_flag(starts):
    play, server = starts.cluster.play, starts.deployment().first
    start_ray_alone(play, server, {})
    starts.ray.token = ""  # the role of this test puts none on the node
    starts.ray.job("job-1", "RUNNING")
    jobs = RayState(play.session(play.head), starts.ray.port).jobs()
    told = len(starts.cluster.notes)
    must_keep_its_jobs(play, jobs, server, {}, end_jobs=False)
    other = {"spark-cluster.other": "1"}
    with pytest.raises(Refused, match="job job-1 is running on Ray"):
        must_keep_its_jobs(play, jobs, server, other, end_jobs=False)
    must_keep_its_jobs(play, jobs, server, other, end_jobs=True)
    assert starts.cluster.notes[told:] == ["Ray is restarted, which ends job job-1"]


def test_what_fails_while_nothing_is_started_is_not_taken_for_told(starts):
    """Nobody sees the events of that look: the error is all that there is."""
    play, server = starts.cluster.play, starts.deployment().first
    starts.cluster.nodes["spark2"].programs["docker"] = lambda *_: Said(
        stderr="no daemon", status=1
    )
    with pytest.raises(Failed) as found:
        ray_would_restart(play, server, {})
    assert not found.value.told


MISMATCH = "RuntimeError: Version mismatch: The cluster was started with: Ray: 2.60.0\n"
STOP = ["stop", "-t", "5", RAY]


@pytest.fixture
def cluster(piped_cluster: Make, no_pauses: None) -> PipedCluster:
    """Two nodes whose Ray does not answer."""
    made = piped_cluster()
    for node in made.nodes.values():
        node.run_container(RAY)
        node.log(RAY, MISMATCH)
    return made


def restarting(node: PipedNode, *restarts: int) -> None:
    """Have Ray's container started again so often at each look, and then no more."""
    docker, left = node.programs["docker"], list(restarts)

    def looking(words: list[str], stdin: str) -> Said | str:
        if words[:2] == ["container", "inspect"]:
            node.run_container(RAY, restarts=left.pop(0) if left[1:] else left[0])
        return docker(words, stdin)

    node.programs["docker"] = looking


def test_a_worker_that_ends_again_and_again(cluster):
    worker = cluster.nodes["spark2"]
    restarting(worker, 1, 1, 2, 3)
    with pytest.raises(Failed, match="Ray on spark2 ended 3 times: RuntimeError: Version") as found:
        readiness.ray_cluster(cluster.play, 2, free_port(), 600)
    assert found.value.where == "spark2 spark-ray"
    assert "ray-versions-differ" in found.value.hint
    assert STOP in worker.calls("docker"), "Docker would start it again and again"


def test_a_worker_that_was_started_again_once_is_waited_for(cluster):
    worker = cluster.nodes["spark2"]
    restarting(worker, 0, 1)
    no_answer = "spark1: Ray does not answer on port .*; spark.*Version mismatch"
    with pytest.raises(VerificationFailed, match=no_answer) as found:
        readiness.ray_cluster(cluster.play, 2, free_port(), 0.5)
    assert "ray[default]" in found.value.hint
    assert STOP not in worker.calls("docker")


def test_what_ends_at_once_is_explained():
    """The catalogue knows a line of the log that is in the message; what it says of it comes at the
    end of the run, for the run has told the message alone.
    """
    said = "container x ended right after its start; its log ends:\n    a\n    " + MISMATCH
    for text, known in ((said, "the nodes serve from different images (ray-versions-"), ("", "")):
        error = Failed(text or "no idea", where="spark2", hint="docker logs x")
        NodeFailed.of("spark2", error)
        with pytest.raises(Failed) as found, runtime.explained():
            raise error
        assert found.value.told is (not known)
        assert found.value.hint.startswith(known)
        assert found.value.hint.endswith("docker logs x")


# --- what Ray's dashboard answers, with the token and without ------------------------------------


@pytest.mark.parametrize(
    "body",
    ["", "{", "[]", "null", '{"data": null}', '{"data": {"result": {"result": {"state": 1}}}}'],
)
def test_an_answer_that_is_none_has_no_nodes(dashboard, one_node, body):
    dashboard.replies["/api/v0/nodes"] = 200, body
    assert RayState(one_node.play.session(one_node.play.head), dashboard.port).nodes() == []


def test_only_nodes_that_are_alive_count(dashboard, one_node):
    dashboard.has_nodes("192.168.177.11", "192.168.177.12", "192.168.177.13")
    _, reply = dashboard.replies["/api/v0/nodes"]
    _, dead, bare = reply["data"]["result"]["result"]
    dead["state"], bare["resources_total"] = "DEAD", None
    found = RayState(one_node.play.session(one_node.play.head), dashboard.port).nodes()
    assert found == [RayNode(ADDRESSES[0], True, 1.0), RayNode("192.168.177.13", False, 0.0)]


def test_each_ray_has_a_token_of_its_own_which_is_read_on_the_node(dashboard, piped_cluster):
    cluster = piped_cluster()
    cluster.head.put(TOKEN_FILE, f"{TOKEN}\n")
    head, worker = map(cluster.play.session, cluster.play.nodes)
    assert RayState(head, dashboard.port).version() == "2.60.0"
    assert RayState(worker, dashboard.port).version() == "", "it has no token"
    made = {token(worker) for _ in range(3)}
    assert len(made) == 3
    assert all(len(bytes.fromhex(one)) == 32 for one in made)
    assert token(head) == TOKEN


@pytest.mark.parametrize("answers", ["anyone", "who has the token", "nobody"])
def test_a_ray_that_asks_no_one_is_reported(dashboard, piped_cluster, answers):
    """Seen in its answer to a request without a token, not concluded from a version."""
    cluster = piped_cluster("spark1")
    cluster.head.put(TOKEN_FILE, TOKEN)
    if answers == "anyone":
        dashboard.token = ""
    port = free_port() if answers == "nobody" else dashboard.port
    readiness.ray_asks_for_its_token(cluster.play, port)
    assert {given for *_, given in dashboard.requests} <= {""}
    assert ["2.52" in text for text in cluster.notes] == [True] * (answers == "anyone")
