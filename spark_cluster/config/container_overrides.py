"""Variables and the image that the command line gives in place of the recipe's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from spark_cluster.config.launch import Launch
from spark_cluster.config.recipe_schema import EngineValue, EnvironmentValue, Image, Variable
from spark_cluster.config.secret_text import is_secret_setting
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from spark_cluster.config.recipe import Recipe

ENV = "env."
"""Before the name of a variable of the containers; no flag begins so."""

IMAGE = "image.ref"
"""The image, with or without a digest."""


def put(recipe: Recipe, key: str, value: EngineValue | None, changed: dict[str, object]) -> bool:
    """Put a variable or the image into `changed`; False when the recipe has it already.

    Raises:
        UsageError: it is none that a recipe can have. The message never repeats a variable's value.
    """
    if key == IMAGE:
        return _put_image(recipe, value, changed)
    name = key.removeprefix(ENV)
    env = dict(_changed_env(recipe, changed))
    if value is None:
        if name not in env:
            return False
        del env[name]
    else:
        given = _variable(name, str(value))
        if env.get(name) == given:
            return False
        env[name] = given
    changed["env"] = env
    return True


def _changed_env(recipe: Recipe, changed: Mapping[str, object]) -> Mapping[str, EnvironmentValue]:
    found = changed.get("env")
    return found if isinstance(found, dict) else recipe.env


def _put_image(recipe: Recipe, value: EngineValue | None, changed: dict[str, object]) -> bool:
    image = _image(value)
    if recipe.image.build is None and image.reference == recipe.image.reference:
        return False
    changed["image"] = image
    # What the recipe says of vLLM's version is true of its own image.
    changed["vllm"] = recipe.vllm.model_copy(update={"version": None, "tested": []})
    return True


def _variable(name: str, value: str) -> EnvironmentValue:
    """Raises:
    UsageError: no variable of a recipe, or a secret.
    """
    if is_secret_setting(name, value):
        raise UsageError(
            f"-e {name}: the value looks like a secret, which labels and records would keep",
            hint=f"write `env: {{{name}: {{env: {name}}}}}` into a recipe, which takes it from "
            "this machine's environment",
        )
    try:
        found = TypeAdapter(dict[Variable, EnvironmentValue]).validate_python({name: value})
    except ValidationError as error:
        raise UsageError(f"-e {name}: {_why(error)}") from None
    return found[name]


def _image(value: EngineValue | None) -> Image:
    """Raises:
    UsageError: the text is no reference of an image.
    """
    ref, _, digest = str(value or "").partition("@")
    try:
        return Image.model_validate({"ref": ref, "digest": digest or None})
    except ValidationError as error:
        raise UsageError(
            f"--image {value or ''}: {_why(error)}",
            hint="name and tag, as `docker pull` takes it, or NAME@sha256:...",
        ) from None


def _why(error: ValidationError) -> str:
    return error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")


def of_launch(launch: Launch, overrides: Mapping[str, EngineValue | None]) -> Launch:
    """Return a pasted command's launch with these variables and this image.

    Raises:
        UsageError: as `put`.
    """
    env = dict(launch.env)
    for key, value in overrides.items():
        name = key.removeprefix(ENV)
        if key == IMAGE:
            image = _image(value)
            digest = image.digest or ""
            launch = replace(launch, image=image.ref, digest=digest, dockerfile="", vllm=None)
        elif key.startswith(ENV) and value is None:
            env.pop(name, None)
        elif key.startswith(ENV):
            env[name] = str(_variable(name, str(value)))
    return replace(launch, env=env)
