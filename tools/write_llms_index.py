"""Write llms.txt: one line for each page of the documentation, with its first sentence.

python tools/write_llms_index.py
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEADER = """# agentguard

> agentguard detects failures of LLM agents, names the step that caused a failure, and rolls a running agent
> back to that step with a correction. It works inside an agent, as a proxy in front of model endpoints, and
> offline over recorded runs.
"""


def build_index(root: Path = ROOT) -> str:
    """Return the text of llms.txt: README first, then the pages below docs/ in order of their paths."""
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    lines = []
    for page in pages:
        title, summary = read_summary(page)
        lines.append(f"- [{title}]({page.relative_to(root).as_posix()}): {summary}")
    return HEADER + "\n## Documentation\n\n" + "\n".join(lines) + "\n"


def read_summary(page: Path) -> tuple[str, str]:
    """Return the title of a page and the first sentence of its first paragraph."""
    title, _, body = page.read_text(encoding="utf-8").partition("\n")
    paragraphs = re.split(r"\n\s*\n", body.strip())
    prose = next((one for one in paragraphs if not one.startswith(("#", "```", "|", "<", "    ", "!"))), "")
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(prose.split()))
    return title.removeprefix("# "), re.split(r"(?<=[.:])\s", text, maxsplit=1)[0].rstrip(":")


if __name__ == "__main__":
    (ROOT / "llms.txt").write_text(build_index(), encoding="utf-8")
