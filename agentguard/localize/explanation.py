"""Explanation of a step: codes, evidence, a reason for the user, and a correction for the agent.

Findings of detectors at the step take precedence. Without a finding, fixed rules on the features of the step
apply. A rule needs a passage of the run to quote. Without a finding and a passage, there is no code and no
correction. A leaf code is only a hint: annotators agree poorly on leaves (a kappa of 0.05 to 0.55), so no
decision should depend on the code alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from agentguard.detect._text import find_sentence, to_lower
from agentguard.detect.base import Evidence, Finding
from agentguard.detect.phrase_patterns import find_fabrication, find_last_intent
from agentguard.detect.quotes import quote_span
from agentguard.detect.result_classification import ResultReason, classify_result
from agentguard.detect.rules.tool_errors import select_error_codes
from agentguard.judge.embedded.features.roles import RunLayout, SpeakerRole
from agentguard.judge.embedded.features.step_outcomes import is_failed
from agentguard.trajectory.model import Step, Trajectory

FeatureRow = Mapping[str, float]
QuoteFunction = Callable[["RunLayout", int], tuple[Evidence, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationRule:
    """Rule that explains a step.

    Attributes:
        name: identifier.
        is_match: condition on the features of the step.
        codes: qualified codes; empty for those of the error that the evidence quotes.
        reason: explanation for the user.
        correction: message to the agent; ``{step}`` is the index of the step.
        select_evidence: function that returns the quotes; without a quote, the rule does not apply.
    """

    name: str
    is_match: Callable[[FeatureRow], bool]
    codes: tuple[str, ...]
    reason: str
    correction: str
    select_evidence: QuoteFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureExplanation:
    """Explanation of one step; the attributes are those of `agentguard.localize.base.Hypothesis`."""

    module: str | None
    codes: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    correction: str
    reason: str
    detectors: tuple[str, ...] = ()


_MAX_QUOTES = 3
_MAX_NUMBERS = 20
_MAX_DIGITS = 30
_CALCULATION_SIGNS = ("=", "\u2248", "\\approx")
_SPECIFIC_RULES = frozenset({"made_up", "gave_up", "unsourced"})
"""Rules that are more specific than an error from the environment."""
_MODULES = ("memory", "reflection", "planning", "action", "system")
_NUMBER = re.compile(r"(?<![\w./-])\d[\d,]*(?:\.\d+)?(?![\w/-])")


def explain_step(
    layout: RunLayout, index: int, row: FeatureRow, findings: list[Finding]
) -> FailureExplanation:
    """Explain a candidate for the root cause.

    Codes and correction are from findings that no later step repaired, or from a rule that quotes a passage
    of the run. Without either, the explanation has only a reason.

    Args:
        layout: layout of the run.
        index: index of the step.
        row: features of the step by name.
        findings: findings that are evidence for the step, in any order.
    """
    repaired = [finding for finding in findings if finding.recovered_after is not None]
    findings = [finding for finding in findings if finding.recovered_after is None]
    matches = [
        (rule, rule.select_evidence(layout, index)) for rule in EXPLANATION_RULES if rule.is_match(row)
    ]
    supported = [(rule, quotes) for rule, quotes in matches if quotes]
    specific = next((match for match in supported if match[0].name in _SPECIFIC_RULES), None)
    if findings and not (specific and all(map(_is_environmental, findings))):
        return _explain_by_findings(index, findings)
    chosen = specific or next(
        (match for match in supported if not (repaired and match[0].name == "failed")), None
    )
    if chosen is None:
        return FailureExplanation(
            module=None,
            codes=(),
            evidence=tuple(quote for _, quotes in supported for quote in quotes)[:_MAX_QUOTES],
            correction="",
            reason=_describe_repaired_fault(repaired),
        )
    rule, quotes = chosen
    codes = rule.codes or _select_error_codes(layout.run, quotes[0])
    others = [quote for finding in findings for quote in finding.evidence]
    others += [quote for _, found in supported for quote in found]
    return FailureExplanation(
        module=_find_module(codes),
        codes=codes,
        evidence=tuple(dict.fromkeys((*quotes, *others)))[:_MAX_QUOTES],
        correction=rule.correction.format(step=index),
        reason=rule.reason,
    )


def _describe_repaired_fault(repaired: Sequence[Finding]) -> str:
    if not repaired:
        return "no finding and no quoted passage supports this step"
    strongest = max(repaired, key=lambda finding: finding.probability)
    message, repair = strongest.message.rstrip("."), strongest.recovered_after
    return f"a fault that step {repair} repaired: {message}"


def _explain_by_findings(index: int, findings: list[Finding]) -> FailureExplanation:
    """Explain a step by the findings at it, then by those of its consequences."""
    ranked_findings = sorted(
        findings,
        key=lambda f: (_is_environmental(f), f.step != index, -f.probability, f.detector, f.message),
    )
    codes = tuple(dict.fromkeys(code for finding in ranked_findings for code in finding.codes))
    quotes = dict.fromkeys(quote for finding in ranked_findings for quote in finding.evidence)
    return FailureExplanation(
        module=_find_module(codes),
        codes=codes,
        evidence=tuple(quotes)[:_MAX_QUOTES],
        correction=next((f.correction for f in ranked_findings if f.correction), ""),
        reason=ranked_findings[0].message.rstrip("."),
        detectors=tuple(dict.fromkeys(finding.detector for finding in ranked_findings)),
    )


def _is_environmental(finding: Finding) -> bool:
    """Return whether a finding describes only a result from the environment, not an action of the agent."""
    return _find_module(finding.codes) == "system"


def _find_module(codes: tuple[str, ...]) -> str | None:
    for code in codes:
        taxonomy, _, rest = code.partition(":")
        module = rest.partition(".")[0]
        if taxonomy == "agent_error" and module in _MODULES:
            return module
    return None


def _quote_made_up_value(layout: RunLayout, index: int) -> tuple[Evidence, ...]:
    for field, text in layout.run.steps[index].texts():
        low = to_lower(text)
        span = None if field.startswith("observations") else find_fabrication(low)
        if span:
            return quote_span(layout.run.steps[index], field, *find_sentence(low, *span))
    return ()


def _quote_outcome(layout: RunLayout, index: int) -> tuple[Evidence, ...]:
    """Quote the error or the unusable part of the result."""
    step = layout.run.steps[index]
    if not step.observations and index + 1 < len(layout.roles):
        after = layout.run.steps[index + 1]
        is_executor = layout.roles[index + 1] is SpeakerRole.EXECUTOR
        return _quote_failure(after, "content", after.content, None) if is_executor else ()
    return next(
        filter(
            None,
            (
                _quote_failure(step, f"observations[{i}]", one.content, one.is_error)
                for i, one in enumerate(step.observations)
            ),
        ),
        (),
    )


def _quote_failure(step: Step, field: str, text: str, flag: bool | None) -> tuple[Evidence, ...]:
    result = classify_result(to_lower(text), flag=flag)
    return quote_span(step, field, result.start, result.end) if is_failed(result) else ()


def _select_error_codes(run: Trajectory, quote: Evidence) -> tuple[str, ...]:
    low = to_lower(run.steps[quote.step].text(quote.field))
    # If the text has no reason, only the flag of the result shows the error.
    return select_error_codes(classify_result(low).reason or ResultReason.FLAGGED, low)


def _quote_announcement(layout: RunLayout, index: int) -> tuple[Evidence, ...]:
    """Quote the last sentence if it announces an action."""
    step = layout.run.steps[index]
    low = to_lower(step.content)
    span = find_last_intent(low)
    return quote_span(step, "content", *find_sentence(low, *span)) if span else ()


def _quote_new_number(layout: RunLayout, index: int) -> tuple[Evidence, ...]:
    """Quote the sentence with the first number that neither the task nor an earlier step contains.

    A number inside a word or an address, or in a line with a calculation, is ignored. The first step of an
    agent has no quote: no earlier result could contain the number.
    """
    steps = layout.run.steps
    if not any(one.source == "agent" or one.observations for one in steps[:index]):
        return ()
    content = steps[index].content
    for match in islice(_NUMBER.finditer(content), _MAX_NUMBERS):
        number = match.group().rstrip(".,")
        if len(number) < 2 or _is_calculated(content, match.start()):
            continue
        if not _is_known_number(number, layout, index):
            return quote_span(steps[index], "content", *find_sentence(to_lower(content), *match.span()))
    return ()


def _is_calculated(content: str, position: int) -> bool:
    """Return whether the line at a position shows how its numbers are calculated."""
    start = content.rfind("\n", 0, position) + 1
    end = content.find("\n", position)
    line = content[start : end if end >= 0 else len(content)]
    return any(sign in line for sign in _CALCULATION_SIGNS)


def _is_known_number(number: str, layout: RunLayout, index: int) -> bool:
    whole, point, decimals = number.replace(",", "").partition(".")
    forms = {number, f"{whole}{point}{decimals}"}
    if len(whole) < _MAX_DIGITS:
        forms.add(f"{int(whole):,}{point}{decimals}")
    texts = (text for step in layout.run.steps[:index] for _, text in step.texts())
    return any(form in text for text in (layout.run.task, *texts) for form in forms)


EXPLANATION_RULES = (
    ExplanationRule(
        name="made_up",
        is_match=lambda row: row["wording.assume"] > 0,
        codes=("agent_error:memory.hallucination", "agentrx:invention_of_new_information"),
        reason="the step uses assumed or placeholder values",
        correction="Do not assume or simulate values in step {step}. Get each value from a source or a tool, "
        "and name the source. If no source has the value, state that and stop.",
        select_evidence=_quote_made_up_value,
    ),
    ExplanationRule(
        name="failed",
        is_match=lambda row: row["outcome.failed"] > 0 and (row["form.code"] > 0 or row["form.calls"] > 0),
        codes=(),
        reason="a call of the step failed",
        correction="Do not repeat step {step} unchanged. Read the error that it returned, correct the cause, "
        "and test the correction on a small case before you continue.",
        select_evidence=_quote_outcome,
    ),
    ExplanationRule(
        name="gave_up",
        is_match=lambda row: row["evidence.gives_up"] > 0 or row["evidence.talks_after_failure"] > 0,
        codes=("agent_error:reflection.outcome_misinterpretation", "mast:no_or_incomplete_verification"),
        reason="the call before the step failed, and the step answers without a new call",
        correction="Do not answer from memory in step {step}: the last execution returned no result. Get the "
        "missing result in another way, and use only values that a result shows.",
        select_evidence=_quote_new_number,
    ),
    ExplanationRule(
        name="unsourced",
        is_match=lambda row: row["claim.final_numbers"] > 0 or row["claim.made"] > 0,
        codes=("agentrx:invention_of_new_information", "agent_error:memory.hallucination"),
        reason="the step states values that no earlier text or result contains",
        correction="Name the source of every value in step {step}. Look up each value without a source "
        "before you use it.",
        select_evidence=_quote_new_number,
    ),
    ExplanationRule(
        name="promised",
        is_match=lambda row: row["evidence.idle"] > 0,
        codes=("agent_error:reflection.progress_misjudge", "mast:no_or_incomplete_verification"),
        reason="the step announces an action and does not perform it",
        correction="In step {step}, perform the announced action now, and show its result.",
        select_evidence=_quote_announcement,
    ),
)
