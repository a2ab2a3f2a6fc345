"""Service, against a systemd that keeps real state in a file."""

import pytest
from waiting import HANG_S

from spark_cluster.resources import File, Service
from spark_cluster.resources import service as module

UNIT = "docker.service"


@pytest.fixture
def systemd(node, monkeypatch):
    node.install("systemd")
    monkeypatch.setattr(module, "_STAYS_S", 0.0)
    node.path("/etc").mkdir()
    put(node)
    return node


def put(node, name=UNIT, **unit):
    with node.state("systemd") as state:
        state.setdefault("units", {})[name] = unit or {"active": "inactive"}


def unit(node, name=UNIT):
    with node.state("systemd") as state:
        return dict(state["units"][name])


def test_restart_is_owed_until_it_happened(systemd):
    put(systemd, active="active", file="enabled")
    file = File("/etc/daemon.json", content="{}")
    service = Service("docker", restart_when=(file,))
    assert [r.verdict for r in systemd.results(file, service, check=True)] == ["change", "change"]
    put(systemd, active="active", file="enabled", fails=True)
    assert [r.verdict for r in systemd.results(file, service)] == ["change", "failed"]
    put(systemd, active="active", file="enabled")
    assert [r.verdict for r in systemd.results(file, service)] == ["ok", "change"]
    assert unit(systemd)["starts"] == 1
    assert [r.verdict for r in systemd.results(file, service)] == ["ok", "ok"]


def test_simple_service_that_dies_at_once(systemd, monkeypatch):
    monkeypatch.setattr(module, "_STAYS_S", HANG_S)  # it is seen at the second look
    put(systemd, active="inactive", type="simple", dies=True, log="no such model\n")
    result = systemd.apply(Service("docker"))
    assert "activating (auto-restart)" in result.error
    assert "no such model" in result.error


# -- a restart that would end what somebody uses ---------------------------------------------------

FILE = File("/etc/daemon.json", content="{}")


def used(node, *names, **options):
    """The service, with a command that prints these names."""
    node.put("/etc/users", "".join(f"{name}\n" for name in names))
    who = ("cat", str(node.path("/etc/users")))
    return Service("docker", restart_when=(FILE,), in_use=who, **options)


def test_a_restart_waits_while_someone_uses_it(systemd):
    put(systemd, active="active", file="enabled")
    service = used(systemd, "spark-vllm", "spark-ray")
    for check in (True, False):
        changed, skipped = systemd.results(FILE, service, check=check)
        assert (changed.verdict, skipped.verdict) == ("change", "skipped")
        said = "would restart docker, which ends spark-vllm, spark-ray"
        assert skipped.reason.startswith(said)
        assert systemd.notes[-1].startswith(said)
        assert "provision --allow-restart" in systemd.notes[-1]
    assert unit(systemd).get("starts", 0) == 0
    assert [r.verdict for r in systemd.results(FILE, service)] == ["ok", "skipped"], "still due"
    assert [r.verdict for r in systemd.results(FILE, used(systemd))] == ["ok", "change"]
    assert unit(systemd)["starts"] == 1
    assert [r.verdict for r in systemd.results(FILE, service)] == ["ok", "ok"]


def test_a_restart_that_is_allowed_says_what_it_ends(systemd):
    put(systemd, active="active", file="enabled")
    service = used(systemd, "spark-vllm", allow_restart=True)
    told = systemd.results(FILE, service, check=True)[-1]
    assert (told.verdict, told.reason) == ("change", "would restart docker, which ends spark-vllm")
    done = systemd.results(FILE, service)[-1]
    assert (done.verdict, done.reason) == ("change", "restarts docker, which ends spark-vllm")
    assert unit(systemd)["starts"] == 1


def test_what_is_down_is_started_whoever_used_it(systemd):
    put(systemd, active="inactive", file="enabled")
    assert systemd.apply(used(systemd)).verdict == "change"
    assert unit(systemd)["starts"] == 1
