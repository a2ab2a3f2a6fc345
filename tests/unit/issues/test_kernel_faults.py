"""`explain` on logs of the kernel, of logind and of avahi, as owners of Sparks posted them."""

from __future__ import annotations

import pytest
from factories import log_of

from spark_cluster.importers import commandline
from spark_cluster.issues.explain import Explanation, explain
from spark_cluster.issues.rules import lint

FRAGMENTED = """\
Sep 17 03:12:44 spark2 kernel: VLLM::Worker_TP: page allocation failure: order:4, mode:0x40dc0(GFP\
_KERNEL|__GFP_COMP|__GFP_ZERO), nodemask=(null),cpuset=/,mems_allowed=0
Sep 17 03:12:44 spark2 kernel: NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_\
MEMORY] (0x00000051) returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359
Sep 17 03:13:10 spark2 kernel: watchdog: BUG: soft lockup - CPU#7 stuck for 22s! [kcompactd0:98]
"""
PCIE = """\
Aug 26 06:38:10 spark1 kernel: pcieport 0000:00:00.0: AER: Uncorrectable (Fatal) error message rec\
eived from 0000:01:00.0
Aug 26 06:38:10 spark1 kernel: mlx5_core 0000:01:00.0: PCIe Bus Error: severity=Uncorrectable (Fat\
al), type=Transaction Layer, (Requester ID)
Aug 26 06:38:11 spark1 kernel: mlx5_core 0000:01:00.0: mlx5_pci_err_detected Device state = 1 heal\
th sensors: 1 pci_status: 1. Enter, pci channel state = 2
Aug 26 06:38:12 spark1 kernel: pcieport 0002:00:00.0: AER: subordinate device reset failed
Aug 26 06:38:42 spark1 kernel: watchdog: BUG: soft lockup - CPU#4 stuck for 26s! [irq/57-aerdrv:31\
2]
"""
MSTFLINT = """\
Jul 09 14:00:02 spark1 kernel: Unable to handle kernel paging request at virtual address dead00000\
0000120
Jul 09 14:00:02 spark1 kernel: pc : mst_ioctl+0x2f4/0x9c0 [mstflint_access]
Jul 09 14:00:02 spark1 kernel: Kernel panic - not syncing: Oops: Fatal exception
"""
NVME = """\
Sep 09 02:11:31 spark2 kernel: Unable to handle kernel NULL pointer dereference at virtual address\
 0000000000000008
Sep 09 02:11:31 spark2 kernel: CPU: 6 UID: 0 PID: 3312 Comm: VLLM::Worker_TP Tainted: G           \
OE      6.17.0-1031-nvidia #31-Ubuntu
Sep 09 02:11:31 spark2 kernel: pc : nvme_setup_rw+0x30/0x1f0
Sep 09 02:11:31 spark2 kernel: Call trace:
Sep 09 02:11:31 spark2 kernel:  ext4_readahead+0x40/0x60
Sep 09 02:11:31 spark2 kernel:  page_cache_async_ra+0x1b0/0x200
Sep 09 02:11:31 spark2 kernel:  filemap_fault+0x4a0/0x8c0
"""
NAMES = "Nov 02 10:00:00 spark1 avahi-daemon[911]: Host name conflict, retrying with spark1-30\n"
TRACEBACK = """\
Process Worker_TP1:
Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "/usr/lib/python3.12/multiprocessing/spawn.py", line 122, in spawn_main
    exitcode = _main(fd, parent_sentinel)
  File "/usr/lib/python3.12/multiprocessing/synchronize.py", line 115, in __setstate__
    self._semlock = _multiprocessing.SemLock._rebuild(*state)
FileNotFoundError: [Errno 2] No such file or directory
"""
STARTING = """\
(Worker_TP1 pid=214) INFO 09-01 10:02:11 [multiproc_executor.py:720] Worker starting, rank 1 of 2
"""
HEADLESS = """\
(MainProcess pid=529) INFO 09-01 10:02:08 [arg_utils.py:2472] Inferred data_parallel_rank 0 from n\
ode_rank 1
"""


def of(text: str) -> Explanation:
    return explain([log_of(text)])


REPORTED = {
    "memory-fragmented": FRAGMENTED,
    "pcie-fatal-error": PCIE,
    "mstflint-panic": MSTFLINT,
    "nvme-read-crash": NVME,
    "mdns-name-counts-up": NAMES,
    "logind-removes-ipc": HEADLESS + STARTING + TRACEBACK,
}


@pytest.mark.parametrize("id", REPORTED)
def test_the_cause_of_a_reported_log_is_named_first(id: str) -> None:
    """P02, P06, P09, P10, P11, R02: the right cause, in front of what only follows from it."""
    explanation = of(REPORTED[id])
    assert explanation.verdict == "cause"
    assert explanation.cause.finding.id == id
    assert explanation.problems[0] is explanation.cause


def test_a_lost_semaphore_has_two_causes_where_the_log_does_not_tell() -> None:
    """P02: a rank alone does not tell; both causes are named, and what decides between them."""
    explanation = of(STARTING + TRACEBACK)
    assert explanation.verdict == "likely"
    cause = explanation.cause.finding.cause
    for said in ("executor", "logind", "--nnodes", "--ipc host", "loginctl list-users"):
        assert said in cause


@pytest.mark.parametrize("user", ["1000:1000", "'$(id -u):$(id -g)'"])
def test_a_person_with_the_ipc_of_the_node_is_warned_of(user: str) -> None:
    """P02: `lint --command` names the launch whose semaphores a logout removes."""
    launch = commandline.parse(f"docker run --user {user} --ipc host --gpus all img vllm serve m")
    (found,) = [match for match in lint(launch) if match.id == "logind-removes-ipc"]
    assert found.severity == "warning"
    assert "--ipc host" in found.found


def test_a_known_error_goes_before_an_unknown_one_of_the_same_moment():
    """P02: a thread's lines in another order, without their times."""
    said = (
        "FileNotFoundError: [Errno 2] No such file or directory\n"
        "    self._semlock = _multiprocessing.SemLock._rebuild(*state)\n"
        "Exception: WorkerProc initialization failed due to an exception in a background process.\n"
    )
    found = explain([log_of(said)])
    assert (found.verdict, found.cause.finding.id) == ("likely", "executor-mp-across-nodes")
