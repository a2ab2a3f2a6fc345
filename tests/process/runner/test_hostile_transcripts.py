"""Real conversations with an agent, changed at random: none ends in a traceback or a hang."""

import hashlib
import json
import sys
import threading
import time

import pytest
from factories import put
from hostile.agent import ENDINGS, Played, Recorder, ended, faults, raw
from hypothesis import given, settings
from hypothesis import strategies as st
from piped_cluster import Events, play_over
from waiting import HANG_S

from spark_cluster.agent import messages
from spark_cluster.cli import history
from spark_cluster.cli.history import revert_run
from spark_cluster.config import fact_gathering
from spark_cluster.engine import cache_parts, image_copies, model_upkeep
from spark_cluster.engine.hub_models import Nodes, Wanted, all_models_on
from spark_cluster.errors import Failed, SparkClusterError
from spark_cluster.resources import Command, Directory, File, Reboot
from spark_cluster.runner import delivery
from spark_cluster.runner import session as sessions
from spark_cluster.runner.events import Options
from spark_cluster.runner.session import Session

EXAMPLES = min(8 * settings.default.max_examples, 2000)
"""200; in `make soak` 2,000."""

CONTENT = "content that travels only when it is asked for\n" * 400
HUB = "/var/cache/hub"
CACHES = "/var/cache/engine"
RESOURCES = (
    Directory("/srv"),
    File("/srv/a", content="1\n"),
    File("/srv/big", content=CONTENT),
    Command("read it", ("true",), reads=True),
    Reboot("nothing asks for one"),
)

LIMITS = (
    (messages, "OVERDUE_S", 0.1),
    (messages, "USUAL_S", 0.1),
    (messages, "LONGEST_STEP_S", 0.1),
    (messages, "LONG_WORK_S", 0.1),
    (sessions, "START_WITHIN", 0.2),
    (sessions, "LOST_AFTER", 0.2),
    (sessions, "FRAME_S", 0.1),
    (delivery, "FIRST_TRY_S", 0.0),
    (delivery, "RECONNECT_S", 0.0),
    (cache_parts, "USAGE_S", 0.1),
    (fact_gathering, "MEMORY", {**fact_gathering.MEMORY, "timeout": 0.1}),
)


# -- the conversations: what the laptop asks, and how it reads what it is told ---------------------


def provisioning(node):
    applied = node.play().apply(node.play().nodes, RESOURCES)
    assert isinstance(applied.output("spark1", "read it"), str)
    return node.play().nodes


def undoing(node):
    _, errors = revert_run(node.play("r2", diff=True), "r1")
    for error in errors.values():
        raise error


def looking_back(node):
    answers = {"spark1": node.asked().request("history", of=None)}
    of_run = {"spark1": node.asked().request("history", of="r1")}
    history.runs(answers)
    if "missing" not in of_run["spark1"]:
        found = history._details("r1", of_run, {})
        [history.described(entry) for entry in found.nodes["spark1"].entries]


def looking_at_models(node):
    nodes = Nodes({"spark1": node.asked()}, {"spark1": HUB})
    needs = [model_upkeep.Need("recipe", "org/name", "main")]
    model_upkeep.stored(nodes, needs)
    model_upkeep.prune(nodes, needs, apply=False)
    all_models_on(nodes, [Wanted("org/name")])


def looking_at_caches(node):
    parts = cache_parts.parts({"spark1": node.asked()}, {"spark1": CACHES}, [])
    cache_parts.prunable(parts, days=0.0, kinds=["triton"], recipe=None)
    node.asked().request("caches", what="state", folder=CACHES)


def asking(node):
    asked = node.asked()
    waiting = asked.submit("gather", **fact_gathering.MEMORY)
    asked.run(["echo", "hello"], timeout=0.1)
    asked.http("http://127.0.0.1:9/", timeout=0.1)
    fact_gathering.memory(waiting.wait())
    said = []
    asked.request("stream", lambda event: said.append(event["text"]), argv=["echo", "a", "b"])


def looking_at_images(node):
    (found,) = image_copies.stored_images({"spark1": node.asked()}, {"org/image:1": ["recipe"]})
    image_copies.planned(found)


CONVERSATIONS = (
    provisioning, looking_back, undoing, looking_at_models, looking_at_caches, looking_at_images,
    asking,
)  # fmt: skip


class Node:
    """A node as the laptop sees it; each of its connections is what `channel` returns."""

    user = "me"

    def __init__(self, folder, channel, root="/"):
        self.folder, self.root, self.channel = folder, root, channel
        self.started = []
        self.events = Events()
        self._play = None

    def dial(self, _node):
        return self

    def session(self, _run, *, become):
        """A new connection, as `Connections` makes one."""
        assert become
        new = Session("spark1", self.channel(), as_root=False, root=str(self.root))
        self.started.append(new)
        return new

    def asked(self):
        """The one connection of those who ask without `Connections`."""
        return self.started[0] if self.started else self.session("r1", become=True)

    def host_key(self):
        return None

    def close(self):
        return None

    def play(self, run="r1", **options):
        if self._play is None:
            options = Options(**options)
            self._play, self.events = play_over(
                self.folder, self.dial, ["spark1"], options, run=run, gather_facts=True
            )
            for error in self._play.out.values():
                raise error
        return self._play


class Transcripts:
    """What the agent said in each conversation, and a node that says something else."""

    def __init__(self, said, folder):
        self.said, self.folder = said, folder

    def node(self, channel):
        return Node(self.folder, channel)


