"""What the nodes have before anything is changed, and what is fetched to them: image, models,
patches.

A model of the hub is fetched by one node and copied to the others; what has arrived on that node is
sent on while the rest is still on its way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from spark_cluster.config.recipe import Recipe, is_in, why_refused
from spark_cluster.config.recipe_settings import MountedPatch
from spark_cluster.config.topology import Node
from spark_cluster.engine import image_copies, tuning, vram
from spark_cluster.engine.admission import stays
from spark_cluster.engine.deployment import Deployment, Server
from spark_cluster.engine.hub_models import (
    LARGE,
    Have,
    PullPreview,
    Stored,
    Wanted,
    hub_model,
    must_be_the_hubs,
    nowhere_complete,
    preview,
    pull,
    stored,
    warning,
)
from spark_cluster.engine.image_copies import WantedImage
from spark_cluster.engine.node_copies import ROLE, bring_folder, copy, is_sent_once
from spark_cluster.engine.proxy import Replica
from spark_cluster.engine.ray import Job
from spark_cluster.engine.ray_cluster import running_jobs
from spark_cluster.engine.readiness import Member, behind, members, with_servers
from spark_cluster.engine.start import token
from spark_cluster.errors import Failed, Refused, SparkClusterError
from spark_cluster.node import confinement
from spark_cluster.node.output import gigabytes
from spark_cluster.node.store.manifest import (
    KEPT_FREE,
    Manifest,
    folder_name,
    snapshot_folder,
    whole_folder,
)
from spark_cluster.resources import Directory, File, LaptopFile, Resource
from spark_cluster.resources.unit import split_mount
from spark_cluster.runner.play import Play

# What the nodes have before anything is changed: servers, endpoint, memory, models, kernels.


@dataclass(frozen=True)
class Found:
    """What was found.

    Attributes:
        deployment: with the folders of the models that the nodes have.
        members: its servers.
        before: GPU memory of each node; empty in check mode.
        stores: recipe to what its nodes have of image and models.
        kernels: recipe to what is tuned for it.
        jobs: of users that are running on Ray.
        ray_token: of the head's Ray, or a new one; None for a server without Ray.
        behind: what the endpoint has now.
    """

    deployment: Deployment
    members: list[Member]
    before: list[vram.NodeVram]
    stores: Mapping[str, Stored]
    kernels: Mapping[str, tuning.TunedOn]
    jobs: Sequence[Job]
    ray_token: str | None = field(default=None, repr=False)
    behind: Sequence[Replica] = ()

    @property
    def starts(self) -> bool:
        """True if a server does not run."""
        return any(one.running.status != "running" for one in self.members)

    @property
    def begins(self) -> bool:
        """True if a server is to be started, or another one takes its place."""
        return not all(stays(one) for one in self.members)

    @property
    def downloaded(self) -> list[Mapping[str, float]]:
        """For each server, GiB of its model that nodes have in the hub cache; infinite: all."""
        recipes = [one.server.recipe for one in self.members]
        return [self.stores[recipe.name].gib_present(recipe.model.name) for recipe in recipes]


def look(play: Play, deployment: Deployment) -> Found:
    """Look at all of it, in one turn of the network.

    Raises:
        Refused: no node has what --offline would serve; with what is lacking.
    """
    recipes = deployment.recipes
    count = len(recipes)
    found, before, now, jobs, ray_token, *rest = play.together(
        lambda: members(play, deployment),
        lambda: [] if play.check else vram.sample(play.sessions),
        lambda: behind(play),
        lambda: running_jobs(play),
        lambda: token(play.session(play.head)) if deployment.first.on_ray else None,
        *[partial(stored, play, server.recipe, server.nodes) for server in recipes],
        *[partial(tuning.tuned_on, play, server, server.nodes) for server in recipes],
    )
    names = [server.recipe.name for server in recipes]
    stores: dict[str, Stored] = dict(zip(names, rest[:count], strict=True))
    kernels: dict[str, tuning.TunedOn] = dict(zip(names, rest[count:], strict=True))
    for server in recipes if play.options.offline else ():
        must_be_present(server.recipe, stores[server.recipe.name], adopt=play.options.may_adopt)
    for store in stores.values():
        deployment = deployment.located(store.folders())
    vram.record(play.bus, "before", before)
    found = with_servers(found, deployment)
    return Found(
        deployment,
        found,
        before,
        stores,
        kernels,
        jobs,
        ray_token,
        now,
    )


ADOPT_S = 6 * 3600.0
"""Longest time for taking a model over from another cache of a node, seconds."""


def fetch(play: Play, deployment: Deployment, stores: Mapping[str, Stored]) -> Deployment:
    """Fetch image, models and patches of each recipe for the nodes that serve it.

    Args:
        stores: recipe to what its nodes have; see `stored`.

    Returns:
        The deployment, with the folders of the models.

    Raises:
        Refused: a patch is missing; nothing is started then.
    """
    for server in deployment.recipes:
        places = _fetch(play, server, stores[server.recipe.name])
        deployment = deployment.located(places)
    return deployment


def _fetch(play: Play, server: Server, stored: Stored) -> dict[str, str]:
    """Fetch for one recipe, side by side where one does not need the other.

    Returns:
        Repository to folder.
    """
    nodes = play.known_now(server.nodes)
    large = [given for given in server.models if is_sent_once(given)]
    plain = [play.role(ROLE, **given) for given in server.models if given not in large]
    by_image = any(given["source"] == "hub" for given in server.models)
    uploads = patch_files(server.patches)
    require_real_mounts(play, server)

    def image() -> None:
        if server.recipe.venv is None:
            WantedImage(play, nodes, server.image_settings, stored.images).bring()
        else:
            play.apply(server.nodes, play.role("venv", **server.recipe.venv.model_dump()))
        if by_image:
            play.apply(server.nodes, *plain)

    def models() -> dict[str, str]:
        more = [] if by_image else plain
        if more or uploads:
            play.apply(server.nodes, *more, uploads)
        for given in large:
            bring_folder(play, nodes, given)
        return _hub_models(play, nodes, stored)

    _, places = play.together(image, models)
    found: dict[str, str] = places
    located = server.located(found)
    if located.patches and not play.check:
        require_patches(play, server.nodes, server.image, located.patches)
    require_real_mounts(play, located)
    return found


def must_be_present(recipe: Recipe, stored: Stored, *, adopt: bool) -> None:
    """Refuse to serve without the network what no node has.

    Args:
        adopt: other caches of the nodes count, too.

    Raises:
        Refused: with what each of them lacks.
    """
    for wanted, found in stored.on.items():
        if not any(have.complete or (adopt and have.adoptable) for have in found.values()):
            hint = "leave --offline out to fetch it from the hub"
            hint += "" if adopt else ", or give --adopt to take it over from where a node has it"
            raise nowhere_complete(wanted, found, hint)
    if recipe.venv is None:
        image_copies.must_be_present(recipe.image, stored.images)


def _hub_models(play: Play, nodes: Sequence[Node], stored: Stored) -> dict[str, str]:
    """Have the models of the hub cache; repository to folder."""
    present = stored.folders()
    names = [] if stored.complete else [node.name for node in nodes]
    if play.options.selection.wants_part(names, ROLE) and names and not play.check:
        return bring(play, nodes, stored)
    missing = {
        one.repository: f"{stored.hub}/{folder_name(one.repository)}/snapshots/{one.revision}"
        for one in stored.on
        if one.repository not in present
    }
    if missing:
        play.note(f"on no node yet: {', '.join(missing)}")
    return missing | present


def bring(play: Play, nodes: Sequence[Node], stored: Stored) -> dict[str, str]:
    """Have the models of a recipe on all nodes that serve; repository to folder.

    A node that has one sends it to the others. One that root or the login user has in a hub cache
    of a node is taken over where the user wants that. What no node has is fetched from the hub, by
    one node. What a node or another cache says of a revision is compared with the hub.

    Raises:
        Refused: a disk is too small.
        SparkClusterError: it cannot be fetched or copied, with the reason.
    """
    found = {}
    for wanted, on in stored.on.items():
        commit = _Model(play, nodes, stored, wanted, on).bring()
        found[wanted.repository] = snapshot_folder(stored.hub, wanted.repository, commit)
    return found


@dataclass(frozen=True)
class _Model:
    """One model that is to be on all nodes that serve.

    Attributes:
        nodes: the head first.
        found: node to what it has.
    """

    play: Play
    nodes: Sequence[Node]
    stored: Stored
    wanted: Wanted
    found: Mapping[str, Have]

    def bring(self) -> str:
        """Have it on all nodes; return its commit."""
        chosen = self.stored.chosen(self.wanted) or self._adopt()
        if chosen is None:
            return self._fetch().commit
        name, manifest = chosen
        missing = self.stored.missing(self.wanted, manifest.commit)
        source, others = self._split(name)
        targets = [node for node in others if node.name in missing]
        if targets:
            must_be_the_hubs(self.play, manifest, source, targets[0])
            self._copy(manifest, source, targets)
        return manifest.commit

    def _split(self, name: str) -> tuple[Node, list[Node]]:
        """Return the node of this name, and the others."""
        source = next(node for node in self.nodes if node.name == name)
        return source, [node for node in self.nodes if node.name != name]

    def _adopt(self) -> tuple[str, Manifest] | None:
        """Take over what another tool has downloaded to a node; None where none has."""
        for node in self.nodes:
            have = self.found[node.name]
            if have.adoptable is None or not self._wants(node, have.adoptable, have.elsewhere):
                continue
            must_be_the_hubs(self.play, have.adoptable, node, node)
            what = f"{self.wanted.repository} from {have.elsewhere}"
            self.play.note(f"takes over {what}, each byte checked", node=node)
            self.play.session(node).request(
                "store",
                self.play.progress_of(node, what),
                what="adopt",
                hub=self.stored.hub,
                repository=self.wanted.repository,
                commit=have.adoptable.commit,
                other=have.elsewhere,
                revision=self.wanted.revision,
                timeout=ADOPT_S,
            )
            return node.name, have.adoptable
        return None

    def _wants(self, node: Node, manifest: Manifest, place: str) -> bool:
        """Return whether the user wants a model of another cache: by --adopt, or when asked."""
        options, name = self.play.options, self.wanted.repository
        if options.adopt:
            return True
        about = f"{name} ({gigabytes(manifest.size)}) is in {place} of {node.name}"
        if options.consent is not None:
            return options.consent(f"{about}: take a copy of it instead of downloading it?")
        self.play.note(f"{about}; with --adopt a copy of it would be taken", node=node)
        return False

    def _fetch(self) -> Manifest:
        """Fetch it by the node that has most of it, and copy it to the others meanwhile."""
        first = min(self.nodes, key=lambda node: -self.found[node.name].present)
        node, others = self._split(first.name)
        model = hub_model(self.play, node, self.wanted, self.stored.hub)
        seen = preview(self.play, node, model)
        self._must_fit(others, seen)
        if seen.missing > LARGE:
            text = warning(self.wanted.repository, node.name, seen)
            self.play.note(text, warning=True, node=node)
        if not others:
            return pull(self.play, node, model)

        failed = list[SparkClusterError]()

        def copying() -> None:
            try:
                self._copy(seen.manifest, node, others)
            except SparkClusterError as error:
                failed.append(error)

        pulled: Manifest
        pulled, _ = self.play.together(lambda: pull(self.play, node, model), copying)
        if pulled.commit != seen.manifest.commit:  # the branch has moved meanwhile
            self._copy(pulled, node, others)
        elif failed:
            raise failed[0]
        return pulled

    def _must_fit(self, nodes: Sequence[Node], seen: PullPreview) -> None:
        """Look at the disks of those that it is copied to, before the first byte is fetched.

        Raises:
            Refused: one is too small.
        """
        for node in nodes:
            have, wanted = self.found[node.name], seen.manifest
            missing = wanted.size - (have.present if have.commit == wanted.commit else 0)
            if missing + KEPT_FREE > have.free:
                raise Refused(
                    f"{self.wanted.repository} needs {gigabytes(missing)} more in the hub cache, "
                    f"and {gigabytes(KEPT_FREE)} that stay free; {gigabytes(have.free)} are free",
                    where=node.name,
                    hint="spark-cluster models prune shows what can be removed",
                )

    def _copy(self, manifest: Manifest, source: Node, targets: Sequence[Node]) -> None:
        """Copy it, and say what was moved."""
        done = copy(
            self.play,
            manifest,
            source,
            targets,
            hub=self.stored.hub,
            revision=self.wanted.revision,
        )
        for one in done:
            if one.sender:
                self.play.note(f"{self.wanted.repository} on {one}")


# A recipe's patches on the nodes: sent there, and looked for in the image before it starts.


def patch_files(patches: Sequence[MountedPatch]) -> list[Resource]:
    """Return the laptop's files as they lie on the nodes."""
    sent = {patch.source: patch.upload for patch in patches if patch.upload is not None}
    folders = sorted({path.rpartition("/")[0] for path in sent})
    return [
        *(Directory(folder, mode=0o700) for folder in folders),  # containers see the file itself
        *(File(path, content=LaptopFile(file)) for path, file in sent.items()),
    ]


