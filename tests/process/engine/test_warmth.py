"""Whether the next launch finds its compiled code, by what earlier launches logged."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from factories import make_recipe
from piped_cluster import Make, PipedCluster, PipedNode
from serve_plans import server_for

from spark_cluster.config.folders import CACHE_ROOT
from spark_cluster.config.recipe_schema import Drafter
from spark_cluster.engine import launches
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.readiness import Member
from spark_cluster.node import engine_caches, paths
from spark_cluster.node.beneath import Folder
from spark_cluster.node.containers import ContainerState
from spark_cluster.node.engine_caches import LaunchRecord, tuned_folder
from spark_cluster.runner.events import Options

KEY, SHORT = "torch_aot_compile/" + "ab" * 32, "0123456789"
IMAGE, OTHER_IMAGE = "sha256:" + "1" * 64, "sha256:" + "2" * 64
EARLIER = LaunchRecord(
    "gemma", "vllm", version="0.32.0", image=IMAGE, reference="vllm/vllm-openai:v0.32.0",
    arguments="a" * 64, keys=(KEY,), outcome="compiled", compile_s=90.82, last=100.0,
)  # fmt: skip
NOW = replace(EARLIER, version="", keys=(), outcome="", compile_s=0.0, last=0.0)


DATA = Path(__file__).parents[2] / "data/gpu"
NAMES = {"CODE": KEY, "OTHER": SHORT, "ONE": IMAGE, "TWO": OTHER_IMAGE}
NAMES["OTHER_ARGUMENTS"] = launches.OTHER_ARGUMENTS


def named(value: Any) -> Any:
    """Return what a case means: its names replaced, and its lists as tuples."""
    return tuple(map(named, value)) if isinstance(value, list) else NAMES.get(value, value)


def changed(record: LaunchRecord, given: dict[str, Any]) -> LaunchRecord:
    return replace(record, **{name: named(value) for name, value in given.items()})


@pytest.mark.parametrize("case", cases(__file__, "warmth.toml")["case"])
def test_what_the_next_launch_finds(case):
    now = changed(NOW, case.get("now", {}))
    earlier = [changed(EARLIER, one) for one in case.get("earlier", [{}])]
    compiled = {folder: set(named(keys)) for folder, keys in case["compiled"].items()}
    found = launches.judge(now, earlier, compiled, case.get("venv", ""))
    assert found.state == case["state"]
    assert found.reasons == named(case["reasons"]) if "reasons" in case else found.reasons != ()


def test_some_recipes_need_no_node_to_be_asked():
    eager = launches.without_nodes(make_recipe(engine_args={"enforce-eager": True}))
    assert eager.state == "not compiled"
    assert launches.without_nodes(make_recipe(engine_args={"enforce-eager": False})) is None
    sglang = launches.without_nodes(make_recipe(engine="sglang", engine_args={}))
    assert (sglang.state, "sglang" in sglang.reasons[0]) == ("unknown", True)


# -- what a log says -----------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases(__file__, "logs.toml")["compiled"])
def test_a_log_says_whether_it_compiled(case):
    text = (DATA / case["file"]).read_text() if "file" in case else case["log"]
    found = launches.logged(re.findall(launches.LOGGED, text))
    keys = tuple(case.get("keys", ()))
    assert found == {"keys": keys, "outcome": case["outcome"], "compile_s": case["seconds"]}


def test_a_node_that_lies_about_its_log_is_not_believed():
    lies = ["", " ", "torch.compile took", "torch_compile_cache/../../etc/rank_0", "Directly\n"]
    assert launches.logged(lies) == {"keys": (), "outcome": "", "compile_s": 0.0}


def test_the_worst_node_is_the_state_of_the_launch():
    warm = launches.NodeWarmth("warm")
    cold = launches.NodeWarmth("cold", ("its compiled code is gone",))
    found = launches.warmth_of("gemma", {"spark1": warm, "spark2": cold})
    assert (found.state, found.reasons) == ("cold", ("spark2: its compiled code is gone",))
    assert str(found) == "next start of gemma: cold (spark2: its compiled code is gone)"
    alike = launches.warmth_of("gemma", {"spark1": cold, "spark2": cold})
    assert alike.reasons == ("its compiled code is gone",)
    assert launches.warmth_of("gemma", {}).state == "unknown"


# -- launches of recipes -------------------------------------------------------------------------


def has(
    node: PipedNode, records: Sequence[LaunchRecord], compiled: Sequence[str] = (), number: str = ""
) -> None:
    """Have these records and compiled code on a node, and its image by an id of this digit."""
    for one in records:
        engine_caches.add_launch(node.root, one)
    for key in compiled:
        node.put(f"{CACHE_ROOT}/images/{number * 12}/vllm/torch_compile_cache/{key}/rank_0_0/model")
    if number:
        node.have_image(make_recipe().image.ref, number=number)


def is_tuned(node: PipedNode, file: str, tp: int) -> None:
    """Have parameters of kernels on a node, for the image with the digit 3."""
    caches, made = node.root / CACHE_ROOT.lstrip("/"), node.put(f"{CACHE_ROOT}/{tp}/{file}", "{}")
    name = tuned_folder(str(caches), "3" * 12, make_recipe().model.name, tp)
    engine_caches.keep_tuned(Folder(caches), Path(name), made.parent)


def test_a_recipe_is_judged_by_what_its_nodes_say(piped_cluster):
    cluster, recipe = piped_cluster("spark1", "spark2", "spark3", "spark4"), make_recipe()
    image = "sha256:" + "3" * 64
    made = replace(launches.wanted(recipe, 2), image=image, keys=("0123456789", KEY), last=1.0)
    one, two, three, four = cluster.nodes.values()
    has(one, [made], made.keys, "3")
    has(two, [made], made.keys, "3")
    has(three, [made], [], "3")
    has(four, [made], [KEY], "4")
    for node in (one, two):
        is_tuned(node, "E=8,N=64.json", 2)
        is_tuned(node, "E=8,N=128.json", 1)

    def judged(*nodes: PipedNode, tp: int = 2) -> launches.Warmth:
        names = {node.name for node in nodes}
        chosen = [node for node in cluster.play.nodes if node.name in names]
        return launches.next_launch(cluster.play, recipe, chosen, tp)

    both = judged(one, two)
    assert (both.state, both.tuned) == ("warm", ("E=8,N=64.json",))
    assert str(both) == f"next start of {recipe.name}: warm; tuned kernels: E=8,N=64.json"
    found = judged(one, three)
    assert found.state == "cold"
    assert found.to_dict()["nodes"] == {"spark1": "warm", "spark3": "cold"}
    smaller = judged(one, tp=1)
    assert (smaller.state, smaller.reasons) == ("unknown", (launches.OTHER_ARGUMENTS,))
    other = judged(four)
    assert (other.state, other.tuned) == ("cold", ())
    (one.root / paths.LAUNCHES.lstrip("/")).unlink()
    assert judged(one).state == "unknown"


def test_a_node_that_is_lost_is_unknown(piped_cluster):
    cluster = piped_cluster("spark1")
    cluster.head.programs["docker"] = lambda *_: cluster.head.lose() or ""
    found = launches.next_launch(cluster.play, make_recipe(), cluster.play.nodes, 2)
    assert found.state == "unknown"
    assert "the connection was lost" in found.reasons[0]


def test_an_image_is_asked_for_only_where_it_tells_something(piped_cluster):
    cluster = piped_cluster("spark1")
    for args, asked in (({"enforce-eager": True}, 0), ({}, 1)):
        recipe = make_recipe(engine_args=args)
        launches.next_launch(cluster.play, recipe, cluster.play.nodes, 2)
        assert len(cluster.head.calls("docker")) == asked


def test_whatever_the_engine_is_given_makes_another_launch():
    recipe = make_recipe()
    other = {"env": {**recipe.env, "VLLM_X": "2"},
             "engine_args": {**recipe.engine_args, "seed": 7},
             "model": recipe.model.model_copy(update={"revision": "v2"})}  # fmt: skip
    changed = [recipe.model_copy(update={key: value}) for key, value in other.items()]
    found = {launches.wanted(one, 2).arguments for one in (recipe, *changed)}
    assert len(found | {launches.wanted(recipe, 1).arguments}) == 5
    assert launches.wanted(make_recipe(), 2) == launches.wanted(recipe, 2)


def test_what_only_up_knows_makes_no_other_launch():
    """The folders of a model and a drafter in the hub's cache have a revision in them."""
    drafter = Drafter(method="eagle3", name="some/drafter", tokens=3)
    recipe = make_recipe(drafter=drafter)
    folders = {name: f"/hub/{name}/snapshots/1" for name in (recipe.model.name, "some/drafter")}
    one, found = launches.wanted(recipe, 1), recipe.located(folders)
    assert found.drafter.node_path == folders["some/drafter"]
    assert launches.wanted(found, 1) == one
    other = drafter.model_copy(update={"name": "another/drafter"})
    own = drafter.model_copy(update={"path": "/srv/drafter"})
    for changed in (other, own):
        assert launches.wanted(make_recipe(drafter=changed), 1) != one


