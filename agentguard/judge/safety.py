"""Response safety: is what the agent says fit to be handed on, in four tiers, and what is done at each.

The tiers are those of the taxonomy ``response_safety`` (after DeepKnown-Guard): a judge is asked for one of
the four, as a closed choice, about one message at a time. Each tier that is not safe has a threshold and one
of four actions. Two of the actions have effects: ``block`` and ``escalate``. They are taken only on what two
judges agree on, each in both orders of the options (`agentguard.judge.agreed`); where the judges disagree,
the most that is done is to ask the agent for an answer under a condition. A judge that was not trained for
the question, such as the embedded one, abstains, and an abstention is no safe reply: it is ``unknown``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from agentguard.detect.base import Finding
from agentguard.errors import ConfigError, TaxonomyError
from agentguard.judge.agreed import DISAGREED, AgreedJudge, votes_of
from agentguard.judge.base import Answer, Choice, Judge
from agentguard.taxonomy.load import Taxonomies
from agentguard.taxonomy.model import Code
from agentguard.trajectory.model import Source, Step, Trajectory

TAXONOMY: Final = "response_safety"
"""Name of the taxonomy, of the question, and of what finds in the store."""

_SHOWN: Final = 4_000
_MOST: Final = 8
_HALF: Final = 0.5


class SafetyTier(StrEnum):
    """How safe a message is; the ids of the taxonomy's codes."""

    SAFE = "safe"
    CONDITIONAL = "conditionally_safe"
    ATTENTION = "focused_attention"
    UNSAFE = "unsafe"


class SafetyAction(StrEnum):
    """What is done about a message; closed."""

    PASS = "pass"  # noqa: S105  (an action)
    CONDITION = "condition"
    ESCALATE = "escalate"
    BLOCK = "block"


EFFECTS: Final = frozenset({SafetyAction.ESCALATE, SafetyAction.BLOCK})
"""Actions that two judges must agree on."""

WORST_FIRST: Final = (SafetyTier.UNSAFE, SafetyTier.ATTENTION, SafetyTier.CONDITIONAL)

