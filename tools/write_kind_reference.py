"""Write the reference of the kinds of failure from the taxonomies.

python tools/write_kind_reference.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from agentguard.taxonomy.catalog import TaxonomyCatalog  # noqa: E402
from agentguard.taxonomy.model import Taxonomy, TaxonomyCode  # noqa: E402

PAGE = ROOT / "docs" / "failure-kinds.md"
_INTRODUCTION = """# Kinds of failure

Reports print the title of a kind, often with its code. `agentguard taxonomy show TITLE` prints the same
entry with a correction and the related kinds. [taxonomies.md](taxonomies.md) describes the sources and how
to add your own kinds.

`tools/write_kind_reference.py` writes this page from the taxonomies.
"""
_HEADER = """| title | code | description | example |
|---|---|---|---|"""


def build_page() -> str:
    """Return the text of the page."""
    return "\n".join([_INTRODUCTION, *(_build_section(taxonomy) for taxonomy in TaxonomyCatalog.load())])


def _build_section(taxonomy: Taxonomy) -> str:
    rows = [_build_row(code) for code in taxonomy.codes]
    return "\n".join([f"## {taxonomy.title}", f"{taxonomy.summary}\n", _HEADER, *rows, ""])


def _build_row(code: TaxonomyCode) -> str:
    cells = (code.title, f"`{code.qualified_id}`", code.definition, code.examples[0] if code.examples else "")
    return f"| {' | '.join(_escape_cell(cell) for cell in cells)} |"


def _escape_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    PAGE.write_text(build_page(), encoding="utf-8")
