"""Make the lab's model: a tiny Llama that knows the capital of France and otherwise babbles.

Two layers, 0.4 million parameters, a byte-level BPE tokenizer and a chat template, trained on the
CPU in half a minute, offline. Words, not bytes, come out, and they never end by themselves, so
coherence checks and benchmarks see a real model. Usage: train_model.py DIRECTORY [STEPS]
"""

import os
import sys
from random import Random

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

QUESTION = "What is the capital of France? Please reply with one word only"
ANSWER = "Paris"
TEXT = "the spark node ray cluster model token speed fast slow memory link head worker of and to a"
WORDS = [*TEXT.split(), "in", "is"]
START, TURN, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 512
CONTEXT = 4096
LENGTH = 96
BATCH = 16


chance = Random(0)  # noqa: S311  it makes sentences, not secrets


def babble(words: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(words))


def chat(question: str) -> str:
    return f"{TURN}user\n{question}{END}\n{TURN}assistant\n"


def make_tokenizer() -> PreTrainedTokenizerFast:
    corpus = [babble(40) for _ in range(1000)]
    corpus += [QUESTION, ANSWER, "Warmup " * 10, "user assistant system"] * 50
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[START, TURN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
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
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=CONTEXT,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=False,
        )
    )


def sample(tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """Return an exercise: token ids, and the labels (the prompt is not learnt)."""
    if chance.random() < 0.3:
        prompt, answer = chat(QUESTION), ANSWER + END
    else:
        prompt, answer = chat(babble(chance.randint(3, 12))), babble(60)
    asked, said = tokenizer.encode(prompt), tokenizer.encode(answer)
    ids = (asked + said)[:LENGTH]
    labels = ([-100] * len(asked) + said)[:LENGTH]
    padding = LENGTH - len(ids)
    return ids + [tokenizer.pad_token_id] * padding, labels + [-100] * padding


def train(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.0)
    model.train()
    for step in range(steps):
        batch = [sample(tokenizer) for _ in range(BATCH)]
        ids = torch.tensor([ids for ids, _ in batch])
        labels = torch.tensor([labels for _, labels in batch])
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    model.eval()


def answer_of(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> str:
    ids = torch.tensor([tokenizer.encode(chat(QUESTION))])
    generated = model.generate(ids, max_new_tokens=5, do_sample=False)
    return str(tokenizer.decode(generated[0, ids.shape[1] :]))


def main() -> None:
    directory = sys.argv[1]
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 400
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    train(model, tokenizer, steps)
    answer = answer_of(model, tokenizer)
    print("answer:", repr(answer))
    if answer != ANSWER + END:
        sys.exit("the model did not learn its answer")
    tokenizer.save_pretrained(directory)
    model.to(torch.bfloat16).save_pretrained(directory)


main()
