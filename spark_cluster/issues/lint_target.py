"""The target of `lint`: a recipe, another tool's file or a command line, and how it is fixed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cluster.config import image_build
from spark_cluster.config.extension import NOTHING, Allowances
from spark_cluster.config.launch import Launch, of_recipe
from spark_cluster.config.recipe_schema import NotCarriedOver
from spark_cluster.config.yamlfile import load, shown
from spark_cluster.errors import InvalidFile, UsageError, naming
from spark_cluster.importers import commandline
from spark_cluster.issues.entries import Edit, KnownIssueMatch, ordered
from spark_cluster.issues.rules import lint
from spark_cluster.models.shape import Geometry
from spark_cluster.node.durable import write_file

if TYPE_CHECKING:
    from ruamel.yaml import YAML

    from spark_cluster.config.project import Project
    from spark_cluster.models.lookup import Hub


# Edits of a pasted command line: only the words that are edited change.

_WORD = re.compile(r"(?:'[^']*'|\"(?:\\.|[^\"\\])*\"|\\[^\n]|[^\s'\"\\])+", re.DOTALL)
_EMPTY_LINE = re.compile(r"\\\n[ \t]*(?=\\\n|\Z)")
_SHORT = {"publish": "p", "env": "e", "volume": "v"}


@dataclass
class _Word:
    text: str
    start: int
    end: int


def fixed_command(text: str, edits: Iterable[Edit], launch: Launch) -> str:
    """Return the command line after the edits.

    Args:
        launch: what the text was read as.
    """
    for edit in edits:
        text = _Rewriter(text, launch).apply(edit)
        text = _EMPTY_LINE.sub("", text)
    return text


def can_fix_command(edit: Edit, launch: Launch) -> bool:
    """Return True when a command line holds what the edit changes."""
    return edit.kind != "recipe" and (bool(launch.image) or edit.kind not in ("docker", "image"))


class _Rewriter:
    def __init__(self, text: str, launch: Launch) -> None:
        self.text = text
        self.launch = launch
        self.words = [_Word(_plain(m[0]), m.start(), m.end()) for m in _WORD.finditer(text)]

    def apply(self, edit: Edit) -> str:
        if edit.kind == "image":
            return self._replaced(self._image(), str(edit.value))
        if edit.kind == "env":
            return self._env(edit)
        if edit.kind == "docker":
            return self._docker(edit)
        return self._flag(edit)

    def _image(self) -> int:
        """Return the index of the image's word."""
        names = (self.launch.image, f"{self.launch.image}@{self.launch.digest}")
        return next(i for i, word in enumerate(self.words) if word.text in names)

    def _flag(self, edit: Edit) -> str:
        old = edit.replaces or edit.name
        names = {f"--{old}", f"--{old.replace('-', '_')}"}
        at = next((i for i, w in enumerate(self.words) if w.text.partition("=")[0] in names), None)
        if at is None:
            return self.text if edit.value is None else self._inserted(edit.name, edit.value)
        if edit.replaces and edit.value == self.launch.args.get(old):
            begin = self.words[at].start  # its values stay as they are written
            return f"{self.text[:begin]}--{edit.name}{self.text[begin + len(f'--{old}') :]}"
        bare = self.launch.args.get(old) is True or "=" in self.words[at].text
        last = at if bare else at + 1
        if edit.value is None:
            return self._without(at, last)
        return self._spanned(at, last, _written(edit.name, edit.value))

    def _inserted(self, name: str, value: object) -> str:
        """Insert a new flag behind the model, or before the first flag behind the image."""
        image = self._image() if self.launch.image else -1
        begin = next(
            (
                i
                for i, w in enumerate(self.words)
                if i > image and (w.text == "serve" or w.text.endswith("api_server"))
            ),
            image,
        )
        flags = (w for i, w in enumerate(self.words) if i > begin and w.text.startswith("--"))
        first = next(flags, None)
        written = _written(name, value)
        if first is not None:
            return f"{self.text[: first.start]}{written} {self.text[first.start :]}"
        end = self.words[-1].end
        return f"{self.text[:end]} {written}{self.text[end:]}"

    def _env(self, edit: Edit) -> str:
        pair = f"{edit.name}={edit.value}"
        for i, word in enumerate(self.words):
            name, equals, _ = word.text.partition("=")
            for option in ("--env=", "-e"):
                name = name.removeprefix(option) if word.text.startswith(option) else name
            if name == edit.name and (equals or self._after_option(i, "env")):
                if edit.value is not None:
                    kept = word.text[: word.text.index(name)]
                    return self._replaced(i, kept + pair)
                return self._without(i - 1 if self._after_option(i, "env") else i, i)
        if edit.value is None:
            return self.text
        if not self.launch.image:
            first = self.words[0].start
            return f"{self.text[:first]}{pair} {self.text[first:]}"
        return self._before_image(f"-e {shlex.quote(pair)}")

    def _docker(self, edit: Edit) -> str:
        new = f"--{edit.name} {shlex.quote(str(edit.value))}"
        if edit.replaces is None:
            return self._replaced_option(edit, new) or self._before_image(new)
        for i, word in enumerate(self.words):
            if word.text.endswith(edit.replaces) and self._is_option(i, edit.name):
                kept = word.text.removesuffix(edit.replaces)
                return self._replaced(i, f"{kept}{edit.value}")
        return self.text

    def _replaced_option(self, edit: Edit, new: str) -> str:
        """Replace an option that is there with another value and may be given once only."""
        if isinstance(self.launch.docker.get(edit.name), list) or edit.name in ("device", "ulimit"):
            return ""
        for i, word in enumerate(self.words[: self._image()]):
            name, equals, _ = word.text.partition("=")
            if name == f"--{edit.name}" or (edit.name == "network" and name == "--net"):
                return self._spanned(i, i if equals else i + 1, new)
        return ""

    def _is_option(self, index: int, name: str) -> bool:
        word = self.words[index].text
        return self._after_option(index, name) or word.startswith(
            (f"--{name}=", f"-{_SHORT.get(name, '-')}")
        )

    def _after_option(self, index: int, name: str) -> bool:
        before = self.words[index - 1].text if index else ""
        return before in (f"--{name}", f"-{_SHORT.get(name, '-')}")

    def _before_image(self, written: str) -> str:
        at = self.words[self._image()].start
        return f"{self.text[:at]}{written} {self.text[at:]}"

    def _replaced(self, index: int, new: str) -> str:
        return self._spanned(index, index, shlex.quote(new))

    def _spanned(self, first: int, last: int, new: str) -> str:
        return self.text[: self.words[first].start] + new + self.text[self.words[last].end :]

    def _without(self, first: int, last: int) -> str:
        begin = self.words[first].start
        while begin and self.text[begin - 1] in " \t":
            begin -= 1
        return self.text[:begin] + self.text[self.words[last].end :]


