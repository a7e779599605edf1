"""Features of a step's text: its form, its code, and the word classes of the step and its neighbours."""

from __future__ import annotations

import math
from collections.abc import Collection

from agentguard.detect.tool_names import is_write_tool
from agentguard.judge.embedded.features.lexicon import CLASS_INDEX, CLASS_NAMES
from agentguard.judge.embedded.features.roles import RunLayout
from agentguard.judge.embedded.features.run_state import RunContext, RunProgress, compute_jaccard_overlap
from agentguard.judge.embedded.features.text_scan import TextScan

_RATE_WORDS = 30.0  # words that a rate refers to
_SMOOTHING_WORDS = 5.0
_ASSUME = CLASS_INDEX["assume"]
_WORD_COLUMNS = tuple(f"wording.{name}" for name in CLASS_NAMES)
_RATE_COLUMNS = tuple(f"rate.{name}" for name in CLASS_NAMES)
_NEXT_RATE_COLUMNS = tuple(f"next.{name}" for name in CLASS_NAMES)
_PREVIOUS_RATE_COLUMNS = tuple(f"previous.{name}" for name in CLASS_NAMES)
_ZEROS = (0.0,) * len(CLASS_NAMES)


def compute_text_features(
    layout: RunLayout, context: RunContext, progress: RunProgress, index: int, groups: Collection[str]
) -> dict[str, float]:
    """Compute a candidate's form and wording features, and those of code and word rates on demand."""
    ordinal, candidates = layout.candidate_ordinals[index], layout.candidates
    before = layout.step_scans[candidates[ordinal - 1]] if ordinal else None
    after = layout.step_scans[candidates[ordinal + 1]] if ordinal + 1 < len(candidates) else None
    one = layout.step_scans[index]
    out = _compute_form_features(one, context, before, after)
    calls = layout.run.steps[index].tool_calls
    out["form.calls"] = len(calls)
    out["form.changes"] = sum(is_write_tool(call.name) for call in calls)
    if "code" in groups:
        out |= _compute_code_features(layout, progress, index)
    out |= zip(_WORD_COLUMNS, map(math.log1p, one.class_counts), strict=True)
    for group, columns, scan in (
        ("rate", _RATE_COLUMNS, one),
        ("next", _NEXT_RATE_COLUMNS, after),
        ("previous", _PREVIOUS_RATE_COLUMNS, before),
    ):
        if group in groups:
            out |= zip(columns, _compute_word_rates(scan), strict=True)
    assumes = one.class_counts[_ASSUME] > 0
    out["wording.first_to_assume"] = assumes and progress.assumption_count == 0
    out["wording.assumed_before"] = progress.assumption_count
    return out


def _compute_word_rates(scan: TextScan | None) -> tuple[float, ...]:
    if scan is None:
        return _ZEROS
    scale = _RATE_WORDS / (scan.word_count + _SMOOTHING_WORDS)
    return tuple(count * scale for count in scan.class_counts)


def _compute_form_features(
    scan: TextScan, context: RunContext, before: TextScan | None, after: TextScan | None
) -> dict[str, float]:
    return {
        "form.code": scan.has_code,
        "form.fences": scan.fences,
        "form.literals": math.log1p(scan.literals),
        "form.items": math.log1p(scan.items),
        "form.headings": math.log1p(scan.headings),
        "form.questions": scan.questions,
        "form.asks": scan.is_question,
        "form.ends": scan.is_ending,
        "form.length": math.log1p(scan.length),
        "form.relative_length": scan.length / context.mean_length,
        "form.longest": scan.length >= context.max_length,
        "form.next_length": math.log1p(after.length) if after else 0.0,
        "form.previous_length": math.log1p(before.length) if before else 0.0,
        "form.next_code": after.has_code if after else 0.0,
        "form.previous_code": before.has_code if before else 0.0,
        "form.next_ends": after.is_ending if after else 0.0,
    }


def _compute_code_features(layout: RunLayout, progress: RunProgress, index: int) -> dict[str, float]:
    scan = layout.step_scans[index]
    code, ordinal = scan.code, layout.candidate_ordinals[index]
    earlier_overlap = later_overlap = unsourced_numbers = 0.0
    if scan.has_code:
        nearby = layout.candidates[ordinal + 1 : ordinal + 9]
        earlier_overlap = max(
            (
                compute_jaccard_overlap(code.identifiers, identifiers)
                for identifiers in progress.code_words[-8:]
            ),
            default=0.0,
        )
        later_overlap = max(
            (
                compute_jaccard_overlap(code.identifiers, layout.step_scans[i].code.identifiers)
                for i in nearby
            ),
            default=0.0,
        )
        unsourced_numbers = math.log1p(
            len(scan.numbers - scan.prose_numbers - progress.env_numbers - progress.numbers)
        )
    return {
        "code.length": math.log1p(code.length),
        "code.stand_ins": code.placeholders,
        "code.strings": math.log1p(code.strings),
        "code.catches": code.has_except,
        "code.functions": code.functions,
        "code.numbers": math.log1p(code.numbers),
        "code.comments": math.log1p(code.comments),
        "code.http": code.has_http,
        "code.reads": code.has_file_read,
        "code.searches": code.has_search,
        "code.imports": code.imports,
        "code.share": code.length / (1 + scan.length),
        "code.like_earlier": earlier_overlap,
        "code.like_later": later_overlap,
        "code.unsourced_numbers": unsourced_numbers,
        "code.not_run": scan.has_code
        and index not in layout.task_handoffs
        and not layout.was_executed(index),
    }
