"""Catalogue of features: name, group and meaning; the documentation is generated from it.

A name is ``group.name``. Features are numbers: truth values are 0 or 1, counts of wide range are
``log(1 + n)``. No feature is specific to a benchmark: none uses an agent's name, a phrase of a log or an
absolute index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from agentguard.judge.embedded.features.lexicon import WORD_CLASSES

GROUPS: Final = {
    "position": "place among the candidates",
    "role": "speaker, and place among the turns of that agent and of the workers",
    "structure": "speakers before and after the step",
    "layout": "place in the structure of the run: early or late, short run or long",
    "form": "form of the text",
    "code": "code in the step",
    "wording": "classes of words in the step",
    "rate": "classes of words in the step, per thirty words",
    "next": "classes of words in the next candidate, per thirty words",
    "previous": "classes of words in the previous candidate, per thirty words",
    "outcome": "result of the step, and errors before and after it",
    "brief": "task handoff, compared with the task",
    "evidence": "executions and results before the step",
    "claim": "numbers and names without a source",
    "flow": "values that first appear in the step, and the later steps that use them",
    "final": "words of the final texts, and the steps that contain them first",
    "similar": "similarity to the task and to other steps",
    "correction": "corrections in the step and in later steps",
    "ledger": "progress flags that agents keep",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Feature of a step or run; ``group`` is the part of the name before the dot."""

    name: str
    meaning: str

    @property
    def group(self) -> str:
        """Group for ablations."""
        return self.name.partition(".")[0]


