"""Models read from a hub with the real client library."""

import json
from collections.abc import Callable
from pathlib import Path

import checkpoints
import pytest
from cases import each_case, each_row
from checkpoints import SMALL

from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.models import checkpoint, hub, lookup
from spark_cluster.models.hub import HubError, HubLibrary
from spark_cluster.models.lookup import Hub, ModelStore, cached, find, online
from spark_cluster_lab.hub import Conduct

Clients = Callable[[], Hub]


def test_the_shape_and_the_tensors_of_a_model(lab_hub, client):
    shape = find("org/small", hub=client())
    assert (shape.layers, shape.hidden, shape.vocab) == (2, 512, 1024)
    assert shape.stored.quantization == "fp8"
    matrices = 2 * (512 * (8 + 2 + 2 + 8) * 64 + 3 * 512 * 1024)
    attention, mlp = shape.stored.part("attention"), shape.stored.part("mlp")
    assert attention.parameters + mlp.parameters == matrices
    assert attention.bytes + mlp.bytes == matrices + 2 * 7 * 8  # two scales each
    assert shape.stored.part("output").bytes == 2 * 1024 * 512


def test_only_headers_are_read(lab_hub, client):
    client().checkpoint("org/small")
    asked = [path for _, path in lab_hub.requests if "/resolve/" in path]
    files = [path for path in asked if path.endswith(".safetensors")]
    assert len(files) == 2
    assert not any(method != "GET" for method, _ in lab_hub.requests)


@pytest.mark.parametrize("revision", ["main", "commit"])
def test_what_was_read_is_not_asked_for_again(revision, lab_hub, client, monkeypatch):
    """A branch for a day, a commit for good."""
    if revision == "commit":
        monkeypatch.setattr(lookup, "FRESH_S", 0.0)
        revision = lab_hub.commit("org/small")
    first = client().checkpoint("org/small", revision)
    asked = len(lab_hub.requests)
    assert client().checkpoint("org/small", revision) == first
    assert len(lab_hub.requests) == asked


def test_a_branch_that_moved_is_read_anew_after_a_day(lab_hub, client, monkeypatch):
    first = client().checkpoint("org/small")
    config = {**SMALL, "max_position_embeddings": 8192}
    (lab_hub.root / "org/small/config.json").write_text(json.dumps(config))
    assert client().checkpoint("org/small") == first
    monkeypatch.setattr(lookup, "FRESH_S", 0.0)
    second = client().checkpoint("org/small")
    assert second.config["max_position_embeddings"] == 8192
    assert first.commit != second.commit


def test_without_the_hub_what_is_kept_is_used(lab_hub, client, tmp_path, monkeypatch):
    first = client().checkpoint("org/small")
    monkeypatch.setattr(lookup, "FRESH_S", 0.0)
    nobody = Hub(HubLibrary("http://127.0.0.1:1"), ModelStore(tmp_path / "kept"))
    assert nobody.checkpoint("org/small") == first
    offline = Hub(None, ModelStore(tmp_path / "kept"))
    assert offline.checkpoint("org/small") == first
    assert offline.checkpoint("org/other") is None


@pytest.mark.parametrize("value", ["1", "true", "ON", None])
def test_by_default_and_where_the_hubs_own_switch_says_so_nothing_is_asked(
    value, lab_hub, monkeypatch
):
    if value:
        monkeypatch.setenv("HF_HUB_OFFLINE", value)
    with pytest.raises(UsageError, match="not known here"):
        find("org/small", hub=online() if value else None)
    assert cached().checkpoint("org/small") is None
    assert lab_hub.requests == []
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert online()._source is not None, "the endpoint of the library"


@each_case(__file__, "refusals.json")
def test_a_refusal_says_what_to_do(case, lab_hub, client):
    garbage = case["conduct"].pop("garbage", None)
    conduct = Conduct(**case["conduct"], garbage=garbage.encode() if garbage else None)
    lab_hub.conduct["org/small"] = conduct
    with pytest.raises(HubError) as caught:
        client().checkpoint("org/small")
    assert caught.value.kind == case["kind"]
    assert case["words"] in str(caught.value)
    assert caught.value.hint


def test_a_deep_answer_is_no_traceback(lab_hub, client):
    lab_hub.conduct["org/small"] = Conduct(garbage=b"[" * 100_000)
    with pytest.raises(HubError, match="not JSON"):
        client().checkpoint("org/small")


def test_a_name_and_a_revision_that_are_not_there(client):
    with pytest.raises(HubError, match="did you mean 'org/small'"):
        find("org/smal", hub=client())
    with pytest.raises(HubError, match="no revision 'v9'"):
        client().checkpoint("org/small", "v9")


@pytest.mark.parametrize(
    "name", ["../etc/passwd", "a/../b", "a b/c", "org/x--y", "org/" + "x" * 99]
)
def test_a_name_that_no_repository_has_is_not_asked_for(name, lab_hub, client):
    with pytest.raises(UsageError):
        find(name, hub=client())
    assert lab_hub.requests == []