@pytest.fixture
def cluster(piped_cluster: Make) -> PipedCluster:
    """A node whose server runs and has written a log."""
    made = piped_cluster("spark1")
    made.head.run_container(SERVER)
    made.head.log(SERVER, f"saved AOT compiled function to /c/torch_compile_cache/{KEY}/rank_0\n")
    with made.head.state("docker") as docker:
        docker["containers"][SERVER]["State"]["StartedAt"] = "2026-11-23T01:02:03.5Z"
    return made


def test_a_launch_is_recorded_once_on_each_node(cluster):
    play, recipe = cluster.play, make_recipe()
    server = server_for(recipe, *play.nodes)
    found = [Member(play, server, ContainerState("running"))]
    new = launches.unrecorded(play, found, ["Paris"])
    (made,) = [record for _, record in new.values()]
    assert list(new) == [server.key]
    assert (made.keys, made.image) == ((KEY,), "sha256:" + "1" * 64)
    assert made.run.startswith(f"{1:064x}"[:12] + " 2026-11-23T01:02:03")
    assert made.models == (f"{recipe.model.name}@{'c' * 40}",)
    launches.record(new, {server.key: "0.32.0"})
    (kept,) = engine_caches.launches(cluster.head.root)
    assert (kept.version, kept.run) == ("0.32.0", made.run)
    assert launches.unrecorded(play, found, ["Paris"]) == {}
    launches.record({}, {server.key: "0.32.0"})
    assert engine_caches.launches(cluster.head.root) == [kept]


