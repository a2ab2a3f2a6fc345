"""From any state to a verified vLLM endpoint."""

from __future__ import annotations

from typing import Any

from spark_cluster.cluster import Spark
from spark_cluster.engine.play import Play, RoleCall
from spark_cluster.errors import Refused
from spark_cluster.laptop_files import must_be_allowed
from spark_cluster.planning.nodes import serving
from spark_cluster.recipe import Recipe
from spark_cluster.resources import Container
from spark_cluster.serving import (
    admission,
    caches,
    firewall,
    patches,
    ray_state,
    readiness,
    rungs,
    startup_log,
    vram,
)
from spark_cluster.serving.endpoint import LABEL, Endpoint, endpoint_of
from spark_cluster.serving.engine import RAY, SERVER
from spark_cluster.serving.result import Served, versions
from spark_cluster.serving.secret_env import secrets_of_laptop


def main(play: Play, *, recipe: Recipe, tp: int, force: bool = False) -> Served | None:
    """Serve `recipe` over `tp` nodes; None where nothing can be verified (check mode, --tags).

    With `force` also what the plan says cannot work.
    """
    servers, idle = plan_nodes(play, recipe, tp)
    endpoint = endpoint_of(play, recipe)
    warn_if_open(play, endpoint.host)
    if recipe.secret_env:
        names = ", ".join(ref.env for ref in recipe.secret_env.values())
        play.note(f"the recipe has the containers given {names} of this machine's environment")
    running = readiness.container_state(play, SERVER)
    admission.must_work(play, recipe, servers, running, force=force)
    before = [] if play.check else vram.sample({n.name: play.session(n) for n in play.nodes})
    with play.stage("prepare"):
        link = ("network",) if tp > 1 else ()
        guarded = guard(play, recipe, servers)
        front = ("haproxy",) if endpoint.engine_port is not None else ()
        made = play.apply(servers, *link, guarded, "containers", "caches", *front)
        if made.changed and not play.check:
            play.refresh(servers)  # Docker's version, the fabric's addresses
        if idle:
            gone = [Container(SERVER, state="absent"), Container(RAY, state="absent")]
            play.apply(idle, gone, play.role("endpoint"), play.role("firewall", state="absent"))
    with play.stage("fetch"):
        fetch(play, servers, recipe)
    with play.stage("start"):
        share = admission.share(play, recipe, servers, running)
        start(play, servers, recipe, endpoint, share, guarded=guarded.given["state"])
    if play.check:
        play.note("check mode: nothing was started, so nothing was verified")
        return None
    left_out = play.options.selection.partial
    if left_out and readiness.container_state(play, SERVER).status == "absent":
        play.note("the server was left out, so nothing was verified")
        return None
    with play.stage("load"):
        ranks = [n.name for n in servers[1:]] if recipe.executor == "mp" else []
        peak = readiness.healthy(play, endpoint, recipe.ready_timeout_s, ranks)
    with play.stage("verify"):
        startup_log.must_fit(play, servers, recipe.readiness)
        answer = rungs.climb(play, endpoint, recipe, tp)
        now = vram.sample({n.name: play.session(n) for n in play.nodes})
        peak = vram.peak(peak, now)
        told = endpoint.request(play.session(play.head), "/version")
        found = versions(play, told, recipe.ray.dashboard_port if _on_ray(recipe, tp) else None)
    asked = tuple(recipe.readiness.rungs)
    return Served(
        endpoint, recipe.name, tp, answer, before, peak, now, found, asked, told.certificate
    )


def warn_if_open(play: Play, host: str) -> None:
    """Say at each run that the endpoint asks for no key, although others reach it."""
    serve = play.inventory.serve
    if serve.open and not serve.on_loopback:
        play.note(
            f"serve.open: anyone who reaches {host} may use the endpoint; "
            "`api_key: {env: NAME}` in its place asks for a key",
            warning=True,
        )


def plan_nodes(play: Play, recipe: Recipe, tp: int) -> tuple[list[Spark], list[Spark]]:
    """Who serves and who does not."""
    if recipe.runtime != "docker":
        raise Refused(
            f"recipe {recipe.name} has `runtime: {recipe.runtime}`, which is not there yet",
            hint="`runtime: docker` serves the same from an image",
        )
    recipe.args_for(tp)  # refuses a size that the recipe does not do
    must_be_allowed(recipe)
    patches.uploads(recipe)  # refuses one that is not on the laptop
    secrets_of_laptop(recipe)  # refuses what is not set
    servers, idle = serving(play.nodes, tp)
    _cache_root(play, servers)  # refuses what differs
    return servers, idle


def fetch(play: Play, nodes: list[Spark], recipe: Recipe) -> None:
    """Image, model, drafter and patches; side by side when nothing needs the image to be fetched.

    Raises:
        Refused: a patch is missing; nothing is started then.
    """
    image = recipe.image
    build = image.build.dockerfile if image.build else None
    given = {"ref": image.ref, "digest": image.digest, "archive": image.archive}
    images = play.role("images", **given, dockerfile=build)
    models = [play.role("models", **given) for given in model_settings(recipe)]
    if recipe.model.source == "hub" or len(models) > 1:
        play.apply(nodes, images, *models)
    else:
        play.together(lambda: play.apply(nodes, images), lambda: play.apply(nodes, *models))
    if recipe.patches and not play.check:
        patches.must_be_there(play, nodes, recipe)


