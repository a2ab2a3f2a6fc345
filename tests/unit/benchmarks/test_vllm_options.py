"""The table of vLLM's options, made from sources of two small releases."""

from pathlib import Path

from factories import put
from packaging.version import Version

from benchmarks.vllm_options import sglang
from benchmarks.vllm_options.__main__ import read, read_models

CONFIG = """\
Kind = Literal["auto", "fp8"{more}]
Backend = Literal["auto", "marlin"]
class CacheConfig:
    cache_dtype: Kind = "auto"
    backend: Backend | None = None
    free: Backend | str = "auto"
"""
ARGUMENTS = """\
cache_kwargs = get_kwargs(CacheConfig)
group.add_argument("--cache-dtype", **cache_kwargs["cache_dtype"])
backend_kwargs = cache_kwargs["backend"]
group.add_argument("--no-backend", "--backend", **backend_kwargs)
group.add_argument("--free", **{**cache_kwargs["free"], "default": None})
"""
PARSERS = '_PARSERS_TO_REGISTER = {{"hermes": ("a", "B"){more}}}\n'


def release(folder: Path, version: str, *, more: str = "", gone: str = "") -> None:
    vllm = folder / version / "vllm"
    put(vllm / "config/cache.py", CONFIG.format(more=more))
    put(vllm / "engine/arg_utils.py", ARGUMENTS.replace(gone, "") if gone else ARGUMENTS)
    for package in ("tool_parsers", "reasoning"):
        table = PARSERS.format(more=more and ', "gemma4": ("c", "D")')
        put(vllm / package / "__init__.py", table)
    newer = ', "VLLM_B": 2' if more else ""
    put(vllm / "envs.py", f'environment_variables = {{"VLLM_A": 1{newer}}}\n')
    put(vllm / "model_executor/model_loader/__init__.py", "")
    backends = "class AttentionBackendEnum(Enum):\n    A = 1\n"
    put(vllm / "v1/attention/backends/registry.py", backends)


def test_each_option_and_value_has_its_releases(tmp_path: Path) -> None:
    free = ARGUMENTS.splitlines()[-1]
    release(tmp_path, "0.9.0")
    release(tmp_path, "0.10.0", more=', "nvfp4"', gone=free)
    table = read({Version(path.name): path for path in tmp_path.iterdir()})
    assert table["options_of"] == ">=0.9.0,<=0.10.0"
    assert table["options"] == {
        "backend": [None, None], "cache-dtype": [None, None], "free": [None, "0.10.0"],
    }  # fmt: skip
    assert table["variables"] == {"VLLM_A": [None, None], "VLLM_B": ["0.10.0", None]}
    values = table["values"]
    assert values["cache-dtype"] == {
        "auto": [None, None], "fp8": [None, None], "nvfp4": ["0.10.0", None],
    }  # fmt: skip
    assert set(values["backend"]) == {"auto", "marlin"}
    assert set(values["attention-backend"]) == {"A", "auto"}
    assert values["tool-call-parser"]["gemma4"] == ["0.10.0", None]
    assert "free" not in values


REGISTRY = """\
_TEXT_MODELS = {{"OldForCausalLM": ("old", "OldForCausalLM"){more}}}
_ALL_MODELS = {{**_TEXT_MODELS, **{{"SameModel": ("old", "OldForCausalLM")}}}}
_PREVIOUSLY_SUPPORTED_MODELS = {{"GoneForCausalLM": "0.8.0"}}
"""
CLASSES = """\
class SupportsPP: ...
class Base(nn.Module, SupportsPP): ...
class OldForCausalLM(base.Base{more}): ...
"""


def test_each_architecture_has_its_releases_and_what_it_does_not_do(tmp_path: Path) -> None:
    new = ', "NewForCausalLM": ("vllm.models.new", "NewForCausalLM")'
    for version, more, bases in (("0.9.0", "", ""), ("0.10.0", new, ", SupportsLoRA")):
        vllm = tmp_path / version / "vllm"
        put(vllm / "model_executor/models/registry.py", REGISTRY.format(more=more))
        put(vllm / "model_executor/models/old.py", CLASSES.format(more=bases))
        put(vllm / "models/new/model.py", "class NewForCausalLM: ...\n")
    table = read_models({Version(path.name): path for path in tmp_path.iterdir()})
    assert table["architectures"] == {
        "NewForCausalLM": ["0.10.0", None], "OldForCausalLM": [None, None],
    }  # fmt: skip
    assert table["without_lora"] == {
        "NewForCausalLM": ["0.10.0", None], "OldForCausalLM": [None, "0.10.0"],
    }  # fmt: skip
    assert table["without_stages"] == {"NewForCausalLM": ["0.10.0", None]}


EARLIER = """\
OTHERS = ["fa3"]
parser.add_argument("--attention-backend", choices=["triton"] + OTHERS)
parser.add_argument("--tp-size", type=int)
"""
FIELDS = """\
KINDS = ["triton", "cutedsl"]
class Model:
    attention_backend: A[str, Arg(help="kernel", choices=KINDS)] = "triton"
    tp_size: A[int, Arg(help="ranks", aliases=["--tensor-parallel-size"])] = 1
    mode: A[Optional[Literal["a", "b"]], "what for"] = None
    shown: A[str, Arg(help="", cli_name="--seen")] = ""
    hidden: A[bool, Arg(help="", no_cli=True)] = False
    made: A[int, Derived(fn="x")] = 0
"""


def test_options_of_sglang_are_read_as_arguments_and_as_fields(tmp_path: Path) -> None:
    for version, arguments in (("0.5.3", EARLIER), ("0.5.4", "")):
        srt = tmp_path / version / "sglang/srt"
        put(srt / "function_call/function_call_parser.py", 'ToolCallParserEnum = {"qwen": 1}\n')
        put(srt / "parser/reasoning_parser.py", 'class P:\n    DetectorMap: X = {"r1": 1}\n')
        put(srt / "server_args.py", arguments)
    put(tmp_path / "0.5.4/sglang/srt/arg_groups/fields/model.py", FIELDS)
    table = read({Version(path.name): path for path in tmp_path.iterdir()}, sglang)
    assert table["options"] == {
        "attention-backend": [None, None],
        "mode": ["0.5.4", None],
        "seen": ["0.5.4", None],
        "tensor-parallel-size": ["0.5.4", None],
        "tp-size": [None, None],
    }
    values = table["values"]
    assert values["attention-backend"] == {
        "cutedsl": ["0.5.4", None], "fa3": [None, "0.5.4"], "triton": [None, None],
    }  # fmt: skip
    assert set(values["mode"]) == {"a", "b"}
    assert set(values["reasoning-parser"]) == {"auto", "r1"}
