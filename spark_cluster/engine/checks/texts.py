"""Checks of plain text: the recipe's own question, exact short answers, coherence, reasoning.

Text to fill a prompt with is sentences that are alike, true of nothing, and never the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from spark_cluster.engine.client import Check, Client, NotApplicable, RequestFailed
from spark_cluster.errors import SparkClusterError, VerificationFailed
from spark_cluster.node import replies
from spark_cluster.node.bench.completions import ChatCompletion
from spark_cluster.runner.parallel import in_parallel

_WHAT = ("lamp", "chair", "mirror", "kettle", "ladder", "bucket", "carpet", "drawer", "basket")
_COLOUR = ("red", "green", "blue", "grey", "white", "brown", "yellow")
_WHERE = ("hall", "cellar", "kitchen", "garden", "attic", "office", "garage", "corridor")


def sentence(number: int) -> str:
    """Return a sentence of about a dozen tokens."""
    what, colour = _WHAT[number % len(_WHAT)], _COLOUR[number % len(_COLOUR)]
    where = _WHERE[number % len(_WHERE)]
    return f"Entry {number}: the {colour} {what} stands in the {where}."


def filler(count: int, extra: str = "", at: float = 0.0) -> str:
    """Return sentences, one a line.

    Args:
        extra: another sentence among them.
        at: where it stands: 0 is the beginning, 1 the end.
    """
    lines = [sentence(number) for number in range(1, count + 1)]
    if extra:
        lines.insert(round(at * count), extra)
    return "\n".join(lines)


LEAST = 200
"""Characters of a story that was to have three hundred words; a shorter one proves nothing."""

STORY = "Tell a story about a lighthouse keeper and a storm, in about three hundred words."

RIDDLE = (
    "A bat and a ball cost 1.10 together; the bat costs 1 more than the ball. "
    "What does the ball cost?"
)

THOUGHTS = ("<think>", "</think>", "<|channel", "<channel|>", "<|start|>", "[THINK]", "[/THINK]")
"""Delimiters of reasoning that belong into no text: Qwen's and DeepSeek's, Gemma 4's and gpt-oss',
Mistral's."""

NONSENSE = (
    "wrong kernels or a damaged copy of the model give fluent nonsense: spark-cluster models verify"
)

SHORT: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("What is the capital of France? Please reply with one word only", ("paris",)),
    ("How much is 17 plus 25? Please reply with the number only", ("42",)),
    ("Which planet do we live on? Please reply with one word only", ("earth",)),
    ("What is the opposite of hot? Please reply with one word only", ("cold",)),
)
"""Questions, and the answers that are right, in lower case."""

SHORT_TOKENS = 1024
"""Of a short answer: a model that thinks first needs them; the others end after a word."""


def answer(client: Client) -> str:
    """The recipe's own question has the answer that the recipe says."""
    return client.own_question()


def short_answers(client: Client) -> str:
    """Short questions have exactly the right answer, at temperature 0."""
    said = []
    for question, right in SHORT:
        found = ask_short(client, "short answers", question)
        if why := wrong_answer(found, right):
            raise client.wrong(
                f"short answers: asked {question!r}, {why}",
                NONSENSE,
            )
        said.append(found.content.strip())
    return replies.short(", ".join(said))


def ask_short(client: Client, check: str, prompt: str, *, stream: bool = False) -> ChatCompletion:
    """The answer to a short question, without reasoning where the model can leave it."""
    options = without_reasoning(client)
    return client.ask(check, prompt, max_tokens=SHORT_TOKENS, stream=stream, **options)


def without_reasoning(client: Client) -> dict[str, Any]:
    """Return the options by which a model that reasons answers at once.

    vLLM refuses them for Mistral's own tokenizer; models without reasoning do not need them.
    """
    flags = client.flags or {}
    if "reasoning-parser" not in flags or flags.get("tokenizer-mode") == "mistral":
        return {}
    return {"chat_template_kwargs": {"enable_thinking": False}}


def wrong_answer(found: ChatCompletion, right: tuple[str, ...]) -> str:
    """Return why a short answer is not right; empty when it is."""
    if not found.content.strip() and found.finish == "length":
        return f"there is no answer within {SHORT_TOKENS} tokens, expected {right[0]!r}"
    return wrong_short(found.content, right)


def wrong_short(text: str, right: tuple[str, ...]) -> str:
    """Return why a text is not exactly one of the right answers; empty when it is."""
    if text.strip().strip("*.!\"'` ").casefold() in right:
        return ""
    return f"the model says {replies.short(text.strip())!r}, expected {right[0]!r}"


def coherence(client: Client) -> str:
    """400 tokens without falling into a loop or into signs (NaN, FP8 KV cache)."""
    text = client.ask("coherence", STORY, max_tokens=400).text
    why = incoherent(text) or ("it is much too short" if len(text) < LEAST else "")
    if why:
        raise client.wrong(
            f"coherence: {why}: {replies.short(text)!r}",
            "kernels that give NaN print `!!!!`, an FP8 KV cache can make a model repeat itself: "
            "try --moe-backend marlin, or --kv-cache-dtype auto",
        )
    return f"{len(text)} characters: {text[:40]!r} ..."


