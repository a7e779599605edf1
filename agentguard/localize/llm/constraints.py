"""Localizer ``constraints``: code checks the constraints, and the judge weighs the violations.

AgentRx (arXiv 2602.02475) derives constraints from the policy and the tools' schemas. It checks each step
against them and gives the log of violations with evidence to a judge. Here the rule detectors are the checks:
tool calls against the schemas of the offered tools, permissions, the policy's rules, values without an
origin, claims against observations, and loops.

- With violations, the judge also receives the agents' system prompts and the tools' schemas.
- Without violations, the judge receives the run alone, since the authors report that such logs reduce the
  accuracy on open-web runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from agentguard.detect.base import Finding
from agentguard.judge.base import ChoiceQuestion
from agentguard.localize.agent_roles import find_agent_steps
from agentguard.localize.llm.base import LlmLocalizer, QuerySession, StepRanking, build_llm_localizer
from agentguard.trajectory.model import ToolSpec, Trajectory

_MAX_FINDINGS: Final = 40
_MAX_QUOTE_CHARS: Final = 160
_MAX_LINE_CHARS: Final = 2_000
_MAX_TOTAL_CHARS: Final = 6_000


def build_constraints(**options: Any) -> LlmLocalizer:
    """Build the localizer; options as for `agentguard.localize.llm.base.build_llm_localizer`."""
    return build_llm_localizer("constraints", query_root_cause, options)


def query_root_cause(session: QuerySession, run: Trajectory, findings: Sequence[Finding]) -> StepRanking:
    """Ask which of the agents' steps caused the failure, with the violations as context."""
    steps = find_agent_steps(run) or tuple(step.index for step in run.steps)
    probabilities = session.ask_choice(
        run, build_question(steps, findings, describe_specification(run) if findings else ())
    )
    details: dict[int, dict[str, Any]] = {}
    # The most probable finding of a step is last, and replaces the others.
    for item in sorted(findings, key=lambda finding: finding.probability):
        details[item.step] = {
            "codes": item.codes,
            "evidence": item.evidence,
            "correction": item.correction,
            "reason": item.message,
        }
    return StepRanking(
        probabilities={int(step): share for step, share in (probabilities or {}).items()}, details=details
    )


def build_question(
    steps: Sequence[int], findings: Sequence[Finding], specification: Sequence[str] = ()
) -> ChoiceQuestion:
    """Build the root-cause question, with the specification and the violations as context."""
    text = (
        "The task failed. Which step made the first mistake that decided it? A check that failed is a hint "
        "and no proof: what it found may have done no harm, and a mistake may pass every check."
    )
    return ChoiceQuestion(
        id="root_cause_checked",
        text=text,
        options=tuple(str(step) for step in steps),
        context=(*specification, *format_violations(findings)),
    )


def describe_specification(run: Trajectory) -> tuple[str, ...]:
    """Return one line for each system prompt and each tool, up to the total limit."""
    descriptions = [
        f"policy of {agent or 'all agents'}: {_collapse_whitespace(text)}"
        for agent, text in run.system_prompts.items()
    ]
    descriptions += [
        f"tool {tool.name}: {_collapse_whitespace(tool.description)} Arguments: {_describe_arguments(tool)}"
        for tool in run.tools
    ]
    lines: list[str] = []
    limit = _MAX_TOTAL_CHARS
    for line in descriptions:
        lines.append(line[: min(limit, _MAX_LINE_CHARS)])
        limit -= len(lines[-1])
        if limit <= 0:
            break
    return tuple(lines)


def _describe_arguments(tool: ToolSpec) -> str:
    """Return a short form of a tool's JSON Schema."""
    properties = tool.parameters.get("properties")
    required = tool.parameters.get("required")
    if not isinstance(properties, Mapping) or not properties:
        return "none told."
    required_names = set(required) if isinstance(required, list | tuple) else set()
    parts = []
    for name, spec in properties.items():
        kind = spec.get("enum") or spec.get("type") or "any" if isinstance(spec, Mapping) else "any"
        mark = " (required)" if name in required_names else ""
        parts.append(f"{name}{mark}: {_collapse_whitespace(str(kind))[:_MAX_QUOTE_CHARS]}")
    return "; ".join(parts) + "."


def _collapse_whitespace(text: str) -> str:
    return " ".join(text.split())


def format_violations(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return one line for each violation, in step order; above the limit, keep the most probable ones."""
    top_findings = sorted(findings, key=lambda finding: -finding.probability)[:_MAX_FINDINGS]
    return tuple(
        _format_finding(item)
        for item in sorted(top_findings, key=lambda finding: (finding.step, finding.detector))
    )


def _format_finding(finding: Finding) -> str:
    quote = next((_collapse_whitespace(one.quote)[:_MAX_QUOTE_CHARS] for one in finding.evidence), "")
    message = _collapse_whitespace(finding.message)
    return f"step {finding.step}, {finding.detector}: {message}" + (f' ("{quote}")' if quote else "")
