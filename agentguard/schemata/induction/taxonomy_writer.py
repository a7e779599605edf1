"""Writer of proposed codes into a new or existing taxonomy file; it does not change existing text."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from agentguard.errors import TaxonomyError
from agentguard.schemata.induction.clustering import CodeProposal
from agentguard.taxonomy.model import Taxonomy
from agentguard.taxonomy.parser import read_taxonomy

_NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_LINE_WIDTH: Final = 108
_MAX_TEXT_CHARS: Final = 4_000


def format_taxonomy(proposals: Sequence[CodeProposal], *, name: str = "induced", version: str = "0.1") -> str:
    """Return the YAML of a taxonomy with the proposals; ``agentguard taxonomy validate`` accepts it.

    The definition of each code ends with its support.

    Raises:
        TaxonomyError: there is no proposal, or the name is not a valid taxonomy name.
    """
    if not proposals:
        raise TaxonomyError("a taxonomy needs at least one code", hint="there is no proposal")
    if not _NAME_PATTERN.match(name):
        raise TaxonomyError(f"{name!r} is not the name of a taxonomy", hint="use a to z, 0 to 9 and _")
    head = {
        "name": name,
        "title": "Induced kinds of failure",
        "version": version,
        "summary": "Kinds of failure proposed from clusters of error schemata that no existing code covers.",
        "source": {
            "work": "Induced from recorded failures by agentguard",
            "note": "Proposals: read their exemplars before you rely on them.",
        },
    }
    return _format_yaml(head) + "codes:\n" + "".join(_format_entry(one, 2) for one in proposals)


def accept_proposals(path: str | Path, proposals: Sequence[CodeProposal]) -> Taxonomy:
    """Add proposals to the taxonomy file ``path``, or create it; return its new content.

    Comments and layout of the file do not change. The replacement of the file is atomic.

    Raises:
        TaxonomyError: the file is not a valid taxonomy, has a code with one of these ids, or has a layout to
            which a code cannot be appended.
    """
    file = Path(path)
    if not file.exists():
        return _replace_file(file, format_taxonomy(proposals, name=file.stem))
    before = read_taxonomy(file)
    for one in proposals:
        if before.get_code(one.code) is not None:
            raise TaxonomyError(
                f"there is a code {one.code!r} already", file=str(file), field="codes",
                hint="rename the proposal, or omit it",
            )  # fmt: skip
    if not proposals:
        return before
    return _replace_file(file, _append_entries(file, proposals), before)


def _append_entries(file: Path, proposals: Sequence[CodeProposal]) -> str:
    """Return the text of a file with entries after its last code."""
    import yaml

    with file.open(encoding="utf-8", newline="") as stream:
        text = stream.read()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)  # valid YAML: the file has been read as a taxonomy
    codes = next(value for key, value in root.value if key.value == "codes")
    if codes.flow_style:
        raise TaxonomyError(
            "the codes are a list in brackets",
            file=str(file),
            field="codes",
            hint="write each code on its own line, after -",
        )
    lines = text[: codes.end_mark.index].splitlines(keepends=True)
    while lines and (not lines[-1].strip() or lines[-1].startswith("#")):
        lines.pop()
    head = "".join(lines)
    entries = "".join(_format_entry(one, codes.start_mark.column) for one in proposals)
    return head + ("" if head.endswith("\n") else "\n") + entries + text[len(head) :]


def _replace_file(file: Path, text: str, before: Taxonomy | None = None) -> Taxonomy:
    """Check the text as the future file, and replace the file."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".agentguard-") as folder:
            temporary_file = Path(folder) / file.name
            with temporary_file.open("w", encoding="utf-8", newline="") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            after = _validate_file(temporary_file, file)
            if before is not None and after.codes[: len(before.codes)] != before.codes:
                raise TaxonomyError(
                    "a code cannot be appended without a change of the others", file=str(file), field="codes",
                    hint="add the code manually",
                )  # fmt: skip
            os.replace(temporary_file, file)
    except OSError as error:
        raise TaxonomyError(f"cannot be written: {error.strerror}", file=str(file)) from None
    return after


def _validate_file(path: Path, file: Path) -> Taxonomy:
    try:
        return read_taxonomy(path)
    except TaxonomyError as error:
        raise TaxonomyError(error.reason, file=str(file), field=error.field, hint=error.hint) from None


def _format_entry(proposal: CodeProposal, indent: int) -> str:
    """Format a code as one item of a block list."""
    nearest = (
        f"nearest existing code {proposal.nearest} ({proposal.nearest_similarity:.2f})"
        if proposal.nearest
        else "no code to compare"
    )
    size = f"{proposal.support} failures, {proposal.size} schemata"
    support = f"{size}, similarity {proposal.cohesion:.2f}; {nearest}"
    data: dict[str, Any] = {
        "id": proposal.code,
        "title": proposal.title,
        "definition": f"{proposal.definition} ({support})"[:_MAX_TEXT_CHARS],
        "examples": [f"schema {id}" for id in proposal.exemplars],
    }
    if proposal.module:
        data["module"] = proposal.module
    if proposal.correction:
        data["correction"] = proposal.correction[:_MAX_TEXT_CHARS]
    lines = _format_yaml([data]).splitlines()
    return "".join(f"{' ' * indent}{line}\n" for line in lines)


def _format_yaml(value: object) -> str:
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=_LINE_WIDTH))