def _plain(raw: str) -> str:
    """Return the word without quotes, or as it stands where they are not closed."""
    try:
        return "".join(shlex.split(raw))
    except ValueError:
        return raw


def _written(name: str, value: object) -> str:
    if value is True:
        return f"--{name}"
    if isinstance(value, dict | list):
        return f"--{name} {shlex.quote(json.dumps(value, separators=(',', ':')))}"
    return f"--{name} {shlex.quote(str(value))}"


# Edits of a recipe's file: only what is edited changes, comments stay.

_SEQUENCE = re.compile(r"(?m)^(?P<key> *)[\w-]+:[^\n\S]*(?:#.*)?\n(?P<dash> *)- ")
_WIDE = 1 << 20
"""No line is folded."""


def fixed_recipe(text: str, edits: Iterable[Edit], name: str) -> str:
    """Return the recipe's text after the edits.

    ruamel.yaml keeps comments but folds long lines its own way, so what it writes with and without
    the edits is compared, and only the difference goes into the text.

    Args:
        name: of the recipe, which is how its file is called.
    """
    document, plain = _loaded(text), _dumped(_loaded(text), text)
    for edit in edits:
        _apply(document, edit)
    if document.get("name") != name:
        document["name"] = name
    edited = _dumped(document, text)
    return _transplanted(text, plain, edited)


def _loaded(text: str) -> Any:
    return _yaml(text).load(text)


def _dumped(document: Any, text: str) -> str:
    out = StringIO()
    _yaml(text).dump(document, out)
    return out.getvalue()


