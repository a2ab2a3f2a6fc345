"""The sampler on a node: what it reads, what it does without, and that nothing of it stays."""

import json
import os
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from cases import cases, each_row
from factories import put
from telemetry_node import APPS, BUSY, PAGE, loop, nvidia_smi, put_system
from waiting import HANG_S, until
from web_server import WebServer

from spark_cluster.errors import Unreachable
from spark_cluster.node import nvidia_smi as readers
from spark_cluster.node import own_program, telemetry
from spark_cluster.node.nvidia_smi import THROTTLE, AppsReader, GpuReader
from spark_cluster.node.telemetry import PAGE as PAGE_SIZE
from spark_cluster.node.telemetry import (
    EngineReader,
    Pipe,
    Sampler,
    SamplerSettings,
    TelemetryFile,
    figures,
)
from spark_cluster.runner import wire

QUICK = {"every": 0.1, "slowly": 0.1}
SAMPLE = cases(__file__, "sample.json")


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A node's root whose commands are found first."""
    monkeypatch.setenv("PATH", f"{tmp_path}/usr/local/bin:{os.environ['PATH']}")
    return tmp_path


def alive(text: str) -> list[str]:
    """Command lines of living processes that have this text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode()
            state = (path.parent / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if text in words and state not in "ZX":
            found.append(words)
    return found


@contextmanager
def ending(reader):
    try:
        yield reader
    finally:
        reader.end()


@contextmanager
def started(settings: SamplerSettings):
    argv = own_program.argv(telemetry.PROGRAM, settings.word)
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines(process, wanted):
    """Lines of a sampler until one fits."""
    for text in process.stdout:
        line = json.loads(text)
        if wanted(line):
            return line
    raise AssertionError("the sampler has ended")


# -- what it reads --------------------------------------------------------------------------------


def test_a_whole_sample(root):
    put_system(root)
    nvidia_smi(root)
    with WebServer(lambda _asked: (200, PAGE)) as server:
        settings = SamplerSettings(**QUICK, metrics=server.url, root=str(root))
        with started(settings) as process:
            line = lines(process, lambda t: t["gpu"] and t["engine"] and t["processes"])
            errors = lines(process, lambda t: "rdma_errors" in t)
    assert line["format"] == telemetry.FORMAT
    assert abs(line["time"] - time.time()) < HANG_S
    expected = SAMPLE["line"]
    assert {name: line[name] for name in expected} == expected
    assert line["memory"] == {**SAMPLE["memory"], "swapped_bytes": 7 * PAGE_SIZE}
    assert errors["rdma_errors"] == {"rocep1s0f1": 2}
    assert line["engine"]["running"] == 5
    assert "notes" not in line


def test_a_node_that_has_nothing(root, monkeypatch):
    monkeypatch.setenv("PATH", str(root / "none"))
    with started(
        SamplerSettings(**QUICK, metrics="http://127.0.0.1:9/metrics", root=str(root))
    ) as p:
        line = lines(p, lambda _: True)
    missing = ("gpu", "network", "rdma", "engine", "processes")
    assert [line[name] for name in missing] == [None] * len(missing)
    assert set(line["memory"].values()) == {None}
    assert line["notes"] == ["nvidia-smi: No such file or directory"]


def test_real_proc():
    with ending(Sampler(SamplerSettings())) as sampler:
        line = sampler.sample()
    assert line["memory"]["available_kib"] > 0
    assert line["memory"]["swapped_bytes"] >= 0, "/proc/vmstat is more than a page"
    assert isinstance(line["network"], dict)


# -- nvidia-smi -----------------------------------------------------------------------------------


@each_row(__file__, "sample.json", "gpus")
def test_the_cells_of_a_gpu(root, cells, found):
    nvidia_smi(root, gpu=loop(cells))
    with ending(GpuReader(1.0)) as reader:
        assert list(until(reader.now).values()) == found


def test_a_field_that_this_driver_does_not_have_is_left_out(root):
    field = THROTTLE["hw_slowdown"]
    said = f'Field "{field}" is not a valid field to query.'
    script = f"""case "$*" in *{field}*) echo '{said}'; echo; exit 2;; esac
    {loop("96, 2411, 45.10, 62, Active, Not Active, Not Active")}"""
    nvidia_smi(root, gpu=script)
    with ending(GpuReader(1.0)) as reader:
        assert until(reader.now)["throttle"] == ["sw_power_cap"]
        assert reader.note == ""


def test_a_driver_that_is_not_loaded_is_noted_and_asked_again(root, monkeypatch):
    monkeypatch.setattr(readers, "FIRST_PAUSE_S", 0.05)
    said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    nvidia_smi(root, gpu=f'test -e {root}/loaded || {{ echo "{said}"; exit 9; }}; {loop()}')
    with ending(GpuReader(1.0)) as reader:
        until(lambda: reader.now() or reader.note)
        assert reader.note == f"nvidia-smi ended: {said}"
        assert reader.now() is None
        (root / "loaded").touch()
        assert until(reader.now)["sm_clock_mhz"] == 2411.0
        assert reader.note == ""


def test_one_that_hangs_is_noted_ended_and_never_waited_for(root, monkeypatch):
    monkeypatch.setattr(readers, "SILENT_S", 0.2)
    hangs = "trap '' TERM; while :; do sleep 0.1; done"
    nvidia_smi(root, gpu=hangs, apps=hangs)
    slowest = 0.0
    with ending(GpuReader(0.1)) as gpu, ending(AppsReader(0.1)) as apps:
        while not (gpu.note and apps.note):
            began = time.monotonic()
            assert gpu.now() is None
            assert apps.now() is None
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(0.02)
    assert gpu.note == "nvidia-smi has printed nothing for 0.2 s"
    assert apps.note == "nvidia-smi has not answered for 0.2 s"
    assert slowest < HANG_S / 10
    until(lambda: not alive(f"{root}/usr/local/bin/nvidia-smi"))


def test_none_is_started_next_to_one_that_does_not_end(root, monkeypatch):
    """As in uninterruptible sleep, which no signal ends: its output stays open. They must not
    become many."""
    monkeypatch.setattr(readers, "SILENT_S", 0.1)
    monkeypatch.setattr(readers, "END_S", 0.1)
    monkeypatch.setattr(readers, "FIRST_PAUSE_S", 0.01)
    held = f"python3 -c 'import time; time.sleep(600)' {root}/held"
    nvidia_smi(root, apps=f"echo >>{root}/starts; {held} & echo $! >{root}/pid; wait")
    with ending(AppsReader(0.1)) as reader:
        until(lambda: reader.now() is None and reader.note)
        until(lambda: not alive(f"{root}/usr/local/bin/nvidia-smi") or reader.now())
        assert (root / "starts").read_text() == "\n"
        os.kill(int((root / "pid").read_text()), signal.SIGKILL)
        until(lambda: len((root / "starts").read_text()) > 1)
        os.kill(int((root / "pid").read_text()), signal.SIGKILL)


def test_figures_that_are_old_are_not_of_now(root):
    nvidia_smi(root, gpu=f"echo '{BUSY}'; exec sleep 600")
    with ending(GpuReader(0.1)) as reader:
        assert until(reader.now)
        until(lambda: reader.now() is None)


def test_no_process_and_one_whose_memory_is_not_told(root):
    nvidia_smi(root, apps=f"cat {root}/apps")
    held = put(root / "apps", "")
    with ending(AppsReader(0.01)) as reader:
        assert until(lambda: reader.now() is not None)
        held.write_text(f"{APPS}\n7, a, b, [N/A]\n")
        found = until(reader.now)
    assert found == [(2065247, "VLLM::Worker_TP0", 102843), (7, "a, b", None)]


# -- the engine -----------------------------------------------------------------------------------


def test_names_of_other_versions_and_engines():
    old = PAGE.replace("kv_cache_usage_perc", "gpu_cache_usage_perc")
    assert figures(old) == figures(PAGE)
    assert figures(PAGE) == SAMPLE["engine"]
    sglang = figures('sglang:num_running_reqs{a="b"} 3\nsglang:token_usage{a="b"} 0.5 1700000\n')
    assert (sglang["running"], sglang["kv_usage"], sglang["waiting"]) == (3, 0.5, None)


@each_row(__file__, "sample.json", "empty pages")
def test_pages_that_say_nothing(page):
    assert figures(page) is None


def engine_at(url):
    reader = EngineReader("", 1.0)
    reader._url = url
    return reader


def named(asked):
    """The names that a request asks the page for."""
    return parse_qs(urlsplit(asked.path).query).get("name[]", [])


@pytest.mark.parametrize("several", [False, True])
def test_only_the_names_that_the_page_has_are_asked_for(several):
    """Where it gives them: vLLM's page with several API servers is empty then."""

    def answer(asked):
        wanted = [n for n in PAGE.splitlines() if n.startswith(tuple(named(asked)) or "")]
        return 200, "" if several and named(asked) else "\n".join(wanted)

    with WebServer(answer) as server:
        reader = engine_at(server.url)
        assert [reader.ask()[0] for _ in range(3)] == [figures(PAGE)] * 3
        asked = [named(one) for one in server.asked]
    assert [bool(names) for names in asked] == [False, True, *[not several] * len(asked[2:])]
    assert "vllm:kv_cache_usage_perc" in asked[1]
    assert "vllm:gpu_cache_usage_perc" not in asked[1]


