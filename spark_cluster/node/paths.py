"""Every path of our own on a node; no other module spells one.

Root executes, trusts or writes what is there, so no recipe reaches one of them, whatever the user
allows: `config/recipe.py` refuses them and the folders above them.
"""

from __future__ import annotations

STATE = "/var/lib/spark-cluster"
"""Folder of what is kept: the agent, the journal, units, records, environments."""
JOURNAL = f"{STATE}/journal"
CONFIGURATION = "/etc/spark-cluster"
RUNTIME = "/run/spark-cluster"
"""Folder on a tmpfs: sockets, and secrets while something runs."""
CACHE = "/var/cache/spark-cluster"
MODELS_FOLDER = "/srv/models"
"""Folder of models that are not in the hub cache: root writes them, containers only read them."""

CACHE_ROOT = f"{CACHE}/engine"
"""Folder of models and compiled code, unless the setting `root` of the role `caches` names another.

Below it are the hub cache, `tuned`, and `images` with the caches of each image.
"""

# -- programs that root runs --------------------------------------------------------------------

AGENT = f"{STATE}/agent"
ENVIRONMENTS = f"{STATE}/environments"
"""Folder of virtual environments of our own."""
HUB_LIBRARY = f"{ENVIRONMENTS}/hub"
"""Folder of the virtual environment with the hub's own library."""
LLAMA_BENCHY = f"{ENVIRONMENTS}/llama-benchy"
GUIDELLM = f"{ENVIRONMENTS}/guidellm"
FORMER_ENVIRONMENTS = "/opt/spark-cluster"
"""Folder of the environments before 0.2, which recipes could mount:
nothing of it is used."""
UNITS = f"{STATE}/units"
ROLLBACK = f"{STATE}/rollback"
NFTABLES_SCRIPTS = f"{STATE}/nftables"
SUPERVISION = f"{STATE}/supervise"
START_LIMIT = f"{STATE}/start-limit"
START_LIMIT_SETTINGS = f"{START_LIMIT}/settings.json"
MODEL_LOADER = f"{STATE}/model-loader"
DROP_CACHES = "/usr/local/sbin/spark-drop-caches"
SYSTEMD_UNITS = "/etc/systemd/system"
TRANSIENT_UNITS = "/run/systemd/transient"
"""Folder of the units that `systemd-run` starts."""

# -- records ------------------------------------------------------------------------------------

MODELS = f"{STATE}/models"
"""Folder of notes on the hub cache: manifests, pins, last use, locks."""
FOLDERS = f"{STATE}/folders"
"""Folder of the hashes of files in plain folders."""
BUILDS = f"{STATE}/builds"
PATCHES = f"{STATE}/patches"
IMAGE_DIGESTS = f"{STATE}/image-digests.json"
LAUNCHES = f"{STATE}/caches/launches.json"
"""Records of launches; mode 600 in a folder of mode 700."""
CACHE_OWNERS = f"{STATE}/caches/owners.json"
"""The whole id of the image that has each folder of caches, by the folder's name."""
TELEMETRY = f"{STATE}/telemetry"
BENCH = f"{STATE}/bench"
BENCH_LOCK = f"{STATE}/bench-lock"

# -- secrets and configuration ------------------------------------------------------------------

SECRETS = f"{STATE}/secrets"
RAY = f"{STATE}/ray"
COPIES = f"{RUNTIME}/copies"
"""Root-only and in memory: a folder for each part of a copy, which ends with it, with the keys of
its sender: a later run joins the same copy."""
LOCKS = f"{RUNTIME}/locks"
LOAD_GUARD = f"{RUNTIME}/load-guard"
"""Folder of the reasons for which loads were ended."""
DOWNLOADS = "/run/spark-cluster-downloads"
ENDPOINT = f"{CONFIGURATION}/endpoint"
SUPERVISE_SETTINGS = f"{CONFIGURATION}/supervise.json"
MODEL_LOADER_SETTINGS = f"{CONFIGURATION}/model-loader.json"
MESH_KEY = f"{CONFIGURATION}/mesh/id_ed25519"
MESH_KNOWN_HOSTS = "/etc/ssh/spark-cluster-known-hosts"
MESH_CONFIGURATION = "/etc/ssh/ssh_config.d/40-spark-cluster.conf"
NEXT_HOST_KEYS = "/etc/ssh/spark-cluster-next"
"""Host keys that are made and not in force, `KIND/key` and `KIND/key.pub`; for root only."""
NFTABLES = f"{CONFIGURATION}/nftables"
NFTABLES_DROP_IN = f"{SYSTEMD_UNITS}/nftables.service.d/spark-cluster.conf"
SYSCTL = "/etc/sysctl.d/60-spark-cluster-{}.conf"
KERNEL_MODULES = "/etc/modules-load.d/60-spark-cluster-{}.conf"
DRIVER_PREFERENCES = "/etc/apt/preferences.d/50-spark-cluster.pref"
LOGIND = "/etc/systemd/logind.conf.d/60-spark-cluster.conf"
SUDOERS = "/etc/sudoers.d/90-spark-cluster-{}"
SUDOERS_DROP_CACHES = "/etc/sudoers.d/91-spark-cluster-drop-caches"
NETPLAN = "/etc/netplan/99-spark-cluster.yaml"
"""Addresses of the fabric; the last name, as netplan takes the last value of a key."""

OWN = (
    *(STATE, CONFIGURATION, RUNTIME, CACHE, FORMER_ENVIRONMENTS, DOWNLOADS, SYSTEMD_UNITS),
    *(MESH_KNOWN_HOSTS, MESH_CONFIGURATION, NEXT_HOST_KEYS, DROP_CACHES),
    *(DRIVER_PREFERENCES, SUDOERS_DROP_CACHES, NETPLAN),
)
"""What holds all of the above, and the names that stand alone."""
