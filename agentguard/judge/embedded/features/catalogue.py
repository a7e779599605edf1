"""Catalogue of features: name, group and meaning; the documentation is generated from it.

A name is ``group.what``. Features are numbers: truth values are 0 or 1, counts of wide range are
``log(1 + n)``. None is specific to one benchmark: no agent's name, no phrase of a log, no absolute index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from agentguard.judge.embedded.features.lexicon import WORD_CLASSES

GROUPS: Final = {
    "position": "where among the candidates",
    "role": "who speaks, and when among that agent's and the workers' turns",
    "structure": "who speaks before and after",
    "layout": "where in the plan of the run: early or late, short run or long",
    "form": "shape of the text",
    "code": "the code in it",
    "wording": "classes of words in the step",
    "rate": "the same per thirty words",
    "next": "the same in the next candidate",
    "previous": "the same in the previous candidate",
    "outcome": "what came back, and errors around",
    "brief": "the step that hands on the task, held against the task",
    "evidence": "what had been run and seen by then",
    "claim": "what is said without a source",
    "flow": "values that first appear here, and where they go",
    "final": "what the last texts say and who said it first",
    "similar": "similarity to the task and to other steps",
    "correction": "being corrected, and correcting",
    "ledger": "flags that agents keep about progress",
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
position.ordinal: candidates before it
position.log_ordinal: the same, as a logarithm
position.fraction: its place from 0 (first candidate) to 1 (last)
position.from_end: candidates after it
position.log_from_end: the same, as a logarithm
position.first: is the first candidate
position.second: is the second candidate
position.last: is the last candidate
position.candidates: candidates in the run
role.worker: made by an agent that does work
role.orchestrator: made by the agent that hands out work
role.orchestrated: the run has an agent that hands out work
role.turn: workers' turns before it
role.turns_left: workers' turns after it
role.turns: workers' turns in the run
role.last_turn: is the last worker's turn
role.first_turn: is the first worker's turn
role.turn_fraction: its place among the workers' turns, 0 to 1
role.brief: hands on the task
role.after_brief: comes right after the brief
role.own_turn: turns its agent had before
role.new_agent: its agent speaks for the first time
role.share: share of the candidates that are its agent's
role.opened: its agent made the first candidate
role.last_of_agent: its agent's last candidate
structure.after_executor: an executor spoke before it
structure.before_executor: an executor speaks next
structure.after_orchestrator: the orchestrator spoke before it
structure.before_orchestrator: the orchestrator speaks next
structure.after_user: a user spoke before it
structure.before_user: a user speaks next
structure.after_worker: a worker spoke before it
structure.before_worker: a worker speaks next
structure.same_before: the same agent spoke before it
structure.same_after: the same agent speaks next
structure.at_end: nothing follows
structure.answered: the run ends with words of ending
structure.names_next: names the agent that speaks next
layout.first_turn: first worker's turn after the brief
layout.second_turn: second worker's turn
layout.third_turn: third worker's turn
layout.last_turn: last worker's turn
layout.last_turn_short: last worker's turn of a run of few turns
layout.last_turn_long: last worker's turn of a run of many turns
layout.first_turn_long: first worker's turn of a run of many turns
layout.first_turns_long: first or second worker's turn of a run of many turns
layout.last_but_one: last worker's turn but one
layout.new_agent: a worker other than the first speaks for the first time
layout.new_agent_late: the same, within the last two turns
layout.last_turn_answered: last worker's turn of a run that ends with words of ending
layout.last_turn_cut: last worker's turn of a run that breaks off
layout.log_candidates: candidates in the run, as a logarithm
layout.directs_after_last: the orchestrator's, after the last worker's turn
layout.directs_before_turn: the orchestrator's, right before a worker's turn
layout.brief: hands on the task
layout.early: decays with the worker's turns before it
layout.late: decays with the worker's turns after it
layout.directs_early: decays with the turns before a step that is no worker's turn
layout.directs_late: decays with the turns after a step that is no worker's turn
layout.late_short: layout.late in a run of few turns
layout.early_long: layout.early in a run of many turns
layout.directs_late_short: layout.directs_late in a run of few turns
layout.stretch: steps since another worker spoke
form.code: has code
form.fences: fenced blocks
form.literals: values written into code
form.items: list items
form.headings: headings and bold text
form.questions: question marks
form.asks: ends with a question
form.ends: has words that end a run
form.length: length of the text
form.relative_length: length against the mean candidate
form.longest: is the longest candidate
form.next_length: length of the next candidate
form.previous_length: length of the previous candidate
form.next_code: the next candidate has code
form.previous_code: the previous candidate has code
form.next_ends: the next candidate has words that end a run
form.calls: tool calls in it
form.changes: tool calls in it whose name implies a change
code.length: length of the code
code.stand_ins: examples, placeholders and the like in the code
code.strings: string literals in the code
code.catches: the code catches exceptions
code.functions: functions it defines
code.numbers: numbers in the code
code.comments: comments in the code
code.http: the code has a web address
code.reads: the code reads a file
code.searches: the code searches
code.imports: modules it imports
code.share: share of the text that is code
code.like_earlier: similarity to earlier code
code.like_later: similarity to later code
code.unsourced_numbers: numbers in the code that occurred nowhere before
code.not_run: code that nothing ran
wording.first_to_assume: the first step with words of assuming
wording.assumed_before: steps before it with words of assuming
outcome.failed: what came back is an error or unusable
outcome.nothing_ran: the executor said there was nothing to run
outcome.fine: something came back that is neither an error nor unusable
outcome.empty: something ran and nothing came back
outcome.length: length of what came back
outcome.after_failed: what came back just before shows an error
outcome.after_fine: what came back just before shows none
outcome.errors_before: errors before it
outcome.errors_left: errors after it
outcome.first_error: the first error of the run is its outcome
outcome.last_error: the last error of the run is its outcome
outcome.speaks_of_trouble: its own text has the form of an error or of a blocked page
outcome.since_error: steps since the last error
outcome.to_error: steps to the next error
outcome.any_error: the run has an error
brief.repeats_task: share of the task's words the brief has at least twice; -1 for other steps
brief.repeats_task_more: at least three times; -1 for other steps
brief.run_alignment: the first of them, for every step of the run
brief.code: a brief with code
brief.runs: a brief that is executed at once
brief.length: length of the brief
brief.run_has_code: the run's brief has code
brief.run_ran: the run's brief was executed at once
brief.numbers: numbers in the brief that the task does not give
brief.failure: words of failure in the brief
evidence.act_ordinal: acts before it; -1 if it does not act
evidence.runs: what it hands over is executed
evidence.run_ordinal: runs before it; -1 if nothing of it is executed
evidence.first_run: the first step that is executed
evidence.first_act: the first step with code or a tool call
evidence.idle: brings no act, number or list
evidence.work_ordinal: substantial steps before it; -1 if it is idle
evidence.first_work: the first substantial step
evidence.idle_before: idle steps before it
evidence.last_outcome: how the last run before it went: 1 well, -0.5 next to nothing, -1 failed, 0 none yet
evidence.talks_after_failure: only talks after a run that failed
evidence.talks_after_result: only talks after a run that went well
evidence.talks_without: only talks before anything was run
evidence.acts_after_failure: acts after a run that failed
evidence.failed_before: runs before it that failed
evidence.worked_before: runs before it that went well
evidence.seen: length of what came back before it
evidence.gives_up: only talks after a failure, and nothing is run any more
evidence.gives_up_at_once: the same right after acting
evidence.runs_left: runs from it on
evidence.acts_left: acts from it on
evidence.last_act: the last act of the run
evidence.last_run_fails: the last run, and it fails
evidence.all_failed: every run of the run failed
evidence.first_talk_after_run: the first step that only talks after something was run
evidence.ends_after_failure: ends the run after a failure
evidence.ends_without: ends the run though nothing went well
claim.numbers: numbers in prose that no result, task or brief gave
claim.number_share: their share of its numbers
claim.new_numbers: those that occur for the first time
claim.final_numbers: those that reach the end
claim.names: names that no result, task or brief gave
claim.new_names: those that occur for the first time
claim.made: claims numbers or a list without acting
claim.first: the first such claim
claim.before: such claims before it
flow.numbers: numbers in it
flow.new_numbers: numbers that first appear here
flow.unsourced: numbers that no result, task or brief gave
flow.new_unsourced: those that first appear here
flow.new_used_later: numbers that first appear here and occur again
flow.numbers_to_end: numbers that first appear here and reach the end
flow.numbers_to_end_share: their share of the numbers at the end
flow.final_numbers: share of the numbers at the end that it has
flow.names_to_end: names that first appear here and reach the end
flow.names_to_end_share: their share of the names at the end
flow.new_names: names that first appear here
flow.new_words: share of its words that are new
flow.new_words_count: words that are new
flow.from_executor: share of its numbers that the executor just reported
flow.to_executor: share of its numbers that the executor reports next
final.first_said: weight of the last texts' words it says first
final.first_seen: weight of them that its result has first
final.first_both: both together
final.is_final: is one of the last texts
final.first_said_before: final.first_said, unless it is one of the last texts
final.said_so_far: weight of them said before it
final.said_most: nobody says more of them first
final.said_after_failure: final.first_said of a step that only talks after a failure
final.said_without: final.first_said of a step that only talks before anything was run
final.holds: share of them that it has
similar.task: share of the task's words that it has
similar.previous: similarity to the previous candidate
similar.next: similarity to the next candidate
similar.own_previous: similarity to its agent's previous turn
similar.any_before: greatest similarity to one of eight candidates before
similar.any_after: greatest similarity to one of eight candidates after
similar.last: similarity to the last candidate
similar.from_previous: share of its words that the step before has
correction.next: words of correcting in the two next candidates, at most
correction.next_failure: words of failure in the two next candidates, at most
correction.before: steps before it that correct
correction.first: the first step that corrects
correction.first_corrected: the next candidate is the first that corrects
correction.named: a later step of another agent names its agent and corrects
ledger.own: keeps flags itself
ledger.after_stalls: the next flags say that there is no progress; -1 if they say there is
ledger.after_loops: the next flags say that the run loops; -1 if they deny it
ledger.after_satisfied: the next flags say that the task is done; -1 if they deny it
ledger.before_stalls: the flags before it say that there is no progress
ledger.before_loops: the flags before it say that the run loops
ledger.before_satisfied: the flags before it say that the task is done
ledger.here_stalls: its own flags say that there is no progress
ledger.here_loops: its own flags say that the run loops
ledger.here_satisfied: its own flags say that the task is done
ledger.to_stall: sets of flags until one says that the run stalls or loops; 20 if none does
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


def select_columns(*groups: str, without: bool = False) -> list[int]:
    """Return the columns of the named groups, or of all others."""
    return [COLUMN_BY_NAME[f.name] for f in FEATURES if (f.group in groups) is not without]


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
