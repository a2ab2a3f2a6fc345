"""Whether the next launch finds its compiled code: compared with earlier launches on record."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from factories import make_node, make_recipe
from serve_plans import server_for

from spark_cluster.config.recipe_schema import Drafter
from spark_cluster.engine import launches, warmth
from spark_cluster.engine.members import Member
from spark_cluster.errors import Failed
from spark_cluster.node.containers import ContainerState
from spark_cluster.node.launch_records import LaunchRecord
from spark_cluster.runner.session import Output

KEY = "torch_aot_compile/" + "ab" * 32
EARLIER = LaunchRecord(
    recipe="gemma",
    engine="vllm",
    version="0.32.0",
    image="sha256:" + "1" * 64,
    reference="vllm/vllm-openai:v0.32.0",
    gpu="NVIDIA GB10",
    model="/srv/models/gemma",
    tp=2,
    nodes=2,
    flags={
        "max-model-len": "8192",
        "served-model-name": "gemma",
        "tensor-parallel-size": "2",
        "enable-prefix-caching": "",
    },
    env={"VLLM_USE_FLASHINFER_MOE_FP4": "1"},
    keys=(KEY,),
    last=100.0,
)
NOW = replace(EARLIER, version="", keys=(), last=0.0)


def on_disk(keys: set[str], image: str = "1" * 12) -> dict[str, set[str]]:
    """Compiled code in the folder of an image."""
    return {image: keys}


def flags(**changed: str | None) -> LaunchRecord:
    """The launch of now with flags changed, or left out where the value is None."""
    given = {name.replace("_", "-"): value for name, value in changed.items()}
    merged = {**EARLIER.flags, **given}
    return replace(NOW, flags={name: value for name, value in merged.items() if value is not None})


def test_the_same_launch_is_warm_while_its_code_is_there() -> None:
    assert warmth.judge(NOW, [EARLIER], on_disk({KEY})) == warmth.NodeWarmth("warm")
    gone = warmth.judge(NOW, [EARLIER], on_disk({"0123456789"}))
    assert gone.state == "cold"
    assert "is gone" in gone.reasons[0]
    both = replace(EARLIER, keys=(KEY, "0123456789"))
    part = warmth.judge(NOW, [both], on_disk({KEY}))
    assert part == warmth.NodeWarmth(
        "unknown", ("a part of its compiled code is gone (0123456789)",)
    )
    assert warmth.judge(NOW, [EARLIER], None).state == "unknown"
    elsewhere = warmth.judge(NOW, [EARLIER], on_disk({KEY}, image="2" * 12))
    assert elsewhere.state == "cold", "what another image has compiled is not read"


def test_a_virtual_environment_has_a_folder_of_its_own() -> None:
    made, now = replace(EARLIER, image=""), replace(NOW, image="")
    assert warmth.judge(now, [made], on_disk({KEY}, image="venv-1"), "venv-1").state == "warm"
    assert warmth.judge(now, [made], on_disk({KEY}), "venv-1").state == "cold"


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (flags(max_model_len="16384"), "--max-model-len changed from 8192 to 16384"),
        (flags(trust_remote_code=""), "--trust-remote-code is new"),
        (flags(tensor_parallel_size="1"), "--tensor-parallel-size changed from 2 to 1"),
        (
            replace(NOW, model="/srv/models/other"),
            "the model's path changed from /srv/models/gemma to /srv/models/other",
        ),
        (replace(NOW, gpu="NVIDIA GB20"), "the GPU changed from NVIDIA GB10 to NVIDIA GB20"),
    ],
)
def test_a_part_of_the_key_that_changed_is_named(now: LaunchRecord, reason: str) -> None:
    assert warmth.judge(now, [EARLIER], on_disk({KEY})) == warmth.NodeWarmth("cold", (reason,))


@pytest.mark.parametrize(
    "now",
    [
        flags(served_model_name="other", port="9000", seed="3"),
        flags(gpu_memory_utilization="0.7", enable_prefix_caching=None),
        flags(tool_call_parser="gemma4", load_format="fastsafetensors"),
        replace(NOW, env={**NOW.env, "VLLM_LOGGING_LEVEL": "DEBUG", "NCCL_DEBUG": "INFO"}),
        replace(NOW, model="", gpu="", image=EARLIER.image),
    ],
)
def test_what_is_no_part_of_the_key_keeps_it_warm(now: LaunchRecord) -> None:
    assert warmth.judge(now, [EARLIER], on_disk({KEY})).state == "warm"


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (flags(brand_new_flag="7"), f"--brand-new-flag is new: 7 ({warmth.UNLISTED})"),
        (flags(kv_cache_dtype="fp8"), f"--kv-cache-dtype is new: fp8 ({warmth.DEFAULT})"),
        (flags(max_model_len=None), f"--max-model-len is gone (was 8192) ({warmth.DEFAULT})"),
        (replace(NOW, env={}), "VLLM_USE_FLASHINFER_MOE_FP4 is gone (was 1)"),
    ],
)
def test_what_may_make_another_key_makes_it_unknown(now: LaunchRecord, reason: str) -> None:
    """A flag that is new may have the value that it had by default; a variable may be unread."""
    assert warmth.judge(now, [EARLIER], on_disk({KEY})) == warmth.NodeWarmth("unknown", (reason,))


def test_another_image_makes_it_cold() -> None:
    """Each image has caches of its own."""
    found = warmth.judge(replace(NOW, image="sha256:" + "2" * 64), [EARLIER], on_disk({KEY}))
    assert found == warmth.NodeWarmth(
        "cold", ("the image changed from 111111111111 to 222222222222 (vLLM 0.32.0 then)",)
    )
    missing = warmth.judge(replace(NOW, image=""), [EARLIER], on_disk({KEY}))
    assert missing.reasons == ("the image vllm/vllm-openai:v0.32.0 is not on this node",)
    moved = warmth.judge(replace(NOW, image="", reference="other:1"), [EARLIER], on_disk({KEY}))
    assert moved.reasons == ("the image changed from vllm/vllm-openai:v0.32.0 to other:1",)


def test_the_nearest_record_counts() -> None:
    """A swap there and back finds the code of the first launch again."""
    longer = replace(
        EARLIER, flags={**EARLIER.flags, "max-model-len": "16384"}, keys=("0123456789",), last=200.0
    )
    assert warmth.judge(NOW, [longer, EARLIER], on_disk({KEY, "0123456789"})).state == "warm"
    between = warmth.judge(
        flags(max_model_len="16384", dtype="half"), [longer, EARLIER], on_disk({KEY})
    )
    assert between.reasons == (f"--dtype is new: half ({warmth.DEFAULT})",)


def test_what_cannot_be_known_is_unknown() -> None:
    assert warmth.judge(NOW, [], on_disk({KEY})).reasons == ("no launch of it is on record here",)
    other = replace(EARLIER, recipe="qwen")
    assert warmth.judge(NOW, [other], on_disk({KEY})).state == "unknown"
    silent = warmth.judge(NOW, [replace(EARLIER, keys=())], on_disk({KEY}))
    assert silent.reasons == ("the log of its last launch named no compiled code",)
    assert warmth.judge(replace(NOW, engine="sglang"), [EARLIER], on_disk({KEY})).state == "unknown"


@pytest.mark.parametrize(
    "now",
    [
        flags(enforce_eager=""),
        flags(optimization_level="0"),
        replace(NOW, env={"TORCHDYNAMO_DISABLE": "1"}),
    ],
)
def test_a_launch_that_compiles_nothing_is_neither_warm_nor_cold(now: LaunchRecord) -> None:
    assert warmth.judge(now, [], None).state == "not compiled"


def test_the_worst_node_is_the_state_of_the_launch() -> None:
    warm, cold = (
        warmth.NodeWarmth("warm"),
        warmth.NodeWarmth("cold", ("its compiled code is gone",)),
    )
    found = warmth.whole("gemma", {"spark1": warm, "spark2": cold})
    assert (found.state, found.reasons) == ("cold", ("spark2: its compiled code is gone",))
    assert str(found) == "next launch of gemma: cold: spark2: its compiled code is gone"
    alike = warmth.whole("gemma", {"spark1": cold, "spark2": cold})
    assert alike.reasons == ("its compiled code is gone",)
    assert warmth.whole("gemma", {}).state == "unknown"


# -- launches of recipes -------------------------------------------------------------------------


def asked(records: list[LaunchRecord], compiled: list[str], image: str = "") -> launches.Asked:
    """A node that answers with these records and keys, and has an image of this id."""
    tuned = [
        {"image": "3" * 12, "model": make_recipe().model.name, "tp": tp, "gpu": "", "file": file}
        for tp, file in ((2, "E=8,N=64.json"), (1, "E=8,N=128.json"))
    ]
    state = {
        "launches": [record.to_dict() for record in records],
        "compiled": {image.removeprefix("sha256:")[:12]: compiled},
        "tuned": tuned,
    }
    shown = json.dumps([{"Id": image}])
    inspect = {"status": 0 if image else 1, "stdout": shown, "stderr": ""}
    return launches.Asked(
        SimpleNamespace(wait=lambda: state),  # type: ignore[arg-type]
        SimpleNamespace(wait=lambda: {"commands": {"image": inspect}}),  # type: ignore[arg-type]
        make_recipe().model.name,
    )


def test_a_recipe_is_judged_by_what_its_nodes_answer() -> None:
    recipe = make_recipe()
    image = "sha256:" + "3" * 64
    made = replace(launches.wanted(recipe, 2), image=image, keys=("0123456789", KEY), last=1.0)
    upcoming = launches.Upcoming(recipe, {"spark1": "/var/cache/x", "spark2": "/var/cache/x"})
    here = asked([made], ["0123456789", KEY], image)
    both = upcoming.judge({"spark1": here, "spark2": here}, 2, {})
    assert (both.state, both.tuned) == ("warm", ("E=8,N=64.json",))
    assert str(both) == f"next launch of {recipe.name}: warm; tuned kernels: E=8,N=64.json"
    found = upcoming.judge({"spark1": here, "spark2": asked([made], [], image)}, 2, {})
    assert found.state == "cold"
    assert found.to_dict()["nodes"] == {"spark1": "warm", "spark2": "cold"}
    assert upcoming.judge({"spark1": asked([], [KEY], image)}, 2, {}).state == "unknown"
    smaller = upcoming.judge({"spark1": here}, 1, {})
    assert "--tensor-parallel-size changed from 2 to 1" in smaller.reasons
    other = upcoming.judge({"spark1": asked([made], [KEY], "sha256:4")}, 2, {})
    assert (other.state, other.tuned) == ("cold", ())


def test_a_node_that_does_not_answer_is_unknown() -> None:
    def broken() -> None:
        raise Failed("the agent ended")

    asked_of = launches.Asked(SimpleNamespace(wait=broken), None, "m")  # type: ignore[arg-type]
    assert asked_of.answer(NOW) == warmth.NodeWarmth("unknown", ("the agent ended",))


def test_a_virtual_environment_has_no_image_to_ask_for() -> None:
    sent: list[str] = []

    class Asking:
        def submit(self, op: str, **what: object) -> SimpleNamespace:
            sent.append(op)
            return SimpleNamespace(wait=lambda: {"launches": [], "compiled": {}, "commands": what})

    launches.ask(Asking(), "/srv/caches", "", "m")  # type: ignore[arg-type]
    assert sent == ["caches"]
    launches.ask(Asking(), "/srv/caches", "vllm/vllm-openai:v1", "m")  # type: ignore[arg-type]
    assert sent == ["caches", "caches", "gather"]


def test_secrets_are_no_part_of_a_record() -> None:
    recipe = make_recipe(env={"VLLM_API_KEY": "secret", "HF_HUB_OFFLINE": "1", "VLLM_X": "2"})
    assert launches.wanted(recipe, 1).env == {"VLLM_X": "2"}


def test_a_drafter_from_the_hub_stands_by_its_name() -> None:
    """Its folder has a revision in it, which only `up` knows."""

    drafter = Drafter(method="eagle3", name="some/drafter", tokens=3)
    moved = drafter.model_copy(update={"path": "/cache/models--some--drafter/snapshots/1"})
    one = launches.wanted(make_recipe(drafter=drafter), 1)
    assert '"model":"some/drafter"' in one.flags["speculative-config"]
    assert launches.wanted(make_recipe(drafter=moved), 1) == one


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
        return {"known": self.known, "found": [KEY]}

    def submit(self, op: str, **what: object) -> SimpleNamespace:
        assert (op, what["what"]) == ("caches", "record")
        self.recorded.append(what)
        return SimpleNamespace(wait=dict)


def test_a_launch_is_recorded_once_on_each_node() -> None:

    nodes = [make_node("spark1")]
    server = server_for(make_recipe(), *nodes)
    session = Node(known=False)
    play = SimpleNamespace(
        head=nodes[0], session=lambda _node: session, together=lambda *jobs: [j() for j in jobs]
    )
    found = [Member(play, server, ContainerState("running"))]
    new = launches.unrecorded(play, found, ["Paris"])
    (made,) = [record for _, record in new.values()]
    assert list(new) == [server.key]
    assert (made.keys, made.image, made.model) == ((KEY,), "sha256:9", server.model_path)
    assert made.run.startswith("c" * 12 + " 2026-11-23T01:02:03")
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
    new = {server.key: (one, launches.planned(server))}
    launches.record(new, {server.key: "0.32.0"})
    assert ["the log hangs" in notes[0], "No space left" in notes[1]] == [True, True]


def test_up_tells_before_a_start_and_not_of_a_server_that_runs() -> None:

    node = make_node("spark1")
    plan = server_for(make_recipe(), node)
    image = "sha256:7"
    made = replace(launches.planned(plan), image=image, keys=(KEY,), last=1.0)
    notes: list[str] = []

    class Asking:
        def submit(self, op: str, **what: object) -> SimpleNamespace:
            answer = {
                "launches": [made.to_dict()],
                "compiled": {"7": [KEY]},
                "tuned": [],
                "commands": {"image": {"status": 0, "stdout": json.dumps([{"Id": image}])}},
            }
            return SimpleNamespace(wait=lambda: answer)

    play = SimpleNamespace(check=False, session=lambda _node: Asking(), note=notes.append)
    launches.before_start(play, plan, ContainerState("absent"))
    assert notes == ["compile cache: warm"]
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
