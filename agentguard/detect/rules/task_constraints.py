"""Detector of violated constraints that the task states: forbidden changes, scopes and limits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from agentguard.detect.base import NO_FINDINGS, BaseDetector, Finding, RunRequirements
from agentguard.detect.quotes import quote_span
from agentguard.detect.run_view import RunView
from agentguard.detect.step_facts import Action
from agentguard.detect.tool_names import is_read_tool, is_terminal_tool, is_write_tool
from agentguard.trajectory.model import Step

_FORBIDDEN_PATTERN = re.compile(
    r"\b(?:do not|don't|never|must not|may not|should not|shall not|not allowed to|refrain from|without)\s+"
    r"((?:[a-z]+(?:, | or |, or |/| and )){0,4}[a-z]+)\s+([^.;\n]{3,120})"
)
_SCOPE_PATTERN = re.compile(
    r"\bonly\s+(?:modify|edit|change|touch|update|alter|write(?: to)?|work in)\s+([^.;\n]{2,120})"
    r"|\b(?:modify|edit|change|touch|update|alter|write(?: to)?)\s+only\s+([^.;\n]{2,120})"
)
_LIMIT_PATTERN = re.compile(
    r"\b(?:at most|no more than|not more than|(?:not|n't) [a-z]+ more than|a maximum of|maximum(?: of)?|max"
    r"|up to|limit(?:ed)? to)\s+(\d[\d,]{0,8})\s+((?:[a-z]+\s+){0,2}[a-z]{3,})"
)
_PATH_PATTERN = re.compile(r"(?<![\w/.-])(?:[\w.-]*/[\w./-]+|[\w-]+\.(?:[a-z]{1,5})\b|/[\w./-]+)")
_CHANGE_VERBS = frozenset((
    "modify", "edit", "change", "touch", "alter", "update", "adjust", "write", "delete", "remove", "create",
    "add", "rename", "move", "overwrite", "drop", "truncate", "disable", "patch",
))  # fmt: skip
_ACT_VERBS = frozenset(
    {"run", "execute", "install", "push", "deploy", "restart", "use", "access", "read", "call"}
)
_SHELL_CHANGE_PATTERN = re.compile(
    r"(?:^|[\s;&|(\"'])(?:sed\s+-i|rm|mv|cp|chmod|chown|tee|truncate|touch|mkdir|rmdir|ln|patch|dd)\s"
    r"|[^-=]>{1,2}\s*(?!/dev/null|&)[\w./~-]"
    r"|\b(?:drop|delete|truncate|alter|update|insert)\s+(?:table|from|into|database|\w+ set)\b"
    r"|\bgit (?:push|commit|reset|checkout|rm)\b"
)
_FUNCTION_WORDS = frozenset((
    "the", "any", "all", "its", "their", "this", "that", "these", "those", "other", "with", "from", "for",
    "and", "not", "into", "unless", "without", "outside", "directly", "files", "file", "data", "code",
    "except",
    "existing", "only", "new", "more", "than", "which", "are", "directory", "folder", "anything", "else",
    "manually", "content", "contents", "system",
))  # fmt: skip
_WORD_PATTERN = re.compile(r"[a-z][a-z0-9_]{2,}")
_OPENING_NAMES = ("open", "close", "go", "click")
"""Prefixes of the names of tools that change the state of a game or a browser, but no file."""
_MAX_CONSTRAINTS = 24
_MAX_TASK_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class _Constraint:
    """Constraint of a task.

    Attributes:
        text: the words of the task.
        verbs: forbidden kinds of actions; empty for a scope or a limit.
        words: content words of the forbidden object, or of the unit of a limit.
        paths: paths of the forbidden object or of the scope.
        limit: the largest number allowed; None for other constraints.
        is_scope: whether changes outside ``paths`` are forbidden.
    """

    text: str
    verbs: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    paths: tuple[str, ...] = ()
    limit: float | None = None
    is_scope: bool = False


class TaskConstraint(BaseDetector):
    """Detector of an action that violates a constraint that the task states."""

    name = "task_constraint"
    summary = (
        "an action that the task forbids: a change of a named thing, outside a named path, above a limit"
    )
    codes = (
        "agent_error:planning.constraint_ignorance",
        "agentrx:instruction_adherence_failure",
        "mast:disobey_task_specification",
    )
    requirements = RunRequirements(turns=1, calls=True)

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self._constraints: list[_Constraint] | None = None

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Compare each action with the constraints; report the first violation of each."""
        if self._constraints is None:
            prompts = (view.task, *view.system_prompts.values())
            self._constraints = compile_constraints("\n".join(prompts)[:_MAX_TASK_CHARS].lower())
        if not self._constraints or not step.tool_calls:
            return NO_FINDINGS
        findings = []
        for action in view.get_facts(step).actions:
            text = action.key.lower()
            if is_terminal_tool(action.name):
                continue
            for constraint in [c for c in self._constraints if _is_violated(c, action, text)]:
                self._constraints.remove(constraint)
                findings.append(self._build_violation(step, action, constraint))
        return findings

    def _build_violation(self, step: Step, action: Action, constraint: _Constraint) -> Finding:
        return self.build_finding(
            step,
            0.35,
            f"This call of {action.name} violates a constraint of the task: {constraint.text}.",
            correction=f"Undo this action and follow the task: {constraint.text}.",
            evidence=quote_span(step, action.field),
            constraint=constraint.text,
            tool=action.name,
        )


