"""Made-up runs: Gemma 4 31B on one Spark, on two, and as two replicas; a sweep of MTP's N."""

import math
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cases import cases

from spark_cluster.bench.record import (
    CellKey,
    CellResult,
    Metric,
    NodeRecord,
    Prediction,
    ProcessMemory,
    Record,
    Setup,
    VramReading,
)

START = datetime(2026, 6, 20, 9, 0, tzinfo=UTC)
DEPTHS = (0, 4096, 8192, 16384, 32768)
LOADS = (1, 2, 4, 8)
SAME: dict[str, Any] = cases(__file__, "data/made_up_run.toml")
LOADED_MIB = SAME["loaded_mib"]


def dual_record(depths: tuple[int, ...] = DEPTHS, loads: tuple[int, ...] = LOADS) -> Record:
    """TP=1 against TP=2 over depths and loads; one cell failed, one wants attention."""
    setups = (_setup("tp1", 1), _setup("tp2", 2), _setup("replicas", 1, replicas=2))
    cells: list[CellResult] = []
    time = START + timedelta(minutes=6)
    for setup in setups:
        for depth in depths:
            for load in loads:
                if setup.id == "replicas" and depth:
                    continue
                cells.append(_cell(setup, CellKey(prompt=2048, output=128, depth=depth,
                                                  concurrency=load), time))  # fmt: skip
                time = cells[-1].finished or time
        time += timedelta(minutes=7)
    nodes = (_node("spark1"), _node("spark2"))
    found = {"finished": time, "nodes": nodes, "setups": setups, "cells": tuple(_troubled(cells))}
    return Record(**SAME["record"], **found)


def sweep_record() -> Record:
    """A sweep of num_speculative_tokens on one Spark."""
    random.seed(3)
    found = dual_record(depths=(0,), loads=(1,))
    setups, cells = [], []
    for count, (speed, accepted) in SAME["sweep"].items():
        setup = _setup(f"n{count}", 1).model_copy(
            update={"variant": f"num_speculative_tokens={count}", "predictions": ()}
        )
        setups.append(setup)
        key = CellKey(prompt=512, output=800)
        metrics = {
            "tg_tps": _metric(speed, 0.015, 5),
            "acceptance": _metric(accepted, 0.01, 5),
            "acceptance_length": _metric(1 + int(count) * accepted, 0.01, 5),
        }
        cells.append(CellResult(id=f"n{count}", setup=setup.id, key=key, runs=5, status="ok",
                                metrics=metrics))  # fmt: skip
    return found.model_copy(update={"setups": tuple(setups), "cells": tuple(cells)})


