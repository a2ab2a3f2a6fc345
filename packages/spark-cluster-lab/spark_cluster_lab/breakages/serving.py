"""Breakages of what serves: containers that were run wrongly, logs with known trouble in them.

They are containers of the lab's own image that sleep, so that no engine has to be started; those
that say that they serve over two nodes are otherwise run as `up` would run them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence

from spark_cluster.doctor import serving
from spark_cluster.errors import Failed
from spark_cluster_lab.breakages.model import Action, Breakage, peer, sh
from spark_cluster_lab.layout import FABRIC, IMAGE_TAG
from spark_cluster_lab.node import LabNode

HCAS = "rocep1s0f1,roceP2p1s0f1"
ARCHIVE = "/srv/images/spark-vllm.tar"
API = "lab-ray-api"
MODEL = "/srv/models/broken"
SERVE = "vllm serve /srv/models/broken --tensor-parallel-size 2 --max-model-len 4096"
HEAD = "ray start --head --port=6379 --block"
ADDRESS = "ip -4 -o address show dev $1 scope global | awk '{print $4; exit}' | cut -d/ -f1"


def image(node: LabNode) -> None:
    """Have Docker and the lab's image.

    Raises:
        Failed: there is no Docker.
    """
    if "not-found" in sh(node, "systemctl show -P LoadState docker.service"):
        raise Failed("no Docker is here", where=node.name, hint="spark-cluster -i lab provision")
    found = "docker image inspect $1 >/dev/null 2>&1 || docker load -qi $2"
    sh(node, found, IMAGE_TAG, ARCHIVE)


def container(
    node: LabNode,
    name: str,
    command: str = "",
    *,
    says: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = ("--device", "/dev/infiniband", "--ulimit", "memlock=-1"),
    tp: int = 1,
    image_name: str = IMAGE_TAG,
) -> None:
    """A container that says some lines and sleeps; its arguments look like an engine's."""
    image(node)
    variables = (environment(node) if tp > 1 else {}) | dict(env or {})
    words = ["docker", "run", "-d", "--name", f"vllm-{name}", "--network", "host", *options]
    words += [w for k, v in variables.items() for w in ("--env", f"{k}={v}")]
    words += ["--label", f"spark-cluster.tp={tp}"] if tp > 1 else []
    program = " ".join(f"echo {shlex.quote(line)};" for line in says) + " exec sleep infinity"
    words += [image_name, "sh", "-c", program, *shlex.split(command)]
    remove(name)(node)
    sh(node, f"{shlex.join(words)} >/dev/null")


def remove(name: str) -> Action:
    """Remove a container."""

    def act(node: LabNode) -> None:
        sh(node, "! command -v docker >/dev/null || docker rm -f $1 >/dev/null 2>&1; true",
           f"vllm-{name}")  # fmt: skip

    return act


def environment(node: LabNode) -> dict[str, str]:
    """Return what `up` would give a container of this node."""
    address = sh(node, ADDRESS, FABRIC[0]).strip()
    if not address:
        raise Failed(f"{FABRIC[0]} has no address", where=node.name, hint="provision first")
    return {
        "VLLM_HOST_IP": address,
        "NCCL_SOCKET_IFNAME": FABRIC[0],
        "GLOO_SOCKET_IFNAME": FABRIC[0],
        "NCCL_IB_HCA": HCAS,
        "RAY_memory_monitor_refresh_ms": "0",
    }


def wrong(name: str, what: str, finds: tuple[str, ...], **how: object) -> Breakage:
    """A container of an engine over two nodes that is wrong in one thing."""

    def act(node: LabNode) -> None:
        container(node, name, SERVE, tp=2, **how)  # type: ignore[arg-type]

    return Breakage(name, what, finds, act, remove(name))


def says(search: serving.LogSearch) -> Breakage:
    """A container whose log has a line that was really seen."""
    name = f"log-{search.id.partition('.')[2]}"

    def act(node: LabNode) -> None:
        container(node, name, says=[search.sample])

    return Breakage(
        name, f"a log with: {search.sample[:60].rstrip()}", (search.id,), act, remove(name)
    )


# -- more than one container, or more than a container ---------------------------------------------


def ended(node: LabNode) -> None:
    """A container of ours that failed."""
    image(node)
    words = ["docker", "run", "-d", "--name", "vllm-ended", "--label", "spark-cluster.tp=1"]
    words += [IMAGE_TAG, "sh", "-c", "echo RuntimeError: out of luck; exit 1", *SERVE.split()]
    sh(node, f"{shlex.join(words)} >/dev/null; sleep 1")


