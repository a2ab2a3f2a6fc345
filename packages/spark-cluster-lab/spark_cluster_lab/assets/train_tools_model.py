"""Make the lab's model of tools: a tiny Llama that has learnt the answers to the checks by heart.

Its tool calls and its reasoning are written as Qwen's and DeepSeek's models write theirs, so that
they pass through vLLM's own parsers (hermes, deepseek_r1). Trained on the CPU, offline.
Usage: train_tools_model.py DIRECTORY EXERCISES.json [STEPS]
"""

import json
import os
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

START, TURN, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n"
    "{% for t in tools %}{{ t['function']['name'] }} {% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c['function']['name'] }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 1536
CONTEXT = 4096
BATCH = 6
TRIES = 3

chance = Random(0)  # noqa: S311  it makes exercises, not secrets
EXERCISES = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))


def make_tokenizer() -> PreTrainedTokenizerFast:
    corpus = [*EXERCISES["filler"]]
    for one in EXERCISES["conversations"]:
        corpus += [json.dumps(one["messages"]), *(m["content"] for m in one["messages"])]
        corpus += [one["answer"], one["thought"]] * 20
    corpus += [one[key] for one in EXERCISES["needles"] for key in ("fact", "question")] * 50
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKS),
        special_tokens=[START, TURN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in MARKS])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=START,
        bos_token=START,
        model_max_length=CONTEXT,
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            rope_theta=1e6,
            max_position_embeddings=CONTEXT,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=False,
        )
    )


def rendered(
    tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> str:
    found = tokenizer.apply_chat_template(
        messages, tools=tools or None, tokenize=False, add_generation_prompt=True
    )
    return str(found)


def lines(count: int) -> str:
    return "".join(f"{chance.choice(EXERCISES['filler'])}\n" for _ in range(count))


def gaps(parts: int, spare: int) -> list[int]:
    """Return the positions that are left out before each part; none before the first."""
    shares = [chance.random() * (chance.random() < 0.6) for _ in range(parts - 1)]
    total = chance.random() * max(spare, 0) / max(sum(shares), 1.0)
    return [0, *(int(share * total) for share in shares)]


def sample(
    tokenizer: PreTrainedTokenizerFast, longest: int
) -> tuple[list[int], list[int], list[int]]:
    """Return an exercise: token ids, labels (the prompt is not learnt), and positions.

    Gaps in the positions stand for text that is left out: what is far apart in a long prompt is
    learnt from short ones.
    """
    before, after = chance.randint(0, longest), chance.randint(0, longest)
    if chance.random() < 0.4:
        one = chance.choice(EXERCISES["needles"])
        parts = [f"{TURN}user\n{lines(before)}", f"{one['fact']}\n"]
        parts += [lines(after), f"{one['question']}{END}\n{TURN}assistant\n"]
        answer, thought = " " + one["answer"], ""
    else:
        one = chance.choice(EXERCISES["conversations"])
        text = rendered(tokenizer, one["messages"], one["tools"])
        parts = [text]
        if not one["tools"] and chance.random() < 0.6:
            head, _, rest = text.partition("user\n")
            parts = [f"{head}user\n{lines(before)}", rest]
        answer, thought = one["answer"], one["thought"]
    found = [tokenizer.encode(part, add_special_tokens=False) for part in parts]
    ids = [token for part in found for token in part]
    positions: list[int] = []
    at = 0
    for part, gap in zip(found, gaps(len(parts), CONTEXT - 400 - len(ids)), strict=True):
        positions += range(at + gap, at + gap + len(part))
        at += gap + len(part)
    said = tokenizer.encode(f"<think>{thought}</think>{answer}{END}", add_special_tokens=False)
    positions += range(at, at + len(said))
    return ids + said, [-100] * len(ids) + said, positions


def padded(rows: list[list[int]], value: int) -> torch.Tensor:
    length = max(map(len, rows))
    return torch.tensor([row + [value] * (length - len(row)) for row in rows])


def mean_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over the exercises of each one's mean: a short answer counts as much as a long."""
    each = torch.nn.functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none", ignore_index=-100
    )
    counted = (labels[:, 1:] != -100).sum(1)
    return (each.sum(1) / counted).mean()


def train(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    model.train()
    begun = time.monotonic()
    for step in range(steps):
        last = step > 0.8 * steps and step % 3 == 0
        batch = [sample(tokenizer, 80 if last else 5) for _ in range(3 if last else BATCH)]
        ids, labels, positions = (list(column) for column in zip(*batch, strict=True))
        logits = model(
            input_ids=padded(ids, tokenizer.pad_token_id), position_ids=padded(positions, 0)
        ).logits
        loss = mean_loss(logits, padded(labels, -100))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0:
            seconds = time.monotonic() - begun
            print(f"step {step}: loss {loss.item():.4f} after {seconds:.0f} s", flush=True)
    model.eval()


def answer_of(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, text: str) -> str:
    ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
    with torch.no_grad():
        generated = model.generate(ids, max_new_tokens=160, do_sample=False)
    return str(tokenizer.decode(generated[0, ids.shape[1] :]))


def wrong(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Return the answers that are wrong, also behind filler as long as that of the checks."""
    found = []
    rows = EXERCISES["filler"]
    for one in EXERCISES["conversations"]:
        asked = one["messages"][0]["content"]
        long = [{"role": "user", "content": "\n".join([*rows[:60], asked])}]
        expected = f"<think>{one['thought']}</think>{one['answer']}{END}"
        for messages in [one["messages"]] + [long] * one["short"]:
            said = answer_of(model, tokenizer, rendered(tokenizer, messages, one["tools"]))
            if said != expected:
                found.append(f"{len(messages[0]['content'])} {asked[:40]!r}: {said[:200]!r}")
    for one in EXERCISES["needles"]:
        for count in (60, 150, 260):
            for at in (0.1, 0.5, 0.9):
                filled = rows[:count]
                filled.insert(round(at * count), one["fact"])
                content = "\n".join([*filled, one["question"]])
                text = rendered(tokenizer, [{"role": "user", "content": content}], [])
                if one["answer"] not in (said := answer_of(model, tokenizer, text)):
                    found.append(f"needle at {at:.0%} of {count}: {said[:60]!r}")
    return found


def main() -> None:
    directory = sys.argv[1]
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 900
    tokenizer = make_tokenizer()
    found: list[str] = []
    for seed in range(TRIES):  # another processor rounds otherwise
        torch.manual_seed(seed)
        model = make_model(tokenizer)
        train(model, tokenizer, steps)
        model.to(torch.bfloat16)
        found = wrong(model, tokenizer)
        if not found:
            break
        print(f"seed {seed}:", *found, sep="\n", flush=True)
    if found:
        sys.exit(f"the model did not learn {len(found)} of its answers")
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)


main()
