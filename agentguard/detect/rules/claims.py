"""What the agent says of its work, held against what came back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from agentguard.detect.base import Finding, Needs
from agentguard.detect.facts import Facts, Form, Result
from agentguard.detect.phrases import content_claim, notices_trouble, success_claim
from agentguard.detect.quotes import cite, cite_move
from agentguard.detect.rule import NOTHING, Rule
from agentguard.detect.text import sentence
from agentguard.detect.trouble import Kind
from agentguard.detect.values import number
from agentguard.detect.view import RunView
from agentguard.trajectory.model import Source, Step

_AMOUNT = re.compile(r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?")
_LABEL = re.compile(r"[a-z][a-z _]{2,40}\Z")
_JOINS = (":", "=", " is", " was", " of")
_STATED = re.compile(r"([a-z][a-z_ ]{2,40})[\"'*]{0,3}\s*[:=]\s*[\"'*]{0,3}\$?(-?\d[\d,]*(?:\.\d+)?)")
_MAX_AMOUNTS = 40
_MAX_RESULT = 4_000


class ContradictedClaim(Rule):
    """A claim against what had just come back: success after an error, another number than the result's."""

    name = "contradicted_claim"
    needs = Needs(results=True)
    sees = "success claimed right after an error, or a number that differs from the one the result gives"
    codes = (
        "agentrx:misinterpretation_of_tool_output",
        "agent_error:reflection.outcome_misinterpretation",
        "agent_error:memory.hallucination",
    )

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Hold a turn against the results that came back since the turn before it."""
        facts = view.facts(step)
        if not facts.is_agent or not facts.seen or not step.content:
            return NOTHING
        last = facts.seen[-1]
        if last.trouble is not None:
            return self._success(facts, last)
        return tuple(self._numbers(facts, view))

    def _success(self, facts: Facts, last: Result) -> Iterable[Finding]:
        trouble, claim = last.trouble, content_claim(facts.low)
        if claim is None or trouble is None or trouble.kind is Kind.NO_ACTION:
            return NOTHING
        noticed = notices_trouble(facts.low)
        return (
            self.finding(
                facts.step,
                0.35 if noticed else 0.5 if trouble.kind is Kind.REJECTED else 0.65,
                f"{facts.step.agent} claims success, but the result before it is an error.",
                correction="The action failed: do not report success. Repair it, or say that it failed.",
                evidence=(
                    *cite(facts.step, "content", *sentence(facts.low, claim[0], claim[1])),
                    *cite(last.step, last.field, trouble.start, trouble.end),
                ),
                codes=self.codes[:2],
            ),
        )

    def _numbers(self, facts: Facts, view: RunView) -> Iterator[Finding]:
        """Numbers never seen before, under a label for which the results give exactly one other number."""
        given: dict[str, set[float]] | None = None
        reported: set[str] = set()
        for amount in list(_AMOUNT.finditer(facts.low, 0, 8_000))[:_MAX_AMOUNTS]:
            text = amount[0].rstrip(",")
            value = number(text)
            label = _label_before(facts.low, amount.start()) if len(text) > 1 and value is not None else ""
            if not label or value is None or not _mentioned(label, facts.seen):
                continue
            if view.values.has(text):
                continue
            given = _stated(facts.seen) if given is None else given
            other = _differs(label, value, given)
            if other is not None and other[0] not in reported and not view.values.knows(text):
                reported.add(other[0])
                yield self._wrong_number(facts, amount.span(), other)

    def _wrong_number(self, facts: Facts, span: tuple[int, int], other: tuple[str, float]) -> Finding:
        name, value = other
        return self.finding(
            facts.step,
            0.5,
            f"{facts.step.agent} gives a number for {name} that appears nowhere; the result says {value:g}.",
            correction=f"Take {name} from the result, {value:g}, and correct what you built on the other.",
            evidence=(*cite(facts.step, "content", *span), *cite(facts.seen[-1].step, facts.seen[-1].field)),
            codes=(self.codes[0], self.codes[2]),
            label=name,
            given=value,
        )


class UnverifiedSuccess(Rule):
    """Success claimed though no result in the run could show it."""

    name = "unverified_success"
    sees = "a claim that something was done for which no action of the run returned anything"
    codes = ("mast:no_or_incomplete_verification", "agent_error:reflection.progress_misjudge")
    watches = tuple(Source)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._succeeded = False
        self._since_claim = False
        self._answered = False
        self._claimed: set[str] = set()

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Keep count of results that were no errors; judge turns that act no more but claim."""
        facts = view.facts(step)
        claim = success_claim(facts.low) if facts.is_agent and not facts.actions and step.content else None
        found: Iterable[Finding] = NOTHING
        if claim is not None:
            found = self._judge(facts, claim, view)
            self._claimed.add(claim[2])
            self._since_claim = False
        self._answered = self._answered or bool(facts.results)
        if any(result.trouble is None for result in facts.results):
            self._succeeded = self._since_claim = True
        return found

    def _judge(self, facts: Facts, claim: tuple[int, int, str], view: RunView) -> Iterable[Finding]:
        if not self._succeeded:
            probability = 0.5
        elif not self._since_claim and claim[2] not in self._claimed:
            probability = 0.35
        else:
            return NOTHING
        if not self._could_see(view) or (facts.seen and facts.seen[-1].trouble is not None):
            return NOTHING  # nothing comes back in such a recording; or it is a contradicted claim
        return (
            self.finding(
                facts.step,
                probability,
                f"{facts.step.agent} says that something was done, but nothing that came back shows it.",
                correction="Do not report it as done. Do it, look at what comes back, and report that.",
                evidence=cite(facts.step, "content", *sentence(facts.low, claim[0], claim[1])),
            ),
        )

    def _could_see(self, view: RunView) -> bool:
        return self._answered or bool(view.tools)


