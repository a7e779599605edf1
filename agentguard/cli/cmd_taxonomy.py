"""``agentguard taxonomy``: list, show, map and validate taxonomies of failures."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.markup import escape
from rich.table import Table

from agentguard.cli.json_output import print_json
from agentguard.cli.terminal_text import build_console
from agentguard.errors import TaxonomyError
from agentguard.taxonomy.catalog import FOLDERS_VARIABLE, TaxonomyCatalog
from agentguard.taxonomy.model import CrosswalkLink, Relation, Taxonomy, TaxonomyCode
from agentguard.taxonomy.parser import CROSSWALK_FILE, read_taxonomy

Folders = Annotated[
    list[Path] | None,
    typer.Option(
        "--taxonomies",
        metavar="DIR",
        help=f"Folder of further taxonomies; {FOLDERS_VARIABLE} lists folders too.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_MAPPING_LABELS = {
    Relation.EXACT: "is the same as",
    Relation.CLOSE: "is close to",
    Relation.NARROW: "covers",
    Relation.BROAD: "is part of",
    Relation.RELATED: "is related to",
}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="Look up, map and validate codes of failures.")
    group.command("list")(list_)
    group.command()(show)
    group.command("map")(map_)
    group.command()(validate)
    app.add_typer(group, name="taxonomy")


def list_(taxonomies: Folders = None, json: Json = False) -> None:
    """List the known taxonomies."""
    catalogue = tuple(_load_taxonomies(taxonomies))
    if json:
        print_json(
            [{**_summarize_taxonomy(taxonomy), "codes": len(taxonomy.codes)} for taxonomy in catalogue],
            is_indented=True,
        )
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "codes", "title", "source"):
        table.add_column(column, justify="right" if column == "codes" else "left")
    for taxonomy in catalogue:
        table.add_row(
            escape(taxonomy.name),
            str(len(taxonomy.codes)),
            escape(taxonomy.summary),
            escape(_format_source(taxonomy)),
        )
    build_console().print(table)


def show(
    name: Annotated[str, typer.Argument(help="Taxonomy, or code or title of a kind of failure.")],
    taxonomies: Folders = None,
    json: Json = False,
) -> None:
    """Show a taxonomy with its codes, or a kind of failure with its mappings.

    Several taxonomies may have kinds with the same title; the command then shows each of them.
    """
    catalogue = _load_taxonomies(taxonomies)
    if ":" in name:
        code = catalogue.get_code(name)
        print_json(_code_to_dict(code), is_indented=True) if json else _show_code(code, catalogue)
        return
    if name not in catalogue.names():
        codes = catalogue.find_codes(name)
        if not codes:
            _raise_unknown_kind(name, catalogue)
        if json:
            print_json({"codes": [_code_to_dict(code) for code in codes]}, is_indented=True)
        for code in () if json else codes:
            _show_code(code, catalogue)
        return
    taxonomy = catalogue.get_taxonomy(name)
    if json:
        groups = [{"id": g.id, "title": g.title, "definition": g.definition} for g in taxonomy.groups]
        print_json(
            {
                **_summarize_taxonomy(taxonomy),
                "groups": groups,
                "codes": [_code_to_dict(code) for code in taxonomy.codes],
            },
            is_indented=True,
        )
    else:
        _show_taxonomy(taxonomy)


def _raise_unknown_kind(name: str, catalogue: TaxonomyCatalog) -> NoReturn:
    titles = {code.title.casefold(): code.title for taxonomy in catalogue for code in taxonomy.codes}
    similar = get_close_matches(name.casefold(), [*titles, *catalogue.names()], n=3)
    names = " or ".join(repr(titles.get(one, one)) for one in similar)
    suggestion = f"did you mean {names}? " if similar else ""
    raise TaxonomyError(
        f"no taxonomy and no kind of failure is named {name!r}",
        hint=f"{suggestion}the taxonomies are: {', '.join(catalogue.names())}",
    )


def map_(
    code: Annotated[str, typer.Argument(help="Qualified code such as mast:step_repetition.")],
    to: Annotated[str | None, typer.Option(help="Only codes of this taxonomy.")] = None,
    taxonomies: Folders = None,
    json: Json = False,
) -> None:
    """Show the codes of other taxonomies that correspond to a code."""
    catalogue = _load_taxonomies(taxonomies)
    links = catalogue.map_code(code, to=to)
    if json:
        print_json([_link_to_dict(link) for link in links], is_indented=True)
    elif links:
        build_console().print(_format_links(links, catalogue))
    else:
        typer.echo(f"nothing corresponds to {code}" + (f" in {to}" if to else ""))


def validate(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Taxonomy or crosswalk files; by default all known ones.")
    ] = None,
    taxonomies: Folders = None,
    json: Json = False,
) -> None:
    """Check taxonomy and crosswalk files. Exit status: 1 if one is not valid."""
    results = [
        (path, _find_problem(path, taxonomies)) for path in files or _load_taxonomies(taxonomies).files()
    ]
    if json:
        print_json(
            [{"file": str(path), "ok": problem is None, "error": problem} for path, problem in results],
            is_indented=True,
        )
    else:
        for path, problem in results:
            typer.echo(f"ok     {path}" if problem is None else f"WRONG  {problem}")
    raise typer.Exit(1 if any(problem for _, problem in results) else 0)


def _find_problem(path: Path, folders: list[Path] | None) -> str | None:
    """Return the problem of a file, or None. A crosswalk may use codes of the taxonomies beside it."""
    try:
        if path.name == CROSSWALK_FILE and path.is_file():
            TaxonomyCatalog.load(*(folders or ()), path.parent).read_checked_links(path)
        else:
            read_taxonomy(path)
    except TaxonomyError as error:
        return str(error)
    return None


def _show_taxonomy(taxonomy: Taxonomy) -> None:
    console = build_console()
    console.print(f"[bold]{escape(taxonomy.title)}[/]  [dim]{taxonomy.name} {taxonomy.version}[/]")
    console.print(escape(taxonomy.summary))
    console.print(f"[dim]{escape(_format_source(taxonomy))}[/]\n")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("code", "title", "definition"):
        table.add_column(column, overflow="fold")
    for code in taxonomy.codes:
        table.add_row(escape(code.id), escape(code.title), escape(code.definition))
    console.print(table)


def _show_code(code: TaxonomyCode, known: TaxonomyCatalog) -> None:
    console = build_console()
    location = " · ".join(part for part in (code.qualified_id, code.group, code.module) if part)
    console.print(f"[bold]{escape(code.title)}[/]  [dim]{escape(location)}[/]")
    console.print(escape(code.definition))
    for example in code.examples:
        console.print(f"[dim]for example[/]  {escape(example)}")
    if code.correction:
        console.print(f"[dim]instead[/]      [green]{escape(code.correction)}[/]")
    links = known.map_code(code.qualified_id)
    if links:
        console.print()
        console.print(_format_links(links, known))


def _format_links(links: tuple[CrosswalkLink, ...], known: TaxonomyCatalog) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for link in links:
        row = (_MAPPING_LABELS[link.relation], link.target, known.get_title(link.target), link.note)
        table.add_row(*(escape(cell) for cell in row))
    return table


def _load_taxonomies(folders: list[Path] | None) -> TaxonomyCatalog:
    return TaxonomyCatalog.load(*(folders or ()))


def _format_source(taxonomy: Taxonomy) -> str:
    arxiv = f" (arXiv {taxonomy.source.arxiv})" if taxonomy.source.arxiv else ""
    return taxonomy.source.work + arxiv


def _summarize_taxonomy(taxonomy: Taxonomy) -> dict[str, object]:
    source = {"work": taxonomy.source.work, "arxiv": taxonomy.source.arxiv, "note": taxonomy.source.note}
    return {
        "name": taxonomy.name,
        "title": taxonomy.title,
        "version": taxonomy.version,
        "summary": taxonomy.summary,
        "source": source,
    }


def _code_to_dict(code: TaxonomyCode) -> dict[str, object]:
    return {
        "code": code.qualified_id,
        "title": code.title,
        "definition": code.definition,
        "group": code.group,
        "module": code.module,
        "examples": list(code.examples),
        "correction": code.correction,
    }


def _link_to_dict(link: CrosswalkLink) -> dict[str, str]:
    return {"from": link.source, "relation": link.relation.value, "to": link.target, "note": link.note}
