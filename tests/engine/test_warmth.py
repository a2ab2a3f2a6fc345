"""Whether the next launch finds its compiled code, by what earlier launches logged."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories import make_node, make_recipe
from serve_plans import server_for

from spark_cluster.config.recipe_schema import Drafter
from spark_cluster.engine import launches
from spark_cluster.engine.members import Member
from spark_cluster.errors import Failed
from spark_cluster.node.containers import ContainerState
from spark_cluster.node.launch_records import LaunchRecord
from spark_cluster.runner.session import Output

KEY, SHORT = "torch_aot_compile/" + "ab" * 32, "0123456789"
IMAGE, OTHER_IMAGE = "sha256:" + "1" * 64, "sha256:" + "2" * 64
EARLIER = LaunchRecord(
    recipe="gemma",
    engine="vllm",
    version="0.32.0",
    image=IMAGE,
    reference="vllm/vllm-openai:v0.32.0",
    arguments="a" * 64,
    keys=(KEY,),
    outcome="compiled",
    compile_s=90.82,
    last=100.0,
)
NOW = replace(EARLIER, version="", keys=(), outcome="", compile_s=0.0, last=0.0)


def on_disk(*keys: str, image: str = "1" * 12) -> dict[str, set[str]]:
    """Compiled code in the folder of an image."""
    return {image: set(keys)}


def test_the_same_launch_is_warm_while_its_code_is_there() -> None:
    said = ("its last launch compiled it in 90.82 s",)
    assert launches.judge(NOW, [EARLIER], on_disk(KEY)) == launches.NodeWarmth("warm", said)
    loaded = replace(EARLIER, outcome="loaded", compile_s=2.18)
    assert launches.judge(NOW, [loaded], on_disk(KEY)).reasons == (
        "its last launch loaded it in 2.18 s",
    )
    gone = launches.judge(NOW, [EARLIER], on_disk(SHORT))
    assert gone == launches.NodeWarmth("cold", ("its compiled code is gone (ababababab)",))
    both = replace(EARLIER, keys=(KEY, SHORT))
    assert launches.judge(NOW, [both], on_disk(KEY)) == launches.NodeWarmth(
        "unknown", ("a part of its compiled code is gone (0123456789)",)
    )
    elsewhere = launches.judge(NOW, [EARLIER], on_disk(KEY, image="2" * 12))
    assert elsewhere.state == "cold", "what another image has compiled is not read"


def test_a_virtual_environment_has_a_folder_of_its_own() -> None:
    made, now = replace(EARLIER, image=""), replace(NOW, image="")
    assert launches.judge(now, [made], on_disk(KEY, image="venv-1"), "venv-1").state == "warm"
    assert launches.judge(now, [made], on_disk(KEY), "venv-1").state == "cold"


def test_other_arguments_make_it_unknown() -> None:
    """Which of them vLLM compiles anew for is vLLM's own business."""
    found = launches.judge(replace(NOW, arguments="b" * 64), [EARLIER], on_disk(KEY))
    assert found == launches.NodeWarmth("unknown", (launches.OTHER_ARGUMENTS,))


def test_another_image_makes_it_cold() -> None:
    """Each image has caches of its own."""
    found = launches.judge(replace(NOW, image=OTHER_IMAGE), [EARLIER], on_disk(KEY))
    assert found == launches.NodeWarmth(
        "cold", ("the image changed from 111111111111 to 222222222222 (vLLM 0.32.0 then)",)
    )
    missing = launches.judge(replace(NOW, image=""), [EARLIER], on_disk(KEY))
    assert missing == launches.NodeWarmth(
        "unknown", ("the image vllm/vllm-openai:v0.32.0 is not on this node",)
    )


def test_the_last_launch_like_it_counts() -> None:
    """A swap there and back finds the code of the first launch again."""
    between = replace(EARLIER, arguments="b" * 64, keys=(SHORT,), last=200.0)
    elsewhere = replace(EARLIER, image=OTHER_IMAGE, last=300.0)
    assert launches.judge(NOW, [elsewhere, between, EARLIER], on_disk(KEY)).state == "warm"


def test_what_cannot_be_known_is_unknown() -> None:
    assert launches.judge(NOW, [], on_disk(KEY)).reasons == ("no launch of it is on record here",)
    other = replace(EARLIER, recipe="qwen")
    assert launches.judge(NOW, [other], on_disk(KEY)).state == "unknown"
    silent = launches.judge(NOW, [replace(EARLIER, keys=())], on_disk(KEY))
    assert silent == launches.NodeWarmth(
        "unknown", ("the log of its last launch named no compiled code",)
    )