def test_a_record_that_cannot_be_written_fails_no_launch(cluster):
    play, head = cluster.play, cluster.head
    server = server_for(make_recipe(), *play.nodes)
    one = Member(play, server, ContainerState("running"))
    (head.root / paths.LAUNCHES.lstrip("/")).mkdir(parents=True)
    new = {server.key: (one, launches.wanted(server.recipe, server.tp))}
    launches.record(new, {server.key: "0.32.0"})
    docker = head.programs["docker"]
    head.programs["docker"] = lambda words, stdin: (
        head.lose() or "" if words[0] == "logs" else docker(words, stdin)
    )
    assert launches.unrecorded(play, [one], ["Paris"]) == {}
    assert ["s a directory" in cluster.notes[0], " was lost" in cluster.notes[1]] == [True, True]


def test_up_tells_before_a_start_and_not_of_a_server_that_runs(piped_cluster):
    cluster = piped_cluster("spark1")
    plan = server_for(make_recipe(), *cluster.play.nodes)
    known = {"image": "sha256:" + "7" * 64, "keys": (KEY,), "outcome": "loaded", "last": 1.0}
    made = replace(launches.wanted(plan.recipe, plan.tp), compile_s=2.18, **known)
    has(cluster.head, [made], [KEY], "7")
    same = ContainerState("running", command=("vllm", "serve", *plan.args))
    other = replace(same, command=("vllm", "serve", "--other"))
    for state, told in ((ContainerState("absent"), 1), (same, 1), (other, 2)):
        launches.before_start(cluster.play, plan, state)
        assert len(cluster.notes) == told
    assert cluster.notes[0] == "compile cache: warm (its last launch loaded it in 2.18 s)"


def test_up_says_why_the_server_had_been_stopped(piped_cluster):
    """P16: with the first error of its log, which the new container takes away."""
    cluster = piped_cluster("spark1", options=Options(check=True))
    cluster.head.run_container(SERVER, status="exited", exit_code=1)
    cluster.head.log(SERVER, "ValueError: Free memory on device\n")
    stopped = ContainerState("exited", exit_code=1, restarts=5)
    launches.before_start(cluster.play, server_for(make_recipe(), *cluster.play.nodes), stopped)
    assert cluster.notes == [
        "spark1: spark-vllm is stopped after 5 restarts: ValueError: Free memory on device"
    ]
