"""The table of vLLM's options, made from sources of two small releases."""

from pathlib import Path

from factories import put

from benchmarks.vllm_options.__main__ import read

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
    table = read(tmp_path)
    assert (table["oldest"], table["newest"]) == ("0.9.0", "0.10.0")
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
