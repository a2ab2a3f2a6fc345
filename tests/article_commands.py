"""The command lines of the five articles, as they were published: `data/articles.toml`."""

from cases import cases

COMMANDS: dict[str, str] = cases(__file__, "data/articles.toml")
PART_9, SINGLE_SPARK, PART_7 = (COMMANDS[name] for name in ("PART_9", "SINGLE_SPARK", "PART_7"))
RUN_RECIPE, BENCHY, MTP = (COMMANDS[name] for name in ("RUN_RECIPE", "BENCHY", "MTP"))
LAUNCHES = {"part 9": PART_9, "single Spark": SINGLE_SPARK, "part 7": PART_7, "MTP": MTP}

COMMANDS["RUNTIME_FP8_TP2"] = (
    COMMANDS["RUNTIME_FP8"] + " --distributed-executor-backend ray --tensor-parallel-size 2"
)
COMMANDS["MTP_UNPATCHED"] = (
    "docker run --gpus all --ipc host -p 127.0.0.1:11437:11437 "
    "vllm/vllm-openai:gemma4-0505-cu130 --model " + MTP.removeprefix("vllm serve ")
)
"""The same on the image itself, which the article found slower than no MTP."""
