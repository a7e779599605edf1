"""Closed vocabulary of behaviour: traits of a step, each with its sentence and its features.

A trait has a weight in [0, 1] and describes one of three parts: the step itself, the steps after it, or the
steps before it. Positions are ordinals or thirds. The bounds of a feature are its values for the weights 0
and 1. They were chosen from the distribution of the features, not from labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from agentguard.judge.embedded.features.lexicon import WORD_CLASSES


class TraitPart(StrEnum):
    """Part of the run that a trait describes."""

    SELF = "self"
    AFTER = "after"
    BEFORE = "before"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraitBound:
    """Feature with its values for the weights 0 and 1; ``one_at`` may be the lower value."""

    feature: str
    zero_at: float
    one_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trait:
    """Trait; its weight is the minimum of the weights of its bounds."""

    name: str
    part: TraitPart
    sentence: str
    bounds: tuple[TraitBound, ...]


# Stored schemata and their vectors contain the sentences; the figures in docs/schemata.md depend on them.
_STEP_TRAITS: Final = """
role:worker | A worker speaks. | role.worker
role:steering | The steering role speaks. | role.orchestrator
role:opens | It hands on the task. | role.brief
role:after_brief | It comes right after the task was handed on. | role.after_brief
role:new_speaker | Its speaker speaks for the first time. | role.new_agent
role:same_speaker | The same speaker goes on. | structure.same_before
role:main_speaker | Its speaker makes most of the steps. | role.share 0.5 0.7
place:first | Nothing that counts comes before it. | position.first
place:early | It comes in the first third. | position.fraction 0.37 0.3
place:middle | It comes in the middle. | position.fraction 0.3 0.37 & position.fraction 0.7 0.63
place:late | It comes in the last third. | position.fraction 0.63 0.7
place:first_turn | It is the first worker's turn. | layout.first_turn
place:second_turn | It is the second worker's turn. | layout.second_turn
place:last_turn | It is the last worker's turn. | layout.last_turn
place:early_turn | It is among the first workers' turns. | layout.early 0.1 0.6
place:late_turn | It is among the last workers' turns. | layout.late 0.1 0.6
place:steers_early | It steers before much work was done. | layout.directs_early 0.1 0.6
place:steers_late | It steers when most of the work is done. | layout.directs_late 0.1 0.6
form:code | It brings code. | form.code
form:call | It calls a tool. | form.calls
form:several_calls | It calls several tools at once. | form.calls 1 3
form:changes | It calls a tool that changes something. | form.changes
form:short | It is much shorter than the other steps. | form.relative_length 0.6 0.3
form:long | It is much longer than the other steps. | form.relative_length 1.3 2
form:lists | It lists many items. | form.items 1 2.4
form:asks | It ends with a question. | form.asks
form:ends | It declares the end. | form.ends
form:says_trouble | It speaks of an error itself. | outcome.speaks_of_trouble 0 1
script:stand_ins | Its code holds placeholders or examples. | code.stand_ins 0 2
script:literals | Values are written straight into its code. | form.literals 0 1.4
script:unsourced | Its code holds numbers that nothing gave. | code.unsourced_numbers 0 1
script:catches | Its code catches exceptions. | code.catches
script:functions | Its code defines functions. | code.functions
script:reaches_out | Its code reaches for an address outside. | code.http
script:searches | Its code searches. | code.searches
script:reads | Its code reads a file. | code.reads
script:again | Its code is much like earlier code. | code.like_earlier 0.3 0.7
act:first_run | It is the first that is executed. | evidence.first_run
act:first_act | It is the first that acts. | evidence.first_act
act:first_work | It is the first that brings anything. | evidence.first_work
act:idle | It brings no action, number or list. | evidence.idle
act:after_failure | It acts after an action that failed. | evidence.acts_after_failure
act:last | It is the last that acts. | evidence.last_act
talk:after_failure | It only talks after an action that failed. | evidence.talks_after_failure
talk:after_result | It only talks after an action that went well. | evidence.talks_after_result
talk:without | It only talks before anything was run. | evidence.talks_without
talk:first_after_run | It is the first to only talk after a run. | evidence.first_talk_after_run
talk:gives_up | It only talks after a failure, and nothing is run any more. | evidence.gives_up
talk:gives_up_at_once | It gives up right after the failure. | evidence.gives_up_at_once
talk:ends_after_failure | It ends the work after a failure. | evidence.ends_after_failure
talk:ends_without | It ends the work though nothing went well. | evidence.ends_without
claim:made | It states facts without acting. | claim.made
claim:first | It is the first to state facts without acting. | claim.first
claim:numbers | It states numbers that nothing gave. | claim.new_numbers 0 1.4
claim:most_numbers | Most of its numbers were given by nothing. | claim.number_share 0.4 0.8
claim:names | It brings many names that nothing gave. | claim.new_names 1.5 3
flow:new_words | Most of what it says is new. | flow.new_words 0.45 0.75
flow:nothing_new | It says next to nothing new. | flow.new_words 0.3 0.1
flow:reports | Its numbers are those that were just reported. | flow.from_executor 0.2 0.8
like:task | It repeats most of the task. | similar.task 0.6 0.95
like:previous | It is much like the step before. | similar.previous 0.2 0.4
like:own_previous | It is much like its speaker's last turn. | similar.own_previous 0.2 0.45
like:earlier | It is much like an earlier step. | similar.any_before 0.25 0.5
like:copies | It mostly copies the step before. | similar.from_previous 0.4 0.8
mend:first | It is the first that corrects something. | correction.first
ledger:own | It keeps flags on the progress. | ledger.own
ledger:stalls | Its flags say that there is no progress. | ledger.here_stalls
ledger:loops | Its flags say that the work goes round in a loop. | ledger.here_loops
ledger:satisfied | Its flags say that the task is done. | ledger.here_satisfied
brief:code | The task is handed on with code. | brief.code
brief:runs | The task is handed on and executed at once. | brief.runs
brief:numbers | It hands on numbers that the task does not give. | brief.numbers 0 1
brief:strays | It hands on a task of its own wording. | role.brief & brief.repeats_task 0.95 0.75
brief:trouble | It hands on errors of an earlier try. | brief.failure 0 1
wording:first_to_assume | It is the first that assumes something. | wording.first_to_assume
"""

_NEXT_STEP_TRAITS: Final = """
after:executed | What it handed over is executed next. | structure.before_executor
after:failed | What came back shows an error. | outcome.failed
after:fine | What came back shows no error. | outcome.fine
after:empty | Next to nothing came back. | outcome.empty
after:nothing_ran | There was nothing to run. | outcome.nothing_ran
after:not_run | Its code was never run. | code.not_run
after:first_error | The first error of the run comes of it. | outcome.first_error
after:last_error | The last error of the run comes of it. | outcome.last_error
after:error_near | An error follows soon. | outcome.to_error 5 2
after:errors_left | Several errors are still to come. | outcome.errors_left 1 3
after:last_run_fails | It is the last that is run, and it fails. | evidence.last_run_fails
after:steered | The steering role speaks next. | structure.before_orchestrator
after:worker | A worker speaks next. | structure.before_worker
after:user | A user speaks next. | structure.before_user
after:same | The same speaker goes on after it. | structure.same_after
after:end | Nothing follows. | structure.at_end
after:names_next | It names who speaks next. | structure.names_next
after:code | The next step brings code. | form.next_code
after:ends | The next step declares the end. | form.next_ends
after:mended | A step soon after it corrects something. | correction.next 0 2
after:trouble | A step soon after it speaks of failure. | correction.next_failure 0 3
after:first_mended | The next step is the first that corrects something. | correction.first_corrected
after:blamed | A later step names its speaker and corrects. | correction.named
after:code_again | Later code is much like its code. | code.like_later 0.3 0.7
after:like_next | The next step is much like it. | similar.next 0.2 0.4
after:like_later | A later step is much like it. | similar.any_after 0.25 0.5
after:like_last | The last step is much like it. | similar.last 0.15 0.35
after:number_used | Numbers that first appear here are used again. | flow.new_used_later 0 1.1
after:number_to_end | A number that first appears here reaches the end. | flow.numbers_to_end 0 0.7
after:unsourced_to_end | A number that nothing gave reaches the end from here. | claim.final_numbers 0 0.7
after:names_to_end | Names that first appear here reach the end. | flow.names_to_end 0.7 2
after:executor_repeats | What is executed next reports its numbers. | flow.to_executor 0.2 0.8
after:first_said | Much of the ending was first said here. | final.first_said_before 0.05 0.25
after:first_seen | Much of the ending first came back from it. | final.first_seen 0.02 0.12
after:said_most | Nothing says more of the ending first. | final.said_most
after:said_after_failure | It first says part of the ending after a failure. | final.said_after_failure 0 0.2
after:said_without | It first says part of the ending before any run. | final.said_without 0.03 0.25
after:is_final | It is one of the last texts. | final.is_final
after:ending_held | It holds most of the ending. | final.holds 0.4 0.8
after:stalls | The next flags say that there is no progress. | ledger.after_stalls
after:loops | The next flags say that the work goes round in a loop. | ledger.after_loops
after:satisfied | The next flags say that the task is done. | ledger.after_satisfied
after:progress | The next flags say that there is progress. | ledger.after_stalls 0 -1
after:to_stall | The flags turn bad soon after it. | ledger.to_stall 6 2
after:cut | The run breaks off without an ending. | structure.answered 1 0
after:more_runs | Much is still run after it. | evidence.runs_left 2 5
"""

_PREVIOUS_STEP_TRAITS: Final = """
before:executed | What was executed reports just before. | structure.after_executor
before:steered | The steering role speaks just before. | structure.after_orchestrator
before:worker | A worker speaks just before. | structure.after_worker
before:user | A user speaks just before. | structure.after_user
before:failed | What came back just before shows an error. | outcome.after_failed
before:fine | What came back just before shows no error. | outcome.after_fine
before:errors | Several errors came before. | outcome.errors_before 1 3
before:no_error | No error came before. | outcome.errors_before 1 0
before:error_near | An error came shortly before. | outcome.since_error 6 2
before:run_failed | Several actions had failed before. | evidence.failed_before 0 2
before:run_well | Actions had gone well before. | evidence.worked_before 0 1
before:nothing_run | Nothing had been run before. | evidence.failed_before 1 0 & evidence.worked_before 1 0
before:seen | Much had come back before. | evidence.seen 4 7
before:all_failed | Whatever was run in this run failed. | evidence.all_failed
before:no_errors_at_all | The run shows no error anywhere. | outcome.any_error 1 0
before:idle | Several steps before it brought nothing. | evidence.idle_before 1 4
before:claims | Facts were stated without acting before. | claim.before 0 2
before:assumed | Something was assumed before. | wording.assumed_before 0 2
before:mended | Steps before it corrected something. | correction.before 0 2
before:code | The step before brings code. | form.previous_code
before:ending_said | Most of the ending had been said before. | final.said_so_far 0.5 0.9
before:stalls | The flags before it say that there is no progress. | ledger.before_stalls
before:loops | The flags before it say that the work goes round in a loop. | ledger.before_loops
before:satisfied | The flags before it say that the task is done. | ledger.before_satisfied
before:progress | The flags before it say that there is progress. | ledger.before_stalls 0 -1
before:brief_strays | The task was handed on in other words. | brief.run_alignment 0.95 0.7
before:brief_code | The task came with code. | brief.run_has_code
before:brief_ran | The task was executed as soon as it was handed on. | brief.run_ran
run:steered | One role hands out the work. | role.orchestrated
run:short | The run is short. | position.candidates 12 6
run:long | The run is long. | position.candidates 20 50
before:stretch | No other worker has spoken for long. | layout.stretch 4 15
"""

_INFORMATIVE_CLASSES: Final = frozenset({
    "assume", "hedge", "failure", "correct", "verify", "conclude", "manual", "promise", "again", "neg",
})  # fmt: skip
"""Word classes that are informative in a neighbouring step."""

_EXCLUDED_CLASSES: Final = frozenset({"self", "we", "now", "refer", "oblige", "request", "begin"})
"""Word classes that occur in every text and carry no information."""

_WORD_CLASS_TRAITS: Final = (
    (
        TraitPart.SELF,
        "wording",
        "rate",
        "It uses words of {}.",
        frozenset(name for name, _ in WORD_CLASSES) - _EXCLUDED_CLASSES,
    ),
    (TraitPart.AFTER, "next_wording", "next", "The next step uses words of {}.", _INFORMATIVE_CLASSES),
    (
        TraitPart.BEFORE,
        "previous_wording",
        "previous",
        "The step before uses words of {}.",
        _INFORMATIVE_CLASSES,
    ),
)
_SATURATION_RATES: Final = {
    "plan": 2.0, "act": 1.6, "verify": 1.6, "source": 1.8, "conclude": 1.4, "analyse": 1.2, "found": 1.0,
}  # fmt: skip
_DEFAULT_SATURATION_RATE: Final = 0.6
"""Words of a class per thirty words for the weight 1; higher for classes that every text uses."""


def _parse_table(part: TraitPart, table: str) -> list[Trait]:
    traits = []
    for line in table.strip().splitlines():
        name, sentence, bounds = (cell.strip() for cell in line.split(" | "))
        parsed = tuple(_parse_bound(bound.split()) for bound in bounds.split("&"))
        traits.append(Trait(name=name, part=part, sentence=sentence, bounds=parsed))
    return traits


def _parse_bound(cells: list[str]) -> TraitBound:
    zero_at, one_at = (float(cells[1]), float(cells[2])) if len(cells) == 3 else (0.0, 1.0)
    return TraitBound(feature=cells[0], zero_at=zero_at, one_at=one_at)


def _build_word_class_traits() -> list[Trait]:
    return [
        Trait(
            name=f"{prefix}:{name}",
            part=part,
            sentence=sentence.format(about),
            bounds=(
                TraitBound(
                    feature=f"{group}.{name}",
                    zero_at=0.0,
                    one_at=_SATURATION_RATES.get(name, _DEFAULT_SATURATION_RATE),
                ),
            ),
        )
        for part, prefix, group, sentence, class_names in _WORD_CLASS_TRAITS
        for name, about in WORD_CLASSES
        if name in class_names
    ]


TRAITS: Final = (
    *_parse_table(TraitPart.SELF, _STEP_TRAITS),
    *_parse_table(TraitPart.AFTER, _NEXT_STEP_TRAITS),
    *_parse_table(TraitPart.BEFORE, _PREVIOUS_STEP_TRAITS),
    *_build_word_class_traits(),
)
"""All traits from features; `agentguard.schemata.profiles.finding_traits` has those of findings."""

_POSITION_PREFIXES: Final = ("place:", "role:", "run:", "before:brief")
_NEIGHBOUR_ROLES: Final = ("steered", "worker", "user", "executed", "same")
_NEIGHBOUR_TRAITS: Final = frozenset(
    f"{side}:{who}" for side in ("before", "after") for who in _NEIGHBOUR_ROLES
)


def is_positional(trait: str) -> bool:
    """Return whether a trait describes only the position of a step and its neighbours, not a failure."""
    return trait.startswith(_POSITION_PREFIXES) or trait in _NEIGHBOUR_TRAITS
