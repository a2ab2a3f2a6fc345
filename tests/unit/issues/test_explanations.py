"""`explain` beyond single logs (explained.toml): floods, cut logs, quotes, words of the engine."""

from __future__ import annotations

import re
import textwrap

import pytest
from cases import each_row
from factories import log_of
from gpu_runs import DATA

from spark_cluster.issues import explain as explain_module
from spark_cluster.issues import log_lines
from spark_cluster.issues.entries import catalogue
from spark_cluster.issues.explain import SHOWN, Explanation, known_in
from spark_cluster.issues.log_lines import joined, raised, read
from spark_cluster.issues.startup import SGLANG

VLLM_WORDS = re.compile(r"vLLM|VLLM_|vllm/|--(?:moe-backend|enforce-eager|gpu-memory-utilization)")
OF_SGLANG = "[2026-08-27 10:02:16 TP0] sglang is using nccl==2.28.3\n"


def explain(*texts: str) -> Explanation:
    return explain_module.explain([log_of(text, f"log{n}") for n, text in enumerate(texts)])


# --- the words of the engine that wrote the log -------------------------------------------------


def test_flags_of_vllm_become_those_of_sglang():
    said = SGLANG.in_its_words("--enforce-eager, a lower --max-num-seqs-x, --max-num-seqs 4, vLLM")
    assert said == (
        "--disable-cuda-graph, a lower --max-num-seqs-x, --max-running-requests 4, SGLang"
    )


def test_advice_is_for_the_engine_of_its_log():
    """In `explain`, and in what `status` and `up` say of an error."""
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert "--gpu-memory-utilization" in explain(error + "\n").cause.finding.fix
    fix = explain(f"{OF_SGLANG}{error}\n").cause.finding.fix
    assert "--mem-fraction-static" in fix
    assert not VLLM_WORDS.search(fix)
    assert "--gpu-memory-utilization" in known_in(error, error).fix
    assert not VLLM_WORDS.search(known_in(OF_SGLANG + error, error).fix)
    assert known_in(OF_SGLANG, "all is well") is None


@pytest.mark.parametrize("id", sorted(i.id for i in catalogue().values() if "sglang" in i.fixes))
def test_a_fix_of_sglang_is_one(id):
    assert not VLLM_WORDS.search(SGLANG.in_its_words(catalogue()[id].fix_for([], "sglang")))


# --- quotes -------------------------------------------------------------------------------------


def test_a_long_error_is_quoted_with_its_end():
    """Its end says what to do; no word is broken."""
    words = " ".join(f"word{n}" for n in range(200))
    quote = explain(f"ValueError: {words}; set --max-model-len 4096\n").cause.finding.found
    assert len(quote) <= SHOWN + 3
    assert quote.startswith("ValueError: word0 word1 ")
    assert quote.endswith(" set --max-model-len 4096")
    assert set(quote.removeprefix("ValueError: ").split(" … ")[0].split()) <= set(words.split())


GATE = "ValueError: Free memory on device cuda:0 (104.5/121.69 GiB) on startup is less than"
REST = "desired GPU memory utilization (0.92, 111.95 GiB)."


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("cut", ["at a word", "anywhere"])
@pytest.mark.parametrize(
    "process", ["", "(EngineCore pid=88) ERROR 11-27 06:12:09 [core.py:1484] "]
)
def test_a_line_that_a_page_or_a_terminal_has_wrapped_is_read_whole(width, cut, process):
    line = f"{process}AssertionError: Chunked attention with lookback requires the Triton backend"
    pieces = [line[at : at + width] for at in range(0, len(line), width)]
    found = explain("\n".join(textwrap.wrap(line, width) if cut == "at a word" else pieces))
    assert found.cause.finding.id == "chunked-attention-needs-triton"


@each_row(__file__, "explanations.toml", "a_line_of_its_own_is_no_rest_of_an_error")
def test_a_line_of_its_own_is_no_rest_of_an_error(following):
    assert joined(GATE, read(GATE), [GATE, following, REST]) == GATE


def test_nothing_follows_the_end_of_a_sentence_or_a_short_error():
    for whole in (f"{GATE} (a, b).", "KeyError: 17"):
        assert joined(whole, read(whole), [whole, REST]) == whole


@pytest.mark.parametrize("source", ["raise", "raise error", "raise RuntimeError(", "raise X(a)"])
def test_a_source_line_without_a_text_says_nothing(source):
    assert raised(source, []) == ""
    assert raised('raise X("a text")', ["    ^^^^^^^", "RuntimeError: other"]) == ""


# --- the hub's words for a path -----------------------------------------------------------------

REFUSED = [
    "Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{}'. Use `repo_type`",
    "Repo id must use alphanumeric chars, '-', '_' or '.'. The name cannot start or end with '-' "
    "or '.' and the maximum length is 96: '{}'.",
    "Repo id must use alphanumeric chars or '-', '_', '.', '--' and '..' are forbidden, '-' and "
    "'.' cannot start or end the name, max length is 96: '{}'.",
]
PATHS = ["/models/none", "./models", "./models/none", "models/a/b", "~/models/x", "../m/x/y"]
NAMES = ["google/gemma 4", "gemma-4-", "a--b", "google/gemma~4"]


