"""`explain` on what CUDA vLLM logged on H200s when it failed (excerpts in `data/gpu`)."""

from __future__ import annotations

import pytest
from factories import log_of
from gpu_runs import DATA

from spark_cluster.issues import explain as explain_module
from spark_cluster.issues.explain import Explanation
from spark_cluster.issues.log_reading import of_file


def of_run(name: str) -> Explanation:
    return explain_module.explain([of_file(str(DATA / f"{name}.log"))])


def of_line(line: str) -> Explanation:
    return explain_module.explain([log_of(f"{line}\n", "engine.log")])


@pytest.mark.parametrize(
    ("run", "issue", "verdict"),
    [
        ("worker_killed_mp", "worker-died", "cause"),
        ("worker_killed_ray", "worker-died", "cause"),
        ("engine_killed", "worker-died", "cause"),
        ("worker_hung_mp", "worker-stopped-answering", "likely"),
        ("no_network", "hub-unreachable", "cause"),
        ("no_model_folder", "model-path-missing", "cause"),
        ("memory_held_by_another", "memory-held-by-others", "cause"),
        ("gemma4_new_transformers", "gemma4-transformers-5.15", "cause"),
        ("wrong_flag_value", "wrong-flag-value", "cause"),
        ("no_python_package", "python-package-missing", "likely"),
    ],
)
def test_a_failure_is_named(run: str, issue: str, verdict: str) -> None:
    explanation = of_run(run)
    cause = explanation.cause
    assert cause is not None
    assert (cause.finding.id, explanation.verdict) == (issue, verdict)
    assert cause.finding.severity == "error"


@pytest.mark.parametrize("run", ["worker_killed_mp", "worker_killed_ray"])
def test_a_killed_worker_is_no_echo(run: str) -> None:
    """What the engine and the server say of it comes after, and is marked so."""
    explanation = of_run(run)
    assert explanation.cause is not None
    assert not explanation.cause.follows
    others = [seen for seen in explanation.problems if seen is not explanation.cause]
    assert others
    assert all(seen.follows for seen in others)


def test_a_killed_worker_is_not_the_cause_while_a_ranks_log_is_missing() -> None:
    text = (
        "(EngineCore pid=1) INFO 11-21 23:47:58 [core.py:116] Initializing a V1 LLM engine "
        "(v0.26.0) with config: model='m', tensor_parallel_size=2\n"
        "(Worker_TP0 pid=2) INFO 11-21 23:48:23 [a.py:1] Model loading took 29.3 GiB and 2 s\n"
        "(EngineCore pid=1) ERROR 11-21 23:48:38 [multiproc_executor.py:284] Worker proc "
        "VllmWorker-0 died unexpectedly (exit code: None), shutting down executor.\n"
    )
    explanation = explain_module.explain([log_of(text, "rank0.log")])
    assert explanation.verdict == "effects"


def test_no_network_is_one_finding() -> None:
    errors = [s for s in of_run("no_network").problems if s.finding.severity == "error"]
    assert [seen.finding.id for seen in errors] == ["hub-unreachable"]


def test_who_holds_the_memory_is_said() -> None:
    cause = of_run("memory_held_by_another").cause
    assert cause is not None
    assert "process 14419 holds 105.60 GiB" in cause.finding.cause


def test_who_holds_the_memory_is_not_made_up() -> None:
    line = "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by others."
    cause = of_line(line).cause
    assert cause is not None
    assert cause.finding.id == "memory-held-by-others"
    assert "PID" not in cause.finding.cause


def test_gemma_4_with_new_transformers_names_both_versions() -> None:
    cause = of_run("gemma4_new_transformers").cause
    assert cause is not None
    assert "0.26" in cause.finding.cause
    assert "5.14.1" in cause.finding.fix


def test_no_visible_gpu() -> None:
    cause = of_line(
        "AssertionError: DP adjusted local rank 0 is out of bounds for 0 devices."
    ).cause
    assert cause is not None
    assert cause.finding.id == "gpu-dead"


