"""Check of the last message of a run: the agent claims an effect, but the ledger has no such call."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from agentguard.detect.base import Evidence, Finding
from agentguard.detect.result_classification import classify_result
from agentguard.detect.tool_names import is_read_tool, is_terminal_tool, normalize_tool_name
from agentguard.recover.effect_ledger import EffectLedger
from agentguard.trajectory.model import Source, Step, Trajectory

EFFECT_CLAIM_TRIGGER: Final = "effect_claim"
"""Trigger name of a claim without a call; an escalation policy may be configured under it."""

MAX_REFUSED_CLAIMS: Final = 2
"""Number of ends of one run that the check refuses."""

_CODES = (
    "agentrx:invention_of_new_information",
    "agent_error:reflection.outcome_misinterpretation",
    "fault_model:fail_silence_violation",
)
_PROBABILITY = 0.8
_CLAIM_PATTERN = re.compile(
    r"\b(?:i|we)(?:['\u2019]ve| have)?(?: (?:just|now|already|successfully|also))* ([a-z]{3,20})\b"
    r"|\b(?:has|have) (?:now |already |successfully )*been (?:successfully )?([a-z]{3,20})\b"
    r"|\b(?:is|are) (?:now|successfully) ([a-z]{3,20})\b"
    r'|"(?:status|state|outcome|result)"\s*:\s*"([a-z]{3,20})"'
)
_NEGATION_PATTERN = re.compile(
    r"\b(?:not|never|no|if|once|when|until|would|could|cannot|unable|before)\b|n['\u2019]t\b"
)
_IRREGULAR_PARTICIPLES = {
    "buy": "bought", "make": "made", "pay": "paid", "put": "put", "sell": "sold", "send": "sent",
    "set": "set", "write": "written",
}  # fmt: skip


def find_unsupported_claim(run: Trajectory, ledger: EffectLedger) -> Finding | None:
    """Return a finding if the last message claims an effect of an offered tool that no call has had.

    The verb of the claim must be the verb of a tool's name ("booked", ``book_seat``). The status of a
    structured answer is a claim, too: ``{"status": "booked"}``. A verb form that occurs in an earlier text of
    the run proves nothing: a user or another agent may have had the effect.
    """
    last = run.steps[-1] if run.steps else None
    if last is None or last.source is not Source.AGENT or last.tool_calls:
        return None
    tools_by_participle = _collect_participles(run)
    for match in _CLAIM_PATTERN.finditer(last.content.lower()):
        participle = next(word for word in match.groups() if word)
        tools = tools_by_participle.get(participle)
        if tools is None or _is_negated(last.content.lower(), match.start()):
            continue
        if not _has_effect(run, ledger, tools) and not _is_mentioned(run, participle):
            return _build_finding(last, match, participle, sorted(tools))
    return None


def _build_finding(last: Step, match: re.Match[str], participle: str, tools: list[str]) -> Finding:
    names = " or ".join(tools)
    start, end = match.span()
    evidence = Evidence(step=last.index, field="content", quote=last.content[start:end], start=start, end=end)
    return Finding(
        detector=EFFECT_CLAIM_TRIGGER,
        step=last.index,
        codes=_CODES,
        probability=_PROBABILITY,
        message=f"{last.agent} says that something was {participle}, but no call of {names} has succeeded.",
        correction=f"Call {names} and report its result, or say that it was not done.",
        evidence=(evidence,) if len(last.content) == len(last.content.lower()) else (),
    )


def _collect_participles(run: Trajectory) -> dict[str, set[str]]:
    """Return the past participles of the verbs of the offered tools, with the tools."""
    found: dict[str, set[str]] = {}
    for tool in run.tools:
        if is_read_tool(tool.name) or is_terminal_tool(tool.name):
            continue
        verb = normalize_tool_name(tool.name).partition("_")[0]
        if len(verb) > 2:
            for participle in _build_participles(verb):
                found.setdefault(participle, set()).add(tool.name)
    return found


def _build_participles(verb: str) -> Iterable[str]:
    if verb in _IRREGULAR_PARTICIPLES:
        return (_IRREGULAR_PARTICIPLES[verb],)
    if verb.endswith("e"):
        return (f"{verb}d",)
    if verb.endswith("y"):
        return (f"{verb[:-1]}ied", f"{verb}ed")
    return (f"{verb}ed", f"{verb}{verb[-1]}ed")


def _has_effect(run: Trajectory, ledger: EffectLedger, tools: set[str]) -> bool:
    """Return whether a call of one of the tools succeeded or may have succeeded, on any branch."""
    if any(effect.tool in tools for effect in ledger.list_active()):
        return True
    every = (*run.steps, *(step for branch in run.branches for step in branch.steps))
    return any(
        observation.tool in tools and not classify_result(observation.content.lower()).is_error
        for step in every
        for observation in step.observations
    )


def _is_mentioned(run: Trajectory, participle: str) -> bool:
    texts = [run.task, *run.system_prompts.values()]
    claimant = run.steps[-1].agent
    for step in run.steps[:-1]:
        texts += [observation.content for observation in step.observations]
        if step.source is not Source.AGENT or step.agent != claimant:
            texts.append(step.content)
    word = re.compile(rf"\b{re.escape(participle)}\b", re.IGNORECASE)
    return any(word.search(text) for text in texts)


def _is_negated(lower_text: str, offset: int) -> bool:
    sentence_start = max(lower_text.rfind(mark, 0, offset) for mark in ".!?\n")
    return _NEGATION_PATTERN.search(lower_text, sentence_start + 1, offset + 24) is not None