@pytest.mark.parametrize("message", REFUSED)
@pytest.mark.parametrize("name", [*PATHS, *NAMES])
def test_a_path_that_the_hub_refuses_is_a_missing_model_and_a_name_is_none(message, name):
    said = f"huggingface_hub.errors.HFValidationError: {message.format(name)}"
    assert (explain(said).cause.finding.id == "model-path-missing") is (name in PATHS)


# --- cut logs -----------------------------------------------------------------------------------


def end_of(run: str, begin: str) -> Explanation:
    """Explain the end of a run's log, as `docker logs --tail` or rotation leaves it."""
    text = (DATA / f"{run}.log").read_text()
    return explain(text[text.index(begin) :])


@each_row(__file__, "explanations.toml", "a_killed_worker_is_the_cause_in_a_log_without_its_start")
def test_a_killed_worker_is_the_cause_in_a_log_without_its_start(run: str, begin: str) -> None:
    explanation = end_of(run, begin)
    assert (explanation.verdict, explanation.cause.finding.id) == ("cause", "worker-died")
    assert "the server's start: the log begins later" in explanation.missing


def test_a_log_that_begins_with_the_death_of_a_worker_does_not_tell_the_cause() -> None:
    """What came before it may be in the part that is missing."""
    begin = "(EngineCore pid=20268) ERROR 11-21 23:48:38"
    assert end_of("worker_killed_mp", begin).verdict == "effects"


def test_an_error_before_the_stop_stays_one() -> None:
    error = (
        "(EngineCore pid=1) ERROR 11-21 23:38:59 [core.py:1] torch.OutOfMemoryError: CUDA out of "
        "memory. Tried to allocate 2.00 GiB.\n"
    )
    text = (DATA / "stopped_by_user.log").read_text()
    before, first, after = text.partition("(APIServer pid=6477) INFO 11-21 23:39:02")
    assert explain(before + error + first + after).cause.finding.id == "cuda-out-of-memory"


# --- floods -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "kept"), [("ValueError: number {}\n", 200), ("x: error: number {}\n", 50)]
)
def test_an_endless_variety_of_errors_is_not_kept(line, kept):
    explanation = explain("".join(line.format(n) for n in range(1000)))
    assert len(explanation.problems) == kept
    assert explanation.cause.finding.found == line.format(0).strip()


@pytest.mark.parametrize("error", ["KeyError: {}", "AssertionError: {}", "RuntimeError: same"])
def test_a_flood_of_errors_is_read_once(error, monkeypatch):
    """Each line, and the tracebacks of a bounded number; it was 60 lines for each error."""
    calls = 0
    real = log_lines.read

    def counted(raw):
        nonlocal calls
        calls += 1
        return real(raw)

    monkeypatch.setattr(log_lines, "read", counted)
    monkeypatch.setattr(explain_module, "TRACES", 50)
    count = 8_000  # at 60 lines each far more than the bound
    found = explain("\n".join(error.format(number) for number in range(count)))
    assert sum(p.count for p in found.problems) <= count
    assert len(found.problems) <= explain_module.MOST
    assert calls <= count + 61 * (explain_module.MOST + 50)


def _letters(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "qwrtzpsdfg"))


@pytest.mark.parametrize("part", ["{n} of 3f0c9a{n:010x}", "{letters} of {letters}"])
def test_a_flood_is_judged_a_bounded_number_of_times(part, monkeypatch):
    """Of lines that differ in numbers, and of those whose words no known issue has."""
    judged = 0
    real = explain_module.recognise

    def counted(*given):
        nonlocal judged
        judged += 1
        return real(*given)

    monkeypatch.setattr(explain_module, "recognise", counted)
    texts = (part.format(n=n, letters=_letters(n)) for n in range(5000))
    found = explain(
        "".join(f"KeyError: request {text}\n" for text in texts)
        + "RuntimeError: No CUDA GPUs are available\n"
    )
    assert any("No CUDA GPUs" in p.finding.found and p.known for p in found.problems)
    assert judged < explain_module.MOST + explain_module.TRACES + 50


def test_how_often_an_error_was_seen_is_counted_exactly():
    found = explain("RuntimeError: No CUDA GPUs are available\nKeyError: 1\n" * 3000)
    assert [p.count for p in found.problems] == [3000, 3000]


@each_row(__file__, "explanations.toml", "a_number_that_no_program_prints")
def test_a_number_that_no_program_prints(line):
    """Python refuses to read one of more than 4,300 digits."""
    explain(line.format("9" * 7000)).to_dict()


# --- what else says it --------------------------------------------------------------------------


def test_the_document():
    document = explain("KeyError: 'a'\n", "torch.OutOfMemoryError: CUDA out of memory.\n").to_dict()
    assert document["cause"]["id"] == "cuda-out-of-memory"
    assert [log["name"] for log in document["logs"]] == ["log0", "log1"]
    keys = {"id", "severity", "title", "found", "cause", "fix", "source", "flag"}
    assert keys <= set(document["issues"][0])