@pytest.mark.parametrize(
    ("answer", "why"),
    [((500, ""), "/metrics answers with status 500"),
     ((200, "up 1\n"), "its /metrics page has no figures of vLLM or SGLang")],
)  # fmt: skip
def test_why_there_are_no_figures(answer, why):
    with WebServer(lambda _asked: answer) as server:
        assert engine_at(server.url).ask() == (None, why)
    assert engine_at("http://127.0.0.1:9/metrics").ask() == (None, ""), "it is not there"


# -- where the lines go, and the end --------------------------------------------------------------


def test_a_reader_that_does_not_read_costs_lines_and_no_wait():
    out, into = os.pipe()
    pipe, line = Pipe(into), "x" * 999 + "\n"
    for _ in range(1000):
        pipe.write(line)
    os.close(into)
    with os.fdopen(out) as text:
        *whole, _torn = text.read().split("\n")
    assert 10 < len(whole) < 1000
    assert set(whole) == {line[:-1]}


def test_a_file_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(telemetry, "FILE_LIMIT", 100)
    out = TelemetryFile(tmp_path / "t.jsonl")
    for number in range(200):
        out.write(f"{number:09}\n")
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    older = {f"t.jsonl.{number}" for number in range(1, telemetry.KEPT_FILES)}
    assert sizes == dict.fromkeys({"t.jsonl", *older}, 100)
    assert (tmp_path / "t.jsonl").read_text().endswith("000000199\n")
    assert (tmp_path / "t.jsonl.1").read_text().endswith("000000189\n")


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path):
    TelemetryFile(Path("/dev/full")).write("lost\n")
    out = TelemetryFile(tmp_path / "none/t.jsonl")
    out.write("lost\n")
    (tmp_path / "none").mkdir()
    out.write("kept\n")
    assert (tmp_path / "none/t.jsonl").read_text().strip() == "kept"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, None])
