"""A panel: several judges answer, and how far they agree is how sure the answer is.

After triple modular redundancy (von Neumann 1956; Lyons and Vanderkulk 1962): diverse judges, or one judge
asked in different words or orders (`agentguard.judge.ensemble.order_swap`), rarely make the same mistake. A
panel's
probabilities are the mean of its members', so that what they disagree on comes out undecided; the votes stand
beside them. What too few members could answer is an error and no guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from agentguard.errors import ConfigError
from agentguard.judge.base import Judge, JudgeAnswer, Question
from agentguard.judge.llm.multiple_choice import list_options
from agentguard.trajectory.model import Trajectory

NO_QUORUM: Final = "quorum"
"""The fault of an answer that too few members could give."""

_USAGE_KEYS: Final = ("calls", "prompt_tokens", "completion_tokens", "cached_tokens", "seconds")


class PanelJudge:
    """Judges that vote, m of n.

    An answer's ``usage`` has ``votes`` (option to the number of members that hold it likeliest) and
    ``agreement`` (the winner's share of the members) beside what all members together cost; ``seconds`` is
    the slowest member's, since they are asked side by side.

    Args:
        judges: the members, at least two.
        quorum: how many must answer; more than half of them if absent.

    Raises:
        ConfigError: fewer than two members, or a quorum that they cannot reach.
    """

    name = "panel"

    def __init__(self, judges: Sequence[Judge], *, quorum: int | None = None) -> None:
        self.judges = tuple(judges)
        self.quorum = len(self.judges) // 2 + 1 if quorum is None else quorum
        if len(self.judges) < 2:
            raise ConfigError("a panel needs at least two judges")
        if not 1 <= self.quorum <= len(self.judges):
            raise ConfigError(f"a panel of {len(self.judges)} has no quorum of {self.quorum}")

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        """Answer the questions, in order; a member that raises counts as one that could not answer."""
        asked = tuple(questions)
        told = ask_judges(self.judges, transcript, asked)
        return tuple(
            merge_answers(question, [answers[place] for answers in told], quorum=self.quorum)
            for place, question in enumerate(asked)
        )

    def version(self, transcript: Trajectory) -> str:
        """The members' versions, so that a panel can be cached."""
        told = [
            f"{judge.name}: {judge.version(transcript) if hasattr(judge, 'version') else ''}"
            for judge in self.judges
        ]
        return f"quorum {self.quorum} of " + " | ".join(told)


def ask_judges(
    judges: Sequence[Judge], run: Trajectory, questions: Sequence[Question]
) -> list[tuple[JudgeAnswer, ...]]:
    """Each judge's answers; those of one that raises, or answers too few, are errors."""

    def ask(judge: Judge) -> tuple[JudgeAnswer, ...]:
        try:
            told = tuple(judge.decide(run, questions))
            fault = "" if len(told) == len(questions) else "malformed"
        except Exception as error:  # a plug-in may raise anything; the others can still answer
            fault = type(error).__name__
        if not fault:
            return told
        return tuple(JudgeAnswer(question=q.id, error=fault, usage={"fault": fault}) for q in questions)

    if len(judges) == 1:
        return [ask(judges[0])]
    with ThreadPoolExecutor(len(judges), thread_name_prefix="agentguard-panel") as pool:
        return list(pool.map(ask, judges))


def merge_answers(question: Question, answers: Sequence[JudgeAnswer], *, quorum: int) -> JudgeAnswer:
    """What several answers to a question come to: their mean with the votes, or an error below the quorum."""
    held = [one for one in answers if one.error is None and one.probabilities]
    usage = _sum_usage(answers)
    if len(held) < quorum:
        faults = ", ".join(dict.fromkeys(str(one.error) for one in answers if one.error is not None))
        error = f"{NO_QUORUM}: {len(held)} of {len(answers)} judges answered ({faults})"
        return JudgeAnswer(question=question.id, error=error, usage=usage | {"fault": NO_QUORUM})
    options = list_options(question)
    shares = {one: sum(a.probabilities.get(one, 0.0) for a in held) / len(held) for one in options}
    votes = Counter(max(options, key=lambda one: a.probabilities.get(one, 0.0)) for a in held)
    agreement = max(votes.values()) / len(held)
    return JudgeAnswer(
        question=question.id,
        probabilities=shares,
        usage=usage | {"votes": dict(votes), "agreement": agreement},
    )


def _sum_usage(answers: Sequence[JudgeAnswer]) -> dict[str, Any]:
    """What the members have cost together."""
    total: dict[str, Any] = {}
    for name in _USAGE_KEYS:
        values = [v for a in answers if isinstance(v := a.usage.get(name), int | float)]
        if values:
            total[name] = max(values) if name == "seconds" else sum(values)
    return total
