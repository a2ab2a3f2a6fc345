"""Renders the Jinja templates of roles; a variable that does not exist is an error."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cluster.config.extension import where_raised
from spark_cluster.config.suggest import did_you_mean
from spark_cluster.config.yamlfile import shown
from spark_cluster.errors import InvalidFile

if TYPE_CHECKING:
    from jinja2 import Environment


def render(folder: Path, template: str, /, **values: Any) -> str:
    """The text of a template.

    Lines that hold only a `{% ... %}` leave nothing behind (trim_blocks, lstrip_blocks), and the
    newline at the end of the file stays.

    Args:
        folder: the role's `templates` folder.
        template: the file's name in it.
        values: the variables.

    Raises:
        InvalidFile: there is no such template, or it is wrong, or a variable is missing; with the
            template's line.
    """
    from jinja2 import TemplateError, TemplateNotFound, TemplateSyntaxError

    path = folder / template
    try:
        return _environment(folder).get_template(template).render(values)
    except TemplateNotFound as error:
        there = [str(p.relative_to(folder)) for p in sorted(folder.rglob("*")) if p.is_file()]
        raise InvalidFile(
            "no such template",
            where=shown(folder / str(error.name)),
            hint=did_you_mean(str(error.name), there, "templates"),
        ) from None
    except TemplateSyntaxError as error:
        file = Path(error.filename) if error.filename else path
        raise InvalidFile(str(error.message), where=f"{shown(file)}:{error.lineno}") from None
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        where = where_raised(error, folder / "__init__.py") or shown(path)
        kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
        raise InvalidFile(f"{kind}{error}", where=where) from error


@lru_cache(maxsize=64)
def _environment(folder: Path) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # Configuration files, not web pages: escaping for HTML would damage them.
    return Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