def require_patches(
    play: Play, nodes: Sequence[Node], image: str, patches: Sequence[MountedPatch]
) -> None:
    """Look for the files of the model on every node, and for what they replace in the image.

    Docker would make a folder of a missing source, and mount over a missing target without a word:
    the patch would be in no one's way.

    Raises:
        Refused: one of them is missing; nothing was started.
    """
    for patch in patches:
        for node in nodes:
            if play.session(node).run(["test", "-f", patch.source]).status != 0:
                raise Refused(
                    f"the patch {patch.source} is not there, although the model is",
                    where=node.name,
                    hint=f"the recipe says that it comes with the model, to repair: {patch.why}",
                )
    targets = [patch.target for patch in patches]
    missing = _not_in_image(play, nodes[0], image, targets) if targets else []
    if missing:
        raise Refused(
            f"{image} has no {missing[0]}, which a patch is to replace",
            where=nodes[0].name,
            hint="the patch is for another version of the image; look for the file's path in it",
        )


def require_real_mounts(play: Play, server: Server) -> None:
    """Look on each node where the paths lead that a server gets by its recipe: a container that
    wrote above one may have left a link there, which Docker follows.

    Raises:
        Refused: one leads to what no container may have.
    """
    mounts = [split_mount(mount) for mount in server.mounts]
    asked = ["realpath", "-mz", "--", whole_folder(server.model_path), *(one[0] for one in mounts)]
    found = play.on_each(server.nodes, lambda node: play.session(node).run(asked)) if mounts else {}
    for name, done in found.items():
        own, *places = done.stdout.split("\0")
        for (source, _, mode), place in zip(mounts, places, strict=False):
            why = why_refused(place, read_only=mode == "ro")
            if why and place != source and not is_in(place, own):
                raise Refused(
                    f"{source} leads to {place}, which no container may have: {why}",
                    where=name,
                    hint="a container may have left the link: look at it, and remove it",
                )


def _not_in_image(play: Play, node: Node, image: str, paths: list[str]) -> list[str]:
    """Return those of the paths that are no files in the image."""
    look = 'for path; do test -f "$path" || echo "$path"; done'
    run = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "sh"]
    run += [*confinement.options(confinement.READ_OTHERS), image]
    done = play.session(node).run([*run, "-c", look, "sh", *paths], timeout=120)
    if done.status != 0:
        raise Failed(f"looking into {image}: {done.stderr.strip()}", where=node.name)
    return done.stdout.split()
