"""The platform, and a communicator that does not use shared memory across machines."""

import os
from typing import Any

from vllm.platforms.cpu import CpuPlatform

COMMUNICATOR = "HostAwareCpuCommunicator"


class CpuRayPlatform(CpuPlatform):
    ray_device_key = "GPU"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return f"{__name__}.{COMMUNICATOR}"


def __getattr__(name: str) -> Any:
    # made on first use: vllm.distributed cannot be imported while the platform is being found
    if name != COMMUNICATOR:
        raise AttributeError(name)
    import torch
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    class HostAwareCpuCommunicator(CpuCommunicator):
        """Takes the shared-memory path only when all ranks are on one host.

        vLLM 0.32 takes it whenever the ranks agree on the rendezvous port, also across hosts
        ("open shm in SHMManager failed. errno: 2").
        """

        def _all_group_ranks_share_shm_group_name(self) -> bool:
            names = [""] * self.world_size
            torch.distributed.all_gather_object(names, os.uname().nodename, group=self.device_group)
            return len(set(names)) == 1 and super()._all_group_ranks_share_shm_group_name()

    globals()[name] = HostAwareCpuCommunicator
    return HostAwareCpuCommunicator