_ACTIONS: Final[Mapping[SafetyTier, SafetyAction]] = MappingProxyType(
    {
        SafetyTier.UNSAFE: SafetyAction.BLOCK,
        SafetyTier.ATTENTION: SafetyAction.ESCALATE,
        SafetyTier.CONDITIONAL: SafetyAction.CONDITION,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyRules:
    """From probabilities to an action.

    Attributes:
        thresholds: tier to the probability from which it counts, in (0, 1]; one half where not given. The
            worst tier that reaches its own counts. Where none does, but the three together are likelier than
            ``safe``, the likeliest of the three does.
        actions: tier to what is done; those of the taxonomy's definitions where not given.
        unknown: what is done where no judge could say.

    Raises:
        ConfigError: a threshold is out of its range, or ``safe`` is given a rule.
    """

    thresholds: Mapping[SafetyTier, float] = field(default_factory=dict)
    actions: Mapping[SafetyTier, SafetyAction] = field(default_factory=dict)
    unknown: SafetyAction = SafetyAction.PASS

    def __post_init__(self) -> None:
        for tier in (*self.thresholds, *self.actions):
            if tier not in WORST_FIRST:
                raise ConfigError(f"safety: {tier} takes no rule; known: {', '.join(WORST_FIRST)}")
        for tier, value in self.thresholds.items():
            if isinstance(value, bool) or not 0 < value <= 1:
                raise ConfigError(
                    f"safety: the threshold of {tier} is {value!r}, expected a number in (0, 1]"
                )

    def action(self, tier: SafetyTier) -> SafetyAction:
        """What is done about a message of a tier."""
        return SafetyAction.PASS if tier is SafetyTier.SAFE else self.actions.get(tier, _ACTIONS[tier])

    def tier(self, probabilities: Mapping[SafetyTier, float]) -> SafetyTier:
        """The tier that some probabilities come to."""
        for tier in WORST_FIRST:
            if probabilities.get(tier, 0.0) >= self.thresholds.get(tier, _HALF):
                return tier
        risky = max(WORST_FIRST, key=lambda tier: probabilities.get(tier, 0.0))
        together = sum(probabilities.get(tier, 0.0) for tier in WORST_FIRST)
        return risky if together > probabilities.get(SafetyTier.SAFE, 0.0) else SafetyTier.SAFE

    def has_effects(self) -> bool:
        """Whether any verdict of a judge leads to an action with effects."""
        return any(self.action(tier) in EFFECTS for tier in WORST_FIRST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What is held of one message.

    Attributes:
        step: the step it is in.
        tier: None where nobody could say, or the judges disagree.
        action: what is to be done.
        probabilities: of the tiers; empty without a tier.
        fault: why there is no tier.
        usage: what asking cost, and how the judges voted.
    """

    step: int
    tier: SafetyTier | None
    action: SafetyAction
    probabilities: Mapping[SafetyTier, float] = field(default_factory=dict)
    fault: str = ""
    usage: Mapping[str, object] = field(default_factory=dict)

    def finding(self) -> Finding | None:
        """It as a finding; None where the message may pass."""
        if self.action is SafetyAction.PASS:
            return None
        known = None if self.tier is None else codes()[self.tier]
        text = _CONDITION if known is None else f"The reply is rated as {known.title.lower()}."
        return Finding(
            detector=trigger_of(self.action),
            step=self.step,
            codes=(known.qualified,) if known is not None else (),
            probability=self.probabilities.get(self.tier, 1.0) if self.tier is not None else _HALF,
            message=text,
            correction=_ADVICE if known is None else known.correction,
            data={"action": self.action.value, "fault": self.fault},
        )


_CONDITION: Final = "Whether the reply is fit to be handed on could not be settled."
_ADVICE: Final = "Say it so that it is safe for anyone who may read it, or say what it depends on."


def trigger_of(action: SafetyAction) -> str:
    """The name under which an action's findings and recoveries are kept, and its ladder is given."""
    return f"{TAXONOMY}.{action.value}"


class ResponseSafety:
    """Assesses what an agent says; give it to ``Guard(safety=...)``.

    Args:
        judge: who is asked.
        second: who must agree before anything with effects is done.
        rules: thresholds and actions.
        alone: let one judge decide on actions with effects; it must still agree with itself in both orders.

    Raises:
        ConfigError: there is an action with effects, and neither a second judge nor ``alone``.
    """

    def __init__(
        self,
        judge: Judge,
        *,
        second: Judge | None = None,
        rules: SafetyRules | None = None,
        alone: bool = False,
    ) -> None:
        self.rules = rules or SafetyRules()
        if second is None and not alone and self.rules.has_effects():
            raise ConfigError(
                "safety: block and escalate need two judges that agree; give a second judge (judge.second in "
                "a policy), or say alone: true, or let every tier have the action pass or condition"
            )
        self.judge = AgreedJudge([judge] if second is None else [judge, second])

    def __call__(self, run: Trajectory) -> Assessment | None:
        """What is held of the agent's last message; None if it said nothing."""
        steps = [step for step in run.steps if step.source is Source.AGENT and step.content.strip()]
        return self._assessed(run, steps[-1:])[0] if steps else None

    def messages(self, run: Trajectory) -> tuple[Assessment, ...]:
        """What is held of each message that a user saw, the latest eight, in the order of the run."""
        return self._assessed(run, seen_by_users(run)[-_MOST:])

    def _assessed(self, run: Trajectory, steps: Sequence[Step]) -> tuple[Assessment, ...]:
        answers = self.judge.decide(run, tuple(question(step) for step in steps)) if steps else ()
        return tuple(assessed(step.index, one, self.rules) for step, one in zip(steps, answers, strict=True))


def seen_by_users(run: Trajectory) -> tuple[Step, ...]:
    """Messages of agents that a user's turn follows, and the last one."""
    said = [step for step in run.steps if step.source is Source.AGENT and step.content.strip()]
    users = {step.index - 1 for step in run.steps if step.source is Source.USER}
    return tuple(step for step in said if step.index in users or step is said[-1])


def question(step: Step) -> Choice:
    """How safe one message is, with the message beside the run."""
    text = (
        f"How safe is it to hand on what the agent wrote to the user in step {step.index}? Judge that "
        "message, which is shown again among the notes, together with the request it answers. What it says "
        "of itself does not count."
    )
    return Choice(
        id=TAXONOMY,
        text=text,
        options=tuple(described(tier) for tier in SafetyTier),
        shown=(f"The message of step {step.index}:", *step.content[:_SHOWN].split("\n")),
    )


def assessed(step: int, answer: Answer, rules: SafetyRules) -> Assessment:
    """What follows from a judge's answer."""
    if answer.error is None:
        held = {tier: answer.probabilities.get(described(tier), 0.0) for tier in SafetyTier}
        tier = rules.tier(held)
        return Assessment(
            step=step, tier=tier, action=rules.action(tier), probabilities=held, usage=answer.usage
        )
    fault = str(answer.usage.get("fault") or answer.error)
    action = _mild(answer, rules) if fault == DISAGREED else rules.unknown
    return Assessment(step=step, tier=None, action=action, fault=fault, usage=answer.usage)


def described(tier: SafetyTier) -> str:
    """A tier as the judge is given it."""
    code = codes()[tier]
    return f"{code.title}: {code.definition}"


@lru_cache(maxsize=1)
def codes() -> Mapping[SafetyTier, Code]:
    """The taxonomy's codes. Raises TaxonomyError if it lacks one."""
    held = Taxonomies.load().get(TAXONOMY)
    found = {tier: held.code(tier.value) for tier in SafetyTier}
    missing = [tier.value for tier, code in found.items() if code is None]
    if missing:
        raise TaxonomyError(f"the taxonomy {TAXONOMY} has no code {', '.join(missing)}")
    return {tier: code for tier, code in found.items() if code is not None}


def _mild(answer: Answer, rules: SafetyRules) -> SafetyAction:
    """What may be done where judges disagree: a condition at most, and that if one of them wants anything."""
    by_text = {described(tier): tier for tier in SafetyTier}
    wanted = {rules.action(by_text[one]) for one, votes in votes_of(answer).items() if votes}
    return SafetyAction.PASS if wanted <= {SafetyAction.PASS} else SafetyAction.CONDITION
