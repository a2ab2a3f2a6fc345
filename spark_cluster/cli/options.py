"""Options of commands, declared once: the signature of a command's function says their types and
defaults, its docstring what they mean; and the options that several commands share.

An entry of `Args:` is `name: help`, or `name (SPEC): help` where SPEC has the flags if they are not
the name's, the word for the value, or both: `only (--container NAME): ...`. `[default]` at its end
has --help show the default. A parameter without such a text is an argument.

`Annotated` adds to a parameter's type: a type of click's, a text as in `Args:`, a dictionary with
other settings of `click.Option`, or a function whose options are taken in place of the parameter,
and which returns its value (a group of options, such as `Changing`).

Light to import: `--help` does it.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypedDict,
    Union,
    Unpack,
    get_args,
    get_origin,
)

import click

from spark_cluster.cli.app import App, leave_with
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from spark_cluster.config.extension import Allowances
    from spark_cluster.config.launch import Changes
    from spark_cluster.models.lookup import Hub
    from spark_cluster.runner.events import Options

if sys.flags.optimize > 1:
    sys.exit("error: options are described by docstrings, which PYTHONOPTIMIZE=2 (-OO) takes away")

LONGEST = 400
"""Characters of a command's first sentence; it is wrapped, and click would cut it."""

_PASSED = ("ctx", "app")
"""Parameters that are no options: click's context, and the program."""

_DEFAULT = " [default]"


class Finite(click.FloatRange):
    """click's range of numbers without `nan`, which is neither below nor above."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


@dataclass
class Declared:
    """A parameter of a function, its annotation taken apart.

    Attributes:
        text: what the docstring or the annotation says of it; empty for an argument.
        settings: of click's.
        group: makes its value of options of its own.
    """

    name: str
    text: str
    settings: dict[str, Any]
    kind: Any = None
    optional: bool = False
    many: bool = False
    group: Callable[..., Any] | None = None

    def take(self, annotation: Any) -> None:
        """Read an annotation."""
        origin, within = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            self.take(within[0])
            for more in within[1:]:
                if isinstance(more, str):
                    self.text = self.text or more
                elif isinstance(more, dict):
                    self.settings |= more
                elif isinstance(more, click.ParamType):
                    self.kind = more
                else:
                    self.group = more
        elif origin in (Union, UnionType):
            self.optional = True
            self.take(next(one for one in within if one is not NoneType))
        elif origin is tuple:
            self.many = True
            self.take(within[0])
        elif origin is Literal:
            self.kind = click.Choice(within)
        else:
            self.kind = click.Path(path_type=Path) if annotation is Path else annotation

    def parameter(self) -> click.Parameter:
        """Return the option or argument."""
        given = dict(self.settings)
        has_value = self.kind is not bool
        given |= {"type": self.kind} if has_value else {"is_flag": True}
        if not has_value and self.optional:
            given["default"] = None
        is_required = has_value and not (self.optional or self.many or "default" in given)
        if not self.text:
            given |= {"nargs": -1} if self.many else {}
            return click.Argument([self.name], **{"required": is_required, **given})
        found = re.fullmatch(r"(?:\(([^)]*)\): )?(.*)", self.text, re.DOTALL)
        spec, text = found.groups() if found else ("", self.text)
        words = (spec or "").split()
        flags = [word.rstrip(",") for word in words if word.startswith("-")]
        metavar = " ".join(word for word in words if not word.startswith("-"))
        given = {
            "metavar": metavar or None,
            "show_default": text.endswith(_DEFAULT) or None,
            **given,
        }
        return click.Option(
            [*(flags or [f"--{self.name.replace('_', '-')}"]), self.name],
            help=text.removesuffix(_DEFAULT),
            required=is_required,
            multiple=self.many,
            **given,
        )


def declared(function: Callable[..., Any]) -> Iterator[Declared]:
    """Yield the options and arguments of a function, in the order of its signature, but those of a
    `**given` before others that are keyword-only."""
    _, texts = _docstring(function)
    signature = inspect.signature(function).parameters
    for name, one in sorted(
        signature.items(), key=lambda item: item[1].kind is item[1].KEYWORD_ONLY
    ):
        if name in _PASSED:
            continue
        named = {name: one.annotation}
        if one.kind is one.VAR_KEYWORD:
            fields = get_args(eval(one.annotation, function.__globals__))[0].__annotations__  # noqa: S307
            named = {field: reference.__forward_arg__ for field, reference in fields.items()}
        for each, annotation in named.items():
            settings = {} if one.default is one.empty else {"default": one.default}
            found = Declared(each, texts.get(each, ""), settings)
            found.take(eval(annotation, function.__globals__))  # noqa: S307  (our own text)
            yield found


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return what a docstring says of a command, and of its options by name."""
    about, _, listed = inspect.cleandoc(function.__doc__ or "").partition("\n\nArgs:\n")
    texts = {}
    for entry in re.split(r"\n(?=    \w)", listed) if listed else ():
        about_one, _, text = entry.strip().partition(": ")
        name, _, spec = about_one.partition(" ")
        texts[name] = f"{spec}: " * bool(spec) + " ".join(text.split())
    return about, texts