def write_run(folder: Path, record: Record, *, seconds: int | None = None) -> Path:
    """Write a run's folder; telemetry of so many seconds, or of the whole run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(record.model_dump_json())
    whole = int(((record.finished or START) - record.started).total_seconds())
    write_telemetry(folder / "telemetry.parquet", record, seconds or whole)
    return folder


def write_telemetry(path: Path, record: Record, seconds: int) -> None:
    """Telemetry as the nodes record it: once a second, busy while a cell is measured."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    chance = np.random.default_rng(7)
    at = np.arange(seconds)
    start = np.datetime64(record.started.replace(tzinfo=None), "us")
    columns: dict[str, list[object]] = {}
    for index, node in enumerate(record.nodes):
        busy, loaded, joint = _activity(record, node.name, seconds)
        noise = chance.normal(0, 1, seconds)
        power = np.where(busy > 0, 78 + 5 * noise, np.where(loaded > 0, 22, 11) + noise)
        traffic = np.where(joint > 0, 3.1e9 + 2e8 * noise, 1e3)
        held = np.clip(loaded, 0, None)
        values = {
            "time": start + at.astype("timedelta64[s]"),
            "node": np.full(seconds, node.name),
            "sm_clock_mhz": np.where(busy > 0, 2411 - 30 * np.abs(noise), 208),
            "power_w": power,
            "temperature_c": 42 + 24 * _smooth(busy, 90) + index,
            "throttle": np.full(seconds, "0x0"),
            "mem_available_mib": 118_000 - held,
            "swap_used_mib": np.zeros(seconds),
            "gpu_mem_mib": held,
            "rdma_rx_bytes_s": traffic,
            "rdma_tx_bytes_s": traffic * 0.98,
            "net_rx_bytes_s": 2e5 + 1e4 * np.abs(noise),
            "net_tx_bytes_s": 3e5 + 1e4 * np.abs(noise),
            "running": busy,
            "waiting": np.where(busy > 6, 1, 0),
            "kv_usage": np.where(busy > 0, 0.04 * busy, 0),
            "acceptance": np.full(seconds, np.nan),
        }
        if index:  # the engine answers for itself on the first node
            values.update({name: np.full(seconds, np.nan) for name in ("running", "kv_usage")})
            values["waiting"] = values["running"]
        for name, data in values.items():
            columns.setdefault(name, []).append(data)
    whole = {name: np.concatenate(parts) for name, parts in columns.items()}  # type: ignore[arg-type]
    arrays = {name: pa.array(data, from_pandas=True) for name, data in whole.items()}
    arrays["time"] = arrays["time"].cast(pa.timestamp("us", "UTC"))
    pq.write_table(pa.table(arrays), path, compression="zstd")


def _activity(record: Record, node: str, seconds: int):
    """Requests in flight, MiB held, and whether the link is busy, second by second."""
    import numpy as np

    busy, loaded, joint = (np.zeros(seconds) for _ in range(3))
    for setup in record.setups:
        if node not in setup.nodes:
            continue
        cells = [cell for cell in record.cells if cell.setup == setup.id and cell.started]
        if not cells:
            continue
        first = _second(min(c.started for c in cells))
        last = _second(max(c.finished for c in cells))
        held = dict(zip(("spark1", "spark2"), LOADED_MIB.get(setup.id, (70_000, 0)), strict=True))
        ramp = np.clip((np.arange(seconds) - first + 290) / 200, 0, 1)
        loaded += np.where(np.arange(seconds) < last + 20, ramp, 0) * held.get(node, 0)
        for cell in cells:
            span = slice(_second(cell.started) + 3, max(0, _second(cell.finished) - 3))
            busy[span] = cell.key.concurrency / setup.replicas
            joint[span] = setup.tp > 1
    return busy, loaded, joint


def _second(time: datetime | None) -> int:
    return int(((time or START) - START).total_seconds())


def _smooth(values, seconds: int):
    import numpy as np

    return np.convolve(np.clip(values, 0, 1), np.ones(seconds) / seconds)[: len(values)]


def _setup(id: str, tp: int, *, replicas: int = 1) -> Setup:
    nodes = ("spark1", "spark2")[: tp * replicas]
    told = {**SAME["setup"], "vram": _vram(id, nodes), "startup_s": 214.0 + 37 * tp}
    told["flags"] = (*told["flags"], "--tensor-parallel-size", str(tp))
    predictions = _predictions(tp) if replicas == 1 else ()
    return Setup(id=id, tp=tp, replicas=replicas, nodes=nodes, predictions=predictions, **told)


def _predictions(tp: int) -> tuple[Prediction, ...]:
    found = []
    for depth in (0, 8192, 32768):
        key = CellKey(prompt=2048, output=128, depth=depth)
        value = (6.7, 11.9)[tp - 1] * (1 - depth / 400_000)
        found.append(Prediction(metric="tg_tps", key=key, low=value * 0.93, value=value,
                                high=value * 1.06))  # fmt: skip
        value = (1900, 2900)[tp - 1] / (1 + depth / 15_000)
        found.append(Prediction(metric="pp_tps", key=key, low=value * 0.85, value=value,
                                high=value * 1.12))  # fmt: skip
    return tuple(found)