def serves_without_process(node: LabNode) -> None:
    container(node, "no-vram", says=["INFO:     Application startup complete."])
    node.set_state(compute_apps=[])


def vram_again(node: LabNode) -> None:
    remove("no-vram")(node)
    node.set_state(compute_apps=None)


def other_processor(node: LabNode) -> None:
    """A container of an image that is made for the other kind of processor."""
    image(node)
    other = "arm64" if sh(node, "uname -m").strip() == "x86_64" else "amd64"
    made = "tar -cf - -C /etc hostname | docker import --platform linux/$1 - lab-other:1"
    create = "docker create --platform linux/$1 --name vllm-other-processor lab-other:1 vllm serve"
    sh(node, f"{{ {made} && {create}; }} >/dev/null", other)


def own_processor(node: LabNode) -> None:
    remove("other-processor")(node)
    sh(node, "docker image rm lab-other:1 >/dev/null 2>&1; true")


def one_ray_node(node: LabNode) -> None:
    """A Ray head whose State API shows itself only."""
    container(node, "one-ray-node", HEAD, tp=2)
    address = environment(node)["VLLM_HOST_IP"]
    listed = [{"node_ip": address, "is_head_node": True, "state": "ALIVE"}]
    folder = node.root / "var/lib/lab/ray/api/v0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nodes").write_text(json.dumps({"data": {"result": {"result": listed}}}))
    serve = "python3 -m http.server 8265 --bind 127.0.0.1 --directory /var/lib/lab/ray"
    sh(node, f"systemd-run --quiet --collect --unit={API} {serve}; sleep 0.5")


def no_ray_head(node: LabNode) -> None:
    sh(node, f"systemctl stop {API} 2>/dev/null; true")
    remove("one-ray-node")(node)


def other_arguments(node: LabNode) -> None:
    """A rank on each node, with different arguments."""
    container(node, "other-arguments", f"{SERVE} --enforce-eager --headless", tp=2)
    container(peer(node), "other-arguments", SERVE, tp=2)


def other_images(node: LabNode) -> None:
    """A rank on each node, from different images."""
    image(node)
    sh(node, "id=$(docker create $1 true) && docker commit -m other $id lab-other:2 >/dev/null"
             " && docker rm $id >/dev/null", IMAGE_TAG)  # fmt: skip
    container(node, "other-image", SERVE, tp=2, image_name="lab-other:2")
    container(peer(node), "other-image", SERVE, tp=2)


def same_images(node: LabNode) -> None:
    remove("other-image")(node)
    remove("other-image")(peer(node))
    sh(node, "docker image rm lab-other:2 >/dev/null 2>&1; true")


def other_ray(node: LabNode) -> None:
    """A rank on each node, with different versions of Ray in them."""
    for one, version in ((node, "2.50.0"), (peer(node), "2.60.0")):
        folder = one.root / f"var/lib/lab/ray-version/ray-{version}.dist-info"
        folder.mkdir(parents=True, exist_ok=True)
        text = f"Metadata-Version: 2.1\nName: ray\nVersion: {version}\n"
        (folder / "METADATA").write_text(text)
        options = ["--device", "/dev/infiniband", "--ulimit", "memlock=-1"]
        options += ["--volume", "/var/lib/lab/ray-version:/versions:ro"]
        container(one, "other-ray", SERVE, tp=2, env={"PYTHONPATH": "/versions"}, options=options)


def same_ray(node: LabNode) -> None:
    for one in (node, peer(node)):
        remove("other-ray")(one)
        sh(one, "rm -rf /var/lib/lab/ray-version")


def part_of_a_model(node: LabNode) -> None:
    """A rank on each node; one node lacks a file of the model."""
    for one, files in ((node, "config.json"), (peer(node), "config.json model.safetensors")):
        sh(one, f"mkdir -p {MODEL} && cd {MODEL} && for f in {files}; do echo x > $f; done")
        options = ["--device", "/dev/infiniband", "--ulimit", "memlock=-1"]
        options += ["--volume", f"{MODEL}:{MODEL}:ro"]
        container(one, "part-of-a-model", SERVE, tp=2, options=options)


def whole_model(node: LabNode) -> None:
    for one in (node, peer(node)):
        remove("part-of-a-model")(one)
        sh(one, f"rm -rf {MODEL}")


def both(name: str) -> Action:
    """Remove a container on both nodes."""

    def act(node: LabNode) -> None:
        remove(name)(node)
        remove(name)(peer(node))

    return act