class DeclaredCommand(click.Command):
    """A command whose options are declared by its function.

    The function gets click's context as `ctx` and the program as `app`, where it has such
    parameters, and returns the exit status, or None for 0.

    Args:
        output: what it prints with --json, for the schema: a class, or keys with their types.
            Commands that print several documents have them in `OUTPUTS` of docs/generate/code.py.
        words: of the docstring that stand for others, such as a list that is kept elsewhere.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        callback: Callable[..., Any],
        output: Any = None,
        words: Mapping[str, str] | None = None,
        **given: Any,
    ) -> None:
        self.function = callback
        self.output = output
        self._declared = list(declared(callback))
        made: list[click.Parameter] = []
        for one in self._declared:
            inner = [one] if one.group is None else declared(one.group)
            made += [each.parameter() for each in inner]
        given["params"] = [*made, *given.get("params", ())]
        about = _docstring(callback)[0]
        for word, text in (words or {}).items():
            about = about.replace(word, text)
        given["help"] = about
        super().__init__(name, callback=self._call, **given)

    def _call(self, **given: Any) -> Any:
        ctx = click.get_current_context()
        app = ctx.find_object(App)
        for one in self._declared:
            if one.group is not None:
                inner = {each.name: given.pop(each.name) for each in declared(one.group)}
                given[one.name] = _called(one.group, ctx, app, inner)
        status = _called(self.function, ctx, app, given)
        if status:
            ctx.exit(status)
        if app is not None:
            leave_with(app.last_run, exit_code=app.exit_code)


def _called(
    function: Callable[..., Any], ctx: click.Context, app: App | None, given: dict[str, Any]
) -> Any:
    wanted = inspect.signature(function).parameters
    passed = {"ctx": ctx, "app": app}
    return function(*(passed[name] for name in _PASSED if name in wanted), **given)


class DeclaredGroup(DeclaredCommand, click.Group):
    """A group whose help shows the first sentence of each command whole.

    Args:
        later: commands that are imported when they are called, in the order of --help: name to
            `MODULE:FUNCTION` of this package.
        about: name to the line of --help, so that it imports nothing.
    """

    command_class = DeclaredCommand

    def __init__(
        self,
        *args: Any,
        later: Mapping[str, str] | None = None,
        about: Mapping[str, str] | None = None,
        **given: Any,
    ) -> None:
        super().__init__(*args, **given)
        self.later, self.about = later or {}, about or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        own = [name for name in super().list_commands(ctx) if name not in self.later]
        return [*own, *self.later]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.later and cmd_name not in self.commands:
            found = self.load(cmd_name)
            take_globals(found)
            self.add_command(found, cmd_name)
        return super().get_command(ctx, cmd_name)

    def load(self, name: str) -> click.Command:
        """Import a command of `later`."""
        module, _, function = self.later[name].partition(":")
        found = import_module(f"spark_cluster.cli.{module}")
        return getattr(found, function)  # type: ignore[no-any-return]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        def line(name: str) -> str:
            found = None if name in self.about else self.get_command(ctx, name)
            return self.about[name] if found is None else found.get_short_help_str(LONGEST)

        rows = [(name, line(name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def everywhere(app: App, *, as_json: bool, verbose: bool, limit: str | None) -> None:
    """Take the global options that may stand after the command's name too, as everybody types them.

    Args:
        as_json (--json): Print one JSON document on standard output.
        verbose (--verbose -v): Also show what needed no change.
        limit (--limit -l PATTERN): Only these nodes or groups, such as spark*,!spark2.
    """


def take_globals(command: click.Command) -> None:
    """Let the global options stand after the command's name too, as everybody types them."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            take_globals(inner)
        return
    taken = {name for param in command.params for name in param.opts}
    for one in declared(everywhere):
        option = one.parameter()
        if option.opts[0] not in taken:
            option.opts = [flag for flag in option.opts if flag not in taken]
            option.expose_value, option.callback = False, _set
            command.params.append(option)