def test_a_token_opens_a_gated_model(lab_hub, client, monkeypatch):
    lab_hub.conduct["org/small"] = Conduct(gated=True, token="hf_secret")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(HubError) as caught:
        client().checkpoint("org/small")
    assert caught.value.kind == "gated"
    assert "hf_wrong" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert client().checkpoint("org/small") is not None


def test_a_server_that_never_answers(lab_hub, client, monkeypatch):
    monkeypatch.setattr("spark_cluster.models.hub.REQUEST_S", 0.2)
    lab_hub.conduct["org/small"] = Conduct(silent=True)
    hub = client()
    with pytest.raises(HubError, match=r"no answer within 0\.2 s"):
        hub.checkpoint("org/small")
    asked = len(lab_hub.requests)
    with pytest.raises(HubError, match="no answer"):  # another model: not waited for a second time
        hub.checkpoint("org/other")
    assert len(lab_hub.requests) == asked


def test_an_answer_that_does_not_end_soon(lab_hub, client, monkeypatch):
    monkeypatch.setattr(hub, "TOTAL_S", -1.0)
    with pytest.raises(HubError, match="took more than"):
        client().checkpoint("org/small")


def test_documents_that_are_too_long_or_none(lab_hub, client, monkeypatch):
    config = lab_hub.root / "org/small/config.json"
    config.write_text("{" + " " * (5 << 20) + "}")
    with pytest.raises(InvalidFile, match="longer than 4 MiB"):
        client().checkpoint("org/small")
    config.write_text("[1]")
    with pytest.raises(InvalidFile, match="should be a JSON object"):
        client().checkpoint("org/small")
    config.unlink()
    with pytest.raises(HubError, match=r"no config\.json"):
        client().checkpoint("org/small")


def test_a_header_longer_than_the_first_read(lab_hub, client, monkeypatch):
    monkeypatch.setattr(checkpoint, "FIRST_READ", 64)
    found = client().checkpoint("org/small")
    assert found.tensors
    monkeypatch.setattr(checkpoint, "LARGEST_HEADERS", 100)
    monkeypatch.setattr(lookup, "FRESH_S", 0.0)
    again = Hub(HubLibrary(lab_hub.url), ModelStore(lab_hub.root.parent / "elsewhere"))
    long = again.checkpoint("org/small")
    assert "bytes long" in long.problem


@each_row(__file__, "hub.toml", "quantization_that_is_declared_elsewhere")
def test_quantization_that_is_declared_elsewhere(name, document, expected, lab_hub, client):
    (lab_hub.root / "org/small" / name).write_text(json.dumps(document))
    assert find("org/small", hub=client()).quantization == expected


def test_what_is_kept_and_broken_is_read_again(lab_hub, client, tmp_path):
    first = client().checkpoint("org/small")
    for path in (tmp_path / "kept").rglob("*.json"):
        path.write_text('{"schema": "spark-cluster.model.v1", "config": 3, "tensors": [[1]]}')
    assert client().checkpoint("org/small") == first


def test_a_folder_that_cannot_be_written(lab_hub, tmp_path):
    (tmp_path / "file").write_text("")
    hub = Hub(HubLibrary(lab_hub.url), ModelStore(tmp_path / "file" / "kept"))
    assert hub.checkpoint("org/small") is not None


def test_the_table_stands_in_for_a_hub_that_does_not_answer(hub_allowed, tmp_path):
    hub = Hub(HubLibrary("http://127.0.0.1:1"), ModelStore(tmp_path))
    shape = find("Qwen/Qwen3-8B", hub=hub, cache_dir=tmp_path)
    assert (shape.layers, shape.stored) == (36, None)
    assert "cannot be reached" in hub.problem("Qwen/Qwen3-8B")
    assert hub.problem("Qwen/Qwen3-32B") == ""


def test_of_a_base_only_the_shape_is_taken(lab_hub, client):
    assert find("/models/mine", hub=client(), base="org/small").stored is None


def test_a_folder_goes_before_the_hub(lab_hub, client, tmp_path):
    project = tmp_path / "project"
    checkpoints.write(project / "org/small", {**SMALL, "hidden_size": 1024}, [])
    assert find("org/small", project, hub=client()).hidden == 1024
    assert lab_hub.requests == []


def test_a_download_of_the_library_is_read_too(lab_hub, tmp_path):
    from huggingface_hub import snapshot_download

    place = tmp_path / "downloads"
    folder = snapshot_download("org/small", endpoint=lab_hub.url, cache_dir=place, max_workers=1)
    assert Path(folder).name == lab_hub.commit("org/small")
    assert find("org/small", cache_dir=place).stored is not None


def test_a_repository_with_gguf_only_is_refused(lab_hub, client):
    folder = lab_hub.root / "org/small"
    for weights in [*folder.glob("*.safetensors"), *folder.glob("*.index.json")]:
        weights.unlink()
    (folder / "small-Q4_K_M.gguf").write_bytes(b"GGUF")
    with pytest.raises(InvalidFile, match="GGUF only") as error:
        find("org/small", hub=client())
    assert "safetensors" in error.value.hint


def test_a_folder_with_gguf_only_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    (tmp_path / "small.GGUF").write_bytes(b"GGUF")
    with pytest.raises(InvalidFile, match="GGUF only"):
        find(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert find(tmp_path).stored is None