def gpu_lost(node: LabNode) -> None:
    """systemd does not know of a device that runc lets the container open, and reloads.

    The rule stands in for the toolkit's hook, which changes what runc put in force.
    """
    options = ("--gpus", "all", "--device-cgroup-rule", "c 195:255 rwm")
    container(node, "gpu-lost", options=options)
    rules = "/run/systemd/transient/docker-$id.scope.d/50-DeviceAllow.conf"
    sh(node, "id=$(docker container inspect -f '{{.Id}}' vllm-gpu-lost) && "
             f"sed -i '/195:255/d' {rules} && systemctl daemon-reload")  # fmt: skip


def flush_firewall(node: LabNode) -> None:
    """The rules are gone, as after someone's `flush ruleset`; the unit still counts as active."""
    sh(node, "nft delete table inet spark_cluster")


def load_firewall(node: LabNode) -> None:
    sh(node, "systemctl try-restart spark-cluster-firewall.service")


def pause_worker(node: LabNode) -> None:
    """The worker's Ray stands still while the head's server says that it is healthy."""
    running = "docker inspect -f '{{.State.Running}}' spark-ray 2>/dev/null || echo false"
    if sh(node, running).strip() != "true":
        raise Failed(
            "no Ray of ours runs here", where=node.name, hint="spark-cluster -i lab up --tp 2"
        )
    sh(node, "docker pause spark-ray >/dev/null")


def go_on(node: LabNode) -> None:
    sh(node, "docker unpause spark-ray >/dev/null 2>&1; true")


RDMA, MEMLOCK = ("--device", "/dev/infiniband"), ("--ulimit", "memlock=-1")
BREAKAGES = (
    wrong("no-rdma-device", "a container without /dev/infiniband", ("serving.rdma-device",),
          options=MEMLOCK),
    wrong("no-memlock", "a container with Docker's own memlock", ("serving.memlock",),
          options=RDMA),
    Breakage("gpu-lost", "a container may no longer open the GPU", ("serving.gpu-access",),
             gpu_lost, remove("gpu-lost")),
    wrong("one-hca", "NCCL_IB_HCA names one interface", ("serving.hcas",),
          env={"NCCL_IB_HCA": "rocep1s0f1"}),
    wrong("gid-pinned", "NCCL_IB_GID_INDEX names a wrong entry", ("serving.gid-index",),
          env={"NCCL_IB_GID_INDEX": "0"}),
    wrong("lan-address", "the engine's traffic goes over the LAN", ("serving.address",),
          env={"NCCL_SOCKET_IFNAME": "enP7s7"}),
    Breakage("ray-monitor", "Ray's memory monitor is on", ("serving.ray-monitor",),
             lambda node: container(node, "ray-monitor", "ray start --address=x"),
             remove("ray-monitor")),
    Breakage("slow-load", "the weights took six minutes", ("serving.load-time",),
             lambda node: container(node, "slow-load",
                                    says=["Loading weights took 371.35 seconds"]),
             remove("slow-load")),
    Breakage("ended", "a container of ours failed", ("serving.containers",), ended,
             remove("ended")),
    Breakage("no-vram", "nvidia-smi lists no process while one serves", ("serving.vram-visible",),
             serves_without_process, vram_again),
    Breakage("other-processor", "an image for another processor", ("serving.image-arch",),
             other_processor, own_processor),
    Breakage("one-ray-node", "Ray shows one of two nodes", ("serving.ray-nodes",), one_ray_node,
             no_ray_head),
    Breakage("other-arguments", "the ranks' arguments differ", ("pair.engine-args",),
             other_arguments, both("other-arguments"), node="spark2"),
    Breakage("other-image", "the ranks' images differ", ("pair.images",), other_images,
             same_images, node="spark2"),
    Breakage("other-ray", "the ranks' versions of Ray differ", ("pair.ray-version",), other_ray,
             same_ray, node="spark2"),
    Breakage("part-of-a-model", "one node has part of the model", ("pair.model-files",),
             part_of_a_model, whole_model, node="spark2"),
    Breakage("worker-stands-still", "/health is fine and requests hang (needs `up --tp 2`)",
             (), pause_worker, go_on, node="spark2", probed=("serving.completion",)),
    Breakage("firewall-flushed", "the engine's ports are open to all (needs `up --tp 2`)",
             ("serving.firewall",), flush_firewall, load_firewall,
             probed=("network.open-ports",)),
    *(says(search) for search in serving.SEARCHES),
)  # fmt: skip
