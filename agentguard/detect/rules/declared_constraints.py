"""Constraints that the user declares as patterns.

User patterns run on RE2, whose time is linear in the text for every pattern (google/re2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import re2

from agentguard.detect.base import NEVER_BY_DEFAULT, NO_FINDINGS, BaseDetector, Finding
from agentguard.detect.quotes import quote_span
from agentguard.detect.run_view import RunView
from agentguard.options import Options, option
from agentguard.trajectory.model import Source, Step

_CONSTRAINT_SCHEMA = ("agent_error:planning.constraint_ignorance", "agentrx:instruction_adherence_failure")
_MAX_PATTERN_CHARS = 1_000
_MAX_CONSTRAINTS = 200
_MAX_TEXT_CHARS = 200_000
_PLACES = ("agent", "arguments", "results", "user", "any")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Constraint:
    """Declared constraint; ``kind`` is forbid, require or before."""

    name: str
    kind: str
    pattern: Any
    target: str
    tool: str | None
    agent: str | None
    message: str
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintOptions(Options):
    """Options of `ConstraintDetector`."""

    rules: tuple[Any, ...] = option(
        (), description="constraints, each with exactly one of `forbid`, `require`, `before`; see below"
    )


class ConstraintDetector(BaseDetector):
    """Detector of violations of constraints that the user declares as patterns."""

    name = "policy"
    requirements = NEVER_BY_DEFAULT
    summary = (
        "a text that a declared pattern forbids, a required text that is missing, or a call before that text"
    )
    codes = (*_CONSTRAINT_SCHEMA, "mast:disobey_task_specification")
    default_options = ConstraintOptions()
    options: ConstraintOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        rules = self.options.rules
        if len(rules) > _MAX_CONSTRAINTS:
            raise self.build_option_error("rules", f"at most {_MAX_CONSTRAINTS} rules")
        self.constraints = tuple(self._parse_constraint(i, rule) for i, rule in enumerate(rules))
        self._satisfied: set[int] = set()
        self.observed_sources = tuple(Source) if self.constraints else ()

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Match each constraint against its texts in the step."""
        findings = self.check_proposed(step, view)
        for i, rule in enumerate(self.constraints):
            if (
                rule.kind != "forbid"
                and i not in self._satisfied
                and next(_iter_matches(step, rule), None) is not None
            ):
                self._satisfied.add(i)
        return findings

    def check_proposed(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Report forbidden texts and calls that come too early."""
        del view
        findings: list[Finding] = []
        for i, rule in enumerate(self.constraints):
            if rule.kind == "forbid":
                findings += self._build_forbidden_finding(step, rule)
            elif rule.kind == "before":
                findings += self._build_order_finding(step, i, rule)
        return findings

    def finish(self, view: RunView) -> Iterable[Finding]:
        """Report required texts that never occurred."""
        missing = [
            rule
            for i, rule in enumerate(self.constraints)
            if rule.kind == "require" and i not in self._satisfied
        ]
        if not missing or not view.steps:
            return NO_FINDINGS
        last = view.steps[len(view.steps) - 1]
        return [
            self._build_constraint_finding(last, rule, "does not occur in the run", ()) for rule in missing
        ]

    def _build_forbidden_finding(self, step: Step, rule: _Constraint) -> Iterator[Finding]:
        for field, start, end in _iter_matches(step, rule):
            yield self._build_constraint_finding(
                step, rule, "is forbidden", quote_span(step, field, start, max(end, start + 1))
            )

    def _build_order_finding(self, step: Step, index: int, rule: _Constraint) -> Iterator[Finding]:
        if index in self._satisfied:
            return
        for i, call in enumerate(step.tool_calls):
            if call.name == rule.tool:
                why = f"must occur before a call of {call.name}"
                yield self._build_constraint_finding(step, rule, why, quote_span(step, f"tool_calls[{i}]"))

    def _build_constraint_finding(self, step: Step, rule: _Constraint, reason: str, evidence: Any) -> Finding:
        message = (
            rule.message or f"The run violates the declared constraint {rule.name!r}: its pattern {reason}."
        )
        return self.build_finding(
            step,
            rule.probability,
            message,
            correction=f"Follow the constraint {rule.name!r}: {message}",
            evidence=evidence,
            rule=rule.name,
        )

    def _parse_constraint(self, index: int, rule: Any) -> _Constraint:
        if not isinstance(rule, Mapping):
            raise self.build_option_error("rules", f"rule {index} must be a mapping")
        kinds = [kind for kind in ("forbid", "require", "before") if kind in rule]
        unknown = set(map(str, rule)) - {*kinds, "name", "where", "tool", "agent", "message", "probability"}
        if len(kinds) != 1 or unknown:
            extra = f"; unknown keys: {', '.join(sorted(unknown))}" if unknown else ""
            raise self.build_option_error(
                "rules", f"rule {index} needs exactly one of forbid, require, before{extra}"
            )
        kind = kinds[0]
        scope = rule.get("where", "user" if kind == "before" else "any")
        if scope not in _PLACES:
            raise self.build_option_error("rules", f"rule {index}: where must be one of {', '.join(_PLACES)}")
        if kind == "before" and not rule.get("tool"):
            raise self.build_option_error("rules", f"rule {index}: before needs the key tool")
        weight = rule.get("probability", 0.85)
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight <= 1:
            raise self.build_option_error("rules", f"rule {index}: probability must be between 0 and 1")
        text = {
            key: str(rule[key]) for key in ("name", "tool", "agent", "message") if rule.get(key) is not None
        }
        return _Constraint(
            name=text.get("name", f"rule {index}"),
            kind=kind,
            pattern=self._compile_pattern(index, rule[kind]),
            target=scope,
            tool=text.get("tool"),
            agent=text.get("agent"),
            message=text.get("message", ""),
            probability=float(weight),
        )

    def _compile_pattern(self, index: int, pattern: Any) -> Any:
        if not isinstance(pattern, str) or not 0 < len(pattern) <= _MAX_PATTERN_CHARS:
            raise self.build_option_error(
                "rules", f"rule {index}: a pattern must be a string of 1 to {_MAX_PATTERN_CHARS} characters"
            )
        settings = re2.Options()
        settings.log_errors = False
        settings.max_mem = 8 << 20
        try:
            return re2.compile(pattern, settings)
        except (re2.error, UnicodeEncodeError):
            raise self.build_option_error("rules", f"rule {index}: not a valid RE2 pattern") from None


def _iter_matches(step: Step, rule: _Constraint) -> Iterator[tuple[str, int, int]]:
    """Yield ``(field, start, end)`` of the first match in each text that the constraint applies to."""
    if rule.agent is not None and step.agent != rule.agent:
        return
    for field, text in step.texts():
        if not _applies_to(step, field, rule):
            continue
        # RE2 works on UTF-8. Each character that cannot be encoded becomes "?", so offsets stay valid.
        clean = text[:_MAX_TEXT_CHARS].encode("utf-8", "replace").decode("utf-8")
        match = rule.pattern.search(clean)
        if match is not None:
            yield field, match.start(), match.end()


def _applies_to(step: Step, field: str, rule: _Constraint) -> bool:
    call = field.startswith("tool_calls[")
    result = field.startswith("observations[") or step.source is Source.ENVIRONMENT
    text_kind = (
        "arguments" if call else "results" if result else "user" if step.source is Source.USER else "agent"
    )
    if rule.target not in ("any", text_kind):
        return False
    # For `before`, the tool does not restrict the texts.
    if rule.tool is None or rule.kind == "before":
        return True
    return call and step.tool_calls[int(field[11:-1])].name == rule.tool