DOCKER = """\
#!{python} -IS
import json, sys
words = sys.argv[1:3]
image = "sha256:" + 64 * "a"
if words == ["image", "ls"]:
    print(image)
elif words == ["image", "inspect"]:
    print(json.dumps([{{"Id": image, "RepoTags": ["org/image:1"], "RepoDigests": [], "Size": 1,
                       "Created": "2026-01-01", "RootFS": {{"Layers": []}}}}]))
"""


@pytest.fixture(scope="module")
def transcripts(tmp_path_factory, agents_home):
    """All conversations with a real agent, held once."""
    folder, root = tmp_path_factory.mktemp("transcripts"), tmp_path_factory.mktemp("spark1")
    put(root / "proc/meminfo", "MemTotal:  128 kB\nMemAvailable: 64 kB\nCached: 1 kB\n")
    put(root / "proc/sys/kernel/random/boot_id", "first\n")
    put(root / "usr/local/bin/docker", DOCKER.format(python=sys.executable)).chmod(0o755)
    put(root / f"{CACHES[1:]}/triton/kernel", "x")
    put(root / f"{CACHES[1:]}/vllm/torch_compile_cache/0123456789/rank_0_0/x", "x")
    blob = hashlib.sha256(b"weights").hexdigest()
    model = root / HUB[1:] / "models--org--name"
    put(model / "blobs" / blob, "weights")
    put(model / "refs/main", "a" * 40)
    (model / "snapshots" / ("a" * 40)).mkdir(parents=True)
    (model / "snapshots" / ("a" * 40) / "model.safetensors").symlink_to(f"../../blobs/{blob}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(agents_home))
        said = {}
        for conversation in CONVERSATIONS:
            node = Node(folder, Recorder, root)
            conversation(node)
            (held_once,) = node.started
            held_once.close()
            said[conversation] = held_once._channel.frames()
    return Transcripts(said, folder)


def held(conversation, node, deaths):
    """Hold a conversation; return the error that it ends with, if it does."""
    outcome = []

    def hold():
        try:
            outcome.append(conversation(node))
        except BaseException as error:  # noqa: BLE001  (it is what is looked at)
            outcome.append(error)

    began = time.monotonic()
    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    thread.join(HANG_S / 4)
    assert not thread.is_alive(), "it waits for ever"
    assert all(ended(one) for one in node.started), "a reader is left"
    assert deaths == [], "a thread has died"
    assert time.monotonic() - began < HANG_S / 4
    (error,) = outcome
    if isinstance(error, BaseException) and not isinstance(error, SparkClusterError):
        raise error
    return error if isinstance(error, SparkClusterError) else None


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda one: one.__name__)
def test_a_conversation_that_comes_again_as_it_was(transcripts, conversation, deaths):
    """What is changed below is what a real agent says."""
    node = transcripts.node(lambda: Played(transcripts.said[conversation], "silence"))
    assert held(conversation, node, deaths) is None


def results_of(said):
    return [at for at, frame in enumerate(said) if frame.message["event"] == "result"]


def without_a_result(said):
    del said[results_of(said)[-1]]


def a_result_twice(said):
    at = results_of(said)[0]
    said.insert(at, said[at])


def a_result_of_another(said):
    at = results_of(said)[0]
    (said[at],) = said_again({**said[at].message, "id": "File:/other"}, like=said[at])


def failed_without_a_failure(said):
    (said[-1],) = said_again({**said[-1].message, "ok": False}, like=said[-1])


def a_reboot_out_of_turn(said):
    again = {"at": 0, "id": "Reboot:nothing asks for one", "boot_id": "x", "changes": {}}
    reply = {**said[-1].message, "reboot": {**again, "timeout_s": 1}}
    (said[-1],) = said_again(reply, like=said[-1])


def said_again(*messages, like):
    return [raw(json.dumps(message).encode(), like.after) for message in messages]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (without_a_result, "all is well, it says, without a result of Reboot:"),
        (a_result_twice, "a result of Directory:/srv, again"),
        (a_result_of_another, "a result of File:/other, which it was not given"),
        (failed_without_a_failure, "a resource has failed, it says, and none of the results has"),
        (a_reboot_out_of_turn, "it asks for a reboot for Reboot:nothing asks for one, out of turn"),
    ],
)
def test_results_that_contradict_each_other(transcripts, deaths, change, found):
    said = list(transcripts.said[provisioning])
    change(said)
    error = held(provisioning, transcripts.node(lambda: Played(said, "silence")), deaths)
    assert isinstance(error, Failed)
    assert error.where == "spark1"
    assert found in error.message


@given(data=st.data())
@settings(max_examples=EXAMPLES)
def test_whatever_a_node_sends_ends_in_an_error_that_names_it(transcripts, data):
    conversation = data.draw(st.sampled_from(CONVERSATIONS))
    frames = data.draw(faults(transcripts.said[conversation]))
    # A stream has no end by itself, and signs of life keep it.
    ending = data.draw(st.sampled_from(("end", "drip") if conversation is asking else ENDINGS))
    piece = data.draw(st.sampled_from([65536, 65536, 7]))
    node = transcripts.node(lambda: Played(frames, ending, piece))
    dead = []
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in LIMITS:
            patch.setattr(module, name, value)
        patch.setattr(threading, "excepthook", lambda args: dead.append(args.exc_value))
        error = held(conversation, node, dead)
    if error is not None:
        named = [str(error), *(str(event) for event in node.events.of("Note"))]
        assert any("spark1" in text for text in named), str(error)