def _vram(id: str, nodes: tuple[str, ...]) -> tuple[VramReading, ...]:
    found = []
    for index, node in enumerate(nodes):
        held = LOADED_MIB.get(id, (70_000, 0))[index]
        parts = {"before": 0, "load_peak": held + 6_300, "ready": held, "under_load": held + 900,
                 "after": 0}  # fmt: skip
        for phase, used in parts.items():
            name = "VLLM::EngineCore" if len(nodes) == 1 else "ray::RayWorkerWrapper"
            processes = (ProcessMemory(pid=4021 + index, name=name, used_mib=used),) if used else ()
            found.append(VramReading(node=node, phase=phase, processes=processes,
                                     available_mib=118_000 - used, total_mib=124_610))  # fmt: skip
    return tuple(found)


def _node(name: str) -> NodeRecord:
    told = SAME["node"]
    environment = {**told["environment"], "VLLM_HOST_IP": f"192.168.100.1{name[-1]}"}
    return NodeRecord(name=name, **{**told, "environment": environment})


def _cell(setup: Setup, key: CellKey, time: datetime) -> CellResult:
    random.seed(f"{setup.id} {key}")
    servers = setup.replicas
    load = math.ceil(key.concurrency / servers)
    one = (6.52, 11.25)[setup.tp - 1] * (1 - key.depth / 450_000)
    each = one * (1 - 0.018 * (load - 1) * setup.tp)
    prefill = (1890, 2608)[setup.tp - 1] / (1 + key.depth / (14_500 + 4_000 * setup.tp))
    ttfr = (2048 + key.depth) / prefill * 1000 * (1 + 0.62 * (load - 1)) + 40
    total = each * min(key.concurrency, load * servers) * 0.985
    values = sorted(random.gauss(ttfr, ttfr * 0.06 * key.concurrency**0.5) for _ in range(40))
    metrics = {
        "pp_tps": _metric(prefill * min(key.concurrency, servers), 0.02),
        "pp_tps_request": _metric(prefill / load, 0.1),
        "tg_tps": _metric(total, 0.012),
        "tg_tps_request": _metric(each, 0.01),
        "peak_tps": _metric(round(total + 1), 0.01),
        "peak_tps_request": _metric(round(each + 1), 0.01),
        "ttfr_ms": _metric(ttfr, 0.03).model_copy(
            update={"percentiles": {"p50": values[20], "p95": values[38]}}
        ),
        "est_ppt_ms": _metric(ttfr - 4.7, 0.03),
        "e2e_ttft_ms": _metric(ttfr + 0.2, 0.03),
    }
    took = timedelta(seconds=3 * (ttfr / 1000 + 128 / each) + 12)
    return CellResult(
        id=f"{setup.id}-d{key.depth}-c{key.concurrency}", setup=setup.id, key=key, runs=3,
        status="ok", metrics=metrics, started=time, finished=time + took,
        raw=(f"raw/{setup.id}-d{key.depth}-c{key.concurrency}.json",),
    )  # fmt: skip


def _troubled(cells: list[CellResult]) -> list[CellResult]:
    """The same cells; one of the last setup failed, one of the second wants attention."""
    found = list(cells)
    for index, cell in enumerate(found):
        if cell.id == "tp1-d32768-c8":
            found[index] = cell.model_copy(update={
                "status": "failed", "metrics": {},
                "reason": "2 of 3 runs were dropped: HTTP 500 (out of memory)"})  # fmt: skip
        if cell.id == "tp2-d8192-c4":
            found[index] = cell.model_copy(update={
                "attention": ("SM clock of spark2 under 1.5 GHz for 12 s",)})  # fmt: skip
    return found


def _metric(mean: float, spread: float, runs: int = 3) -> Metric:
    values = tuple(random.gauss(mean, abs(mean) * spread) for _ in range(runs))
    average = sum(values) / runs
    std = math.sqrt(sum((value - average) ** 2 for value in values) / runs)
    return Metric(mean=average, std=std, values=values)
