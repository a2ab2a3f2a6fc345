"""Logs of any kind and length: what is found does not depend on how they are cut into pieces."""

from __future__ import annotations

import gzip
from io import BytesIO
from unittest.mock import patch

import pytest
from factories import log_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.issues import log_reading
from spark_cluster.issues.explain import explain
from spark_cluster.issues.log_reading import LogSource, Reader, of_file

ANCHORS = ("needle", "KV cache")


def source(data: bytes) -> LogSource:
    return LogSource("x.log", lambda: BytesIO(data))


def found(data: bytes) -> list[tuple[int, str]]:
    return [(c.number, c.text) for c in Reader(source(data), ANCHORS).candidates()]


def expected(data: bytes) -> list[tuple[int, str]]:
    lines = enumerate(data.split(b"\n"), 1)
    return [
        (n, line.decode("utf-8", "replace"))
        for n, line in lines
        if any(a.encode() in line for a in ANCHORS)
    ]


line = st.one_of(
    st.sampled_from(["", "a needle here", "needle", "KV cache needle", "x\r", "ähm needle\r"]),
    st.text(alphabet=st.characters(exclude_characters="\n\0", codec="utf-8"), max_size=40),
)


@given(st.lists(line, max_size=30), st.integers(1, 64), st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_pieces_of_any_size(lines, chunk, ended):
    data = ("\n".join(lines) + ("\n" if ended else "")).encode()
    with patch.object(log_reading, "CHUNK", chunk), patch.object(log_reading, "_must_be_text"):
        assert found(data) == expected(data)


@given(st.binary(max_size=3000))
@settings(deadline=None)
def test_random_bytes_are_read_or_refused(data):
    try:
        explain([source(data)])
    except InvalidFile as error:
        assert error.where == "x.log"


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_what_is_no_text_in_the_middle_is_tolerated(noise):
    data = b"fine\n" * 2000 + noise.replace(b"\n", b"") + b"\nValueError: real\n"
    explanation = explain([source(data)])
    assert "ValueError: real" in [p.finding.found for p in explanation.problems]


def test_a_giant_line_takes_no_memory_and_hides_nothing():
    data = b"a" * (5 << 20) + b" needle " + b"b" * (3 << 20) + b"\nValueError: late\n"
    reader = Reader(source(data), ANCHORS)
    pieces = [c.text for c in reader.candidates()]
    assert len(pieces) == 1
    assert len(pieces[0]) <= log_reading.DECODED
    assert reader.bytes == len(data)
    (seen,) = explain([source(data)]).problems
    assert seen.finding.found == "ValueError: late"


def test_windows_line_ends_and_progress_bars():
    data = b"  0%|  | 0/3\r 33%|# | 1/3\r\nValueError: x\r\n100%|###\rOSError: y\r\n"
    said = [p.finding.found for p in explain([source(data)]).problems]
    assert said == ["ValueError: x", "OSError: y"]


def test_lines_are_counted_over_pieces():
    data = b"x\n" * 700_000 + b"ValueError: here\n"
    (seen,) = explain([source(data)]).problems
    assert seen.number == 700_001


def test_context_reaches_over_pieces():
    trace = b"(W pid=1)   File a.py, line 3, in tie_weights\n(W pid=1) NotImplementedError\nend\n"
    for before in range(0, 80, 7):
        data = b"-" * before + b"\n" + trace
        with patch.object(log_reading, "CHUNK", 40):
            explanation = explain([source(data)])
        assert explanation.cause.finding.id == "gemma4-tie-weights"


def test_a_gz(tmp_path):
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(b"RuntimeError: No CUDA GPUs are available\n"))
    assert explain([of_file(str(path))]).cause.finding.id == "gpu-dead"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InvalidFile, match="damaged"):
        explain([of_file(str(path))])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x7fELF\x02\x01\x01\0\0\0", "binary"),
        (bytes(range(1, 9)) * 50, "binary"),
        ("Übel\n".encode("utf-16"), "UTF-16"),
    ],
)
def test_no_text(data, said):
    with pytest.raises(InvalidFile, match=said) as caught:
        explain([source(data)])
    assert caught.value.hint


def test_nothing_to_read(tmp_path):
    with pytest.raises(InvalidFile, match="no such file"):
        explain([of_file(str(tmp_path / "none"))])
    with pytest.raises(InvalidFile, match="folder"):
        explain([of_file(str(tmp_path))])
    with pytest.raises(UsageError, match="no log"):
        log_reading.sources([])
    with pytest.raises(UsageError, match="twice"):
        log_reading.sources(["a", "b", "a"])
    assert explain([log_of("")]).problems == []


def test_a_folder_of_logs(tmp_path):
    """As Ray's session_latest: many files, some of them packed, empty, or no logs."""
    logs = tmp_path / "session_1" / "logs"
    (logs / "old").mkdir(parents=True)
    (logs / "raylet.out").write_text("[2025-06-13 01:49:41,730 E 1 1] x.cc:1: late\n")
    (logs / "worker-1.err").write_text("")
    (logs / "gcs_server.out.1").write_text("fine\n")
    (logs / "old" / "worker-2.log.gz").write_bytes(gzip.compress(b"OSError: packed\n"))
    (logs / "events.json").write_text("OSError: not a log\n")
    (logs / "link.log").symlink_to("/etc/hostname")
    latest = tmp_path / "session_latest"
    latest.symlink_to("session_1")
    found = log_reading.sources([str(latest)], short=True)
    assert [s.name for s in found] == ["gcs_server.out.1", "worker-2.log.gz", "raylet.out"]
    assert explain(found).cause.finding.found == "OSError: packed"


def test_a_folder_without_logs(tmp_path):
    with pytest.raises(InvalidFile, match="no log in this folder") as caught:
        log_reading.sources([str(tmp_path)])
    assert ".log" in caught.value.hint
    for number in range(3):
        (tmp_path / f"{number}.log").write_text("x\n")
    with (
        patch.object(log_reading, "MOST_FILES", 2),
        pytest.raises(InvalidFile, match="more than 2 logs"),
    ):
        log_reading.sources([str(tmp_path)])


def test_files_are_called_by_what_tells_them_apart():
    names = ["/logs/spark1/vllm.log", "/logs/spark2/vllm.log", "/logs/ray.log", "-"]
    assert [s.name for s in log_reading.sources(names, short=True)] == [
        *("spark1/vllm.log", "spark2/vllm.log", "ray.log", "standard input")
    ]
    assert [s.name for s in log_reading.sources(names[:3])] == names[:3]