def test_nccl_in_one_host_is_no_warning() -> None:
    explanation = of_run("worker_killed_mp")
    assert "nccl-sockets" not in {seen.finding.id for seen in explanation.problems}
    assert explanation.facts["link"] == "P2P, within one host"
    assert not any("NCCL" in text for text in explanation.missing)


P2P = "spark1:9:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
SOCKET = "spark1:9:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 2[0] [send] via NET/Socket/0\n"
IB = "spark1:9:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 2[0] [send] via NET/IB/0\n"


@pytest.mark.parametrize("text", [P2P + SOCKET, SOCKET + P2P, IB + SOCKET, SOCKET])
def test_a_channel_over_sockets_is_a_warning_whatever_the_other_channels_are(text: str) -> None:
    explanation = explain_module.explain([log_of(text, "engine.log")])
    assert [seen.finding.id for seen in explanation.problems] == ["nccl-sockets"]


@pytest.mark.parametrize(
    ("text", "link"),
    [
        (P2P, "P2P, within one host"),
        (P2P + SOCKET, "NET/Socket, between hosts"),
        (SOCKET + P2P, "NET/Socket, between hosts"),
        (P2P + IB, "NET/IB, between hosts"),
        (IB + P2P, "NET/IB, between hosts"),
    ],
)
def test_the_link_is_what_joins_the_hosts(text: str, link: str) -> None:
    assert explain_module.explain([log_of(text, "engine.log")]).facts["link"] == link


def test_an_engine_that_was_stopped_has_no_error() -> None:
    """vLLM's server reports its own engine as dead while it shuts it down."""
    explanation = of_run("stopped_by_user")
    assert explanation.verdict == "no-error"
    assert explanation.facts["end"] == "it was asked to stop"


def test_an_error_before_the_stop_stays_one() -> None:
    error = (
        "(EngineCore pid=1) ERROR 11-21 23:38:59 [core.py:1] torch.OutOfMemoryError: CUDA out of "
        "memory. Tried to allocate 2.00 GiB.\n"
    )
    before, first, after = (
        (DATA / "stopped_by_user.log")
        .read_text()
        .partition("(APIServer pid=6477) INFO 11-21 23:39:02")
    )
    text = before + error + first + after
    cause = explain_module.explain([log_of(text, "engine.log")]).cause
    assert cause is not None
    assert cause.finding.id == "cuda-out-of-memory"


def test_the_error_of_a_process_that_inspects_the_model_is_the_decisive_line() -> None:
    cause = of_run("model_not_inspected").cause
    assert cause is not None
    assert "requires the CUDA flash attention extensions" in cause.finding.found


def out_of_memory(holders: str, allocated: str = "8.50 GiB", capacity: str = "79.18 GiB") -> str:
    return (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a "
        f"total capacity of {capacity} of which 19.12 MiB is free. {holders} Of the allocated "
        f"memory {allocated} is allocated by PyTorch, and 94.66 MiB is reserved by PyTorch but "
        "unallocated."
    )


NOT_ANOTHER = [
    # In a container PyTorch does not know its own PID among NVML's.
    out_of_memory("Process 8165 has 14.20 GiB memory in use.", "13.98 GiB", "14.74 GiB"),
    out_of_memory("Process 14419 has 17179869184.00 GiB memory in use."),
    out_of_memory(
        "Process 14419 has 17179869184.00 GiB memory in use. Including non-PyTorch memory, this "
        "process has 17179869184.00 GiB memory in use."
    ),
    out_of_memory("Process 1 has 78.00 GiB memory in use.", "77.50 GiB"),
    "torch.OutOfMemoryError: CUDA out of memory. Process 14419 has 17179869184.00 GiB memory in "
    "use. Including non-PyTorch memory, this process has 3.00 GiB memory in use.",
    # Cut before what PyTorch has allocated: nothing tells whose PID that is.
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total "
    "capacity of 14.74 GiB of which 19.12 MiB is free. Process 8165 has 14.20 GiB memory in use.",
]