class MissingVerification(Rule):
    """Work that nobody looked at: code never run at the end, or a check that was asked for and not made."""

    name = "missing_verification"
    sees = "at the end: the last code was never run, or a check the task or prompt asks for is nowhere made"
    codes = ("mast:no_or_incomplete_verification",)
    watches = tuple(Source)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._asked: bool | None = None
        self._checked = False
        self._ran = False

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Note whether anything ran, and whether any turn checks something."""
        facts = view.facts(step)
        if facts.results:
            self._ran = True
        if self._asked is None:
            given = " ".join((view.task, *view.system_prompts.values()))
            low = given[:20_000].lower()
            self._asked = any(cue in low for cue in _ASKING) and _ASKED.search(low) is not None
        if self._asked and not self._checked and facts.is_agent and len(view.steps) > 1:
            self._checked = any(sign in facts.low for sign in _CHECKS) or any(
                sign in f"{a.name} {a.key}".lower() for a in facts.actions for sign in _CHECKS
            )
        return NOTHING

    def finish(self, view: RunView) -> Iterable[Finding]:
        """Look at the last move, and at what was asked."""
        if not view.moves:
            return NOTHING
        last = view.moves[-1]
        code = [action for action in last.facts.actions if action.form is Form.CODE]
        if code and self._ran and last.outcome is None:
            return (
                self.finding(
                    last.step,
                    0.3,
                    "The last code of the run was never run, so nobody knows whether it works.",
                    correction="Run the code, read its output, and answer from that.",
                    evidence=cite_move(last.facts),
                    noticed_at=len(view.steps) - 1,
                ),
            )
        return self._unchecked(view, last.step)

    def _unchecked(self, view: RunView, last: Step) -> Iterable[Finding]:
        if self._checked or not self._asked or last.source is not Source.AGENT:
            return NOTHING
        return (
            self.finding(
                last,
                0.25,
                "The task asks for a check, and no turn of the run makes one.",
                correction="Before you answer, make the check that the task asks for and report it.",
                evidence=cite(last, "content"),
                noticed_at=len(view.steps) - 1,
            ),
        )


_CHECKS = ("verif", "check", "confirm", "test", "validat", "assert", "review", "make sure")
_ASKING = ("verify ", "double-check ", "validate ")
_ASKED = re.compile(r"\b(?:verify|double-check|validate) (?:your|the|that|its|all|whether)\b")


def _label_before(low: str, at: int) -> str:
    """The words that a number at ``at`` is said to be the value of: "price is", "stock:"; else empty."""
    before = low[max(0, at - 48) : at].rstrip(" \t\"'*$")
    if not before.endswith(_JOINS):
        return ""
    for join in _JOINS:
        if before.endswith(join):
            words = before[: -len(join)].rstrip(" \"'*")[-40:]
            found = _LABEL.search(words, max(0, _last_other(words)))
            return _label(found[0]) if found else ""
    return ""


def _last_other(words: str) -> int:
    """Offset behind the last character that no label holds."""
    at = len(words)
    while at and (words[at - 1].isalpha() or words[at - 1] in " _"):
        at -= 1
    return at


def _mentioned(label: str, results: Iterable[Result]) -> bool:
    """Whether the label's last word stands in a result at all: spares reading results for their numbers."""
    last = label.rpartition(" ")[2]
    return any(last in result.low for result in results)


def _stated(results: Iterable[Result]) -> dict[str, set[float]]:
    """Label to the numbers that results give for it."""
    given: dict[str, set[float]] = {}
    for result in results:
        for found in _STATED.finditer(result.low, 0, _MAX_RESULT):
            value = number(found[2])
            if value is not None:
                given.setdefault(_label(found[1]), set()).add(value)
    return given


def _differs(label: str, value: float, given: dict[str, set[float]]) -> tuple[str, float] | None:
    """The results' label that a claim's ends with, and its one number, if that is not ``value``."""
    words = label.split()
    for size in range(len(words), 0, -1):
        name = " ".join(words[-size:])
        values = given.get(name)
        if values is None or len(name) < 4:
            continue
        only = next(iter(values))
        return (name, only) if len(values) == 1 and abs(only - value) > 1e-9 else None
    return None


def _label(text: str) -> str:
    return " ".join(text.replace("_", " ").split())
