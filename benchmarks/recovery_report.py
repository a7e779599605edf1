"""Figures of `recovery.py`, from the result of each game under each procedure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from recovery_arms import ARMS, Attempted

from agentguard.evals.statistics import compare_paired, wilson_interval

ATTEMPTS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0)
BUDGET = 2.0
PEER, PEER_AT = "agentdebug", 5.0
"""Target: the success of AgentDebug's procedure after five attempts in the same games, at the cost of two."""


@dataclass(frozen=True)
class Outcome:
    """One game: the length of an attempt, and the result under each procedure."""

    unit: int
    group: str
    difficulty: str
    results: dict[str, Attempted]

    def won(self, arm: str, attempts: float) -> bool:
        found = self.results[arm]
        return found.won and found.turns <= attempts * self.unit


def report(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return all figures of one assumption; shares are fractions."""
    count = len(outcomes)
    curve = {arm: {f"{a:g}": _share(o.won(arm, a) for o in outcomes) for a in ATTEMPTS} for arm in ARMS}
    success = {arm: curve[arm][f"{BUDGET:g}"] for arm in ARMS}
    passed = [o for o in outcomes if o.results["none"].won]
    lost = sum(not o.won("agentguard", BUDGET) for o in passed)
    ours = [o.results["agentguard"] for o in outcomes]
    peer = [o.results[PEER] for o in outcomes]
    others = [arm for arm in ARMS if arm != "agentguard"]
    return {
        "games": count,
        "success": success,
        "interval": {arm: [round(x, 4) for x in wilson_interval(success[arm], count)] for arm in ARMS},
        "curve": curve,
        "gain_over": {arm: _gain(outcomes, arm, BUDGET) for arm in others},
        "mark": {"peer": PEER, "peer_at": PEER_AT, "ours_at": BUDGET, **_gain(outcomes, PEER, PEER_AT)},
        "false_alarm_loss": round(lost / count, 4),
        "false_alarm_loss_of_passed": round(lost / len(passed), 4) if passed else None,
        "disturbed": _share(o.results["agentguard"].online > 0 for o in passed),
        "hit_rate": _ratio(sum(r.hit for r in ours), sum(r.aimed for r in ours)),
        "reach_rate": _ratio(sum(r.reached for r in ours), sum(r.aimed for r in ours)),
        f"hit_rate_{PEER}": _ratio(sum(r.hit for r in peer), sum(r.aimed for r in peer)),
        f"reach_rate_{PEER}": _ratio(sum(r.reached for r in peer), sum(r.aimed for r in peer)),
        "calls": {arm: _mean(o.results[arm].calls for o in outcomes) for arm in ARMS},
        "steps": {arm: _mean(o.results[arm].steps for o in outcomes) for arm in ARMS},
        "wasted_turns": {arm: _mean(o.results[arm].wasted for o in outcomes) for arm in ARMS},
        "by_difficulty": _by_difficulty(outcomes),
        "triggers": dict(Counter(t for r in ours for t in r.triggers).most_common()),
    }


def show(name: str, found: dict[str, Any]) -> None:
    """Print the figures of one assumption as text."""
    print(f"\n{name}: {found['games']} games, success at the cost of so many attempts")
    print(f"{'':14}" + "".join(f"{a:>7g}" for a in ATTEMPTS) + "   95 % at 2      calls   steps  wasted")
    for arm in ARMS:
        row = "".join(f"{found['curve'][arm][f'{a:g}']:7.3f}" for a in ATTEMPTS)
        low, high = found["interval"][arm]
        spent = "".join(f"{found[what][arm]:8.1f}" for what in ("calls", "steps", "wasted_turns"))
        print(f"{arm:14}{row}   [{low:.3f}, {high:.3f}]{spent}")
    gain = ", ".join(f"{arm} {_signed(d)}" for arm, d in found["gain_over"].items())
    print(f"agentguard against, at the cost of 2 attempts: {gain}")
    print(f"the mark: agentguard at the cost of 2 against {PEER} at that of 5: {_signed(found['mark'])}")
    print(
        f"games lost that pass unguarded: {found['false_alarm_loss']:.4f} of all; passing runs that were "
        f"acted on: {found['disturbed']:.3f}"
    )
    print(
        f"rollbacks to an injected step: {found['hit_rate']} ({PEER} {found[f'hit_rate_{PEER}']}); to it or "
        f"before one: {found['reach_rate']} ({PEER} {found[f'reach_rate_{PEER}']})"
    )
    for level, shares in found["by_difficulty"].items():
        print(f"{level}: " + ", ".join(f"{arm} {share:.3f}" for arm, share in shares.items()))
    print("set off by: " + ", ".join(f"{name} {count}" for name, count in found["triggers"].items()))


def _gain(outcomes: Sequence[Outcome], arm: str, at: float) -> dict[str, Any]:
    """Return the gain of agentguard at the budget over another procedure at its own, in the same games."""
    gap = compare_paired(
        [float(o.won("agentguard", BUDGET)) for o in outcomes],
        [float(o.won(arm, at)) for o in outcomes],
        [o.group for o in outcomes],
    )
    return {"mean": round(gap.mean, 4), "interval": [round(gap.low, 4), round(gap.high, 4)]}


def _by_difficulty(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    levels = dict.fromkeys(o.difficulty for o in outcomes)
    held = {level: [o for o in outcomes if o.difficulty == level] for level in levels}
    return {
        level: {arm: _share(o.won(arm, BUDGET) for o in some) for arm in ARMS} for level, some in held.items()
    }


def _signed(gap: dict[str, Any]) -> str:
    low, high = gap["interval"]
    return f"{gap['mean']:+.3f} [{low:+.3f}, {high:+.3f}]"


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _share(flags: Iterable[bool]) -> float:
    held = [bool(flag) for flag in flags]
    return round(sum(held) / len(held), 4) if held else 0.0


def _mean(values: Iterable[int]) -> float:
    held = list(values)
    return round(sum(held) / len(held), 2) if held else 0.0
