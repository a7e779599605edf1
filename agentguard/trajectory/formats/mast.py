"""MAST: traces of multi-agent systems, with fourteen failure modes marked as present or not.

Source: arXiv 2503.13657. A record has a trace, either one text (``trace`` or ``trace.trajectory``) or
messages, and its modes: ``mast_annotation: {mode: 0 / 1 / null}``, or ``annotations: [{"failure mode": ...,
"annotator_1": ..., ...}]`` by several people, of whom the majority counts. Values may be numbers, booleans,
or yes and no.

Modes are known by *name*. A number alone ("1.3") is taken for a name only where all published sources
number alike; 3.2 and 3.3 are swapped between them, so these two stay under ``ambiguous_modes`` of the
annotation's extra. Fields this importer does not know are kept there too, as they may tell how the run was
judged. A mode that is present does not say that the run failed: ``failed`` stays unknown unless the record
tells it.

A text is split into steps where its speakers change (see ``_speakers.py``), else at its blank lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentguard.errors import FormatError
from agentguard.trajectory.formats import _speakers
from agentguard.trajectory.formats._fields import Node, kind
from agentguard.trajectory.formats._otel import as_text
from agentguard.trajectory.groups import group_key
from agentguard.trajectory.model import Annotation, Record, Source, Step, Trajectory

MODES: Mapping[str, tuple[str, str]] = {
    "disobey_task_specification": ("1.1", "poor task constraint compliance"),
    "disobey_role_specification": ("1.2", "fail to follow role specification"),
    "step_repetition": ("1.3", "repetition of steps"),
    "loss_of_conversation_history": ("1.4", "loss of history"),
    "unaware_of_termination": ("1.5", "unaware of termination conditions"),
    "conversation_reset": ("2.1", "unexpected conversation reset"),
    "fail_to_ask_for_clarification": ("2.2", "failure to ask for clarification"),
    "task_derailment": ("2.3", "derailed from task"),
    "information_withholding": ("2.4", "withholding information"),
    "ignored_other_agents_input": ("2.5", "ignored other agent s input"),
    "reasoning_action_mismatch": ("2.6", "action reasoning mismatch"),
    "premature_termination": ("3.1", "terminated prematurely"),
    "no_or_incomplete_verification": ("", "weak verification"),
    "incorrect_verification": ("", "no or incorrect verification"),
}
"""Mode to its number, where all sources agree on it, and to another name it goes by."""

_NUMBERS = {number: mode for mode, (number, _) in MODES.items() if number}
_NAMES = {mode.replace("_", " "): mode for mode in MODES} | {
    other: mode for mode, (_, other) in MODES.items()
}
_NUMBER = re.compile(r"\s*(?:FM[- ]?)?([1-3]\.[1-6])\b[\s:.\-]*(.*)", re.DOTALL)
_YES = frozenset({"yes", "true", "1", "y", "present"})
_NO = frozenset({"no", "false", "0", "n", "absent"})
_TRACES = ("trace", "trajectory", "messages", "history")
_LABELS = ("mast_annotation", "annotations", "annotation", "modes", "failure_modes")
_OUTCOMES = ("success", "task_success", "resolved", "is_correct")
_FACTS = ("mas_name", "llm_name", "benchmark_name", "round")
_KNOWN = (*_TRACES, *_LABELS, *_OUTCOMES, *_FACTS, "trace_id", "task", "question", "ground_truth")
_USERS = ("user", "human", "userproxy", "user_proxy", "customer")
_ENVIRONMENTS = (
    "terminal",
    "computer_terminal",
    "computerterminal",
    "executor",
    "environment",
    "tool",
    "function",
)


class Mast:
    """MAST traces with failure modes."""

    name = "mast"
    summary = "MAST: traces of multi-agent systems with 14 failure modes"

    def recognises(self, value: Any) -> float:
        """By MAST's annotation; a bare text with visible speakers is read too, if nothing else claims it.

        A text without speakers is not claimed: in a folder it is likelier a README than a run.
        """
        if isinstance(value, str):
            return 0.05 if _speakers.split(value) else 0.0
        if not isinstance(value, Mapping) or not any(key in value for key in _TRACES):
            return 0.0
        if "mast_annotation" in value:
            return 0.95
        labels = next((value[key] for key in _LABELS if value.get(key)), None)
        names = labels if isinstance(labels, (Mapping, list)) else ()
        named = any(mode_of(_label(name)) for name in names)
        return 0.9 if named else 0.6 if "mas_name" in value else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the one run of a record or text. Raises FormatError with the field."""
        record = Node.of({"trace": value} if isinstance(value, str) else value)
        system = record.text_or("mas_name") or "agent"
        steps = tuple(_steps(record, system))
        task = as_text(record.raw("task")) or as_text(record.raw("question"))
        first = next((step.content for step in steps if step.source is Source.USER), "")
        trajectory = Trajectory(
            id="/".join(filter(None, (record.text_or("mas_name"), record.scalar_or("trace_id")))) or name,
            format=self.name,
            task=task or first,
            steps=steps,
            extra={**{key: record.raw(key) for key in _FACTS if key in record}, **_trace_rest(record)},
        )
        yield Record(trajectory=trajectory, annotation=_annotation(record, trajectory))


