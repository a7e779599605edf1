"""Equal calls with an effect: duplicates in one turn, repetitions after a success, and requests for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from agentguard.detect.base import Finding
from agentguard.detect.result_classification import ResultStatus, classify_result
from agentguard.detect.tool_names import normalize_tool_name
from agentguard.recover.agent_messages import format_effects
from agentguard.recover.effect_ledger import EffectLedger
from agentguard.recover.effect_store import Effect
from agentguard.recover.plan import REPEATED_CALL_TRIGGER
from agentguard.trajectory.model import Source, Step, ToolCall

DUPLICATE_CALL_TRIGGER: Final = "duplicate_call"
"""Detector name of the findings on equal calls within one turn."""

_DUPLICATE_CODES = ("mast:step_repetition",)
_REPETITION_CODES = ("agent_error:reflection.progress_misjudge",)
_NEW_EFFECT_PATTERN = re.compile(
    r"(?:^|_)(?:charge|transfer|purchase|order|withdraw|debit|deposit|wire|pay|buy|refund|book|reserve|send"
    r"|reply|email|publish|schedule|register|create|exchange)(?:_|$)"
)
"""Names of undeclared tools whose second call has a second effect, for example another payment."""

_NEGATIVE_PATTERN = re.compile(
    r"\b(?:no|not|none|nothing|never|cannot|unable|without|only|un(?:successful|available|confirmed|paid|sent)"
    r"|fail\w*|err(?:or|ed|ors)|refus\w*|declin\w*|den(?:y|ied)|reject\w*|cancel\w*|expired?|invalid|missing"
    r"|pending|queued|waiting|retry|again|later|taken|full|closed|locked|busy|already|exists?|partial\w*"
    r"|skipped|false|null|insufficient|sorry)\b|n['\u2019]t\b"
)
"""Words of a result after which an agent may repeat the call although it did not fail."""

_MAX_RESULT_CHARS = 400

_NUMERALS: Final = {
    "two": 2, "both": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12,
}  # fmt: skip
_QUANTITY_PATTERN = re.compile(rf"\b({'|'.join(_NUMERALS)}|\d{{1,2}})\s+([a-z'-]+(?:\s+[a-z'-]+){{0,2}})")
_TIMES_PATTERN = re.compile(rf"\b(?:twice|({'|'.join(_NUMERALS)}|\d{{1,2}})\s+times)\b")
_LIMIT_PATTERN = re.compile(
    r"\b(?:not|never|without|no more than|at most|up to|than|only if)\b|n['\u2019]t\b"
)
_WORD_PATTERN = re.compile(r"[a-z]{3,}")
_MAX_REQUEST_CHARS = 8_000


def find_duplicate_call(turn: Step, ledger: EffectLedger) -> ToolCall | None:
    """Return a call of an undeclared or destructive tool that a turn makes for the second time.

    Calls are equal if the ledger gives them one key. A tool that is idempotent, repeatable, or has an
    idempotency key is exempt.
    """
    seen: set[str] = set()
    for call in turn.tool_calls:
        if not ledger.may_destroy(call.name) or ledger.permits_repetition(call.name):
            continue
        key = ledger.compute_key(call.name, call.arguments or {})
        if key in seen:
            return call
        seen.add(key)
    return None


def find_equal_call(call: ToolCall, calls: Iterable[ToolCall], ledger: EffectLedger) -> ToolCall | None:
    """Return one of the calls that equals ``call``, if `find_duplicate_call` covers its tool."""
    if not ledger.may_destroy(call.name) or ledger.permits_repetition(call.name):
        return None
    key = ledger.compute_key(call.name, call.arguments or {})
    same = (one for one in calls if one.name == call.name)
    return next((one for one in same if ledger.compute_key(one.name, one.arguments or {}) == key), None)


def build_duplicate_finding(turn: Step, call: ToolCall) -> Finding:
    """Build the finding for a call that `find_duplicate_call` returned."""
    return Finding(
        detector=DUPLICATE_CALL_TRIGGER,
        step=turn.index,
        codes=_DUPLICATE_CODES,
        probability=1.0,
        message=f"{turn.agent} calls {call.name} twice with the same arguments in one turn.",
        correction=f"Call {call.name} once. If the task needs a second effect, make the second call after "
        "the result of the first one.",
    )


def find_repeated_call(
    turn: Step, read_steps: Callable[[], Sequence[Step]], ledger: EffectLedger
) -> Effect | None:
    """Return the effect of an equal earlier call that a turn repeats although it succeeded.

    ``read_steps`` returns the steps of the run; it is called only for a call that was made before. Tools are
    compared as by `find_duplicate_call`. These repetitions are exempt:

    - the user has written since the earlier call;
    - the tool is undeclared, and its name does not imply that a second call has a second effect;
    - the tool is undeclared, and another acting call has changed the state since;
    - the result of the earlier call is empty, or has a word such as "declined" or "pending".
    """
    for call in turn.tool_calls:
        if not ledger.may_destroy(call.name) or ledger.permits_repetition(call.name):
            continue
        is_declared = ledger.is_declared(call.name)
        if not is_declared and not _NEW_EFFECT_PATTERN.search(normalize_tool_name(call.name)):
            continue
        effect = ledger.find_completed_call(call.name, call.arguments or {})
        if effect is None or not _is_success(effect.result.lower()):
            continue
        since = read_steps()[effect.step + 1 :]
        if any(step.source is Source.USER for step in since):
            continue
        if is_declared or not any(ledger.may_destroy(one.name) for step in since for one in step.tool_calls):
            return effect
    return None


def _is_success(lower_result: str) -> bool:
    is_usable = classify_result(lower_result).status is ResultStatus.OK
    return is_usable and _NEGATIVE_PATTERN.search(lower_result, 0, _MAX_RESULT_CHARS) is None


def build_repetition_finding(turn: Step, effect: Effect, *, is_final: bool) -> Finding:
    """Build the finding for a call whose earlier effect `find_repeated_call` returned.

    Args:
        turn: the proposed turn.
        effect: effect of the earlier call.
        is_final: True if a repetition of the call will not run.
    """
    correction = (
        "Continue without this call: a repetition will not run."
        if is_final
        else "If the earlier call is sufficient, continue without this one. If the task needs a second "
        "effect, repeat the call."
    )
    earlier = format_effects((effect,))
    return Finding(
        detector=REPEATED_CALL_TRIGGER,
        step=turn.index,
        codes=_REPETITION_CODES,
        probability=1.0,
        message=f"The same call was already made in this run, at step {effect.step}: {earlier}.",
        correction=correction,
        data={"earlier_step": effect.step},
    )


def requests_equal_calls(texts: Iterable[str], call: ToolCall, count: int) -> bool:
    """Return whether a text of the user requests ``count`` equal calls.

    A request has one of these forms:

    - The number precedes a plural whose singular is a word of the call ("two tickets", ``book_ticket``).
    - A number of times is in a sentence with a word of the tool's name ("charge the card twice", ``charge``).

    Two kinds of numbers are ignored: an argument of the call ("seat 2"), and a number after a negation or a
    limit.
    """
    if any(value == count for value in (call.arguments or {}).values()):
        return False
    name_words = set(_WORD_PATTERN.findall(normalize_tool_name(call.name)))
    words = name_words | _collect_words(call.arguments or {})
    return any(
        _states_quantity(sentence, words, count) or _states_times(sentence, name_words, count)
        for text in texts
        for sentence in re.split(r"[.!?;\n]+", text[:_MAX_REQUEST_CHARS].lower())
    )


def _states_quantity(sentence: str, words: set[str], count: int) -> bool:
    return any(
        _parse_count(match[1]) == count and _has_plural(match[2], words) and not _is_limited(sentence, match)
        for match in _QUANTITY_PATTERN.finditer(sentence)
    )


def _states_times(sentence: str, name_words: set[str], count: int) -> bool:
    return any(
        (_parse_count(match[1]) if match[1] else 2) == count
        and not _is_limited(sentence, match)
        and not name_words.isdisjoint(_WORD_PATTERN.findall(sentence))
        for match in _TIMES_PATTERN.finditer(sentence)
    )


def _has_plural(phrase: str, words: set[str]) -> bool:
    return any(word[-1] == "s" and word[:-1] in words for word in phrase.split())


def _is_limited(sentence: str, match: re.Match[str]) -> bool:
    return _LIMIT_PATTERN.search(sentence, 0, match.start()) is not None


def _parse_count(number: str) -> int:
    return _NUMERALS.get(number) or int(number)


def _collect_words(arguments: Any) -> set[str]:
    texts = [str(part) for item in arguments.items() for part in item if isinstance(part, str)]
    return {word for text in texts for word in _WORD_PATTERN.findall(text[:200].lower())}