def test_a_signal_ends_all_of_it_and_so_does_the_end_of_who_reads(root, number):
    nvidia_smi(root)
    with started(SamplerSettings(**QUICK, root=str(root))) as process:
        lines(process, lambda t: t["gpu"])
        assert alive(f"{root}/usr/local/bin/nvidia-smi")
        if number is None:
            process.stdout.close()
            process.stdout = None
        else:
            process.send_signal(number)
        assert process.wait(HANG_S) == 0
        assert not alive(f"{root}/usr/local/bin/nvidia-smi")


# -- by the agent ---------------------------------------------------------------------------------


def test_the_agent_streams_it_and_ends_it(agent, tmp_path):
    root = tmp_path / "spark1"
    put_system(root)
    nvidia_smi(root)
    session, settings = agent(), SamplerSettings(**QUICK, root=str(root))
    seen = []

    class Enough(Exception):
        pass

    def take(event):
        seen.append(event["text"])
        if "2411" in "".join(seen):
            raise Enough

    with pytest.raises(Enough):
        session.request("stream", take, program=telemetry.PROGRAM, argv=[settings.word])
    assert alive(f"{root}/usr/local/bin/nvidia-smi")
    session.close()
    assert not alive(f"{root}/usr/local/bin/nvidia-smi")
    assert not alive(f'"root": "{root}"')
    first = json.loads("".join(seen).split("\n")[0])
    assert first["rdma"]["rocep1s0f1"]["rx"] == 100


def test_it_ends_with_the_agent(agent, tmp_path):
    """Killed, so that it cannot say so."""
    root = tmp_path / "spark1"
    put_system(root)
    nvidia_smi(root)
    settings = SamplerSettings(**QUICK, root=str(root))
    ended = []

    def kill(_event):
        if not ended:
            (sampler,) = (
                path.parent
                for path in Path("/proc").glob("[0-9]*/cmdline")
                if path.read_bytes().split(b"\0")[-2:-1] == [settings.word.encode()]
            )
            ended.append(int((sampler / "stat").read_text().rpartition(")")[2].split()[1]))
            os.kill(ended[0], signal.SIGKILL)

    with pytest.raises(Unreachable):
        agent().request("stream", kill, program=telemetry.PROGRAM, argv=[settings.word])
    until(lambda: not alive(settings.word))
    assert not alive(f"{root}/usr/local/bin/nvidia-smi")


def test_a_unit_of_its_own(agent, agents_home, tmp_path):
    root = tmp_path / "spark1"
    calls = root / "calls"
    put(root / "usr/local/bin/systemctl", f"#!/bin/sh\ntest -e {calls}\n", 0o755)
    put(root / "usr/local/bin/systemd-run", f'#!/bin/sh\necho "$@" >> {calls}\n', 0o755)
    words = [SamplerSettings(file="/var/lib/t.jsonl").word, "spark-cluster-telemetry-r1.service"]
    for _ in range(2):
        assert agent().run([*words, "60"], program=f"{telemetry.PROGRAM}:start_unit").status == 0
    said = calls.read_text()
    assert said.count("\n") == 1
    assert "--unit=spark-cluster-telemetry-r1.service" in said
    assert "--property=RuntimeMaxSec=60" in said
    assert '"file": "/var/lib/t.jsonl"' in said
    kept = f"{agents_home}/.cache/spark-cluster/agent/{wire.digest()}/compiled/"
    assert f"-I -S -X pycache_prefix={kept}" in said, "its modules are compiled once in a boot"


def test_a_unit_that_does_not_start(agent, tmp_path):
    commands = tmp_path / "spark1/usr/local/bin"
    put(commands / "systemctl", "#!/bin/sh\nexit 3\n", 0o755)
    put(commands / "systemd-run", "#!/bin/sh\necho no bus >&2; exit 1\n", 0o755)
    done = agent().run(["{}", "a.service", "60"], program=f"{telemetry.PROGRAM}:start_unit")
    assert (done.status, done.stderr) == (1, "no bus\n")