def model_settings(recipe: Recipe) -> list[dict[str, Any]]:
    """The role models' settings, for the model and for a drafter from the hub."""
    model, drafter = recipe.model, recipe.drafter
    mounts = tuple(mount.volume for mount in recipe.mounts)
    common = {"image": recipe.image.reference, "mounts": mounts}
    chosen = model.model_dump(include={"name", "revision", "source", "directory"})
    found = [{**common, **chosen, "path": model.node_path, "patches": patches.uploads(recipe)}]
    if drafter is not None and drafter.name is not None:
        chosen = drafter.model_dump(include={"name", "revision"})
        found.append({**common, **chosen, "path": drafter.node_path})
    return found


def guard(play: Play, recipe: Recipe, nodes: list[Spark]) -> RoleCall:
    """The firewall, which must be in force before anything of the engine starts.

    One node alone goes on where nftables does not work; the user is told.
    """
    settings = firewall.settings(play.inventory, recipe, nodes)
    wanted, alone = settings["state"] == "present", len(nodes) == 1
    if not wanted and not alone:
        play.note(firewall.OPEN, warning=True)
    if wanted and alone and play.session(nodes[0]).run(list(firewall.WORKS)).status != 0:
        play.note(firewall.ALONE_AND_OPEN, warning=True, node=nodes[0])
        return play.role("firewall", state="absent")
    return play.role("firewall", **settings)


def start(
    play: Play,
    nodes: list[Spark],
    recipe: Recipe,
    endpoint: Endpoint,
    share: float | None,
    *,
    guarded: str = "absent",
) -> None:
    """Ray on all nodes, head first; then the server, and the proxy in front of it.

    Args:
        guarded: whether there is a firewall, for the containers' label.
    """
    tp = len(nodes)
    shared = engine_settings(recipe, tp, endpoint, guarded)
    common = {**shared, "cache_root": _cache_root(play, nodes)}
    if _on_ray(recipe, tp):
        common["ray_token"] = ray_state.token(play.session(nodes[0]))
    server = play.role(
        "vllm",
        **common,
        args=tuple(recipe.args_for(tp, share)),
        port=endpoint.engine_port or endpoint.port,
        ray_port=recipe.ray.port,
        ranks=tuple(node.name for node in nodes),
    )
    options = recipe.ray.model_dump(exclude={"join_timeout_s"})
    anew = ray(play, nodes, play.role("ray", **common, **options))
    if anew and not play.check:
        # A server that was started with another Ray cluster never finds this one.
        play.apply(nodes[0], [Container(SERVER, state="absent")])
    if _on_ray(recipe, tp) and not play.check:
        readiness.ray_cluster(play, tp, recipe.ray.dashboard_port, recipe.ray.join_timeout_s)
        readiness.ray_asks_for_its_token(play, recipe.ray.dashboard_port)
    proxy = play.role("endpoint", **endpoint.proxy_settings())
    # Who has the port gives it up before the other takes it.
    order = (server, proxy) if endpoint.engine_port is not None else (proxy, server)
    made = play.apply(nodes, *order)
    changed = [node for node in nodes if f"Container:{SERVER}" in made.changes(node.name)]
    if recipe.executor == "mp" and 0 < len(changed) < tp and not play.check:
        # A rank does not join others that have begun already.
        play.apply(nodes, [Container(SERVER, state="absent", stop_timeout_s=5)])
        play.apply(nodes, server)


def _cache_root(play: Play, nodes: list[Spark]) -> str:
    return caches.root_of_all(play.inventory.nodes[node.name] for node in nodes)


def _on_ray(recipe: Recipe, tp: int) -> bool:
    return tp > 1 and recipe.executor == "ray"


def ray(play: Play, nodes: list[Spark], role: RoleCall) -> bool:
    """The head before the workers; whether anything was changed."""
    head = play.apply(nodes[0], role)
    anew = f"Container:{RAY}" in head.changes(nodes[0].name)
    if anew and not play.check and nodes[1:]:
        # Workers of an earlier head do not follow to a new one.
        play.apply(nodes[1:], [Container(RAY, state="absent", stop_timeout_s=2)])
    workers = play.apply(nodes[1:], role)
    return anew or workers.changed


def engine_settings(
    recipe: Recipe, tp: int, endpoint: Endpoint, guarded: str = "absent"
) -> dict[str, Any]:
    """What the roles ray and vllm share.

    Args:
        guarded: whether there is a firewall, for the containers' label.
    """
    drafter = recipe.drafter.node_path if recipe.drafter else None
    return {
        "image": recipe.image.reference,
        "model_path": recipe.model.node_path,
        "tp": tp,
        "executor": recipe.executor,
        "mounts": (
            *(mount.volume for mount in recipe.mounts),
            *((f"{drafter}:{drafter}:ro",) if drafter else ()),
            *patches.mounts(recipe),
        ),
        "env": recipe.plain_env,
        "secret_env": secrets_of_laptop(recipe),
        "labels": {
            "spark-cluster.recipe": recipe.name,
            "spark-cluster.model": endpoint.model,
            "spark-cluster.tp": str(tp),
            "spark-cluster.executor": recipe.executor,
            LABEL: endpoint.engine_url,
            "spark-cluster.dashboard": str(recipe.ray.dashboard_port),
            firewall.LABEL: guarded,
        },
    }
