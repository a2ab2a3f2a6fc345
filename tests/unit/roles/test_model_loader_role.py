"""The role `model_loader`: program, settings and unit on the head that loads models on request."""

from __future__ import annotations

import json
from typing import Any

from role_samples import a_spark, ids, one

from spark_cluster.engine.proxy import ModelServer
from spark_cluster.node import paths

SERVER = ModelServer(
    "spark1", "127.0.0.1", 8001, names=("words",), program="spark-vllm-words", on_request=True
)


def test_its_settings_are_roots_alone(role: Any) -> None:
    """They name the proxy's admin socket; those of programs without secrets may be read."""
    resources = role("model_loader", a_spark(), servers=(SERVER,))
    settings = one(resources, "File", paths.MODEL_LOADER_SETTINGS)
    assert [model["names"] for model in json.loads(settings.content)["models"]] == [["words"]]
    assert settings.mode == 0o600
    assert one(resources, "Directory", paths.MODEL_LOADER).mode == 0o700
    assert one(role("start_limit", a_spark()), "File", paths.START_LIMIT_SETTINGS).mode == 0o644


def test_it_is_removed_where_no_model_is_loaded_on_request(role: Any) -> None:
    gone = ids(role("model_loader", a_spark()))
    assert gone[0] == "Service:spark-cluster-model-loader"
    assert gone[-1] == f"Directory:{paths.MODEL_LOADER}"
