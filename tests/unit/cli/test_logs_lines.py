"""`logs`: the last lines of all logs by time, with one time stamp, and without our own requests."""

from __future__ import annotations

from spark_cluster.cli.doctor import last_lines

VLLM = """\
2026-11-25T07:40:06.909532253Z 2026-11-25 07:40:06,908 \x1b[37mINFO\x1b[0m one
2026-11-25T07:40:08.1Z (EngineCore pid=2388) WARNING 11-25 07:40:08 [ray_utils.py:321] three
    of which more is told
2026-11-25T07:40:09.1Z INFO:     127.0.0.1:39566 - "GET /health HTTP/1.1" 200 OK
2026-11-25T07:40:09.2Z INFO:     127.0.0.1:1 - "GET /metrics?name=a HTTP/1.1" 200 OK
2026-11-25T07:40:09.3Z INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 503 Service Unavailable
"""
RAY = "2026-11-25T07:40:07.5Z two\n2026-11-25T07:40:10Z at 2026-11-25 of last\n"
TEXTS = {("spark1", "spark-vllm"): VLLM, ("spark2", "spark-ray"): RAY}


def test_all_logs_by_time() -> None:
    assert last_lines(TEXTS, 50) == [
        "2026-11-25T07:40:06Z spark1 vllm: \x1b[37mINFO\x1b[0m one",
        "2026-11-25T07:40:07Z spark2 ray: two",
        "2026-11-25T07:40:08Z spark1 vllm: (EngineCore pid=2388) WARNING [ray_utils.py:321] three",
        "2026-11-25T07:40:08Z spark1 vllm:     of which more is told",
        '2026-11-25T07:40:09Z spark1 vllm: INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 503 '
        "Service Unavailable",
        "2026-11-25T07:40:10Z spark2 ray: at 2026-11-25 of last",
    ]


def test_so_many_and_the_newest() -> None:
    assert last_lines(TEXTS, 2) == last_lines(TEXTS, 50)[-2:]
    assert last_lines({("spark1", "spark-ray"): "no stamp\n"}, 5) == ["spark1 ray: no stamp"]
    assert last_lines({}, 5) == []