def test_some_recipes_need_no_node_to_be_asked() -> None:
    eager = launches.without_nodes(make_recipe(engine_args={"enforce-eager": True}))
    assert eager is not None
    assert eager.state == "not compiled"
    assert launches.without_nodes(make_recipe(engine_args={"enforce-eager": False})) is None
    sglang = launches.without_nodes(make_recipe(engine="sglang", engine_args={}))
    assert sglang is not None
    assert (sglang.state, "sglang" in sglang.reasons[0]) == ("unknown", True)


# -- what a log says -----------------------------------------------------------------------------

AT = "/c/vllm/torch_compile_cache"
FIRST = f"""\
INFO [backends.py:1094] Using cache directory: {AT}/03b9cb4e9b/rank_0_0/backbone for vLLM's
INFO [backends.py:1155] Dynamo bytecode transform time: 17.09 s
INFO [backends.py:393] Compiling a graph for compile range (1, 8192) takes 61.05 s
INFO [decorators.py:708] saved AOT compiled function to {AT}/{KEY}/rank_0_0/model
INFO [monitor.py:53] torch.compile took 90.82 s in total
(Worker_TP1) INFO [monitor.py:53] torch.compile took 91.50 s in total
"""
SECOND = f"""\
INFO [backends.py:292] Directly load the compiled graph(s) for compile range (1, 8192) from the
INFO [decorators.py:311] Directly load AOT compilation from path {AT}/{KEY}/rank_0_0/model
INFO [monitor.py:53] torch.compile took 2.18 s in total
"""
PARTLY = "Directly load the compiled graph(s) for\nCompiling a graph for compile range (1, 8192)\n"


@pytest.mark.parametrize(
    ("log", "keys", "outcome", "seconds"),
    [
        (FIRST, ("03b9cb4e9b", KEY), "compiled", 91.5),
        (SECOND, (KEY,), "loaded", 2.18),
        (PARTLY, (), "compiled", 0.0),
        ("torch.compile takes 45.20 s in total\n", (), "compiled", 45.2),
        ("torch.compile and initial profiling run took 3.37 s in total", (), "compiled", 3.37),
        ("Enforce eager set, disabling torch.compile and CUDAGraphs.\n", (), "", 0.0),
        ("torch.compile took 9e999 s, 1234567890.5 s; torch_compile_cache/../../x", (), "", 0.0),
    ],
)
def test_a_log_says_whether_it_compiled(
    log: str, keys: tuple[str, ...], outcome: str, seconds: float
) -> None:
    found = launches.logged(re.findall(launches.LOGGED, log))
    assert found == {"keys": keys, "outcome": outcome, "compile_s": seconds}


def test_a_node_that_lies_about_its_log_is_not_believed() -> None:
    lies = ["", " ", "torch.compile took", "torch_compile_cache/../../etc/rank_0", "Directly\n"]
    assert launches.logged(lies) == {"keys": (), "outcome": "", "compile_s": 0.0}


@pytest.mark.parametrize(
    ("name", "outcome", "keys"),
    [("main_job_start.log", "", 0), ("compiled_start.log", "compiled", 2)],
)
def test_a_real_log(name: str, outcome: str, keys: int) -> None:
    text = (Path(__file__).parents[1] / "data/gpu" / name).read_text()
    found = launches.logged(re.findall(launches.LOGGED, text))
    assert (found["outcome"], len(found["keys"])) == (outcome, keys)


def test_the_worst_node_is_the_state_of_the_launch() -> None:
    warm, cold = (
        launches.NodeWarmth("warm"),
        launches.NodeWarmth("cold", ("its compiled code is gone",)),
    )
    found = launches.warmth_of("gemma", {"spark1": warm, "spark2": cold})
    assert (found.state, found.reasons) == ("cold", ("spark2: its compiled code is gone",))
    assert str(found) == "next launch of gemma: cold: spark2: its compiled code is gone"
    alike = launches.warmth_of("gemma", {"spark1": cold, "spark2": cold})
    assert alike.reasons == ("its compiled code is gone",)
    assert launches.warmth_of("gemma", {}).state == "unknown"


# -- launches of recipes -------------------------------------------------------------------------


def answers(records: list[LaunchRecord], compiled: list[str], image: str = "") -> dict[str, Any]:
    """What a node answers that has these records and keys, and an image of this id."""
    tuned = [
        {"image": "3" * 12, "model": make_recipe().model.name, "tp": tp, "file": file}
        for tp, file in ((2, "E=8,N=64.json"), (1, "E=8,N=128.json"))
    ]
    inspect = {"status": 0 if image else 1, "stdout": json.dumps([{"Id": image}]), "stderr": ""}
    return {
        "launches": [record.to_dict() for record in records],
        "compiled": {image.removeprefix("sha256:")[:12]: compiled},
        "tuned": tuned,
        "commands": {"image": inspect},
    }