def compile_constraints(lower_task: str) -> list[_Constraint]:
    """Return the constraints that a lower-case task states in a form that can be checked."""
    constraints = []
    for match in _SCOPE_PATTERN.finditer(lower_task):
        paths = tuple(path.strip("./") for path in _PATH_PATTERN.findall(match[1] or match[2]))
        if paths:
            constraints.append(_Constraint(_clean(match[0]), paths=paths, is_scope=True))
    for match in _LIMIT_PATTERN.finditer(lower_task):
        words = _extract_content_words(match[2])
        if words:
            limit = float(match[1].replace(",", ""))
            constraints.append(_Constraint(_clean(match[0]), words=words, limit=limit))
    for match in _FORBIDDEN_PATTERN.finditer(lower_task):
        verbs = frozenset(_WORD_PATTERN.findall(match[1])) & (_CHANGE_VERBS | _ACT_VERBS)
        paths = tuple(path.strip("./") for path in _PATH_PATTERN.findall(match[2]))
        words = _extract_content_words(match[2])
        if verbs and (paths or words) and "more than" not in match[2]:
            constraints.append(_Constraint(_clean(match[0]), verbs=verbs, words=words, paths=paths))
    return constraints[:_MAX_CONSTRAINTS]


def _is_violated(constraint: _Constraint, action: Action, text: str) -> bool:
    if constraint.limit is not None:
        return _exceeds_limit(constraint, text)
    if constraint.is_scope:
        return _is_outside_scope(constraint, action, text)
    needs_change = not constraint.verbs & _ACT_VERBS
    if needs_change and not _is_change(action, text):
        return False
    target = _get_target(action, text)
    if constraint.paths:
        return any(path in target for path in constraint.paths)
    stems = {word[:5] for word in _WORD_PATTERN.findall(target.replace("_", " ").replace("/", " "))}
    return len(constraint.words) >= 2 and all(word[:5] in stems for word in constraint.words)


def _exceeds_limit(constraint: _Constraint, text: str) -> bool:
    """Return True if the text has a larger number next to a word of the unit."""
    limit = constraint.limit
    for word in constraint.words:
        stem = re.escape(word.rstrip("s"))
        for match in re.finditer(
            rf"{stem}\w{{0,3}}[\"']?[\s=:_]{{1,3}}[\"']?(\d{{1,9}})\b|\b(\d{{1,9}})[\s_-]{stem}", text
        ):
            if limit is not None and float(match[1] or match[2]) > limit:
                return True
    return False


def _is_outside_scope(constraint: _Constraint, action: Action, text: str) -> bool:
    if not _is_change(action, text):
        return False
    targets = [path.strip("./") for path in _PATH_PATTERN.findall(_get_target(action, text))]
    targets = [path for path in targets if "/" in path and not path.startswith(("tmp/", "dev/"))]
    return bool(targets) and not any(scope in path for path in targets for scope in constraint.paths)


def _is_change(action: Action, text: str) -> bool:
    if action.name.startswith(_OPENING_NAMES) or is_read_tool(action.name):
        return False
    return is_write_tool(action.name) or _SHELL_CHANGE_PATTERN.search(text[:4_000]) is not None


def _get_target(action: Action, text: str) -> str:
    """Return the part of the arguments that names the target: the path of a file tool, or the command."""
    arguments = action.call.arguments if action.call else None
    for key in ("path", "file_path", "filepath", "filename", "file", "target"):
        value = arguments.get(key) if arguments else None
        if isinstance(value, str):
            return value.lower()
    return text[:2_000]


def _extract_content_words(text: str) -> frozenset[str]:
    return frozenset(word for word in _WORD_PATTERN.findall(text) if word not in _FUNCTION_WORDS)


def _clean(text: str) -> str:
    return " ".join(text.split())[:160]