_FEATURE_MEANINGS: Final = """
position.ordinal: candidates before the step
position.log_ordinal: candidates before the step, as a logarithm
position.fraction: place from 0 (first candidate) to 1 (last)
position.from_end: candidates after the step
position.log_from_end: candidates after the step, as a logarithm
position.first: first candidate
position.second: second candidate
position.last: last candidate
position.candidates: candidates in the run
role.worker: step of an agent that works
role.orchestrator: step of the agent that delegates the work
role.orchestrated: the run has an agent that delegates the work
role.turn: workers' turns before the step
role.turns_left: workers' turns after the step
role.turns: workers' turns in the run
role.last_turn: last worker's turn
role.first_turn: first worker's turn
role.turn_fraction: place among the workers' turns, from 0 to 1
role.brief: task handoff
role.after_brief: directly after the task handoff
role.own_turn: earlier turns of the agent
role.new_agent: first turn of the agent
role.share: share of the candidates that the agent made
role.opened: the agent made the first candidate
role.last_of_agent: last candidate of the agent
structure.after_executor: the step before is an executor's
structure.before_executor: the next step is an executor's
structure.after_orchestrator: the step before is the orchestrator's
structure.before_orchestrator: the next step is the orchestrator's
structure.after_user: the step before is a user's
structure.before_user: the next step is a user's
structure.after_worker: the step before is a worker's
structure.before_worker: the next step is a worker's
structure.same_before: the step before is by the same agent
structure.same_after: the next step is by the same agent
structure.at_end: last step of the run
structure.answered: the run ends with words of completion
structure.names_next: the text names the agent of the next step
layout.first_turn: first worker's turn after the task handoff
layout.second_turn: second worker's turn
layout.third_turn: third worker's turn
layout.last_turn: last worker's turn
layout.last_turn_short: last worker's turn of a run of few turns
layout.last_turn_long: last worker's turn of a run of many turns
layout.first_turn_long: first worker's turn of a run of many turns
layout.first_turns_long: first or second worker's turn of a run of many turns
layout.last_but_one: last worker's turn but one
layout.new_agent: first turn of a worker other than the first
layout.new_agent_late: first turn of a worker other than the first, within the last two turns
layout.last_turn_answered: last worker's turn of a run that ends with words of completion
layout.last_turn_cut: last worker's turn of a truncated run
layout.log_candidates: candidates in the run, as a logarithm
layout.directs_after_last: orchestrator's step after the last worker's turn
layout.directs_before_turn: orchestrator's step directly before a worker's turn
layout.brief: task handoff
layout.early: decays with the workers' turns before a worker's turn
layout.late: decays with the workers' turns after a worker's turn
layout.directs_early: decays with the workers' turns before a step that is not a worker's turn
layout.directs_late: decays with the workers' turns after a step that is not a worker's turn
layout.late_short: layout.late in a run of few turns
layout.early_long: layout.early in a run of many turns
layout.directs_late_short: layout.directs_late in a run of few turns
layout.stretch: steps since the last turn of another worker
form.code: the text has code
form.fences: fenced code blocks
form.literals: literals that the code assigns
form.items: list items
form.headings: headings and bold text
form.questions: question marks
form.asks: ends with a question mark
form.ends: has words of completion
form.length: length of the text
form.relative_length: length relative to the mean candidate
form.longest: longest candidate
form.next_length: length of the next candidate
form.previous_length: length of the previous candidate
form.next_code: the next candidate has code
form.previous_code: the previous candidate has code
form.next_ends: the next candidate has words of completion
form.calls: tool calls
form.changes: tool calls whose name implies a change
code.length: length of the code
code.stand_ins: examples and placeholders in the code
code.strings: string literals in the code
code.catches: the code catches exceptions
code.functions: functions that the code defines
code.numbers: numbers in the code
code.comments: comments in the code
code.http: the code has a URL
code.reads: the code reads a file
code.searches: the code searches
code.imports: modules that the code imports
code.share: share of the text that is code
code.like_earlier: similarity to earlier code
code.like_later: similarity to later code
code.unsourced_numbers: numbers in the code that do not occur earlier
code.not_run: code that was not executed
wording.first_to_assume: first step with words of assumption
wording.assumed_before: earlier steps with words of assumption
outcome.failed: the result is an error or unusable
outcome.nothing_ran: the executor reported that there was nothing to execute
outcome.fine: the step has a result that is neither an error nor unusable
outcome.empty: the execution returned nothing
outcome.length: length of the result
outcome.after_failed: the result before the step shows an error
outcome.after_fine: the result before the step shows no error
outcome.errors_before: errors before the step
outcome.errors_left: errors after the step
outcome.first_error: the result is the first error of the run
outcome.last_error: the result is the last error of the run
outcome.speaks_of_trouble: the step's text has the form of an error or of a blocked page
outcome.since_error: steps since the last error
outcome.to_error: steps to the next error
outcome.any_error: the run has an error
brief.repeats_task: share of the task's words that the handoff has at least twice; -1 for other steps
brief.repeats_task_more: share of the task's words that it has at least three times; -1 for other steps
brief.run_alignment: minimum of brief.repeats_task in the run, for every step
brief.code: handoff with code
brief.runs: handoff that is executed at once
brief.length: length of the handoff
brief.run_has_code: the run has a handoff with code
brief.run_ran: the run has a handoff that was executed at once
brief.numbers: numbers in the handoff that the task does not contain
brief.failure: words of failure in the handoff
evidence.act_ordinal: actions before the step; -1 if the step is not an action
evidence.runs: the step is executed
evidence.run_ordinal: executions before the step; -1 if the step is not executed
evidence.first_run: first step that is executed
evidence.first_act: first step with code or a tool call
evidence.idle: no action, new number or list in the step
evidence.work_ordinal: substantial steps before the step; -1 if it is idle
evidence.first_work: first substantial step
evidence.idle_before: idle steps before the step
evidence.last_outcome: last execution before the step: 1 usable, -0.5 empty, -1 failed, 0 if there is none
evidence.talks_after_failure: no action after a failed execution
evidence.talks_after_result: no action after a successful execution
evidence.talks_without: no action before the first execution
evidence.acts_after_failure: action after a failed execution
evidence.failed_before: failed executions before the step
evidence.worked_before: successful executions before the step
evidence.seen: length of the results before the step
evidence.gives_up: no action after a failed execution, and no later execution
evidence.gives_up_at_once: evidence.gives_up directly after an action
evidence.runs_left: executions from the step on
evidence.acts_left: actions from the step on
evidence.last_act: last action of the run
evidence.last_run_fails: last execution of the run, with an error
evidence.all_failed: every execution of the run failed
evidence.first_talk_after_run: first step without an action after an execution
evidence.ends_after_failure: end of the run after a failed execution
evidence.ends_without: end of the run without a successful execution
claim.numbers: numbers in prose that no result, task or handoff contains
claim.number_share: share of the step's numbers without a source
claim.new_numbers: numbers without a source that occur for the first time
claim.final_numbers: new numbers without a source that are in the final texts
claim.names: names that no result, task or handoff contains
claim.new_names: names without a source that occur for the first time
claim.made: new numbers without a source, or a list, in a step without an action
claim.first: first such claim
claim.before: such claims before the step
flow.numbers: numbers in the step
flow.new_numbers: numbers that first appear here
flow.unsourced: numbers that no result, task or handoff contains
flow.new_unsourced: numbers without a source that first appear here
flow.new_used_later: numbers that first appear here and occur again
flow.numbers_to_end: numbers that first appear here and are in the final texts
flow.numbers_to_end_share: share of the final numbers that first appear here
flow.final_numbers: share of the final numbers that the step has
flow.names_to_end: names that first appear here and are in the final texts
flow.names_to_end_share: share of the final names that first appear here
flow.new_names: names that first appear here
flow.new_words: share of the step's words that are new
flow.new_words_count: number of new words
flow.from_executor: share of the step's numbers that the executor reported just before
flow.to_executor: share of the step's numbers that the executor reports next
final.first_said: weight of the final words that the step has first
final.first_seen: weight of the final words that the step's result has first
final.first_both: weight of the final words that the step or its result has first
final.is_final: one of the final texts
final.first_said_before: final.first_said, unless the step is one of the final texts
final.said_so_far: weight of the final words that occur before the step
final.said_most: no other step has a greater weight of final words first
final.said_after_failure: final.first_said of a step without an action after a failed execution
final.said_without: final.first_said of a step without an action before the first execution
final.holds: share of the final words that the step has
similar.task: share of the task's words that the step has
similar.previous: similarity to the previous candidate
similar.next: similarity to the next candidate
similar.own_previous: similarity to the agent's previous turn
similar.any_before: greatest similarity to one of the eight candidates before
similar.any_after: greatest similarity to one of the eight candidates after
similar.last: similarity to the last candidate
similar.from_previous: share of the step's words that the step before has
correction.next: words of correction in the next two candidates, the greater number
correction.next_failure: words of failure in the next two candidates, the greater number
correction.before: earlier steps with words of correction
correction.first: first step with words of correction
correction.first_corrected: the next candidate is the first with words of correction
correction.named: a later step of another agent names this agent and has words of correction
ledger.own: the step has flags
ledger.after_stalls: the next flags report no progress; -1 if they report progress
ledger.after_loops: the next flags report a loop; -1 if they deny it
ledger.after_satisfied: the next flags report the task as done; -1 if they deny it
ledger.before_stalls: the flags before the step report no progress
ledger.before_loops: the flags before the step report a loop
ledger.before_satisfied: the flags before the step report the task as done
ledger.here_stalls: the step's flags report no progress
ledger.here_loops: the step's flags report a loop
ledger.here_satisfied: the step's flags report the task as done
ledger.to_stall: sets of flags until one reports no progress or a loop; 20 if none does
"""

