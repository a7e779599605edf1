"""Features of outcomes, evidence, data flow, corrections and progress ledgers."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from agentguard.detect.result_classification import classify_result
from agentguard.judge.embedded.features.lexicon import CLASS_INDEX
from agentguard.judge.embedded.features.roles import RunLayout, SpeakerRole
from agentguard.judge.embedded.features.run_state import (
    RunContext,
    RunProgress,
    compute_coverage,
    compute_jaccard_overlap,
    is_idle,
)
from agentguard.judge.embedded.features.step_outcomes import has_no_action, is_empty, is_failed
from agentguard.judge.embedded.features.text_scan import TextScan

_MAX_DISTANCE = 20.0
_NEAR = 8
_CORRECT, _FAILURE = CLASS_INDEX["correct"], CLASS_INDEX["failure"]


def compute_data_flow_features(
    layout: RunLayout, context: RunContext, progress: RunProgress, index: int, groups: Collection[str]
) -> dict[str, float]:
    """Compute the features of a candidate in those of the groups that `FLOW_GROUPS` names."""
    out: dict[str, float] = {}
    for group, compute in FLOW_GROUPS.items():
        if group in groups:
            out |= compute(layout, context, progress, index)
    return out


def _compute_outcome_features(
    layout: RunLayout, context: RunContext, progress: RunProgress, index: int
) -> dict[str, float]:
    result, errors, error_flags = layout.get_outcome_scan(index), context.error_steps, context.error_flags
    before, ahead = index - 1, bisect_left(errors, index)
    outcome = layout.get_outcome(index)
    ran = outcome is not None and not has_no_action(outcome)
    has_previous_outcome = index > 0 and (
        layout.roles[before] is SpeakerRole.EXECUTOR or layout.observation_scans[before] is not None
    )
    return {
        "outcome.failed": is_failed(outcome),
        "outcome.nothing_ran": has_no_action(outcome),
        "outcome.fine": ran and not is_failed(outcome),
        "outcome.empty": is_empty(outcome),
        "outcome.length": math.log1p(result.length) if result is not None else 0.0,
        "outcome.after_failed": index > 0 and error_flags[before],
        "outcome.after_fine": has_previous_outcome
        and not error_flags[before]
        and not has_no_action(layout.results[before]),
        "outcome.errors_before": progress.error_count,
        "outcome.errors_left": len(errors) - bisect_right(errors, index),
        "outcome.first_error": bool(errors) and errors[0] in (index, index + 1),
        "outcome.last_error": bool(errors) and errors[-1] in (index, index + 1),
        "outcome.speaks_of_trouble": is_failed(classify_result(layout.step_scans[index].lower_text)),
        "outcome.since_error": min(_MAX_DISTANCE, index - progress.last_error)
        if progress.last_error is not None
        else _MAX_DISTANCE,
        "outcome.to_error": min(_MAX_DISTANCE, errors[ahead] - index)
        if ahead < len(errors)
        else _MAX_DISTANCE,
        "outcome.any_error": bool(errors),
    }


def _compute_handoff_features(
    layout: RunLayout,
    context: RunContext,
    progress: RunProgress,  # noqa: ARG001
    index: int,
) -> dict[str, float]:
    one, is_handoff = layout.step_scans[index], index in layout.task_handoffs
    twice_share, three_times_share = context.handoff_repetition.get(index, (-1.0, -1.0))
    return {
        "brief.repeats_task": twice_share,
        "brief.repeats_task_more": three_times_share,
        "brief.run_alignment": context.handoff_alignment,
        "brief.code": is_handoff and one.has_code,
        "brief.runs": is_handoff and layout.was_executed(index),
        "brief.length": math.log1p(one.length) if is_handoff else 0.0,
        "brief.run_has_code": any(layout.step_scans[i].has_code for i in layout.task_handoffs),
        "brief.run_ran": any(layout.was_executed(i) for i in layout.task_handoffs),
        "brief.numbers": math.log1p(len(one.numbers - context.task_numbers)) if is_handoff else 0.0,
        "brief.failure": math.log1p(one.class_counts[_FAILURE]) if is_handoff else 0.0,
    }


def _compute_evidence_features(
    layout: RunLayout, context: RunContext, progress: RunProgress, index: int
) -> dict[str, float]:
    ordinal, acts, ran = layout.candidate_ordinals[index], layout.is_action(index), layout.was_executed(index)
    runs_left, acts_left = context.remaining_actions[index]
    idle, briefed = is_idle(layout, context, index), index in layout.task_handoffs
    gives_up = not acts and progress.last_outcome < 0 and runs_left == 0
    earlier = layout.candidates[ordinal - 1] if ordinal else None
    return {
        "evidence.act_ordinal": progress.action_count if acts else -1.0,
        "evidence.runs": ran,
        "evidence.run_ordinal": progress.execution_count if ran else -1.0,
        "evidence.first_run": ran and progress.execution_count == 0,
        "evidence.first_act": acts and progress.action_count == 0 and not briefed,
        "evidence.idle": idle,
        "evidence.work_ordinal": progress.substantial_turns if not idle else -1.0,
        "evidence.first_work": not idle and progress.substantial_turns == 0 and not briefed,
        "evidence.idle_before": ordinal - progress.substantial_turns,
        "evidence.last_outcome": progress.last_outcome,
        "evidence.talks_after_failure": not acts and progress.last_outcome < 0,
        "evidence.talks_after_result": not acts and progress.last_outcome > 0,
        "evidence.talks_without": not acts and progress.execution_count == 0 and not briefed,
        "evidence.acts_after_failure": acts and progress.last_outcome < 0,
        "evidence.failed_before": progress.failed_executions,
        "evidence.worked_before": progress.successful_executions,
        "evidence.seen": math.log1p(progress.evidence_characters),
        "evidence.gives_up": gives_up,
        "evidence.gives_up_at_once": gives_up and earlier is not None and layout.is_action(earlier),
        "evidence.runs_left": runs_left,
        "evidence.acts_left": acts_left,
        "evidence.last_act": acts and acts_left == 1,
        "evidence.last_run_fails": ran and runs_left == 1 and _has_error_at_or_after(context, index),
        "evidence.all_failed": context.all_failed,
        "evidence.first_talk_after_run": not acts
        and progress.execution_count > 0
        and progress.turns_after_execution == 0,
        "evidence.ends_after_failure": layout.step_scans[index].is_ending and progress.last_outcome < 0,
        "evidence.ends_without": layout.step_scans[index].is_ending and progress.successful_executions == 0,
    }


def _has_error_at_or_after(context: RunContext, index: int) -> bool:
    return any(context.error_flags[index : index + 2])


def _compute_claim_features(
    layout: RunLayout, context: RunContext, progress: RunProgress, index: int
) -> dict[str, float]:
    """Compute features of numbers and names in prose without an earlier source."""
    one, acts, briefed = layout.step_scans[index], layout.is_action(index), index in layout.task_handoffs
    numbers = one.prose_numbers - context.task_numbers
    unsourced = numbers - progress.env_numbers
    new_values = unsourced - progress.numbers
    names = one.names - progress.env_names - context.task_names
    claims = not acts and not briefed and (bool(new_values) or one.items >= 3)
    out = {
        "claim.numbers": math.log1p(len(unsourced)) if not acts else 0.0,
        "claim.number_share": len(unsourced) / (1 + len(numbers)),
        "claim.new_numbers": math.log1p(len(new_values)) if not briefed else 0.0,
        "claim.final_numbers": math.log1p(len(new_values & context.final_numbers)) if not briefed else 0.0,
        "claim.names": math.log1p(len(names)),
        "claim.new_names": math.log1p(len(names - progress.names)),
        "claim.made": claims,
        "claim.first": claims and progress.claim_count == 0,
        "claim.before": progress.claim_count,
    }
    progress.claim_count += claims
    return out


def _compute_flow_features(
    layout: RunLayout, context: RunContext, progress: RunProgress, index: int
) -> dict[str, float]:
    """Compute features of values that first appear here, and of their reach into later steps and the end."""
    one = layout.step_scans[index]
    new = one.numbers - progress.numbers
    reach = new & context.final_numbers
    names = (one.names - progress.names) & context.final_names
    before, after = index - 1, index + 1
    reported = index > 0 and layout.roles[before] is SpeakerRole.EXECUTOR
    new_words = one.vocabulary - progress.words
    return {
        "flow.numbers": math.log1p(len(one.numbers)),
        "flow.new_numbers": math.log1p(len(new)),
        "flow.unsourced": math.log1p(len(one.numbers - progress.env_numbers)),
        "flow.new_unsourced": math.log1p(len(new - progress.env_numbers)),
        "flow.new_used_later": math.log1p(sum(context.last_step_of_number[number] > index for number in new)),
        "flow.numbers_to_end": math.log1p(len(reach)),
        "flow.numbers_to_end_share": len(reach) / (1 + len(context.final_numbers)),
        "flow.final_numbers": len(one.numbers & context.final_numbers) / (1 + len(context.final_numbers)),
        "flow.names_to_end": math.log1p(len(names)),
        "flow.names_to_end_share": len(names) / (1 + len(context.final_names - context.task_names)),
        "flow.new_names": math.log1p(len(one.names - progress.names)),
        "flow.new_words": len(new_words) / (1 + len(one.vocabulary)),
        "flow.new_words_count": math.log1p(len(new_words)),
        "flow.from_executor": compute_coverage(one.numbers, layout.step_scans[before].numbers)
        if reported
        else 0.0,
        "flow.to_executor": compute_coverage(one.numbers, layout.step_scans[after].numbers)
        if layout.precedes_executor(index)
        else 0.0,
    }


def _compute_final_features(
    layout: RunLayout, context: RunContext, progress: RunProgress, index: int
) -> dict[str, float]:
    """Compute how much of the final texts, beyond task and handoff, this step mentions first."""
    one, first, total = layout.step_scans[index], context.first_mention_weight, context.first_mention_total
    weight = first.get(index, 0.0)
    via = first.get(index + 1, 0.0) if layout.precedes_executor(index) else 0.0
    acts = layout.is_action(index)
    tokens = one.vocabulary | one.numbers | one.names
    return {
        "final.first_said": weight / total,
        "final.first_seen": via / total,
        "final.first_both": (weight + via) / total,
        "final.is_final": index in context.final_steps,
        "final.first_said_before": 0.0 if index in context.final_steps else weight / total,
        "final.said_so_far": context.mention_weight_before[index] / total,
        "final.said_most": weight > 0 and weight >= context.max_first_mention,
        "final.said_after_failure": weight / total if not acts and progress.last_outcome < 0 else 0.0,
        "final.said_without": weight / total if not acts and progress.execution_count == 0 else 0.0,
        "final.holds": len(tokens & context.final_words) / (1 + len(context.final_words)),
    }


def _compute_similarity_features(
    layout: RunLayout,
    context: RunContext,  # noqa: ARG001
    progress: RunProgress,
    index: int,
) -> dict[str, float]:
    ordinal, candidates = layout.candidate_ordinals[index], layout.candidates
    vocabulary, scans = layout.step_scans[index].vocabulary, layout.step_scans
    after = candidates[ordinal + 1 : ordinal + 1 + _NEAR]
    turns, agent_vocabulary = progress.turns.get(layout.run.steps[index].agent, (0, frozenset()))
    return {
        "similar.task": compute_coverage(layout.task_words, vocabulary),
        "similar.previous": compute_jaccard_overlap(vocabulary, scans[candidates[ordinal - 1]].vocabulary)
        if ordinal
        else 0.0,
        "similar.next": compute_jaccard_overlap(vocabulary, scans[after[0]].vocabulary) if after else 0.0,
        "similar.own_previous": compute_jaccard_overlap(vocabulary, agent_vocabulary) if turns else 0.0,
        "similar.any_before": max(
            (
                compute_jaccard_overlap(vocabulary, scans[i].vocabulary)
                for i in candidates[max(0, ordinal - _NEAR) : ordinal]
            ),
            default=0.0,
        ),
        "similar.any_after": max(
            (compute_jaccard_overlap(vocabulary, scans[i].vocabulary) for i in after), default=0.0
        ),
        "similar.last": compute_jaccard_overlap(vocabulary, scans[candidates[-1]].vocabulary)
        if after
        else 0.0,
        "similar.from_previous": compute_coverage(vocabulary, scans[index - 1].vocabulary) if index else 0.0,
    }


def _compute_correction_features(
    layout: RunLayout,
    context: RunContext,  # noqa: ARG001
    progress: RunProgress,
    index: int,
) -> dict[str, float]:
    ordinal, candidates, scans, steps = (
        layout.candidate_ordinals[index],
        layout.candidates,
        layout.step_scans,
        layout.run.steps,
    )
    after = candidates[ordinal + 1 : ordinal + 3]
    is_correction = scans[index].class_counts[_CORRECT] > 0
    agent = steps[index].agent
    agent_name = agent.lower()
    has_mention = any(
        scans[i].class_counts[_CORRECT] > 0 and steps[i].agent != agent and agent_name in scans[i].lower_text
        for i in candidates[ordinal + 1 : ordinal + 1 + 3 * _NEAR]
    )
    first_after = bool(after) and scans[after[0]].class_counts[_CORRECT] > 0
    return {
        "correction.next": max((scans[i].class_counts[_CORRECT] for i in after), default=0),
        "correction.next_failure": max((scans[i].class_counts[_FAILURE] for i in after), default=0),
        "correction.before": progress.correction_count,
        "correction.first": is_correction and progress.correction_count == 0,
        "correction.first_corrected": first_after and not is_correction and progress.correction_count == 0,
        "correction.named": has_mention,
    }


# Name of the feature, part of the flag's name, and value of the flag.
_LEDGER_FLAGS = (("stalls", "progress", False), ("loops", "loop", True), ("satisfied", "satisf", True))


def _compute_ledger_features(
    layout: RunLayout,
    context: RunContext,  # noqa: ARG001
    progress: RunProgress,
    index: int,
) -> dict[str, float]:
    """Compute features of progress, loop and completion flags before, in and after the step."""
    scans = layout.step_scans
    nearby: Sequence[TextScan] = scans[index + 1 : index + 3]
    after: Mapping[str, bool] = next((scan.flags for scan in nearby if scan.flags), {})
    out: dict[str, float] = {"ledger.own": bool(scans[index].flags)}
    for where, flags in (("after", after), ("before", progress.flags), ("here", scans[index].flags)):
        for name, key, expected in _LEDGER_FLAGS:
            out[f"ledger.{where}_{name}"] = _encode_flag(flags, key, expected)
    out["ledger.to_stall"] = _count_ledgers_until_stall(scans, index)
    return out


def _encode_flag(flags: Mapping[str, bool], key: str, wanted: bool) -> float:
    """Return 1 if the flag has the wanted value, -1 if it has the opposite, 0 if it is missing."""
    for name, value in flags.items():
        if key in name:
            return 1.0 if value is wanted else -1.0
    return 0.0


def _count_ledgers_until_stall(scans: Sequence[TextScan], index: int) -> float:
    """Count the ledgers after the step until one reports a stall or a loop."""
    passed = 0
    for one in scans[index + 1 : index + 60]:
        if one.flags:
            if _encode_flag(one.flags, "progress", False) > 0 or _encode_flag(one.flags, "loop", True) > 0:
                return passed
            passed += 1
    return _MAX_DISTANCE


FLOW_GROUPS: Final[Mapping[str, Callable[[RunLayout, RunContext, RunProgress, int], dict[str, float]]]] = {
    "outcome": _compute_outcome_features,
    "brief": _compute_handoff_features,
    "evidence": _compute_evidence_features,
    "claim": _compute_claim_features,
    "flow": _compute_flow_features,
    "final": _compute_final_features,
    "similar": _compute_similarity_features,
    "correction": _compute_correction_features,
    "ledger": _compute_ledger_features,
}
"""Function that computes the features of a group of the catalogue, by group."""
