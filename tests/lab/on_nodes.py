"""What runs on a node of the lab."""

from spark_cluster_lab import LabNode


def containers(node: LabNode, *, all: bool = False) -> list[str]:
    """Return the names of a node's containers that run; with `all` of those that have ended too."""
    asked = ["docker", "ps", *(["--all"] if all else []), "--format", "{{.Names}}"]
    return node.run(asked).stdout.split()


def started(node: LabNode, name: str) -> str:
    """Return the id and the start of a container; empty without one."""
    asked = ["docker", "container", "inspect", "-f", "{{.Id}} {{.State.StartedAt}}", name]
    return node.run(asked, check=False).stdout.strip()


def ranks(node: LabNode) -> int:
    """Return how many workers of vLLM a node has."""
    return sum("RayWorkerProc" in process.title for process in node.processes_memory())


def left_of_ray(node: LabNode) -> str:
    """Return what there is of Ray and of its measurement on a node; empty without it."""
    look = (
        "docker ps --all --filter name=spark- --format '{{.Names}}'; "
        "pgrep -af '[f]abric_probe|[r]aylet'; nft list tables | grep spark_cluster"
    )
    return node.run(["sh", "-c", look], check=False).stdout
