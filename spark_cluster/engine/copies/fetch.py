"""What a deployment needs on its nodes before the engine starts: image, models, patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spark_cluster.engine import patches
from spark_cluster.engine.copies import folders, hub_models, images
from spark_cluster.engine.copies.stored import Stored
from spark_cluster.node.store.layout import folder_name

if TYPE_CHECKING:
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.engine.deployment import Deployment, Server
    from spark_cluster.runner.play import Play

ROLE = "models"
"""Its name stands for all models in `--tags` and `--skip-tags`."""


def fetch(
    play: Play, deployment: Deployment, stores: Mapping[str, Stored], *, offline: bool = False
) -> Deployment:
    """Fetch image, models and patches of each recipe for the nodes that serve it.

    Args:
        stores: recipe to what its nodes have; see `stored`.
        offline: neither the hub nor a registry is asked.

    Returns:
        The deployment, with the folders of the models.

    Raises:
        Refused: a patch is missing; nothing is started then.
    """
    for server in deployment.recipes:
        places = _fetch(play, server, stores[server.recipe.name], offline=offline)
        deployment = deployment.located(places)
    return deployment


def _fetch(play: Play, server: Server, stored: Stored, *, offline: bool) -> dict[str, str]:
    """Fetch for one recipe, side by side where one does not need the other.

    Returns:
        Repository to folder.
    """
    large = [given for given in server.models if _is_large(given)]
    plain = [play.role(ROLE, **given) for given in server.models if given not in large]
    by_image = any(given["source"] == "hub" for given in server.models)
    uploads = patches.uploads(server.patches)

    def image() -> None:
        if server.recipe.venv is None:
            images.bring(play, server.nodes, server.image_settings, stored.images, offline=offline)
        else:
            play.apply(server.nodes, play.role("venv", **server.recipe.venv.model_dump()))
        if by_image:
            play.apply(server.nodes, *plain)

    def models() -> dict[str, str]:
        more = [] if by_image else plain
        if more or uploads:
            play.apply(server.nodes, *more, uploads)
        for given in large:
            _bring_folder(play, server, given)
        return _hub_models(play, server, stored, offline=offline)

    _, places = play.together(image, models)
    found: dict[str, str] = places
    wanted = server.located(found).patches
    if wanted and not play.check:
        patches.require_patches(play, server.nodes, server.image, wanted)
    return found


def _is_large(given: Mapping[str, Any]) -> bool:
    """Return whether a model's folder on the laptop is sent to one node only."""
    folder = given.get("directory")
    return given["source"] == "directory" and folder is not None and folders.is_large(folder)


def _bring_folder(play: Play, server: Server, given: Mapping[str, Any]) -> None:
    """Send a folder of the laptop to the first node, and have that copy it to the others."""
    names = [node.name for node in server.nodes]
    if not play.options.selection.wants_part(names, ROLE):
        return
    now = play.known_now(server.nodes)
    for one in folders.bring_folder(play, now, given["directory"], given["path"]):
        if one.sender:
            play.note(f"{given['name']} on {one}")


def must_be_there(recipe: Recipe, stored: Stored, *, adopt: bool) -> None:
    """Refuse to serve without the network what no node has.

    Raises:
        Refused: with what is lacking.
    """
    hub_models.must_be_there(stored, adopt=adopt)
    if recipe.venv is None:
        images.must_be_there(recipe.image, stored.images)


def _hub_models(play: Play, server: Server, stored: Stored, *, offline: bool) -> dict[str, str]:
    """Have the models of the hub cache; repository to folder."""
    there = stored.folders()
    whole = all(
        wanted.repository in there
        and not stored.lacking(wanted, there[wanted.repository].rpartition("/")[2])
        for wanted in stored.wanted
    )
    if whole:
        play.options.selection.wants_part((), ROLE)
        return there
    names = [node.name for node in server.nodes]
    if play.options.selection.wants_part(names, ROLE) and not play.check:
        return hub_models.bring(play, server.nodes, stored, offline=offline)
    lacking = {
        one.repository: f"{stored.hub}/{folder_name(one.repository)}/snapshots/{one.revision}"
        for one in stored.wanted
        if one.repository not in there
    }
    if lacking:
        play.note(f"on no node yet: {', '.join(lacking)}")
    return lacking | there
