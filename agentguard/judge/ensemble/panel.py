"""Panel of judges: several judges answer, and their agreement measures the certainty of the answer.

After triple modular redundancy (von Neumann 1956; Lyons and Vanderkulk 1962): diverse judges, or one judge
with paraphrased or reordered questions (`agentguard.judge.ensemble.question_variants`), rarely make the same
mistake. A panel's probabilities are the mean of its members', so that disagreement gives an undecided answer;
the votes are reported as well. If fewer members than the quorum answer, the result is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final

from agentguard.errors import ConfigError
from agentguard.judge.base import Judge, JudgeAnswer, Question, VersionedJudge, add_usage, close_judge
from agentguard.judge.llm.multiple_choice import list_options
from agentguard.trajectory.model import Trajectory

NO_QUORUM: Final = "quorum"
"""Error of a question that too few members could answer."""


class PanelJudge:
    """Panel of judges that votes, m of n.

    An answer's ``usage`` has the members' total cost and:

    - ``votes``: number of members that rate an option highest, by option,
    - ``agreement``: the winner's share of the members,
    - ``seconds``: the slowest member's time, since the members are asked concurrently.

    Args:
        judges: the members, at least two.
        quorum: minimum of answers; by default more than half of the members.

    Raises:
        ConfigError: there are fewer than two members, or the quorum exceeds their number.
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
        """Answer the questions, in order; a member that raises counts as one without an answer."""
        question_list = tuple(questions)
        member_answers = ask_judges(self.judges, transcript, question_list)
        return tuple(
            merge_answers(question, [answers[index] for answers in member_answers], quorum=self.quorum)
            for index, question in enumerate(question_list)
        )

    def version(self, transcript: Trajectory) -> str:
        """Return the members' versions, so that a panel can be cached."""
        versions = [
            f"{judge.name}: {judge.version(transcript) if isinstance(judge, VersionedJudge) else ''}"
            for judge in self.judges
        ]
        return f"quorum {self.quorum} of " + " | ".join(versions)

    def close(self) -> None:
        """Close the members."""
        for judge in self.judges:
            close_judge(judge)


def ask_judges(
    judges: Sequence[Judge], run: Trajectory, questions: Sequence[Question]
) -> list[tuple[JudgeAnswer, ...]]:
    """Return each judge's answers; if a judge raises or returns too few answers, they are errors."""

    def ask(judge: Judge) -> tuple[JudgeAnswer, ...]:
        try:
            answers = tuple(judge.decide(run, questions))
            fault = "" if len(answers) == len(questions) else "malformed"
        except Exception as error:  # a plug-in may raise any exception; the others can still answer
            fault = type(error).__name__
        if not fault:
            return answers
        return tuple(JudgeAnswer(question=q.id, error=fault, usage={"fault": fault}) for q in questions)

    if len(judges) == 1:
        return [ask(judges[0])]
    with ThreadPoolExecutor(len(judges), thread_name_prefix="agentguard-panel") as pool:
        return [one.result() for one in [pool.submit(copy_context().run, ask, judge) for judge in judges]]


def merge_answers(question: Question, answers: Sequence[JudgeAnswer], *, quorum: int) -> JudgeAnswer:
    """Merge answers to a question: their mean with the votes, or an error below the quorum."""
    valid_answers = [one for one in answers if one.error is None and one.probabilities]
    usage = _sum_usage(answers)
    if answers and answers[0].error is not None and len({one.error for one in answers}) == 1:
        # Both orders of one judge fail for the same reason, which explains more than the missing quorum.
        fault = answers[0].usage.get("fault", NO_QUORUM)
        return JudgeAnswer(question=question.id, error=answers[0].error, usage=usage | {"fault": fault})
    if len(valid_answers) < quorum:
        faults = ", ".join(dict.fromkeys(str(one.error) for one in answers if one.error is not None))
        error = f"{NO_QUORUM}: {len(valid_answers)} of {len(answers)} judges answered ({faults})"
        return JudgeAnswer(question=question.id, error=error, usage=usage | {"fault": NO_QUORUM})
    options = list_options(question)
    shares = {
        one: sum(a.probabilities.get(one, 0.0) for a in valid_answers) / len(valid_answers) for one in options
    }
    votes = Counter(max(options, key=lambda one: a.probabilities.get(one, 0.0)) for a in valid_answers)
    agreement = max(votes.values()) / len(valid_answers)
    return JudgeAnswer(
        question=question.id,
        probabilities=shares,
        usage=usage | {"votes": dict(votes), "agreement": agreement},
    )


def _sum_usage(answers: Sequence[JudgeAnswer]) -> dict[str, Any]:
    """Sum the cost of the members; they wait at the same time."""
    total: dict[str, Any] = {}
    for answer in answers:
        add_usage(total, answer.usage)
    if "seconds" in total:
        total["seconds"] = max(answer.usage.get("seconds", 0.0) for answer in answers)
    return total
