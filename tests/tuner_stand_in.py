"""A stand-in for vLLM's benchmark_moe.py: its arguments, its file, its lines; nothing is measured.

Batch size 7 takes ten minutes, and 13 fails as the tuner does with a model that it does not know.
Where Ray is installed a local one is started, as the tuner does.
"""

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path

PARAMETERS = {
    "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1,
    "num_warps": 4, "num_stages": 3,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--tp-size", type=int)
    parser.add_argument("--dtype", choices=["auto", "fp8_w8a8", "int8_w8a16"], default="auto")
    parser.add_argument("--save-dir")
    parser.add_argument("--batch-size", type=int, nargs="+")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--enable-expert-parallel", action="store_true")
    args = parser.parse_args()
    config = json.loads((Path(args.model) / "config.json").read_text())
    if importlib.util.find_spec("ray"):
        import ray

        ray.init(num_gpus=1)
        assert ray.get(ray.remote(num_gpus=1)(lambda: 6 * 7).remote()) == 42
        ray.shutdown()
    size = args.batch_size[0]
    if size == 7:
        print("measuring", flush=True)
        time.sleep(600)
    if size == 13:
        sys.exit("AttributeError: 'Config' object has no attribute 'num_local_experts'")
    experts, rows = config["num_experts"], config["moe_intermediate_size"] // args.tp_size
    dtype = "" if args.dtype == "auto" else f",dtype={args.dtype}"
    name = f"E={experts},N={rows},device_name=NVIDIA_GB10{dtype}.json"
    document = {"triton_version": "3.5.1", str(size): PARAMETERS}
    (Path(args.save_dir) / name).write_text(json.dumps(document, indent=4) + "\n")
    print(f"Completed tuning for batch_size={size}")


main()
