"""Parser of a YAML file into a taxonomy or a list of links, validated by ``SCHEMA.json``.

A user's file is untrusted input. The YAML loader is the safe one, without aliases (a short file could expand
to gigabytes), without duplicate keys (the first would be lost silently) and without dates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import yaml

from agentguard import package_data
from agentguard.errors import TaxonomyError
from agentguard.taxonomy.model import CrosswalkLink, Group, Reference, Relation, Taxonomy, TaxonomyCode

CROSSWALK_FILE = "crosswalk.yaml"
_MAX_BYTES = 1_000_000
_MAX_DEPTH = 20
_BaseLoader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TIMESTAMP_TAG = "tag:yaml.org,2002:timestamp"


class _TextDateLoader(_BaseLoader):  # type: ignore[valid-type, misc]
    """Safe YAML loader that reads dates as text."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, regexp) for tag, regexp in resolvers if tag != _TIMESTAMP_TAG]
        for first, resolvers in _BaseLoader.yaml_implicit_resolvers.items()
    }


def read_taxonomy(path: Path) -> Taxonomy:
    """Read and validate a taxonomy. Raises TaxonomyError with the file, the field and a remedy."""
    document = _load_validated(path, "taxonomy")
    taxonomy = Taxonomy(
        name=document["name"],
        title=document["title"],
        version=document["version"],
        summary=document["summary"],
        source=Reference(**document["source"]),
        groups=tuple(Group(**group) for group in document.get("groups", ())),
        codes=tuple(
            TaxonomyCode(
                **{**code, "taxonomy": document["name"], "examples": tuple(code.get("examples", ()))}
            )
            for code in document["codes"]
        ),
    )
    _check_taxonomy(taxonomy, path)
    return taxonomy


def read_crosswalk_links(path: Path) -> tuple[CrosswalkLink, ...]:
    """Read and validate a crosswalk file; does not check that the codes exist. Raises TaxonomyError."""
    links = tuple(
        CrosswalkLink(
            source=item["from"],
            relation=Relation(item["relation"]),
            target=item["to"],
            note=item.get("note", ""),
        )
        for item in _load_validated(path, "crosswalk")["links"]
    )
    for i, link in enumerate(links):
        if link.source == link.target:
            raise TaxonomyError("links a code to itself", file=str(path), field=f"links[{i}]")
    return links


def _check_taxonomy(taxonomy: Taxonomy, path: Path) -> None:
    """Check the name of the file, unique ids and existing groups, which a schema cannot express."""
    if taxonomy.name != path.stem:
        hint = f"name the file {taxonomy.name}.yaml, or the taxonomy {path.stem!r}"
        raise TaxonomyError("is not the name of the file", file=str(path), field="name", hint=hint)
    groups = [group.id for group in taxonomy.groups]
    _check_unique(groups, "groups", path)
    _check_unique([code.id for code in taxonomy.codes], "codes", path)
    for i, code in enumerate(taxonomy.codes):
        if code.group is not None and code.group not in groups:
            hint = f"there are: {', '.join(groups)}" if groups else "add it under groups"
            raise TaxonomyError("no such group", file=str(path), field=f"codes[{i}].group", hint=hint)


def _check_unique(ids: list[str], where: str, path: Path) -> None:
    for i, id in enumerate(ids):
        if id in ids[:i]:
            hint = f"{where}[{ids.index(id)}] has the same id"
            raise TaxonomyError(f"{id!r} occurs twice", file=str(path), field=f"{where}[{i}].id", hint=hint)


def _load_validated(path: Path, kind: str) -> dict[str, Any]:
    document = _load_yaml(path)
    try:
        errors = sorted(
            _load_validator(kind)(document), key=lambda error: len(error.instance_path), reverse=True
        )
    except (ValueError, TypeError, OverflowError):
        raise TaxonomyError("contains a value that is not JSON data", file=str(path)) from None
    if errors:
        hint = f"{len(errors) - 1} more; " if len(errors) > 1 else ""
        raise TaxonomyError(
            _shorten(errors[0].message),
            file=str(path),
            field=format_path(errors[0].instance_path) or "the document",
            hint=f"{hint}see SCHEMA.json beside the shipped taxonomies",
        )
    assert isinstance(document, dict)
    return document


@cache
def _load_validator(kind: str) -> Callable[[object], Iterable[Any]]:
    import jsonschema_rs

    schema = orjson.loads((package_data.get_taxonomies_dir() / "SCHEMA.json").read_bytes())
    if kind == "crosswalk":
        schema = {"$schema": schema["$schema"], "$ref": "#/$defs/crosswalk", "$defs": schema["$defs"]}
    return jsonschema_rs.Draft202012Validator(schema).iter_errors


def _load_yaml(path: Path) -> object:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise TaxonomyError(f"is larger than {_MAX_BYTES:,} bytes", file=str(path))
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TaxonomyError(f"cannot be read: {error.strerror}", file=str(path)) from None
    except UnicodeDecodeError:
        raise TaxonomyError("is not UTF-8 text", file=str(path)) from None
    loader = _TextDateLoader(text)
    try:
        _check_depth(text, path)
        node = loader.get_single_node()
        if node is None:
            raise TaxonomyError("is empty", file=str(path))
        _check_duplicate_keys(node, path)
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        line = f" at line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise TaxonomyError(f"is not YAML{line}: {error.problem or 'bad syntax'}", file=str(path)) from None
    except (yaml.YAMLError, ValueError, OverflowError):
        raise TaxonomyError("is not YAML", file=str(path)) from None
    finally:
        loader.dispose()


def _check_depth(text: str, path: Path) -> None:
    """Raise TaxonomyError for aliases and deep nesting while the file is a flat stream of events.

    PyYAML's composer in C recurses without a limit: a file of brackets would end the process.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_TextDateLoader):
        if isinstance(event, yaml.AliasEvent):
            hint = "write the value instead"
            raise TaxonomyError(f"uses the alias *{_shorten(str(event.anchor))}", file=str(path), hint=hint)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise TaxonomyError("is nested too deeply", file=str(path))


def _check_duplicate_keys(root: yaml.Node, path: Path) -> None:
    """Raise TaxonomyError for a duplicate key of a mapping."""
    queue = [root]
    while queue:
        node = queue.pop()
        if isinstance(node, yaml.MappingNode):
            counts = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            for key in (key for key, count in counts.items() if count > 1):
                place = f"the mapping at line {node.start_mark.line + 1}"
                raise TaxonomyError(f"{place} has the key {_shorten(key)!r} twice", file=str(path))
            queue.extend(part for pair in node.value for part in pair)
        elif isinstance(node, yaml.SequenceNode):
            queue.extend(node.value)


def format_path(path: Iterable[str | int]) -> str:
    """Return a JSON path for a message, such as ``codes[3].title``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _shorten(message: str) -> str:
    return message if len(message) <= 200 else f"{message[:199]}…"