def _yaml(text: str) -> YAML:
    """Set up to write as the text is written."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = _WIDE
    offset = _offset(text)
    yaml.indent(mapping=2, sequence=2 + offset, offset=offset)
    return yaml


def _transplanted(text: str, plain: str, edited: str) -> str:
    """The text with the difference between two others, of which `plain` says the same as it;
    `edited` itself where the difference has no place in the text."""
    original, base, new = (part.splitlines(keepends=True) for part in (text, plain, edited))
    blocks = SequenceMatcher(None, base, original, autojunk=False).get_matching_blocks()
    place = {block.a + i: block.b + i for block in blocks for i in range(block.size)}
    result = list(original)
    changes = SequenceMatcher(None, base, new, autojunk=False).get_opcodes()
    for tag, begin, end, first, last in reversed(changes):
        if tag == "equal":
            continue
        there = [place.get(index) for index in range(begin, end)]
        at = there[0] if there else _after(place, begin)
        if at is None or there != list(range(at, at + len(there))):
            return edited
        lines = result[at : at + len(there)] if tag == "delete" else []
        kept = [line for line in lines if line.strip()[:1] in ("", "#")]  # of what stays
        result[at : at + len(there)] = new[first:last] + kept
    return "".join(result)


def _after(place: dict[int, int], index: int) -> int | None:
    """Return where new lines go that stand before line `index` of the base."""
    if index - 1 in place:
        return place[index - 1] + 1
    return place.get(index, 0 if index == 0 else None)


def can_fix_recipe(edit: Edit) -> bool:
    """Return True when a recipe holds what the edit changes; container options are not in it."""
    return edit.kind != "docker" and edit.name not in ("host", "distributed-executor-backend")


def _offset(text: str) -> int:
    """Return how far the dashes of lists are indented from their key."""
    found = _SEQUENCE.search(text)
    return len(found["dash"]) - len(found["key"]) if found else 0


def _apply(document: Any, edit: Edit) -> None:
    if edit.kind == "image":
        document["image"]["ref"] = edit.value
        document["image"].pop("digest", None)
    elif edit.kind == "env":
        _set(document, "env", edit.name, edit.value)
    elif edit.kind == "recipe":
        document[edit.name] = edit.value
    elif edit.name == "gpu-memory-utilization":
        document["gpu_memory_utilization"] = "auto"  # `up` computes it from what the node has
    elif edit.name == "speculative-config":
        if isinstance(edit.value, dict):
            document["drafter"]["method"] = edit.value["method"]
        else:
            document.pop("drafter", None)
    else:
        args = document.get("engine_args", {})
        if edit.replaces in args:  # its place, its comment and how its value is written stay
            args.insert([*args].index(edit.replaces), edit.name, args.pop(edit.replaces))
            args.ca.items[edit.name] = args.ca.items.pop(edit.replaces, None)
        if args.get(edit.name) != edit.value:
            _set(document, "engine_args", edit.name, edit.value)


def _set(document: Any, section: str, name: str, value: Any) -> None:
    """Set or remove a key of a section; an empty section is removed too."""
    if value is None:
        document.get(section, {}).pop(name, None)
        if section in document and not document[section]:
            document.pop(section)
    else:
        document.setdefault(section, {})[name] = value


ROUNDS = 50
"""A fix may bring another issue to light, and of flags that went one is mended a round."""


@dataclass(frozen=True)
class LintTarget:
    """Something that can be checked, and perhaps fixed.

    Attributes:
        title: how it is called.
        text: as it is written; empty for what cannot be fixed.
        launches: what the text starts, by tensor-parallel size. Raises InvalidFile or UsageError
            when it is wrong.
        fixed: the text after edits.
        can: whether it holds what an edit changes.
        path: the file it stands in.
        folder: where the model's files are on this machine, when that is known.
        variables: of this machine's environment, which a recipe asks for.
        builds: what to know of the scripts that change a recipe's image.
        not_carried_over: what an imported recipe lacks of its source.
    """

    title: str
    text: str
    launches: Callable[[str], list[Launch]]
    fixed: Callable[[str, list[Edit]], str] = field(default=lambda text, _edits: text)
    can: Callable[[Edit], bool] = field(default=lambda _edit: False)
    path: Path | None = None
    folder: Path | None = None
    variables: tuple[str, ...] = ()
    builds: tuple[str, ...] = ()
    not_carried_over: tuple[NotCarriedOver, ...] = ()


@dataclass(frozen=True)
class Fixed:
    """A text after the fixes, with what was fixed and what remains."""

    text: str
    fixed: list[KnownIssueMatch]
    remaining: list[KnownIssueMatch]


def of_command(text: str, tp: int | None) -> LintTarget:
    """Return the target for a pasted command line."""

    def launches(current: str) -> list[Launch]:
        launch = commandline.parse(current)
        return [launch if tp is None else launch.at_size(tp)]

    def fixed(current: str, edits: list[Edit]) -> str:
        return fixed_command(current, edits, launches(current)[0])

    (launch,) = launches(text)
    return LintTarget(
        launch.model, text, launches, fixed, lambda edit: can_fix_command(edit, launch)
    )


def changed(target: LintTarget, change: Callable[[Launch], Launch]) -> LintTarget:
    """Return the target with changed launches, which can be checked and not fixed in the text."""
    return replace(
        target, text="", launches=lambda _text: [*map(change, target.launches(target.text))]
    )


def of_target(
    name: str, project: Project, tp: int | None, allow: Allowances = NOTHING
) -> LintTarget:
    """Return the target for a recipe by name or path, or a file of another tool.

    Args:
        allow: what the user allows the recipe.

    Raises:
        Refused: the recipe has others sent.
        UsageError: there is no recipe of that name, or it does not do this size.
        InvalidFile: the file cannot be read as any of the known formats.
    """
    path = project.resolve("recipes", name)
    if _is_ours(path):
        return _of_recipe(path, project, tp, allow)
    from spark_cluster.importers.files import read_file

    launch = read_file(path).launch
    if path.is_file() and path.suffix.lower() not in commandline.YAML_SUFFIXES:
        with contextlib.suppress(UsageError):
            return replace(of_command(path.read_text(encoding="utf-8"), tp), path=path)
    launch = launch if tp is None else launch.at_size(tp)
    return LintTarget(path.name, "", lambda _text: [launch], path=path)


def other_file(name: str, project: Project) -> Path | None:
    """Return the file or folder of another tool that a name leads to; None for a recipe.

    Raises:
        UsageError: there is no recipe of that name.
    """
    path = project.resolve("recipes", name)
    return None if _is_ours(path) else path


def _is_ours(path: Path) -> bool:
    if path.suffix.lower() not in commandline.YAML_SUFFIXES[:2]:
        return False
    try:
        data = load(path, "recipe").data
    except InvalidFile:
        return True  # the reader of recipes says best what is wrong
    return isinstance(data.get("model"), dict) or isinstance(data.get("image"), dict)


def _of_recipe(path: Path, project: Project, tp: int | None, allow: Allowances) -> LintTarget:
    from spark_cluster.config.recipe_settings import files_must_be_allowed, mounts_must_be_allowed
    from spark_cluster.config.recipes import load_recipe

    recipe = load_recipe(path, project, allow)
    files_must_be_allowed(recipe)
    mounts_must_be_allowed(recipe)
    wanted = recipe.tensor_parallel.usual if tp is None else (tp,)

    def launches(current: str) -> list[Launch]:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / path.name
            copy.write_text(current, encoding="utf-8")
            read = load_recipe(copy, project)
        return [of_recipe(read, size) for size in wanted]

    return LintTarget(
        recipe.name,
        path.read_text(encoding="utf-8-sig"),
        launches,
        lambda current, edits: fixed_recipe(current, edits, path.stem),
        can_fix_recipe,
        path,
        recipe.model.directory,
        tuple(dict.fromkeys(reference.env for reference in recipe.secret_env.values())),
        tuple(image_build.remarks(recipe.image.build, recipe.allowances)),
        tuple(recipe.not_carried_over),
    )


def findings(
    target: LintTarget, text: str, project: Project, hub: Hub | None = None
) -> list[KnownIssueMatch]:
    """Return the known issues of the text, over all sizes, each once.

    Args:
        hub: where the model is looked up; None: what is kept on this machine.
    """
    launches = target.launches(text)
    found: dict[str, KnownIssueMatch] = {}
    for launch in launches:
        for finding in lint(launch, _geometry(launch, target, project, hub)):
            if finding.id not in found:
                only = len(launches) > 1 and launch.tp > launches[0].tp
                at = f" (at --tp {launch.tp})" if only else ""
                found[finding.id] = replace(finding, found=finding.found + at)
    return ordered(list(found.values()))


def fix(target: LintTarget, project: Project, hub: Hub | None = None) -> Fixed:
    """Return the text with every error and warning fixed that can be."""
    text, done, made = target.text, dict[str, KnownIssueMatch](), list[Edit]()
    for _ in range(ROUNDS):
        found = findings(target, text, project, hub)
        todo = {f.id: f for f in found if f.severity != "info" and f.edit and target.can(f.edit)}
        before = len(made)
        for one in todo.values():
            made += [one.edit] if one.edit and one.edit not in made else []
        if len(made) == before:
            break
        done = todo | done
        text = target.fixed(text, made[before:])
    remaining = findings(target, text, project)
    still = {(finding.id, finding.found) for finding in remaining}
    return Fixed(text, [f for f in done.values() if (f.id, f.found) not in still], remaining)


def write(path: Path, text: str) -> None:
    """Write a text in place of a file, with its mode; into what is no file, such as /dev/stdout.

    Raises:
        InvalidFile: it cannot be written.
    """
    with naming(InvalidFile, "cannot be written", where=shown(path)):
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        os.umask(mask := os.umask(0o077))
        mode = path.stat().st_mode & 0o7777 if path.exists() else 0o666 & ~mask
        write_file(path, text.encode(), mode)


def _geometry(
    launch: Launch, target: LintTarget, project: Project, hub: Hub | None
) -> Geometry | None:
    """Return the model's shape, when it is known, and its size too."""
    from spark_cluster.models.lookup import find

    with contextlib.suppress(UsageError):
        if target.folder is not None and (target.folder / "config.json").is_file():
            found = find(target.folder)
        else:
            found = find(launch.model, project.folder, base=launch.base, hub=hub)
        return found if found.stored is not None or not found.not_understood else None
    return None
