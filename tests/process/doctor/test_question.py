"""Questions to a node, run for real: shell scripts, and the whole question to a real agent."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from doctor_samples import containers
from factories import put
from waiting import HANG_S

from spark_cluster.doctor import examine, observations, serving
from spark_cluster.doctor.observations import Context, Observations, question, sources
from spark_cluster.node.containers import parse_containers

DOCKER = Path(__file__).with_name("docker.sh").read_text()


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """Runs a script where `docker` is a fake with files next to it."""
    put(tmp_path / "docker", DOCKER, 0o755)
    (tmp_path / "names").write_text(
        "web nginx:1 nginx\nspark-vllm vllm:1 vllm\ntray-app x:1 sh\n"
        "spark-pause vllm:1 sleep infinity\n"
    )
    (tmp_path / "inspected").write_text(json.dumps(containers(1)))

    def script(name: str, *words: str) -> str:
        path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        argv = observations.shell(observations.script(name), *words)
        done = subprocess.run(argv, env=path, capture_output=True, text=True, check=True)
        return done.stdout

    return script


def test_only_containers_of_engines_are_looked_at(run):
    assert run("logs", "x").splitlines() == ["==> spark-vllm"]
    assert run("versions", "code") == "==> spark-vllm\nray=2.60.0\n"
    assert run("images") == "sha256:1 arm64\n"
    assert json.loads(run("containers"))[0]["Name"] == "/spark-ray"


@contextmanager
def engine(*path: str) -> Iterator[int]:
    """Yield the PID of a process with this PATH, as of an engine."""
    with subprocess.Popen(["/bin/sleep", "1000"], env={"PATH": ":".join(path)}) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def test_versions_are_read_from_the_containers_files(run, tmp_path):
    """In the order of its PATH, as Python would; a Python is started only if there is none."""
    packages = ("env/lib/python3.12/site-packages", "usr/lib/python3/dist-packages")
    for folder, version in zip(packages, ("0.32.0+cu130", "0.11.0"), strict=True):
        (tmp_path / folder / f"vllm-{version}.dist-info").mkdir(parents=True)
    with engine(*(f"{tmp_path}/{bin}" for bin in ("none/*/bin", "env/bin", "usr/bin"))) as pid:
        (tmp_path / "pid").write_text(str(pid))
        assert run("versions", "code") == "==> spark-vllm\nvllm=0.32.0+cu130\n"


def test_versions_of_a_unit_are_read_without_docker(tmp_path):
    """As on a node that serves in a virtual environment: systemd tells the program."""
    (tmp_path / "env/lib/python3.12/site-packages/ray-2.60.0.dist-info").mkdir(parents=True)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "tr", "sed"):
        (programs / name).symlink_to(str(shutil.which(name)))
    with engine(f"{tmp_path}/env/bin") as pid:
        asked = f'[ "$5" = spark-ray.service ] && echo {pid} || echo 0'
        put(programs / "systemctl", f"#!/bin/sh\n{asked}\n", 0o755)
        argv = observations.shell(observations.script("versions"), "code")
        path = {"PATH": str(programs)}
        done = subprocess.run(argv, env=path, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("==> spark-ray\nray=2.60.0\n", "")


def test_without_containers(run, tmp_path):
    (tmp_path / "names").write_text("")
    assert run("containers") == "[]\n"
    assert run("logs", "x") == run("images") == run("versions", "c") == ""


def test_a_long_log_costs_few_lines(run, tmp_path):
    """The last twenty of each word, however many there are of another."""
    noise = [f"2026-11-20T14:00:00.{n:09}Z EngineDeadError {n}" for n in range(1000)]
    said = "2026-11-20T13:00:00.5Z NCCL INFO via NET/Socket/0"
    (tmp_path / "log-spark-vllm").write_text("\n".join(["nothing", said, *noise]) + "\n")
    text = run("logs", *serving.WORDS)
    (engine, *_) = parse_containers(json.dumps(containers(1)[1:]), text)
    assert len(engine.log) == 21
    assert engine.log[0].text == "NCCL INFO via NET/Socket/0"
    assert engine.log[-1].text == "EngineDeadError 999"


@pytest.mark.parametrize("rule", serving.SEARCHES, ids=lambda rule: rule.id)
def test_the_node_keeps_the_line_of_each_rule(run, tmp_path, rule):
    (tmp_path / "log-spark-vllm").write_text(f"2026-11-20T14:00:00.5Z {rule.sample}\n")
    assert rule.sample in run("logs", *serving.WORDS)


def test_the_journal_of_our_units_costs_few_lines(run, tmp_path):
    """Logs of units that exist only; a journal that cannot be read is reported."""
    journalctl = tmp_path / "journalctl"
    lines = [f"2026-11-20T14:00:00.{n:06}+00:00 spark1 spark-vllm[7]: {n}" for n in range(1000)]
    (tmp_path / "journal").write_text("\n".join([*lines, lines[0] + " EngineDeadError"]) + "\n")
    put(journalctl, '#!/bin/sh\necho "$@" >> "${0%/*}/asked"\ncat "${0%/*}/journal"\n', 0o755)
    assert run("unit-logs", str(tmp_path), "EngineDeadError") == ""
    (tmp_path / "spark-vllm.service").touch()
    found = run("unit-logs", str(tmp_path), "EngineDeadError", "another")
    assert found == f"==> spark-vllm\n{lines[0]} EngineDeadError\n"
    (asked,) = (tmp_path / "asked").read_text().splitlines()
    assert "--unit spark-vllm.service --since @" in asked
    assert "--lines 20000 --output short-iso-precise --utc" in asked
    journalctl.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(subprocess.CalledProcessError):
        run("unit-logs", str(tmp_path), "x")


def test_only_what_the_kernel_itself_logged_is_kept_and_by_time(run, tmp_path):
    """P09: `_TRANSPORT=kernel`, not the name under which anyone may log; a flood hides nothing."""
    journalctl = tmp_path / "journalctl"
    stamp = "2026-11-20T14:00:{:02}.{:06}+00:00 spark1 kernel: "
    flood = [stamp.format(30, n) + "PCIe Bus Error: severity=Corrected" for n in range(1000)]
    oops = [stamp.format(1, 0) + "pc : mst_ioctl", stamp.format(0, 0) + "Unable to handle kernel"]
    (tmp_path / "journal").write_text("\n".join([*reversed(oops), *flood, "routine"]) + "\n")
    put(journalctl, '#!/bin/sh\necho "$@" >"${0%/*}/asked"\ncat "${0%/*}/journal"\n', 0o755)
    kept = run("kernel", "-1", "pc : ", "severity=", "Unable to handle").splitlines()
    assert kept[:2] == [oops[1], oops[0]]
    assert kept[2:] == flood[-observations.KEPT_LINES :]
    asked = (tmp_path / "asked").read_text()
    assert "--dmesg --boot -1 --lines 20000" in asked
    assert "--identifier" not in asked
    journalctl.write_text("#!/bin/sh\necho 'no persistent journal was found' >&2\nexit 1\n")
    with pytest.raises(subprocess.CalledProcessError) as ended:
        run("kernel", "-1", "x")
    assert "no persistent journal" in ended.value.stderr


def test_records_of_a_crash_count_while_they_are_of_the_last_boot(run, tmp_path):
    """R02: what the firmware still holds, and what systemd-pstore took from it since this boot."""
    firmware, archive = tmp_path / "pstore", tmp_path / "archive"
    for path, said, at in (
        (firmware / "dmesg-efi_pstore-1", "<4>[  8.1] pc : nvme_setup_rw+0x30/0x1f0", 1.0),
        (firmware / "console-ramoops-0", "pc : of another kind of record", None),
        (archive / "171/dmesg.txt", "<0>[  9.1] Kernel panic - not syncing: of today", None),
        (archive / "100/dmesg.txt", "Kernel panic - not syncing: of last year", 1.0),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{said}\nroutine\n")
        if at is not None:
            os.utime(path, (at, at))
    kept = run("pstore", str(firmware), str(archive), "pc : ", "Kernel panic")
    assert [line.partition("] ")[2] for line in kept.splitlines()] == [
        "pc : nvme_setup_rw+0x30/0x1f0",
        "Kernel panic - not syncing: of today",
    ]
    assert run("pstore", "/nowhere", "/nowhere", "x") == ""


def test_models_are_listed_with_sizes(run, tmp_path):
    snapshot = tmp_path / "models--a--b/snapshots/123"
    blobs = tmp_path / "models--a--b/blobs"
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True)
    (blobs / "f00").write_text("weights")
    (snapshot / "model.safetensors").symlink_to("../../blobs/f00")
    (snapshot / "config.json").symlink_to("../../blobs/missing")
    cached = tmp_path / "caches/huggingface/hub/models--c--d"
    cached.mkdir(parents=True)
    (cached / "w").write_text("1")
    found = (str(tmp_path / "models--a--b"), str(tmp_path / "no such"))
    listed = run("models", str(tmp_path / "caches"), *found)
    assert f"==> {cached}\n1 w\n" in listed
    assert f"==> {tmp_path}/models--a--b\n7 snapshots/123/model.safetensors\n" in listed
    assert "blobs" not in listed
    assert "config.json" not in listed


def test_the_whole_question_to_a_real_agent(agent):
    """Any machine answers in a form that every check can read, in one request."""
    context = Context("root", serving.WORDS)
    session = agent("spark1")
    answer = session.request("gather", **question(context), timeout=HANG_S)  # type: ignore[attr-defined]
    seen = Observations("spark1", answer, _sources=sources(context))
    for result in examine.judge([seen, seen]):
        assert result.status in ("ok", "warn", "fail", "unknown")
        assert result.found, result
        assert result.looked_at
    size = len(json.dumps(answer))
    assert size < 500_000