def mode_of(label: str) -> str | None:
    """The mode that a label such as ``"1.3 Step Repetition"`` names; None if it names none for certain."""
    match = _NUMBER.fullmatch(label)
    number, words = match.groups() if match else ("", label)
    words = " ".join(re.findall(r"[a-z]+", words.lower()))
    return _NAMES.get(words) if words else _NUMBERS.get(number)


def _label(item: Any) -> str:
    if isinstance(item, Mapping):
        item = next(
            (item[key] for key in ("failure mode", "failure_mode", "mode", "name") if key in item), ""
        )
    return item if isinstance(item, str) else ""


def _steps(record: Node, system: str) -> Iterator[Step]:
    where = next((key for key in _TRACES if key in record), _TRACES[0])
    trace, path = record.raw(where), record.at(where)
    if isinstance(trace, dict):
        inner = Node(trace, path)
        key = next((key for key in ("trajectory", "messages", "text") if key in inner), "trajectory")
        trace, path = inner.raw(key), inner.at(key)
    if isinstance(trace, list):
        for i, message in enumerate(trace):
            yield _message(i, message, system, f"{path}[{i}]")
    elif isinstance(trace, str):
        turns = _speakers.split(trace)
        for i, (speaker, said) in enumerate(
            turns or [(system, block) for block in _speakers.paragraphs(trace)]
        ):
            yield _step(i, speaker, said)
    else:
        raise FormatError(f"expected text or a list of messages, found {kind(trace)}", field=path)


def _message(index: int, message: Any, system: str, path: str) -> Step:
    if isinstance(message, str):
        return _step(index, system, message)
    node = Node.of(message, path)
    role = node.text_or("role")
    speaker = node.text_or("name") or node.text_or("agent") or node.text_or("sender") or role or system
    rest = node.rest("content", "role", "name", "agent", "sender")
    return _step(index, speaker, as_text(node.raw("content")), role=role, extra=rest)


def _step(
    index: int, speaker: str, said: str, *, role: str = "", extra: Mapping[str, Any] | None = None
) -> Step:
    return Step(
        index=index,
        source=_source(role if role in ("system", "tool", "function") else speaker),
        agent=speaker or "system",
        content=said,
        source_index=index,
        extra=extra or {},
    )


def _source(speaker: str) -> Source:
    name = speaker.lower().replace(" ", "_")
    if name in _USERS:
        return Source.USER
    if name in ("", "system"):
        return Source.SYSTEM
    return Source.ENVIRONMENT if name in _ENVIRONMENTS else Source.AGENT


def _trace_rest(record: Node) -> dict[str, Any]:
    trace = record.raw("trace")
    rest = Node(trace).rest("trajectory", "messages", "text") if isinstance(trace, dict) else {}
    return {"trace": rest} if rest else {}


def _annotation(record: Node, trajectory: Trajectory) -> Annotation:
    modes: dict[str, bool] = {}
    extra = record.rest(*_KNOWN)
    ambiguous: dict[str, bool] = {}
    for label, present in _labels(record):
        mode = mode_of(label)
        if mode is not None:
            modes[mode] = modes.get(mode, False) or present
        else:
            ambiguous[label] = present
    if ambiguous:
        extra["ambiguous_modes"] = ambiguous
    outcome = next((key for key in _OUTCOMES if key in record), None)
    succeeded = None if outcome is None else _yes(record.raw(outcome), record.at(outcome))
    return Annotation(
        failed=None if succeeded is None else not succeeded,
        modes=modes,
        answer=as_text(record.raw("ground_truth")) or None,
        group=group_key(trajectory.task) or None,
        extra=extra,
    )


def _labels(record: Node) -> Iterator[tuple[str, bool]]:
    """(label, present) for every mode that was decided on."""
    for key in (key for key in _LABELS if key in record):
        if isinstance(record.raw(key), dict):
            for label, value in record.node(key).data.items():
                decided = _yes(value, f"{record.at(key)}.{label}")
                if decided is not None:
                    yield label, decided
        else:
            for item in record.nodes(key):
                told = [_yes(v, item.at(k)) for k, v in item.data.items() if k.startswith("annotator")]
                told += [_yes(item.raw(k), item.at(k)) for k in ("present", "value", "label") if k in item]
                votes = [vote for vote in told if vote is not None]
                if votes:
                    yield _label(item.data), 2 * sum(votes) > len(votes)


def _yes(value: Any, path: str) -> bool | None:
    if value is None:
        return None
    word = str(value).strip().lower() if isinstance(value, (bool, int, float, str)) else ""
    word = word.removesuffix(".0")
    if word in _YES or word in _NO:
        return word in _YES
    if word in ("", "null", "none", "n/a", "unknown") and isinstance(value, str):
        return None
    raise FormatError("expected yes or no", field=path)


FORMAT = Mast()