def asked(*of_node: Any) -> launches.Asked:
    answer = SimpleNamespace(wait=lambda: answers(*of_node))
    return launches.Asked(answer, answer)  # type: ignore[arg-type]


def test_a_recipe_is_judged_by_what_its_nodes_answer() -> None:
    recipe = make_recipe()
    image = "sha256:" + "3" * 64
    made = replace(launches.wanted(recipe, 2), image=image, keys=("0123456789", KEY), last=1.0)
    upcoming = launches.Upcoming(recipe, {"spark1": "/var/cache/x", "spark2": "/var/cache/x"})
    here = asked([made], ["0123456789", KEY], image)
    both = upcoming.judge({"spark1": here, "spark2": here}, 2)
    assert (both.state, both.tuned) == ("warm", ("E=8,N=64.json",))
    assert str(both) == f"next launch of {recipe.name}: warm; tuned kernels: E=8,N=64.json"
    found = upcoming.judge({"spark1": here, "spark2": asked([made], [], image)}, 2)
    assert found.state == "cold"
    assert found.to_dict()["nodes"] == {"spark1": "warm", "spark2": "cold"}
    assert upcoming.judge({"spark1": asked([], [KEY], image)}, 2).state == "unknown"
    smaller = upcoming.judge({"spark1": here}, 1)
    assert (smaller.state, smaller.reasons) == ("unknown", (launches.OTHER_ARGUMENTS,))
    other = upcoming.judge({"spark1": asked([made], [KEY], "sha256:4")}, 2)
    assert (other.state, other.tuned) == ("cold", ())


def test_a_node_that_does_not_answer_is_unknown() -> None:
    def broken() -> None:
        raise Failed("the agent ended")

    one = launches.Asked(SimpleNamespace(wait=broken), None)  # type: ignore[arg-type]
    found = launches.Upcoming(make_recipe(), {}).judge({"spark1": one}, 2)
    assert (found.state, found.reasons) == ("unknown", ("the agent ended",))


def test_an_image_is_asked_for_only_where_it_tells_something() -> None:
    sent: list[str] = []

    class Asking:
        def submit(self, op: str, **what: object) -> SimpleNamespace:
            sent.append(op)
            return SimpleNamespace(wait=dict)

    image, eager = make_recipe(), make_recipe(engine_args={"enforce-eager": True})
    for recipe, expected in ((image, ["caches", "gather"]), (eager, ["caches"])):
        sent.clear()
        launches.Upcoming(recipe, {"spark1": "/x"}).ask("spark1", Asking())  # type: ignore[arg-type]
        assert sent == expected


def test_whatever_the_engine_is_given_makes_another_launch() -> None:
    recipe = make_recipe()
    usual = launches.wanted(recipe, 2).arguments
    changed = [
        recipe.model_copy(update={"env": {**recipe.env, "VLLM_X": "2"}}),
        recipe.model_copy(update={"engine_args": {**recipe.engine_args, "seed": 7}}),
        recipe.model_copy(update={"model": recipe.model.model_copy(update={"revision": "v2"})}),
    ]
    found = {launches.wanted(one, 2).arguments for one in changed}
    assert len(found | {usual, launches.wanted(recipe, 1).arguments}) == 5
    assert launches.wanted(make_recipe(), 2).arguments == usual


def test_what_only_up_knows_makes_no_other_launch() -> None:
    """The folders of a model and a drafter in the hub's cache have a revision in them."""
    drafter = Drafter(method="eagle3", name="some/drafter", tokens=3)
    recipe = make_recipe(drafter=drafter)
    folders = {name: f"/hub/{name}/snapshots/1" for name in (recipe.model.name, "some/drafter")}
    one, found = launches.wanted(recipe, 1), recipe.located(folders)
    assert found.drafter is not None
    assert found.drafter.node_path == folders["some/drafter"]
    assert launches.wanted(found, 1) == one
    other = drafter.model_copy(update={"name": "another/drafter"})
    own = drafter.model_copy(update={"path": "/srv/drafter"})
    for changed in (other, own):
        assert launches.wanted(make_recipe(drafter=changed), 1) != one


