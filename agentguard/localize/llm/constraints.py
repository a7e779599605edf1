"""``constraints``: code checks what can be checked, and the judge weighs the violations.

AgentRx (arXiv 2602.02475) derives constraints from the policy and the tools' schemas, checks each step
against them, and gives the log of violations with their evidence to a judge. Here the checks are the rule
detectors: calls against the schemas of the tools on offer, permissions, the policy's own rules, values
without an origin, claims against observations, loops. Beside what they found the judge is shown what the
agents had to go by: their system prompts and the tools' schemas. Where nothing is violated it is shown
neither, and asked about the run alone: on open-web runs such logs were reported to hurt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from agentguard.detect.base import Finding
from agentguard.judge.base import ChoiceQuestion
from agentguard.localize._roles import find_agent_steps
from agentguard.localize.llm.base import LlmLocalizer, QuerySession, StepRanking, build_llm_localizer
from agentguard.trajectory.model import ToolSpec, Trajectory

_MAX_FINDINGS: Final = 40
_MAX_QUOTE_CHARS: Final = 160
_MAX_LINE_CHARS: Final = 2_000
_MAX_TOTAL_CHARS: Final = 6_000


def build_constraints(**options: Any) -> LlmLocalizer:
    """Make the localizer; options as `agentguard.localize.llm.base.build_llm_localizer` takes them."""
    return build_llm_localizer("constraints", query_root_cause, options)


def query_root_cause(session: QuerySession, run: Trajectory, findings: Sequence[Finding]) -> StepRanking:
    """Which of the agents' steps it was, with the violations beside the run."""
    steps = find_agent_steps(run) or tuple(step.index for step in run.steps)
    found = session.ask_choice(
        run, build_question(steps, findings, describe_specification(run) if findings else ())
    )
    told: dict[int, dict[str, Any]] = {}
    for one in sorted(findings, key=lambda finding: finding.probability):  # the surest is written last
        told[one.step] = {
            "codes": one.codes,
            "evidence": one.evidence,
            "correction": one.correction,
            "reason": one.message,
        }
    return StepRanking(
        probabilities={int(step): share for step, share in (found or {}).items()}, details=told
    )


def build_question(
    steps: Sequence[int], findings: Sequence[Finding], specification: Sequence[str] = ()
) -> ChoiceQuestion:
    """Which step decided the failure, with what the agents went by, and what code found, beside the run."""
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
    """What the agents had to go by: a line for each system prompt and each tool, as far as there is room."""
    told = [
        f"policy of {agent or 'all agents'}: {_collapse_whitespace(text)}"
        for agent, text in run.system_prompts.items()
    ]
    told += [
        f"tool {one.name}: {_collapse_whitespace(one.description)} Arguments: {_describe_arguments(one)}"
        for one in run.tools
    ]
    lines: list[str] = []
    room = _MAX_TOTAL_CHARS
    for line in told:
        lines.append(line[: min(room, _MAX_LINE_CHARS)])
        room -= len(lines[-1])
        if room <= 0:
            break
    return tuple(lines)


def _describe_arguments(tool: ToolSpec) -> str:
    """What a tool's JSON Schema demands, in the schema's own words but short."""
    held = tool.parameters.get("properties")
    needed = tool.parameters.get("required")
    if not isinstance(held, Mapping) or not held:
        return "none told."
    must = set(needed) if isinstance(needed, list | tuple) else set()
    parts = []
    for name, spec in held.items():
        kind = spec.get("enum") or spec.get("type") or "any" if isinstance(spec, Mapping) else "any"
        parts.append(
            f"{name}{' (required)' if name in must else ''}: {_collapse_whitespace(str(kind))[:_MAX_QUOTE_CHARS]}"  # noqa: E501
        )
    return "; ".join(parts) + "."


def _collapse_whitespace(text: str) -> str:
    return " ".join(text.split())


def format_violations(findings: Sequence[Finding]) -> tuple[str, ...]:
    """A line for each check that failed, in the order of steps, the surest where there are too many."""
    kept = sorted(findings, key=lambda finding: -finding.probability)[:_MAX_FINDINGS]
    return tuple(
        _format_finding(one) for one in sorted(kept, key=lambda finding: (finding.step, finding.detector))
    )


def _format_finding(finding: Finding) -> str:
    quote = next((" ".join(one.quote.split())[:_MAX_QUOTE_CHARS] for one in finding.evidence), "")
    said = " ".join(finding.message.split())
    return f"step {finding.step}, {finding.detector}: {said}" + (f' ("{quote}")' if quote else "")
