"""Service, against a systemd that keeps real state in a file."""

import pytest
from waiting import HANG_S

from spark_cluster.resources import File, Package, Service
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


def verbs(node):
    return [c[1] for c in node.changing_calls("systemd")]


def test_stopped_is_started_enabled_and_then_left(systemd):
    service = Service("docker", enabled=True)
    systemd.must_change(service)
    assert verbs(systemd) == ["enable", "start"]
    before = len(systemd.calls("systemd"))
    assert systemd.apply(service).verdict == "ok"
    assert len(systemd.calls("systemd")) == before + 1


def test_running_is_stopped_and_disabled(systemd):
    put(systemd, active="active", file="enabled")
    service = Service("docker", running=False, enabled=False)
    systemd.must_converge(service)
    assert verbs(systemd) == ["disable", "stop"]


def test_what_is_none_is_left(systemd):
    put(systemd, active="active", file="disabled")
    assert systemd.apply(Service("docker")).verdict == "ok"
    assert systemd.apply(Service("docker", running=None, enabled=True)).verdict == "change"
    assert verbs(systemd) == ["enable"]


@pytest.mark.parametrize("file", ["enabled", "alias", "generated", "indirect", "enabled-runtime"])
def test_ways_to_be_enabled(systemd, file):
    put(systemd, active="active", file=file)
    until_the_next_boot = file == "enabled-runtime"
    verdict = "change" if until_the_next_boot else "ok"
    assert systemd.apply(Service("docker", enabled=True)).verdict == verdict


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


def test_started_anyway_is_not_restarted_too(systemd):
    file = File("/etc/daemon.json", content="{}")
    systemd.results(file, Service("docker", restart_when=(file,)))
    assert unit(systemd)["starts"] == 1


def test_reload_and_leaving_it_stopped(systemd):
    put(systemd, active="active")
    file = File("/etc/daemon.json", content="{}")
    systemd.results(file, Service("docker", restart_when=(file,), reload=True))
    put(systemd, active="inactive")
    other = File("/etc/other", content="{}")
    service = Service("docker", running=None, restart_when=(other,))
    assert [r.verdict for r in systemd.results(other, service)] == ["change", "change"]
    assert verbs(systemd) == ["reload-or-restart", "try-restart"]
    assert unit(systemd)["active"] == "inactive"


def test_changed_unit_file_is_read_again(systemd):
    put(systemd, active="active", stale=True)
    systemd.must_change(Service("docker"))
    assert verbs(systemd) == ["daemon-reload"]


def test_failure_to_start_shows_the_log(systemd):
    put(systemd, active="inactive", fails=True, log="one\nunable to configure: bad json\n")
    result = systemd.apply(Service("docker"))
    assert "systemctl start docker.service failed: Job for the unit failed" in result.error
    assert "unable to configure: bad json" in result.error


def test_failed_too_often_is_reset_first(systemd):
    put(systemd, active="failed", sub="failed", limit=True)
    assert systemd.apply(Service("docker")).verdict == "change"
    assert verbs(systemd) == ["reset-failed", "start"]


def test_simple_service_that_dies_at_once(systemd, monkeypatch):
    monkeypatch.setattr(module, "_STAYS_S", HANG_S)  # it is seen at the second look
    put(systemd, active="inactive", type="simple", dies=True, log="no such model\n")
    result = systemd.apply(Service("docker"))
    assert "activating (auto-restart)" in result.error
    assert "no such model" in result.error


def test_masked_static_and_invalid(systemd):
    put(systemd, load="masked", file="masked")
    assert "docker.service is masked" in systemd.check(Service("docker")).error
    assert systemd.apply(Service("docker", running=False, enabled=False)).verdict == "ok"
    put(systemd, active="active", file="static")
    assert "no [Install] section" in systemd.apply(Service("docker", enabled=True)).error
    assert systemd.apply(Service("docker", enabled=False)).verdict == "ok"
    put(systemd, load="bad-setting", error="Unit docker.service has a bad unit file setting.")
    assert "bad unit file setting" in systemd.apply(Service("docker")).error


def test_no_such_unit(systemd):
    for result in (systemd.check(Service("nvidia-x")), systemd.apply(Service("nvidia-x"))):
        assert "there is no unit nvidia-x.service" in result.error
    assert systemd.apply(Service("nvidia-x", running=False, enabled=False)).verdict == "ok"


def test_check_mode_knows_the_unit_of_a_package_or_file(systemd):
    systemd.install("apt")
    package = Package("docker.io", makes=("unit:nvidia-x.service",))
    result = systemd.check(package, Service("nvidia-x"))
    assert (result.verdict, result.reason) == ("unknown", "after: Package:docker.io")
    systemd.path("/etc/systemd/system").mkdir(parents=True)
    file = File("/etc/systemd/system/x@.service", content="")
    result = systemd.check(file, Service("x@fabric"))
    assert (result.verdict, result.reason) == (
        "unknown",
        "after: File:/etc/systemd/system/x@.service",
    )


def test_kinds_of_units(systemd):
    for name in ("docker.socket", "fstrim.timer"):
        put(systemd, name, active="inactive")
        assert systemd.apply(Service(name)).verdict == "change"
        assert unit(systemd, name)["active"] == "active"
    put(systemd, "my.timer.service", active="active")
    assert systemd.apply(Service("my.timer.service")).verdict == "ok"


def test_a_unit_whose_file_was_away_and_is_back(systemd):
    """As after a revert: systemd knows it as broken until it is told to look again."""
    put(systemd, load="error", active="active", file="enabled")
    service = Service("docker", enabled=True)
    systemd.must_converge(service)
    put(systemd, load="error", then="bad-setting", active="active", file="enabled")
    assert "not valid" in systemd.apply(service).error


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
