"""The checks of what no recipe may contain, beyond each field on its own.

A recipe starts containers as root. So none holds a secret, and none reaches into folders of a node
that make a container root there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from spark_cluster.config import engines, node_paths
from spark_cluster.config.model_kind import CHECKS_OF_KIND
from spark_cluster.config.ports import vllm_ports
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.secret_text import is_secret_setting, looks_secret
from spark_cluster.config.yamlfile import Problem
from spark_cluster.errors import UsageError
from spark_cluster.node.store.manifest import is_repository

ADVICE = "put what is needed into a folder of its own, such as /srv/NAME"


def check(recipe: Recipe) -> list[Problem]:
    """Every problem of that kind; the messages never repeat what may be a secret."""
    found = (_kind, _engine, _runtime, _secrets, _step_secrets, _ports, _mounts, _models, _patches)
    return [problem for look in found for problem in look(recipe)]


def _kind(recipe: Recipe) -> Iterator[Problem]:
    """What is asked of another kind of model."""
    own = CHECKS_OF_KIND.get(recipe.kind)
    if own is None:
        return  # `up` and `plan` refuse it, with what to use instead
    for index, rung in enumerate(recipe.readiness.rungs):
        if rung not in own:
            message = f"found {rung}, expected {' or '.join(own)}: the kind is {recipe.kind}"
            yield Problem(("readiness", "rungs", index), message)
    if recipe.kind != "chat" and "probe" in recipe.model_fields_set:
        yield Problem(("probe",), f"a question to a chat model; the kind is {recipe.kind}")


def _engine(recipe: Recipe) -> Iterator[Problem]:
    """Yield the fields that the engine has no place for."""
    dialect = recipe.dialect
    for flag in recipe.engine_args:
        if flag in dialect.owned:
            message = f"not an engine argument here: {dialect.owned[flag]}"
            yield Problem(("engine_args", flag), message)
        elif dialect.own(flag) != flag:
            message = f"a flag of vLLM; {dialect.title} calls it '{dialect.own(flag)}'"
            yield Problem(("engine_args", flag), message)
    if recipe.executor not in dialect.executors:
        expected = " or ".join(dialect.executors)
        message = f"found {recipe.executor}, expected {expected}: {dialect.title} joins nodes so"
        yield Problem(("executor",), message)
    if recipe.engine != engines.DEFAULT and "vllm" in recipe.model_fields_set:
        yield Problem(("vllm",), f"found versions of vLLM, expected none: {dialect.title} serves")


def _runtime(recipe: Recipe) -> Iterator[Problem]:
    """Yield what the runtime needs, and the fields that it has no place for."""
    if recipe.runtime == "docker":
        if not recipe.image.ref:
            yield Problem(("image",), "missing; expected the container image")
        if recipe.venv is not None:
            yield Problem(("venv",), "found an environment, expected `runtime: venv` with it")
        return
    if recipe.venv is None:
        yield Problem(("venv",), "missing; expected the virtual environment, `venv: {path: ...}`")
    elif why := node_paths.why_refused(recipe.venv.path, read_only=False):
        message = f"found {recipe.venv.path}, where nothing may be written: {why}; {ADVICE}"
        yield Problem(("venv", "path"), message)
    if recipe.image.ref:
        yield Problem(("image",), "found an image, expected none: `runtime: venv` has no container")
    if recipe.patches:
        message = "found patches of an image, expected none: change the files in the environment"
        yield Problem(("patches",), message)


def _secrets(recipe: Recipe) -> Iterator[Problem]:
    for name, value in recipe.env.items():
        if name == "VLLM_API_KEY":
            yield Problem(("env", name), "it is serve.api_key in the inventory")
        elif isinstance(value, str) and is_secret_setting(name, value):
            yield Problem(
                ("env", name),
                "a secret is never written into a recipe; "
                f"expected {{env: {name}}}, the laptop's variable of that name",
            )
    for flag, given in recipe.engine_args.items():
        if flag in recipe.dialect.owned:
            continue  # said already, without the value
        text = given if isinstance(given, str) else json.dumps(given, default=str)
        if looks_secret(text) or (isinstance(given, str) and is_secret_setting(flag, given)):
            yield Problem(
                ("engine_args", flag),
                "a secret is never written into a recipe; give it as a variable under env, as "
                "{env: NAME}, if vLLM takes one",
            )
    if recipe.image.build is not None and looks_secret(recipe.image.build.text):
        key = "dockerfile" if recipe.image.build.dockerfile else "steps"
        yield Problem(
            ("image", "build", key), "it contains a secret, which would stay in the image"
        )


def _step_secrets(recipe: Recipe) -> Iterator[Problem]:
    """Yield the secret variables of a build's steps: they stay in the image's history."""
    build = recipe.image.build
    for index, step in enumerate(build.steps if build is not None else ()):
        for name, value in step.env.items():
            if is_secret_setting(name, value):
                yield Problem(
                    ("image", "build", "steps", index, "env", name),
                    "a secret, which would stay in the image; give it to the containers, under env",
                )


def _ports(recipe: Recipe) -> Iterator[Problem]:
    """The firewall must know them."""
    if "VLLM_PORT" in recipe.secret_env:
        yield Problem(
            ("env", "VLLM_PORT"), "a port cannot be a secret; expected a port from 1 to 65535"
        )
    try:
        vllm_ports(recipe.plain_env)
    except UsageError as error:
        yield Problem(("env", "VLLM_PORT"), error.message)


def _mounts(recipe: Recipe) -> Iterator[Problem]:
    for index, mount in enumerate(recipe.mounts):
        why = node_paths.why_refused(mount.source, read_only=mount.read_only)
        if why:
            yield Problem(
                ("mounts", index, "source"),
                f"found {mount.source}, which no container may have: {why}; {ADVICE}",
            )


def _models(recipe: Recipe) -> Iterator[Problem]:
    """Folders that are written as root, and with what someone has put on the hub."""
    for key, model in (("model", recipe.model), ("drafter", recipe.drafter)):
        if model is None or model.node_path is None:
            continue
        name, path = str(model.name), model.node_path
        if model.in_hub_cache:
            if not is_repository(name):
                yield Problem((key, "name"), f"found {name!r}, expected ORG/NAME of the hub")
            continue
        if node_paths.is_for_models(path):
            continue
        why = node_paths.why_refused(path, read_only=False)
        if why:
            yield Problem(
                (key, "path"), f"found {path}, where no model may be put: {why}; {ADVICE}"
            )


def _patches(recipe: Recipe) -> Iterator[Problem]:
    for index, patch in enumerate(recipe.patches):
        if patch.origin == "model" and (
            patch.file.startswith("/") or ".." in patch.file.split("/")
        ):
            yield Problem(
                ("patches", index, "file"),
                f"found {patch.file!r}, expected a path inside the model's folder",
            )
