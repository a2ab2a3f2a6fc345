"""`logs`: the last lines of all logs by time, with one time stamp, and without our own requests."""

from cases import cases

from spark_cluster.cli.doctor import last_lines

VLLM, RAY, LINES = cases(__file__, "logs_lines.toml").values()
TEXTS = {("spark1", "spark-vllm"): VLLM, ("spark2", "spark-ray"): RAY}


def test_all_logs_by_time():
    assert last_lines(TEXTS, 50) == LINES


def test_so_many_and_the_newest():
    assert last_lines(TEXTS, 2) == last_lines(TEXTS, 50)[-2:]
    assert last_lines({("spark1", "spark-ray"): "no stamp\n"}, 5) == ["spark1 ray: no stamp"]
    assert last_lines({}, 5) == []
