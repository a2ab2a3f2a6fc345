"""The forty troubles of two Sparks that are known, by number, and those that no check can see."""

from __future__ import annotations

SYMPTOMS: dict[int, str] = {
    1: "ConnectX-7 missing from lspci and ibdev2netdev",
    2: "every function (Down)",
    3: "both twins in one subnet",
    4: "half the bandwidth: a twin without address, or not in NCCL_IB_HCA",
    5: "the port shows 100000Mb/s",
    6: "a full-size ping fails though ssh works",
    7: "about 13 Gb/s a link",
    8: "NET/Socket in NCCL's log",
    9: "NCCL connects, then hangs: wrong GID index",
    10: "Couldn't allocate MR",
    11: "ibv_reg_mr fails with ENOMEM",
    12: "the engine's traffic is on the LAN",
    13: "the LAN uses the link's subnet",
    14: "Ray shows one node",
    15: "Ray's versions differ",
    16: "workers are ended at 95 % of memory",
    17: "hang in graph capture: engine arguments differ between ranks",
    18: "free memory is less than desired utilization",
    19: "memory is held after the stop",
    20: "answers pings, but no SSH",
    21: "driver/library version mismatch",
    22: "no devices were found, Xid 119",
    23: "no CUDA GPUs are available, though one is counted",
    24: "500-850 MHz under load",
    25: "sudden power-off",
    26: "system, driver or firmware differ between the nodes",
    27: "a firmware update failed",
    28: "ConnectX-7 dead after apt",
    29: "Docker: permission denied",
    30: "equal machine-id or host keys",
    31: "the peer is not discovered",
    32: "a worker cannot load the model offline",
    33: "401 or 403 from the hub",
    34: "ptxas does not know sm_121a",
    35: "AmbiguousGlobalPerLayerAttributeError",
    36: "/health is fine, requests time out",
    37: "loading takes 6-8 minutes",
    38: "ssh in batch mode hangs: Tailscale SSH in check mode",
    39: "exec format error",
    40: "nvidia-smi lists no process though the engine serves",
}

NOT_COVERED: dict[int, str] = {}
"""Rows that no check can see, each with the reason."""

SHOWS_ONLY: dict[int, str] = {
    7: "in real traffic: with --probe",
    12: "in how the engine's containers were started: packets are not counted",
    24: "while the GPU is busy",
    25: "after the next boot, in the journal",
    36: "with --probe; without it once a worker's death is in the log",
}
"""Rows that are seen under a condition."""
