"""vLLM platform plugin of the lab: the stock CPU platform, as Ray's executors want a device.

Ray nodes declare a GPU (`--num-gpus 1`), so placement groups and `ray status` read as on Sparks.
"""


def register() -> str:
    return "lab_cpu_ray.platform.CpuRayPlatform"