@pytest.mark.parametrize("line", NOT_ANOTHER)
def test_the_engine_itself_is_no_other_process(line: str) -> None:
    explanation = of_line(line)
    assert [seen.finding.id for seen in explanation.problems] == ["cuda-out-of-memory"]


ANOTHER = [
    ("Process 7 has 70.00 GiB memory in use. Process 8 has 8.90 GiB memory in use.", "7", "70.00"),
    ("Process 8 has 8.90 GiB memory in use. Process 7 has 70.00 GiB memory in use.", "7", "70.00"),
    (
        "Process 5 has 60.00 GiB memory in use. Process 6 has 9.00 GiB memory in use. Including "
        "non-PyTorch memory, this process has 9.10 GiB memory in use.",
        "5",
        "60.00",
    ),
    (
        "Process 4 has 17179869184.00 GiB memory in use. Process 6 has 30.00 GiB memory in use. "
        "Including non-PyTorch memory, this process has 40.00 GiB memory in use.",
        "6",
        "30.00",
    ),
]


@pytest.mark.parametrize(("holders", "pid", "gib"), ANOTHER)
def test_the_largest_of_the_other_processes_is_named(holders: str, pid: str, gib: str) -> None:
    explanation = of_line(out_of_memory(holders))
    assert [seen.finding.id for seen in explanation.problems] == ["memory-held-by-others"]
    assert explanation.cause is not None
    assert f"process {pid} holds {gib} GiB" in explanation.cause.finding.cause


def test_who_holds_the_memory_is_named_in_the_log_of_a_load() -> None:
    cause = of_run("failures/load").cause
    assert cause is not None
    assert cause.finding.id == "memory-held-by-others"
    assert "process 99 holds 49.26 GiB" in cause.finding.cause


def end_of(run: str, begin: str) -> Explanation:
    """Explain the end of a run's log, as `docker logs --tail` or rotation leaves it."""
    text = (DATA / f"{run}.log").read_text()
    return explain_module.explain([log_of(text[text.index(begin) :], "engine.log")])


@pytest.mark.parametrize(
    ("run", "begin"),
    [
        ("worker_killed_mp", '"POST /v1/'),
        ("worker_killed_ray", "Application startup complete"),
        ("worker_killed_ray", '"POST /v1/'),
        ("engine_killed", '"POST /v1/'),
    ],
)
def test_a_killed_worker_is_the_cause_in_a_log_without_its_start(run: str, begin: str) -> None:
    explanation = end_of(run, begin)
    assert explanation.verdict == "cause"
    assert explanation.cause is not None
    assert explanation.cause.finding.id == "worker-died"
    assert "the server's start: the log begins later" in explanation.missing


def test_a_log_that_begins_with_the_death_of_a_worker_does_not_tell_the_cause() -> None:
    """What came before it may be in the part that is missing."""
    begin = "(EngineCore pid=20268) ERROR 11-21 23:48:38"
    assert end_of("worker_killed_mp", begin).verdict == "effects"


def test_a_single_ranks_log_without_its_start_does_not_tell_the_cause() -> None:
    text = (
        '(APIServer pid=1) INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK\n'
        "(Worker_TP0 pid=2) WARNING 11-21 23:48:34 [jit_monitor.py:135] Triton kernel JIT\n"
        "(EngineCore pid=1) ERROR 11-21 23:48:38 [multiproc_executor.py:284] Worker proc "
        "VllmWorker-0 died unexpectedly (exit code: None), shutting down executor.\n"
    )
    assert explain_module.explain([log_of(text, "rank0.log")]).verdict == "effects"


def test_more_ranks_than_gpus_is_said_rightly_of_a_node_with_several_gpus() -> None:
    cause = of_line(
        "ValueError: World size (4) is larger than the number of available GPUs (2) in this node."
    ).cause
    assert cause is not None
    assert cause.finding.id == "tp-without-executor"
    assert "more GPUs than the node has" in cause.finding.title