_WORD_FEATURE_MEANINGS: Final = (
    ("wording", "words of {}"),
    ("rate", "words of {}, per thirty words"),
    ("next", "words of {} in the next candidate, per thirty words"),
    ("previous", "words of {} in the previous candidate, per thirty words"),
)


def _build_features() -> tuple[Feature, ...]:
    lines = (line.partition(": ") for line in _FEATURE_MEANINGS.strip().splitlines())
    simple_features = [Feature(name=name, meaning=meaning) for name, _, meaning in lines]
    worded = [
        Feature(name=f"{group}.{name}", meaning=meaning.format(about))
        for group, meaning in _WORD_FEATURE_MEANINGS
        for name, about in WORD_CLASSES
    ]
    order = {group: index for index, group in enumerate(GROUPS)}
    return tuple(sorted(simple_features + worded, key=lambda feature: order[feature.group]))


FEATURES: Final = _build_features()
FEATURE_NAMES: Final = tuple(feature.name for feature in FEATURES)
COLUMN_BY_NAME: Final = {name: place for place, name in enumerate(FEATURE_NAMES)}


def select_columns(*groups: str) -> list[int]:
    """Return the columns of the named groups."""
    return [COLUMN_BY_NAME[f.name] for f in FEATURES if f.group in groups]


_WORD_CLASS_GROUPS: Final = {
    "rate": "per thirty words",
    "next": "in the next candidate, per thirty words",
    "previous": "in the previous candidate, per thirty words",
}


def render_markdown() -> str:
    """Render the table of features; a group of the same classes of words as `wording` is one row."""
    rows = ["| feature | meaning |", "|---|---|"]
    for group, about in GROUPS.items():
        rows.append(f"| **{group}** | *{about}* |")
        if group in _WORD_CLASS_GROUPS:
            place = _WORD_CLASS_GROUPS[group]
            rows.append(f"| `{group}.CLASS` | each CLASS of words of `wording`, {place} |")
        else:
            rows += [f"| `{f.name}` | {f.meaning} |" for f in FEATURES if f.group == group]
    return "\n".join(rows) + "\n"
