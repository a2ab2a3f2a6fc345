"""Parsers of what a Spark's tools print, on texts as they were captured there."""

import pytest
from cases import cases, holds
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.config import fact_gathering
from spark_cluster.config.facts import GpuProcess, Hca, Memory
from spark_cluster.config.schema import as_json

PRINTED = {name.upper(): text for name, text in cases(__file__, "parsers.toml")["printed"].items()}
DGX_RELEASE, OTAS, IBDEV2NETDEV, RDMA_LINK, MISMATCH, MEMINFO = PRINTED.values()
CASES = cases(__file__, "parsers.toml", **PRINTED)


@pytest.mark.parametrize("case", CASES["reads"], ids=lambda case: case["parser"])
def test_what_is_read_of_a_text(case):
    found = as_json(getattr(fact_gathering, case["parser"])(case["text"]))
    assert holds(found, case["found"]) if "found" in case else found is None
    if case["parser"] in ("dpkg", "meminfo"):
        assert found == case["found"], "and nothing more"


# -- the GPU -----------------------------------------------------------------------------------

HEADER = "pid, process_name, used_gpu_memory [MiB]\n"


@pytest.mark.parametrize(("text", "processes"), CASES["compute_apps"])
def test_compute_apps(text, processes):
    found = fact_gathering.compute_apps(text)
    assert found == tuple(GpuProcess(*p) if p[2:] else GpuProcess(*p, None) for p in processes)


names = st.text(
    st.characters(blacklist_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=20
).map(str.strip).filter(bool)  # fmt: skip


@given(
    st.lists(
        st.tuples(st.integers(1, 2**22), names, st.none() | st.integers(0, 10**6)), max_size=4
    ),
    st.booleans(),
    st.booleans(),
)
def test_compute_apps_round_trip(processes, header, units):
    """Whatever a process is called, with a header or not, with units or not."""

    def line(pid, name, used):
        return f"{pid}, {name}, {'[N/A]' if used is None else f'{used} MiB' if units else used}\n"

    text = (HEADER if header else "") + "".join(line(*p) for p in processes)
    assert fact_gathering.compute_apps(text) == tuple(GpuProcess(*p) for p in processes)


def test_a_gpu_that_tells_little():
    bare = fact_gathering.gpu("NVIDIA GB10, 12.1, 580.159.03, 35, [N/A], [Not Supported]\n")
    assert (bare.temperature_c, bare.power_w, bare.sm_clock_mhz) == (35.0, None, None)


# -- the network -------------------------------------------------------------------------------

HCAS = (
    Hca("rocep1s0f0", "enp1s0f0np0", False),
    Hca("rocep1s0f1", "enp1s0f1np1", True),
    Hca("roceP2p1s0f0", "enP2p1s0f0np0", False),
    Hca("roceP2p1s0f1", "enP2p1s0f1np1", True),
)


@given(st.permutations(IBDEV2NETDEV.splitlines(keepends=True)))
def test_ibdev2netdev_in_any_order(lines):
    assert fact_gathering.ibdev2netdev("".join(lines)) == HCAS


# -- put together ------------------------------------------------------------------------------


def done(stdout="", status=0, stderr=""):
    return {"status": status, "stdout": stdout, "stderr": stderr}


def answer(**commands):
    return {
        "commands": commands,
        "files": dict.fromkeys(fact_gathering.FILES),
        "machine": CASES["machine"],
    }


def test_facts_of_a_bare_machine():
    found = fact_gathering.facts(answer(**dict.fromkeys(fact_gathering.COMMANDS)))
    assert (found.gpu, found.nvml_error, found.docker, found.hcas) == (None, "", None, ())


def test_a_package_that_is_not_there_hides_none_that_is():
    """The status of dpkg-query is 1 then."""
    told = done("docker-ce\t5:29.1.3\tinstalled\n", 1, "no packages found matching docker.io")
    assert fact_gathering.facts(answer(dpkg=told)).packages == {"docker-ce": "5:29.1.3"}


def test_rdma_stands_in_for_ibdev2netdev():
    assert fact_gathering.facts(answer(hcas=done(RDMA_LINK))).hcas[0].interface == "enp1s0f0np0"


def test_a_driver_that_was_updated_and_not_rebooted():
    found = fact_gathering.facts(answer(gpu=done(MISMATCH, 18)))
    assert found.gpu is None
    assert "Driver/library version mismatch" in found.nvml_error
    processes, _ = fact_gathering.memory(
        {"commands": {"apps": done(MISMATCH, 18)}, "files": {"meminfo": MEMINFO}}
    )
    assert processes is None, "never taken for: nothing is held"


def test_memory_of_an_idle_node():
    processes, memory = fact_gathering.memory(
        {"commands": {"apps": done()}, "files": {"meminfo": MEMINFO}}
    )
    assert (processes, memory.total_kib) == ((), 127600748)
    assert fact_gathering.memory({"commands": {"apps": None}, "files": {"meminfo": None}}) == (
        None,
        Memory(),
    )


def test_the_agent_answers_the_question(agent):
    """The real question to a real agent: what is asked and what is read of the answer fit."""
    found = fact_gathering.facts(agent().request("gather", **fact_gathering.question()))
    assert found.cpus > 0
    assert found.python.count(".") == 2
    assert found.disk_total_bytes >= found.disk_free_bytes > 0


def test_where_sshd_listens():
    config = (
        "port 22\nport 2222\nlistenaddress [::]:40022\nlistenaddress 0.0.0.0:40023\n"
        "listenaddress [fe80::1]:40024 rdomain vrf\nx11displayoffset 10\nmaxstartups 10:30:100\n"
    )
    sockets = "Listen=[::]:22 (Stream)\n\nListen=0.0.0.0:41022 (Stream)\nListen=/run/x (Stream)\n"
    found = (22, 2222, 40022, 40023, 40024, 41022)
    assert fact_gathering.ssh_ports(config, sockets) == found
    assert fact_gathering.ssh_ports("", "Listen=\n") == ()