def _set(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    app = ctx.find_object(App)
    if value and app is not None:
        setattr(app.cluster if param.name == "limit" else app, str(param.name), value)


# -- options that several commands share -----------------------------------------------------------

Port = Annotated[int, click.IntRange(1, 65535)]
Positive = Annotated[int, click.IntRange(min=1)]

Sized = Annotated[
    int | None,
    "(N): Number of nodes to split each layer over (default: the recipe's, or the largest "
    "power of two with enough nodes).",
]
Forced = Annotated[bool, "Launch even if the plan says that the configuration cannot work."]
Adopting = Annotated[
    bool,
    "Copy and check a model that root or the login user has in another hub cache on a node, "
    "instead of downloading it (default: ask, on a terminal).",
]
EndingJobs = Annotated[bool, "Continue even if jobs are running on Ray, and end them."]
Unloading = Annotated[
    tuple[Literal["ollama"], ...],
    "Also unload the models of this program, through its own interface; repeatable.",
]
Offline = Annotated[bool, "Do not ask the hub for the model; use what is known on this machine."]
EndpointPort = Annotated[Port | None, "(PORT): Port of the endpoint instead of the inventory's."]


def hub(*, offline: bool) -> Hub:
    """Return where models are looked up: the hub, or with --offline what is kept of it here."""
    from spark_cluster.models.lookup import cached, known_models, online

    return cached() if offline else online(tuple(known_models()))


def changing(
    app: App,
    *,
    check: bool,
    diff: bool,
    tags: str = "",
    skip_tags: str = "",
    start_at: str = "",
    step: bool,
    exit_code: bool,
) -> Options:
    """Return the options of every command that can change nodes; --exit-code says how it ends.

    Args:
        check: Change nothing; show what would be changed.
        diff: Show differences of files; secrets are masked.
        tags (NAMES): Run only these roles or tags.
        skip_tags (NAMES): Skip these roles or tags.
        start_at (NAME): Start at this role or resource.
        step: Ask before each change (on a terminal).
        exit_code: With --check: exit status 10 if it would change.
    """
    from spark_cluster.runner.events import Options, Selection

    if step:
        _can_ask(app, check=check)
    app.exit_code = exit_code
    chosen, skipped = (
        frozenset(name.strip() for name in text.split(",") if name.strip())
        for text in (tags, skip_tags)
    )
    return Options(
        check=check, diff=diff, selection=Selection(chosen, skipped, start_at), step=step
    )


Changing = Annotated["Options", changing]


def _can_ask(app: App, *, check: bool) -> None:
    """Raises:
    UsageError: --step has no one to ask, or nothing.
    """
    if check:
        raise UsageError("--step and --check contradict each other", hint="leave one of them out")
    out = sys.stderr if app.as_json else sys.stdout
    if not (sys.stdin.isatty() and out.isatty()):
        raise UsageError(
            "--step asks before each change, and there is no terminal to ask on",
            hint="--check --diff shows all changes without making any",
        )


def allowing(
    *,
    allow_files: tuple[str, ...],
    allow_env: tuple[str, ...],
    allow_mounts: tuple[str, ...],
    allow_venv: bool,
    allow_build: bool,
    allow_build_network: bool,
) -> Allowances:
    """Return what commands that serve or judge a recipe allow it.

    Args:
        allow_files (--allow-file PATH): A file or folder of this machine that the recipe may send
            to the nodes; repeatable.
        allow_env (NAME): A variable of this machine that the recipe may give to its containers;
            repeatable.
        allow_mounts (--allow-mount PATH): A folder of the nodes that the recipe may write to;
            repeatable.
        allow_venv: Let the recipe run its engine outside a container, as root on the nodes.
        allow_build: Let the recipe's scripts change its image, as root in a build without a
            network.
        allow_build_network: Let the recipe's scripts change its image in a build that reaches the
            network.
    """
    from spark_cluster.config.extension import Allowances

    if "" in allow_files:
        raise UsageError("--allow-file: found nothing, expected a path")
    files = tuple(Path(name).expanduser().absolute() for name in allow_files)
    if allow_env or allow_mounts:  # otherwise nothing needs pydantic yet
        from spark_cluster.config.schema import env_name, node_path

        allow_env = _checked("--allow-env", env_name, allow_env)
        allow_mounts = _checked("--allow-mount", node_path, allow_mounts)
    return Allowances(files, allow_env, allow_mounts, allow_venv, allow_build, allow_build_network)


Allowing = Annotated["Allowances", allowing]


def _checked(option: str, check: Callable[[str], str], given: Sequence[str]) -> tuple[str, ...]:
    """Raises:
    UsageError: one of them is not what is expected, for example an unset variable of a shell.
    """
    try:
        return tuple(map(check, given))
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def overriding(
    *,
    options_given: tuple[str, ...],
    env_given: tuple[str, ...],
    image: str | None,
    **named: Unpack[_Named],
) -> Changes:
    """Return what the options that change a recipe for one run say, as KEY=VALUE texts; later ones
    win.

    Args:
        max_model_len (TOKENS): Longest request in tokens, instead of the recipe's: a number, such
            as 32k, or auto.
        max_num_seqs (N): Number of simultaneous requests, instead of the recipe's.
        gpu_memory_utilization (SHARE): Share of the memory, instead of the recipe's: 0.05 to 0.95,
            or auto.
        quantization (Q): The engine's --quantization instead of the recipe's.
        kv_cache_dtype (TYPE): Type of the KV cache instead of the recipe's.
        data_parallel_size (--data-parallel N): Number of nodes that each run a rank of one server
            with the whole model (vLLM's data parallel mode over Ray); experts are divided among
            them.
        options_given (-o, --option KEY=VALUE): Set an engine argument; KEY=false or KEY= removes
            it. Repeatable.
        env_given (-e, --env NAME=VALUE): Set a variable of the containers, never a secret; NAME=
            removes it. Repeatable.
        image (REF): Container image instead of the recipe's.
    """
    changes = list(options_given)
    if env_given or image is not None:  # otherwise nothing needs pydantic yet
        from spark_cluster.config.launch import ENV, IMAGE

        for text in env_given:
            if "=" not in text:
                hint = "for example -e NCCL_DEBUG=INFO"
                raise UsageError(f"-e {text}: expected NAME=VALUE", hint=hint)
            changes.append(f"{ENV}{text}")
        changes += [] if image is None else [f"{IMAGE}={image}"]
    flags = ((name.replace("_", "-"), value) for name, value in named.items())
    return (*changes, *(f"{flag}={value}" for flag, value in flags if value is not None))


class _Named(TypedDict):
    """Flags that have an option of their own; the others are given as -o KEY=VALUE."""

    max_model_len: str | None
    max_num_seqs: str | None
    gpu_memory_utilization: str | None
    quantization: str | None
    kv_cache_dtype: str | None
    data_parallel_size: str | None


Overriding = Annotated["Changes", overriding]