class Node:
    """A session of a node that runs a server, with an agent's answers to `caches`."""

    def __init__(self, known: bool) -> None:
        self.known, self.recorded = known, list[dict[str, object]]()

    def request(self, op: str, **what: object) -> dict[str, object]:
        if op == "gather":
            state = {"Status": "running", "StartedAt": "2026-11-23T01:02:03.5Z"}
            one = [{"Id": "c" * 64, "Image": "sha256:9", "State": state}]
            return {"commands": {"inspect": {"status": 0, "stdout": json.dumps(one)}}}
        assert what["what"] == "known"
        return {"known": self.known, "found": [f"torch_compile_cache/{KEY}/rank_0"]}

    def submit(self, op: str, **what: object) -> SimpleNamespace:
        assert (op, what["what"]) == ("caches", "record")
        self.recorded.append(what)
        return SimpleNamespace(wait=dict)


def test_a_launch_is_recorded_once_on_each_node() -> None:

    nodes = [make_node("spark1")]
    recipe = make_recipe()
    folder = f"/hub/models--{recipe.model.name.replace('/', '--')}/snapshots/{'c' * 40}"
    server = server_for(recipe.located({recipe.model.name: folder}), *nodes)
    session = Node(known=False)
    play = SimpleNamespace(
        head=nodes[0], session=lambda _node: session, together=lambda *jobs: [j() for j in jobs]
    )
    found = [Member(play, server, ContainerState("running"))]
    new = launches.unrecorded(play, found, ["Paris"])
    (made,) = [record for _, record in new.values()]
    assert list(new) == [server.key]
    assert (made.keys, made.image) == ((KEY,), "sha256:9")
    assert made.run.startswith("c" * 12 + " 2026-11-23T01:02:03")
    assert made.models == (f"{recipe.model.name}@{'c' * 40}",)
    launches.record(new, {server.key: "0.32.0"})
    assert session.recorded[0]["record"]["version"] == "0.32.0"
    session.known = True
    assert launches.unrecorded(play, found, ["Paris"]) == {}
    launches.record({}, {server.key: "0.32.0"})
    assert len(session.recorded) == 1


def test_a_record_that_cannot_be_written_fails_no_launch() -> None:

    node = make_node("spark1")
    notes: list[str] = []

    class Broken(Node):
        def request(self, op: str, **what: object) -> dict[str, object]:
            if op == "caches":
                raise Failed("the log hangs")
            return super().request(op, **what)

        def submit(self, op: str, **what: object) -> SimpleNamespace:
            def wait() -> None:
                raise Failed("No space left on device")

            return SimpleNamespace(wait=wait)

    server, session = server_for(make_recipe(), node), Broken(known=False)
    play = SimpleNamespace(
        head=node,
        session=lambda _node: session,
        note=lambda text, **_: notes.append(text),
        together=lambda *jobs: [job() for job in jobs],
    )
    one = Member(play, server, ContainerState("running"))
    assert launches.unrecorded(play, [one], ["Paris"]) == {}
    new = {server.key: (one, launches.wanted(server.recipe, server.tp))}
    launches.record(new, {server.key: "0.32.0"})
    assert ["the log hangs" in notes[0], "No space left" in notes[1]] == [True, True]


def test_up_tells_before_a_start_and_not_of_a_server_that_runs() -> None:

    node = make_node("spark1")
    plan = server_for(make_recipe(), node)
    image = "sha256:7"
    made = launches.wanted(plan.recipe, plan.tp)
    made = replace(made, image=image, keys=(KEY,), outcome="loaded", compile_s=2.18, last=1.0)
    notes: list[str] = []

    class Asking:
        def submit(self, op: str, **what: object) -> SimpleNamespace:
            answer = answers([made], [KEY], image)
            return SimpleNamespace(wait=lambda: answer)

    play = SimpleNamespace(check=False, session=lambda _node: Asking(), note=notes.append)
    launches.before_start(play, plan, ContainerState("absent"))
    assert notes == ["compile cache: warm (its last launch loaded it in 2.18 s)"]
    same = ContainerState("running", command=("vllm", "serve", *plan.args))
    launches.before_start(play, plan, same)
    assert len(notes) == 1
    launches.before_start(play, plan, replace(same, command=("vllm", "serve", "--other")))
    assert len(notes) == 2


def test_up_says_why_the_server_had_been_stopped() -> None:
    """P16: with the first error of its log, which the new container takes away."""

    node = make_node("spark1")
    log = Output(0, "ValueError: Free memory on device\n", "")
    session = SimpleNamespace(run=lambda _argv: log)
    notes: list[str] = []
    play = SimpleNamespace(
        check=True, head=node, session=lambda _node: session,
        note=lambda text, **_more: notes.append(text),
    )  # fmt: skip
    stopped = ContainerState("exited", exit_code=1, restarts=5)
    launches.before_start(play, server_for(make_recipe(), node), stopped)
    assert notes == ["spark-vllm is stopped after 5 restarts: ValueError: Free memory on device"]
