"""Fixtures that several folders of tests share: hang limits, real agents on scratch roots."""

import gc
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import memory_folder
import pytest
from chat_server import ChatServer
from hypothesis import HealthCheck, settings
from pipe_channel import PipeChannel
from piped_cluster import Make, PipedCluster, PipedNodes, clusters_in

from spark_cluster.config.project import Project
from spark_cluster.runner import dialer, wire
from spark_cluster.runner.session import Session

pytest_plugins = ["hang_limit"]

# Each worker and hundreds of short processes import the same modules: they are compiled once, also
# where the shell says otherwise. Here, for workers and processes that are started later inherit it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# No test asks the real hub, nor sees what its user's own commands have read from it; those that
# have a hub of their own say so (tests/process/models/conftest.py).
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["SPARK_CLUSTER_CACHE"] = os.devnull

# How long an example takes decides nothing; where CI is set, each run has the same examples.
settings.register_profile(
    "spark",
    deadline=None,
    max_examples=25,  # a quarter of Hypothesis' own; `make soak` has 5,000
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.register_profile("soak", settings.get_profile("spark"), max_examples=5000)
settings.load_profile("spark")


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A temporary folder that other users may go through, once `hostile.user.reachable` lets them.

    Not below pytest's own: those of all runs are closed to others whenever another run starts
    (`TempPathFactory.getbasetemp`), so that a user could not do what a test has him try.
    """
    above = os.environ.get(memory_folder.VARIABLE)
    with tempfile.TemporaryDirectory(prefix="spark-", dir=above, ignore_cleanup_errors=True) as it:
        yield Path(it).resolve()


# Collecting thousands of tests makes a million objects that stay: to look through them again and
# again takes a third of its time.
gc.disable()


@pytest.hookimpl(tryfirst=True)  # that of a worker of xdist runs the tests and ends the hook
def pytest_runtestloop() -> None:
    """Collect garbage from here on, without looking at what is there now, and less often than
    Python does: a tenth of the time of tests that read many files."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Leave what there is alone: pytest goes through all of it five times at the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker tests that stand together, so that what a module's tests share (a site, a
    server, a report) is made once, and let those that are ready take tests from the others."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


def pytest_configure() -> None:
    """Have Ctrl-C mean something, also where a shell started the tests in the background: tests
    interrupt the programs that they start, and an ignored signal is inherited."""
    memory_folder.use()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    """A server that answers as a chat model does."""
    made = ChatServer()
    yield made
    made.close()


@pytest.fixture
def hub_allowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The hub's library may ask, for tests that give it a hub of this machine; it has no token, and
    what is read is kept in the test's own folder.
    """
    from huggingface_hub import constants

    from spark_cluster.models import hub

    monkeypatch.setattr(hub, "REQUEST_S", 100.0)  # a machine under load decides no test
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # read from the environment once
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("SPARK_CLUSTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is not ready is looked at again at once."""
    from spark_cluster.engine import readiness

    monkeypatch.setattr(readiness, "POLL_S", 0.01)


@pytest.fixture
def use_hub(hub_allowed: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`use_hub(url)`: models are looked up there; HF_ENDPOINT is read once a process."""
    from spark_cluster.models import lookup
    from spark_cluster.models.hub import HubLibrary

    def use(url: str) -> None:
        monkeypatch.setattr(lookup, "HubLibrary", lambda known: HubLibrary(url, known))

    return use


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave campaigns out, also where -m says nothing of them."""
    if "soak" in config.getoption("-m"):
        return
    left_out = [item for item in items if item.get_closest_marker("soak")]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture
def project_folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of the user's project, with nothing in it."""
    made = tmp_path / "mine"
    made.mkdir()
    with Project(made).in_use():
        yield made


@pytest.fixture(autouse=True)
def as_a_process_begins() -> Iterator[None]:
    """Undo what the program does to the process that it has for itself, for the next test: at its
    end Ctrl-C is ignored, which children inherit, and nothing is collected while it starts."""
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.enable()


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    """What ended threads of the test."""
    found: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: found.append(args.exc_value))
    return found


@pytest.fixture(scope="session")
def agents_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the agents' code, one for all tests, so that it is sent and compiled once."""
    return tmp_path_factory.mktemp("agents")


@pytest.fixture
def agent(
    tmp_path: Path, agents_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Session]]:
    """`agent("spark1")`: a session with a real agent whose root is the folder of that name.

    At the end each agent has to go by itself.
    """
    monkeypatch.setenv("HOME", str(agents_home))
    started: list[Session] = []

    def start(name: str = "spark1", **options: Any) -> Session:
        root = tmp_path / name
        root.mkdir(exist_ok=True)
        channel = PipeChannel(wire.argv("test"))
        started.append(Session(name, channel, as_root=False, root=str(root), **options))
        return started[-1]

    yield start
    for session in started:
        session.close()
    channels = [session._channel for session in started]
    assert not any(isinstance(c, PipeChannel) and c.was_killed for c in channels), "it hung"


@pytest.fixture
def piped_nodes(
    tmp_path: Path, agents_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PipedNodes]:
    """`piped_nodes["spark1"]`: a node with real agents whose root is the folder of that name.

    All that connects reaches them; the node `lost` is away.
    """
    monkeypatch.setenv("HOME", str(agents_home))
    found = PipedNodes(tmp_path)
    monkeypatch.setattr(dialer.Dialer, "dial", lambda _dialer, node: found.dial(node))
    monkeypatch.setattr(dialer.Dialer, "begun", lambda _dialer, _nodes: nullcontext())
    yield found
    found.close()


@pytest.fixture(scope="session")
def one_node(tmp_path_factory: pytest.TempPathFactory, agents_home: Path) -> Iterator[PipedCluster]:
    """A cluster of one node for tests that only make requests from it, and leave it as it is."""
    with clusters_in(tmp_path_factory.mktemp("one-node"), agents_home) as make:
        yield make("spark1")


@pytest.fixture
def piped_cluster(
    tmp_path: Path, agents_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    """`piped_cluster("spark1", "spark2")`: a play over nodes with real agents; see the class."""
    monkeypatch.setenv("HOME", str(agents_home))
    with clusters_in(tmp_path, agents_home) as make:
        yield make


@pytest.fixture(scope="module")
def lasting_cluster(tmp_path_factory: pytest.TempPathFactory, agents_home: Path) -> Iterator[Make]:
    """`piped_cluster` for a module's own fixture: its tests share nodes, and each of them sets
    itself what it looks at."""
    with clusters_in(tmp_path_factory.mktemp("lasting"), agents_home) as make:
        yield make