def reasoning(client: Client) -> str:
    """Check that the reasoning comes in a field of its own, without its delimiters."""
    found = client.ask(
        "reasoning",
        RIDDLE,
        chat_template_kwargs={"enable_thinking": True},
        skip_special_tokens=False,  # the parser wants to see the delimiters (vLLM 38855)
    )
    content = found.content.lstrip()
    leaked = content.startswith("thought\n") or any(mark in content for mark in THOUGHTS)
    hint = "--reasoning-parser of this model is missing or wrong (Gemma 4: gemma4; vLLM 38855)"
    if leaked:
        raise client.wrong(
            f"reasoning: the reasoning is in the text: {replies.short(content)!r}", hint
        )
    if not found.reasoning.strip():
        if client.flags is not None and "reasoning-parser" not in client.flags:
            message = "reasoning: none came, and the launch has no --reasoning-parser"
            raise NotApplicable(message, where=client.where, hint=hint)
        raise client.wrong(f"reasoning: there is no reasoning: {replies.short(content)!r}", hint)
    if any(mark in found.reasoning for mark in THOUGHTS):
        raise client.wrong(
            f"reasoning: its field has delimiters: {replies.short(found.reasoning)!r}", hint
        )
    return f"{len(found.reasoning)} characters in a field of their own"


# -- judging a text without knowing what it is about ----------------------------------------------

LETTERS = 0.5
"""Least share of letters and spaces. Prose has above 0.9, program text about 0.7, NaN output 0."""

SHINGLE = 16
"""Characters in a row that are compared; longer than common words, shorter than a sentence."""

DISTINCT, DISTINCT_END = 0.5, 0.3
"""Least share of different shingles, in the whole text and in its second half. Prose has above
0.9; a loop of 100 characters has 0.1 after a thousand."""


SPECIAL = re.compile(
    r"<(?:\|?(?:pad|unk|bos|eos|mask|endoftext|end_of_text|im_start|im_end|eot_id)\|?)>"
    r"|\[(?:PAD|UNK|MASK)\]|<unused\d+>|\ufffd{2}",
    re.IGNORECASE,
)
"""Tokens that a tokenizer has for itself and no answer shows, and bytes that are no text."""


def incoherent(text: str) -> str:
    """Return why a text cannot come from a sound model; empty when it can."""
    if not text.strip():
        return "the reply is empty"
    if special := SPECIAL.search(text):
        return f"it has the special token {special.group()}"
    plain = sum(c.isalpha() or c.isspace() for c in text) / len(text)
    if plain < LETTERS:
        return f"only {plain:.0%} of it are letters"
    words = " ".join(text.split())
    all_of_it, end = _distinct(words), _distinct(words[len(words) // 2 :])
    if all_of_it < DISTINCT or end < DISTINCT_END:
        return f"it repeats itself ({min(all_of_it, end):.0%} of it is new)"
    return ""


def _distinct(text: str) -> float:
    """Share of different shingles; 1 for a text too short to repeat itself."""
    count = len(text) - SHINGLE + 1
    if count < 2 * SHINGLE:
        return 1.0
    return len({text[i : i + SHINGLE] for i in range(count)}) / count


LONG = 60
"""Sentences before the question of a long prompt."""

HINT = (
    "if the same answers are right one at a time: a kernel that fails at larger batches, or a KV "
    "cache that is overwritten; try --enforce-eager, a smaller --max-num-seqs, or no drafter"
)


def concurrency(client: Client) -> str:
    """Short, long, streamed and long-running requests at once are all answered rightly."""
    jobs: dict[str, Callable[[], str]] = {"story": partial(coherence, client)}
    for number, (question, right) in enumerate(SHORT):
        jobs[f"short {number}"] = partial(_short, client, question, right, stream=False)
        long = f"{filler(LONG)}\n{question}"
        jobs[f"long {number}"] = partial(_short, client, long, right, stream=number % 2 == 0)
    found = in_parallel(jobs)
    wrong = [one for one in found.values() if isinstance(one, SparkClusterError)]
    if not wrong:
        return f"{len(found)} requests at once, each with its own right answer"
    first = wrong[0]
    if not isinstance(first, VerificationFailed):
        raise first  # the connection to the node was lost
    message = f"concurrency: {len(wrong)} of {len(found)} requests at once failed; {first.message}"
    hint = f"{first.hint}\n  {HINT}"
    if isinstance(first, RequestFailed):
        raise RequestFailed(message, first.status, first.reason, where=client.where, hint=hint)
    raise client.wrong(message, hint)


def _short(client: Client, prompt: str, right: tuple[str, ...], *, stream: bool) -> str:
    found = ask_short(client, "concurrency", prompt, stream=stream)
    if why := wrong_answer(found, right):
        raise client.wrong(f"asked {prompt[-60:]!r}, {why}", NONSENSE)
    return found.content


CHECKS = (
    Check("answer", "answer", "the recipe's question", "the recipe's `probe`",
          "what the recipe's `probe` expects", answer),
    Check("short-answers", "short_answers", "exact short answers",
          " / ".join(question for question, _ in SHORT),
          " / ".join(right[0] for _, right in SHORT), short_answers),
    Check("coherence", "coherence", "coherent text, no garbage", STORY,
          "prose without loops, signs in a row, or special tokens", coherence),
    Check("reasoning", "reasoning", "reasoning in its field", RIDDLE,
          "reasoning in its field, no delimiters in any text", reasoning),
    Check("concurrency", "concurrency", "mixed prompts at once",
          "nine requests at once: short, long, streamed, and a story",
          "each its own right answer", concurrency),
)  # fmt: skip
