"""Check names and prose against the style guide in CONTRIBUTING.md.

Usage: python tools/check_style.py [PATH …]

Without paths, the check covers all tracked files. A path may be a folder.
The exit status is 1 if there is a finding.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("agentguard/", "server/", "lab/")
CODE = (*PRODUCT, "tests/", "benchmarks/", "examples/", "tools/")
MAX_MODULE_LINES = 400

# Rule 2: a module is a noun. These words end like a verb form but are nouns of the field.
NOUNS = {
    "clustering", "decoding", "encoding", "escaping", "first_finding", "formatting", "grouping", "learning",
    "load_balancing", "load_shedding", "planning", "row_mapping", "sampling", "scoring", "training",
    "trajectory_mapping", "value_tracking", "voting", "guard_voting",
}  # fmt: skip
VERB_FORM = re.compile(
    r"(?:^|_)(?:\w{3,}ing|told|said|kept|held|made|given|taken|asked|did|seen|known|heard|begun|gone|found)$"
)
PARTICIPLES = {
    "told", "asked", "said", "heard", "made", "held", "found", "listed", "kept", "given", "taken", "begun",
    "gone", "seen", "known", "shown", "sent", "drawn", "spent", "named", "noted", "meant",
}  # fmt: skip
# Rule 4: a docstring begins with an imperative or a noun phrase.
RELATIVE = re.compile(
    r"(?:what|who|whoever|whose|which|where|wherever|whether|how|whatever|that which)\b", re.IGNORECASE
)
NOUN_PHRASE = re.compile(r"(?:The|An?|All|One|Each|Every|Our|Its|In)\b")
# Rule 6: a longer sentence needs a second reading. A colon and a semicolon end a sentence here.
MAX_WORDS = 25
# Rules 5, 7 and 8: phrase, and the advice that the check prints.
PHRASES = [
    (r"\b(?:whoever|whomever|whom|somebody|someone|nobody|anybody|anyone|everybody)\b", "name the actor"),
    (r"\bwho\b(?!\s*&|_and)", "name the actor"),
    (r"\bone's\b", "name the actor"),
    (r"\banew\b", 'write "again"'),
    (r"\bin vain\b", 'write "without success"'),
    (r"\bso many\b", "give the number, or N"),
    (
        r"\bof (?:ours|theirs|its own|one's own)\b",
        'write "our own", "their own" or "its own" before the noun',
    ),
    (
        r"(?<!there )(?<!There )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|worse\b|better\b)",
        'write "is not"',
    ),
    (r"\bwhere there (?:is|are|was|were) (?:none|no)\b", 'write "if there is no …"'),
    (r"\bthere (?:is|are|was|were) none\b", 'write "if there is no …"'),
    (r"\b(?:told|tells|heard|hears|wishes|wished|sings|owes|owed|heeds?|heeded)\b", "no figure of speech"),
    (r"\b(?:goes|gone|go|went) (?:on with|by)\b", 'write "resume", "continue" or "use"'),
    (r"\bbelongs?\b", "no figure of speech"),
    (r"\b(?:stands|stood)\b", "no figure of speech"),
    (r"\btaken? back\b", 'write "roll back"'),
    (
        r"\b(?:thereof|therein|thereupon|wherein|whence|whereby|thereby|hence|thus|hitherto|henceforth)\b",
        'write "therefore", or name the thing',
    ),
    (r"\bin order to\b", 'write "to"'),
    (r"\b(?:is|are|was|were|be) being\b", "write the simple tense with the actor"),
    (r"\b(?:goes|going|went) on\b", 'write "continue"'),
    (
        r"\b(?:as it were|one and the same|to and fro|in the open\b(?! state)|odd words?)\b",
        "use plain English",
    ),
    (r"\bgives? away\b|\bgave away\b|\bgot over\b", "no figure of speech"),
    (r"\bsome (?:\d|dozen|hundred|thousand|micro|milli)", 'write "about", "a few" or "several"'),
    (r"\bships? with\b", 'write "contains" or "packaged"'),
    (r"\b(?:can't|don't|isn't|won't|doesn't|didn't|aren't)\b", "write it out"),
    (r"\b(?:keeper|crew)\b", "use the field's term"),
    (r"\bways? out\b", 'write "remedy"'),
    (r"\bsays?\b", 'write "states", "reports" or "shows"'),
    (r"\b(?:at hand|likeness|borne out)\b", "use plain English"),
    (r"\b(?:lie|lies|lay|lives|brings|remembers)\b", "no figure of speech"),
]
PROSE = [(re.compile(pattern), advice) for pattern, advice in PHRASES]
# The data set is called Who&When; code spans, links and quoted output are not our prose.
EXEMPT = re.compile(r"Who ?& ?When|`[^`\n]*`|https?://\S+|\"[^\"\n]*\"|<!--.*?-->")

Finding = tuple[str, int, str]


def main(arguments: list[str]) -> int:
    """Print every finding; return the exit status."""
    paths = [path for path in _tracked_files() if _is_selected(path, arguments)]
    findings: list[Finding] = []
    trees: dict[str, ast.Module] = {}
    for path in paths:
        if path.endswith(".py") and path.startswith(CODE):
            source = (ROOT / path).read_text()
            tree = trees[path] = ast.parse(source)
            findings += _check_python(path, source, tree)
        elif path.endswith(".md"):
            findings += _check_markdown(path, (ROOT / path).read_text())
    findings += _check_class_names(trees)
    findings += _check_private_access(trees)
    for path, line, message in sorted(findings):
        print(f"{path}:{line}: {message}")
    print(f"{len(findings)} findings in {len(paths)} files")
    return 1 if findings else 0


def _is_selected(path: str, arguments: list[str]) -> bool:
    return not arguments or any(path == one or path.startswith(f"{one.rstrip('/')}/") for one in arguments)


def _tracked_files() -> list[str]:
    output = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [path for path in output.split("\n") if (ROOT / path).is_file()]


def _check_python(path: str, source: str, tree: ast.Module) -> Iterator[Finding]:
    line_count = source.count("\n")
    if line_count > MAX_MODULE_LINES and not path.startswith("tests/"):
        yield path, 1, f"structure: {line_count} lines, a module has at most {MAX_MODULE_LINES}"
    stem = Path(path).stem.lstrip("_")
    if not stem.startswith("test_") and VERB_FORM.search(stem) and stem not in NOUNS:
        yield path, 1, f"rule 2: module name {stem!r} is not a noun"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not path.startswith("tests/"):
            name = node.name.strip("_")
            if name in PARTICIPLES or (name.split("_")[0] in PARTICIPLES and not _is_property(node)):
                yield path, node.lineno, f"rule 2: function name {node.name!r} is not a verb phrase"
        yield from _check_docstring(path, node)
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield from _check_prose(path, node.lineno, node.value.value)
            if path.startswith((*PRODUCT, "tools/")):
                yield from _check_docstring_sentences(path, node.lineno, node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from _check_prose(path, token.start[0], token.string)


def _check_docstring(path: str, node: ast.AST) -> Iterator[Finding]:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    text = ast.get_docstring(node) or ""
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_property(node)
    if RELATIVE.match(text):
        yield path, getattr(node, "lineno", 1), f"rule 4: docstring begins with {text.split()[0]!r}"
    elif is_function and not path.startswith("tests/") and NOUN_PHRASE.match(text):
        yield (
            path,
            getattr(node, "lineno", 1),
            f"rule 4: docstring of a function begins with {text.split()[0]!r}",
        )


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(decorator).endswith(("property", "cached")) for decorator in node.decorator_list)


def _check_markdown(path: str, text: str) -> Iterator[Finding]:
    # Code blocks are code or output, which tests compare with the program.
    # Examples of bad style are marked.
    blank = re.sub(
        r"^```.*?^```|<!-- style: off -->.*?<!-- style: on -->",
        lambda block: "\n" * block[0].count("\n"),
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    for number, line in enumerate(blank.split("\n"), start=1):
        yield from _check_prose(path, number, line)
    yield from _check_sentence_length(path, blank)


def _check_docstring_sentences(path: str, line: int, text: str) -> Iterator[Finding]:
    """Yield the long sentences of a docstring; each description of an argument is a paragraph."""
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\. ))|\n(?=\s+[\w, ]+: )", text):
        if "├" not in paragraph:  # the tree of the exceptions
            for _, _, message in _check_sentence_length(path, paragraph.replace("``", "`")):
                yield path, line, message


def _check_sentence_length(path: str, text: str) -> Iterator[Finding]:
    """Yield the sentences of paragraphs and list items that are too long; tables and code are exempt."""
    at = 1
    for block in re.split(r"(\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\. )))", text):
        if block.strip() and not block.startswith(("|", "#", "    ")):
            plain = re.sub(
                r"`[^`]*`|<!--.*?-->|\([^()]*\)", "", re.sub(r"\]\([^)]*\)", "]", block), flags=re.DOTALL
            )
            for sentence in re.split(r"(?<=[.!?:;])\s+", plain.replace("**", "")):
                words = sentence.split()
                if len(words) > MAX_WORDS:
                    yield path, at, f"rule 6: {len(words)} words in a sentence: {' '.join(words[:6])} …"
        at += block.count("\n")


def _check_prose(path: str, line: int, text: str) -> Iterator[Finding]:
    text = EXEMPT.sub(lambda span: " " * len(span[0]), text)
    for pattern, advice in PROSE:
        for match in pattern.finditer(text):
            at = line + text.count("\n", 0, match.start())
            yield path, at, f"prose: {match[0]!r}: {advice}"


def _check_class_names(trees: dict[str, ast.Module]) -> Iterator[Finding]:
    homes: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for path, tree in trees.items():
        if path.startswith(PRODUCT):
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].append((path, node.lineno))
    for name, places in homes.items():
        if len(places) > 1:
            for path, line in places:
                yield path, line, f"rule 3: {len(places)} public classes are called {name}"


def _check_private_access(trees: dict[str, ast.Module]) -> Iterator[Finding]:
    for path, tree in trees.items():
        if not path.startswith(PRODUCT):
            continue
        own = _private_names(tree)
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and re.match(r"_[a-z]", node.attr)
                and node.attr not in own
                and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})
                and not (isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "super")
                and ast.unparse(node) != "os._exit"  # public, in spite of its name
            ):
                yield path, node.lineno, f"structure: {node.attr} is private to another module"
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("agentguard"):
                for alias in node.names:
                    home = f"{node.module}.{alias.name}".replace(".", "/")
                    # A private module serves its package; a private name serves its module.
                    if (
                        alias.name.startswith("_")
                        and not alias.name.startswith("__")
                        and not _is_module(home)
                    ):
                        yield path, node.lineno, f"structure: {alias.name} is private to {node.module}"


def _is_module(home: str) -> bool:
    return any(
        (ROOT / base / f"{home}.py").exists() or (ROOT / base / home).is_dir()
        for base in ("", "server", "lab")
    )


def _private_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}:
                names.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            names.add(node.value)  # __slots__
    return names


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
