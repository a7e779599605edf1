"""Features of what happened: outcomes, evidence, where values come from and go, corrections, flags."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from agentguard.judge.features.layout import Layout, Role
from agentguard.judge.features.lexicon import AT
from agentguard.judge.features.scan import Scan
from agentguard.judge.features.walk import Walk, Whole, covered, idles, neighbours, overlap

_FAR = 20.0
_NEAR = 8
_CORRECT, _FAILURE = AT["correct"], AT["failure"]


def tracing(held: Layout, facts: Whole, walk: Walk, index: int) -> dict[str, float]:
    """Outcome, evidence, data flow, similarity, correction and ledger of one candidate."""
    out = _outcome(held, facts, walk, index)
    out |= _brief(held, facts, index)
    out |= _evidence(held, facts, walk, index)
    out |= _claims(held, facts, walk, index)
    out |= _flow(held, facts, walk, index)
    out |= _final(held, facts, walk, index)
    out |= _similar(held, facts, walk, index)
    out |= _corrected(held, walk, index)
    out |= _ledger(held, walk, index)
    return out


def _outcome(held: Layout, facts: Whole, walk: Walk, index: int) -> dict[str, float]:
    result, errors, bad = held.outcome(index), facts.errors, facts.bad
    before, ahead = index - 1, bisect_left(errors, index)
    failed = result is not None and result.trouble > 0
    came = index > 0 and (held.roles[before] is Role.EXECUTOR or held.seen[before] is not None)
    return {
        "outcome.failed": failed,
        "outcome.nothing_ran": result is not None and result.idle,
        "outcome.fine": result is not None and not failed and not result.idle,
        "outcome.empty": result is not None and result.length < 60 and not result.idle,
        "outcome.length": math.log1p(result.length) if result is not None else 0.0,
        "outcome.after_failed": index > 0 and bad[before],
        "outcome.after_fine": came and not bad[before] and not held.said[before].idle,
        "outcome.errors_before": walk.errors,
        "outcome.errors_left": len(errors) - bisect_right(errors, index),
        "outcome.first_error": bool(errors) and errors[0] in (index, index + 1),
        "outcome.last_error": bool(errors) and errors[-1] in (index, index + 1),
        "outcome.speaks_of_trouble": math.log1p(held.said[index].trouble),
        "outcome.since_error": min(_FAR, index - walk.last_error) if walk.last_error is not None else _FAR,
        "outcome.to_error": min(_FAR, errors[ahead] - index) if ahead < len(errors) else _FAR,
        "outcome.any_error": bool(errors),
    }


def _brief(held: Layout, facts: Whole, index: int) -> dict[str, float]:
    one, here = held.said[index], index in held.brief
    twice, thrice = facts.brief_repeats.get(index, (-1.0, -1.0))
    return {
        "brief.repeats_task": twice,
        "brief.repeats_task_more": thrice,
        "brief.run_alignment": facts.alignment,
        "brief.code": here and one.has_code,
        "brief.runs": here and held.ran(index),
        "brief.length": math.log1p(one.length) if here else 0.0,
        "brief.run_has_code": any(held.said[i].has_code for i in held.brief),
        "brief.run_ran": any(held.ran(i) for i in held.brief),
        "brief.numbers": math.log1p(len(one.numbers - facts.task_numbers)) if here else 0.0,
        "brief.failure": math.log1p(one.trouble + one.counts[_FAILURE]) if here else 0.0,
    }


def _evidence(held: Layout, facts: Whole, walk: Walk, index: int) -> dict[str, float]:
    place, acts, ran = held.place[index], held.acts(index), held.ran(index)
    runs_left, acts_left = facts.left[index]
    idle, briefed = idles(held, facts, index), index in held.brief
    gives_up = not acts and walk.last_outcome < 0 and runs_left == 0
    earlier = held.candidates[place - 1] if place else None
    return {
        "evidence.act_ordinal": walk.acted if acts else -1.0,
        "evidence.runs": ran,
        "evidence.run_ordinal": walk.ran if ran else -1.0,
        "evidence.first_run": ran and walk.ran == 0,
        "evidence.first_act": acts and walk.acted == 0 and not briefed,
        "evidence.idle": idle,
        "evidence.work_ordinal": walk.substantial if not idle else -1.0,
        "evidence.first_work": not idle and walk.substantial == 0 and not briefed,
        "evidence.idle_before": place - walk.substantial,
        "evidence.last_outcome": walk.last_outcome,
        "evidence.talks_after_failure": not acts and walk.last_outcome < 0,
        "evidence.talks_after_result": not acts and walk.last_outcome > 0,
        "evidence.talks_without": not acts and walk.ran == 0 and not briefed,
        "evidence.acts_after_failure": acts and walk.last_outcome < 0,
        "evidence.failed_before": walk.ran_badly,
        "evidence.worked_before": walk.ran_well,
        "evidence.seen": math.log1p(walk.evidence),
        "evidence.gives_up": gives_up,
        "evidence.gives_up_at_once": gives_up and earlier is not None and held.acts(earlier),
        "evidence.runs_left": runs_left,
        "evidence.acts_left": acts_left,
        "evidence.last_act": acts and acts_left == 1,
        "evidence.last_run_fails": ran and runs_left == 1 and _bad_after(facts, index),
        "evidence.all_failed": facts.all_failed,
        "evidence.first_talk_after_run": not acts and walk.ran > 0 and walk.spoke_after_run == 0,
        "evidence.ends_after_failure": held.said[index].ends and walk.last_outcome < 0,
        "evidence.ends_without": held.said[index].ends and walk.ran_well == 0,
    }


def _bad_after(facts: Whole, index: int) -> bool:
    after = index + 1
    return facts.bad[index] or (after < len(facts.bad) and facts.bad[after])


def _claims(held: Layout, facts: Whole, walk: Walk, index: int) -> dict[str, float]:
    """Numbers and names that nothing seen so far has: said in prose, without a source."""
    one, acts, briefed = held.said[index], held.acts(index), index in held.brief
    numbers = one.prose_numbers - facts.task_numbers
    unsourced = numbers - walk.env_numbers
    fresh = unsourced - walk.numbers
    names = one.names - walk.env_names - facts.task_names
    claims = not acts and not briefed and (bool(fresh) or one.items >= 3)
    out = {
        "claim.numbers": math.log1p(len(unsourced)) if not acts else 0.0,
        "claim.number_share": len(unsourced) / (1 + len(numbers)),
        "claim.new_numbers": math.log1p(len(fresh)) if not briefed else 0.0,
        "claim.final_numbers": math.log1p(len(fresh & facts.final_numbers)) if not briefed else 0.0,
        "claim.names": math.log1p(len(names)),
        "claim.new_names": math.log1p(len(names - walk.names)),
        "claim.made": claims,
        "claim.first": claims and walk.claims == 0,
        "claim.before": walk.claims,
    }
    walk.claims += claims
    return out


def _flow(held: Layout, facts: Whole, walk: Walk, index: int) -> dict[str, float]:
    """What first appears here, and whether it reaches later steps and the end."""
    one = held.said[index]
    new = one.numbers - walk.numbers
    reach = new & facts.final_numbers
    names = (one.names - walk.names) & facts.final_names
    before, after = index - 1, index + 1
    executed = after < len(held.roles) and held.roles[after] is Role.EXECUTOR
    reported = index > 0 and held.roles[before] is Role.EXECUTOR
    fresh = one.vocabulary - walk.words
    return {
        "flow.numbers": math.log1p(len(one.numbers)),
        "flow.new_numbers": math.log1p(len(new)),
        "flow.unsourced": math.log1p(len(one.numbers - walk.env_numbers)),
        "flow.new_unsourced": math.log1p(len(new - walk.env_numbers)),
        "flow.new_used_later": math.log1p(sum(facts.last_at[number] > index for number in new)),
        "flow.numbers_to_end": math.log1p(len(reach)),
        "flow.numbers_to_end_share": len(reach) / (1 + len(facts.final_numbers)),
        "flow.final_numbers": len(one.numbers & facts.final_numbers) / (1 + len(facts.final_numbers)),
        "flow.names_to_end": math.log1p(len(names)),
        "flow.names_to_end_share": len(names) / (1 + len(facts.final_names - facts.task_names)),
        "flow.new_names": math.log1p(len(one.names - walk.names)),
        "flow.new_words": len(fresh) / (1 + len(one.vocabulary)),
        "flow.new_words_count": math.log1p(len(fresh)),
        "flow.from_executor": covered(one.numbers, held.said[before].numbers) if reported else 0.0,
        "flow.to_executor": covered(one.numbers, held.said[after].numbers) if executed else 0.0,
    }


def _final(held: Layout, facts: Whole, walk: Walk, index: int) -> dict[str, float]:
    """How much of what the last texts say, beyond task and brief, was first said here."""
    one, first, total = held.said[index], facts.first_said, facts.first_said_total
    mine = first.get(index, 0.0)
    after = index + 1
    executed = after < len(held.roles) and held.roles[after] is Role.EXECUTOR
    via = first.get(after, 0.0) if executed else 0.0
    acts = held.acts(index)
    tokens = one.vocabulary | one.numbers | one.names
    return {
        "final.first_said": mine / total,
        "final.first_seen": via / total,
        "final.first_both": (mine + via) / total,
        "final.is_final": index in facts.final,
        "final.first_said_before": 0.0 if index in facts.final else mine / total,
        "final.said_so_far": facts.said_before[index] / total,
        "final.said_most": mine > 0 and mine >= facts.said_most,
        "final.said_after_failure": mine / total if not acts and walk.last_outcome < 0 else 0.0,
        "final.said_without": mine / total if not acts and walk.ran == 0 else 0.0,
        "final.holds": len(tokens & facts.final_words) / (1 + len(facts.final_words)),
    }


def _similar(held: Layout, facts: Whole, walk: Walk, index: int) -> dict[str, float]:  # noqa: ARG001
    place, candidates = held.place[index], held.candidates
    mine, said = held.said[index].vocabulary, held.said
    after = candidates[place + 1 : place + 1 + _NEAR]
    turns, own = walk.turns.get(held.run.steps[index].agent, (0, frozenset()))
    return {
        "similar.task": covered(held.task_words, mine),
        "similar.previous": overlap(mine, said[candidates[place - 1]].vocabulary) if place else 0.0,
        "similar.next": overlap(mine, said[after[0]].vocabulary) if after else 0.0,
        "similar.own_previous": overlap(mine, own) if turns else 0.0,
        "similar.any_before": max(
            (overlap(mine, said[i].vocabulary) for i in neighbours(candidates, place, _NEAR)), default=0.0
        ),
        "similar.any_after": max((overlap(mine, said[i].vocabulary) for i in after), default=0.0),
        "similar.last": overlap(mine, said[candidates[-1]].vocabulary) if after else 0.0,
        "similar.from_previous": covered(mine, said[index - 1].vocabulary) if index else 0.0,
    }


def _corrected(held: Layout, walk: Walk, index: int) -> dict[str, float]:
    place, candidates, said, steps = held.place[index], held.candidates, held.said, held.run.steps
    after = candidates[place + 1 : place + 3]
    mine = said[index].counts[_CORRECT] > 0
    agent = steps[index].agent
    low = agent.lower()
    named = any(
        said[i].counts[_CORRECT] > 0 and steps[i].agent != agent and low in said[i].low
        for i in candidates[place + 1 : place + 1 + 3 * _NEAR]
    )
    first_after = bool(after) and said[after[0]].counts[_CORRECT] > 0
    return {
        "correction.next": max((said[i].counts[_CORRECT] for i in after), default=0),
        "correction.next_failure": max((said[i].counts[_FAILURE] for i in after), default=0),
        "correction.before": walk.corrected,
        "correction.first": mine and walk.corrected == 0,
        "correction.first_corrected": first_after and not mine and walk.corrected == 0,
        "correction.named": named,
    }


_ASKED = (("stalls", "progress", False), ("loops", "loop", True), ("satisfied", "satisf", True))


def _ledger(held: Layout, walk: Walk, index: int) -> dict[str, float]:
    """Flags an agent keeps about progress, loops and completion, before, in and after the step."""
    said = held.said
    nearby: Sequence[Scan] = said[index + 1 : index + 3]
    after: Mapping[str, bool] = next((one.flags for one in nearby if one.flags), {})
    out: dict[str, float] = {"ledger.own": bool(said[index].flags)}
    for where, flags in (("after", after), ("before", walk.flags), ("here", said[index].flags)):
        for name, key, wanted in _ASKED:
            out[f"ledger.{where}_{name}"] = _flagged(flags, key, wanted)
    out["ledger.to_stall"] = _to_stall(said, index)
    return out


def _flagged(flags: Mapping[str, bool], key: str, wanted: bool) -> float:
    """1 if the flag says so, -1 if it says the opposite, 0 if there is none."""
    for name, value in flags.items():
        if key in name:
            return 1.0 if value is wanted else -1.0
    return 0.0


def _to_stall(said: Sequence[Scan], index: int) -> float:
    """Ledgers after the step until one says that the run stalls or loops."""
    passed = 0
    for one in said[index + 1 : index + 60]:
        if one.flags:
            if _flagged(one.flags, "progress", False) > 0 or _flagged(one.flags, "loop", True) > 0:
                return passed
            passed += 1
    return _FAR
