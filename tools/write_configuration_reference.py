"""Write the reference of the policy and of the proxy's configuration from their pydantic models.

python tools/write_configuration_reference.py
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "server")]

from agentguard_server.proxy.config.schema import ProxySettings  # noqa: E402
from pydantic import BaseModel  # noqa: E402
from pydantic.fields import FieldInfo  # noqa: E402

from agentguard.config.policy import Policy  # noqa: E402

PAGES = {
    "docs/configuration/policy.md": (
        "Reference of the policy",
        "A policy is a YAML file. It configures detectors, localizer, judge, recovery and costs for "
        "`agentguard diagnose --policy`, for `Guard.from_policy`, and for the `guard` section of the proxy.",
        Policy,
    ),
    "docs/configuration/proxy.md": (
        "Reference of the proxy's configuration",
        "The file of `agentguard serve --config`, in YAML. `agentguard serve --config FILE --check` validates"
        " it. [proxy-configuration.md](../proxy-configuration.md) explains the sections.",
        ProxySettings,
    ),
}
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def build_page(title: str, introduction: str, model: type[BaseModel]) -> str:
    """Return the page of a model: a table for the model and for each section in it."""
    lines = textwrap.wrap(introduction, 140, break_long_words=False, break_on_hyphens=False)
    parts = [f"# {title}\n", *lines, ""]
    parts += ["`null` means that the option is not set. An unknown option is an error.", ""]
    parts += [
        "`tools/write_configuration_reference.py` writes this page from the code.",
        "",
    ]
    for path, section in iter_sections(model):
        parts.append(f"## {path or 'Top level'}\n")
        if path:
            parts.append(f"{_summarize(section)}\n")
        parts += ["| option | type | default | meaning |", "|---|---|---|---|"]
        descriptions = read_descriptions(section)
        for name, field in section.model_fields.items():
            cells = (f"`{name}`", _format_type(field), _format_default(field), descriptions.get(name, ""))
            parts.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        parts.append("")
    return "\n".join(parts)


def iter_sections(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the path and the model of each section, parents first."""
    yield path, model
    for name, field in model.model_fields.items():
        for section, suffix in _find_models(field.annotation):
            if section is Policy:
                continue  # it has its page
            yield from iter_sections(section, f"{path}.{name}{suffix}".strip("."))


def read_descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return the descriptions of fields: from the class docstrings, and from texts below the fields."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not (issubclass(base, BaseModel) and base is not BaseModel):
            continue
        _, _, attributes = (inspect.getdoc(base) or "").partition("Attributes:\n")
        for names, text in re.findall(r"^ {4}([\w, ]+): (.+?)(?=^ {4}\w|\Z|^\S)", attributes, re.M | re.S):
            found.update(dict.fromkeys(re.split(r", ?", names), _join(text)))
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for node, following in zip(body.body, body.body[1:], strict=False):
            match node, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = _join(text)
        for name in model.model_fields:
            for section, _ in _find_models(model.model_fields[name].annotation):
                found.setdefault(name, _summarize(section))
    return found


def _find_models(annotation: Any, suffix: str = "") -> list[tuple[type[BaseModel], str]]:
    """Return the models in an annotation; ``[]`` marks lists, ``.NAME`` mappings."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [(annotation, suffix)]
    if hasattr(annotation, "__metadata__"):
        return _find_models(annotation.__origin__, suffix)
    origin = getattr(annotation, "__origin__", None)
    kind = suffix
    if origin in (tuple, list):
        kind = f"{suffix}[]"
    elif inspect.isclass(origin) and origin.__name__ == "Mapping":
        kind = f"{suffix}.NAME"
    found: dict[type[BaseModel], str] = {}
    for argument in get_args(annotation):
        for model, where in _find_models(argument, kind):
            found.setdefault(model, where)
    return list(found.items())


def _summarize(model: type[BaseModel]) -> str:
    return _join((inspect.getdoc(model) or "").partition("\n\n")[0])


def _join(text: str) -> str:
    return re.sub(r"``(.+?)``", r"`\1`", " ".join(text.split()))


def _format_type(field: FieldInfo) -> str:
    text = _name_type(field.annotation)
    bounds = [
        f"{sign} {getattr(item, name):,}"
        for item in field.metadata
        for name, sign in _BOUNDS.items()
        if getattr(item, name, None) is not None
    ]
    return f"{text}, {', '.join(bounds)}" if bounds else text


def _name_type(annotation: Any) -> str:
    if annotation is type(None):
        return "null"
    if hasattr(annotation, "__metadata__"):
        return _name_type(annotation.__origin__)
    if inspect.isclass(annotation):
        names = {"str": "text", "int": "integer", "float": "number", "bool": "boolean", "Path": "path"}
        return names.get(annotation.__name__, "section" if issubclass(annotation, BaseModel) else "text")
    origin = getattr(annotation, "__origin__", None)
    arguments = [one for one in get_args(annotation) if one is not Ellipsis]
    if str(origin) == "typing.Literal":
        return ", ".join(f"`{one}`" if one else "empty" for one in arguments)
    if origin in (tuple, list):
        return "list"
    if inspect.isclass(origin) and origin.__name__ == "Mapping":
        return "mapping"
    names_of_union = [_name_type(one) for one in arguments]
    return " or ".join(dict.fromkeys(one for one in names_of_union if one != "null")) or "any value"


def _format_default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "null"
    if isinstance(value, BaseModel) or value in ({}, (), []):
        return "–"
    if isinstance(value, tuple):
        return f"`[{', '.join(str(one) for one in value)}]`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`" if value != "" else "empty"


def main() -> None:
    """Write all pages."""
    for path, (title, introduction, model) in PAGES.items():
        file = ROOT / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(build_page(title, introduction, model), encoding="utf-8")


if __name__ == "__main__":
    main()
