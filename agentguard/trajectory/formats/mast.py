"""MAST: traces of multi-agent systems, with fourteen failure modes marked as present or absent.

Source: arXiv 2503.13657. A record has a trace, either one text (``trace`` or ``trace.trajectory``) or
messages, and its modes: ``mast_annotation: {mode: 0 / 1 / null}``, or ``annotations: [{"failure mode": ...,
"annotator_1": ..., ...}]`` by several annotators; the majority of their labels counts. Values may be numbers,
booleans, or yes and no.

Modes are identified by *name*. A number alone ("1.3") is a name only if all published sources agree on it.
The sources swap 3.2 and 3.3, so these two stay under ``ambiguous_modes`` of the annotation's extra. Unknown
fields go there too, as they may reveal a judgement. A present mode does not mean that the run failed:
``failed`` stays unknown unless the record has it.

A text is split into steps at the changes of speaker (see `split_speakers`), else at its blank lines. A
text that is JSON (AG2, MetaGPT) is read as messages: a list, an object with a list of them, or JSON Lines.
The other fields of that object may reveal a judgement, so they are in the annotation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentguard.errors import FormatError
from agentguard.trajectory.formats._content_parts import flatten_text
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.json_node import JsonNode, describe_type
from agentguard.trajectory.model import Annotation, Record, Source, Step, Trajectory
from agentguard.trajectory.safe_json import loads

FAILURE_MODES: Mapping[str, tuple[str, str]] = {
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
"""Number of each mode, if all sources agree on it, and an alternative name, by mode."""

_MODE_BY_NUMBER = {number: mode for mode, (number, _) in FAILURE_MODES.items() if number}
_MODE_BY_NAME = {mode.replace("_", " "): mode for mode in FAILURE_MODES} | {
    other: mode for mode, (_, other) in FAILURE_MODES.items()
}
_MODE_NUMBER_PATTERN = re.compile(r"\s*(?:FM[- ]?)?([1-3]\.[1-6])\b[\s:.\-]*(.*)", re.DOTALL)
_TRUE_VALUES = frozenset({"yes", "true", "1", "y", "present"})
_FALSE_VALUES = frozenset({"no", "false", "0", "n", "absent"})
_TRACES = ("trace", "trajectory", "messages", "history")
_LABELS = ("mast_annotation", "annotations", "annotation", "modes", "failure_modes")
_OUTCOMES = ("success", "task_success", "resolved", "is_correct")
_TASK_FACTS = ("mas_name", "llm_name", "benchmark_name", "round")
_PROBLEMS = ("problem_statement", "problem", "task", "question")
_INNER_TRACES = ("trajectory", "messages", "history", "chat_history", "conversation", "conversations")
_KNOWN_FIELDS = (*_TRACES, *_LABELS, *_OUTCOMES, *_TASK_FACTS, "trace_id", "task", "question", "ground_truth")
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
_TIME = r"(?:\[[^\]\n]{1,60}\]\s{0,4})?"
_NAME = r"([A-Za-z][\w .'/-]{0,59}?)"
_PATTERNS = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        # ---------- WebSurfer ----------
        rf"^-{{4,80}} ?{_NAME} ?-{{4,80}}[ \t]*$",
        # Coder (to Reviewer):
        rf"^{_NAME} \(to [^)\n]{{1,80}}\):[ \t]*$",
        # [time INFO] Programmer: **Programmer<->Reviewer on : Coding, turn 1**
        rf"^{_TIME}{_NAME}: \*\*[^*\n]{{1,160}}<->[^*\n]{{1,160}}\*\*",
        # [time] FROM: Engineer TO: {{...}}
        rf"^{_TIME}FROM: {_NAME} TO: [^\n]{{1,200}}$",
        # run_17 - INFO - Planner's Response:
        rf"^(?:[^\n]{{0,120}}?- INFO - )?{_NAME}'s Response:",
        # Response from Supervisor Agent
        rf"^Response from {_NAME}[ \t]*:?[ \t]*$",
    )
)
_PLAIN_LABELS = re.compile(r"^([A-Z][\w-]{0,30}(?: [A-Z][\w-]{0,30}){0,2}):(?=\s)", re.MULTILINE)
_PLAIN_WORDS = frozenset(
    "action answer args arguments assumption code command conclusion content context date "  # noqa: SIM905
    "description details error example examples exception explanation file final goal "
    "hint important info input instruction instructions language log name note notes "
    "observation option output plan problem question rationale reason reasoning result "
    "results return returns score solution status step subject summary task thought time "
    "title to todo tool traceback type url usage verdict warning".split()
)
_MAX_SPEAKERS = 12


class Mast:
    """Importer of MAST's traces with failure modes."""

    name = "mast"
    summary = "MAST: traces of multi-agent systems with 14 failure modes"

    def score_match(self, value: Any) -> float:
        """Return a high score for MAST's annotation, and a low one for a bare text with visible speakers.

        A text without speakers scores 0: in a folder it is more likely a README than a run.
        """
        if isinstance(value, str):
            return 0.05 if split_speakers(value) else 0.0
        if not isinstance(value, Mapping) or not any(key in value for key in _TRACES):
            return 0.0
        if "mast_annotation" in value:
            return 0.95
        labels = next((value[key] for key in _LABELS if value.get(key)), None)
        names = labels if isinstance(labels, (Mapping, list)) else ()
        has_mode_names = any(parse_mode(_extract_label(name)) for name in names)
        return 0.9 if has_mode_names else 0.6 if "mas_name" in value else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a record or text. Raises FormatError with the field."""
        record = JsonNode.from_value({"trace": value} if isinstance(value, str) else value)
        system = record.text_or("mas_name") or "agent"
        trace, path, inner_fields = _find_trace(record)
        steps = tuple(_build_steps(trace, path, system))
        task = next(filter(None, (flatten_text(record.raw(key)) for key in ("task", "question"))), "")
        task = task or next((flatten_text(inner_fields[key]) for key in _PROBLEMS if key in inner_fields), "")
        first_user_text = next((step.content for step in steps if step.source is Source.USER), "")
        trajectory = Trajectory(
            id="/".join(filter(None, (record.text_or("mas_name"), record.scalar_or("trace_id")))) or name,
            format=self.name,
            task=task or first_user_text,
            steps=steps,
            extra={
                **{key: record.raw(key) for key in _TASK_FACTS if key in record},
                **_collect_trace_extra(record),
            },
        )
        yield Record(trajectory=trajectory, annotation=_build_annotation(record, trajectory, inner_fields))


def parse_mode(label: str) -> str | None:
    """Return the mode of a label such as ``"1.3 Step Repetition"``; None if the label is ambiguous."""
    match = _MODE_NUMBER_PATTERN.fullmatch(label)
    number, words = match.groups() if match else ("", label)
    words = " ".join(re.findall(r"[a-z]+", words.lower()))
    return _MODE_BY_NAME.get(words) if words else _MODE_BY_NUMBER.get(number)


def _extract_label(item: Any) -> str:
    if isinstance(item, Mapping):
        item = next(
            (item[key] for key in ("failure mode", "failure_mode", "mode", "name") if key in item), ""
        )
    return item if isinstance(item, str) else ""


def _find_trace(record: JsonNode) -> tuple[Any, str, dict[str, Any]]:
    """Return the trace (a text or a list), its path, and the fields beside messages inside a JSON text."""
    trace_key = next((key for key in _TRACES if key in record), _TRACES[0])
    trace, path = record.raw(trace_key), record.field_path(trace_key)
    if isinstance(trace, dict):
        inner = JsonNode(trace, path)
        key = next((key for key in ("trajectory", "messages", "text") if key in inner), "trajectory")
        trace, path = inner.raw(key), inner.field_path(key)
    decoded = _decode_messages(trace) if isinstance(trace, str) else None
    if isinstance(decoded, dict):
        key = next(key for key in _INNER_TRACES if key in decoded)
        return decoded[key], f"{path}.{key}", {k: v for k, v in decoded.items() if k != key}
    return (trace if decoded is None else decoded), path, {}


def _decode_messages(text: str) -> Any:
    """Return the messages in a JSON text, or the object that has them; None for any other text."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        value = loads(text)
    except FormatError:
        try:
            value = [loads(line) for line in text.splitlines() if line.strip()]
        except FormatError:
            return None
    messages = value
    if isinstance(value, dict):
        messages = next((value[key] for key in _INNER_TRACES if key in value), None)
    is_list_of_messages = isinstance(messages, list) and all(
        isinstance(one, dict) and "content" in one for one in messages
    )
    return value if messages and is_list_of_messages else None


def _build_steps(trace: Any, path: str, system: str) -> Iterator[Step]:
    if isinstance(trace, list):
        for i, message in enumerate(trace):
            yield _build_message_step(i, message, system, f"{path}[{i}]")
    elif isinstance(trace, str):
        turns = split_speakers(trace)
        for i, (speaker, turn_text) in enumerate(
            turns or [(system, block) for block in _split_paragraphs(trace)]
        ):
            yield _build_step(i, speaker, turn_text)
    else:
        raise FormatError(f"expected text or a list of messages, found {describe_type(trace)}", field=path)


def _build_message_step(index: int, message: Any, system: str, path: str) -> Step:
    if isinstance(message, str):
        return _build_step(index, system, message)
    node = JsonNode.from_value(message, path)
    role = node.text_or("role")
    speaker = node.text_or("name") or node.text_or("agent") or node.text_or("sender") or role or system
    unmapped_fields = node.extra_fields("content", "role", "name", "agent", "sender")
    return _build_step(index, speaker, flatten_text(node.raw("content")), role=role, extra=unmapped_fields)


def _build_step(
    index: int, speaker: str, content: str, *, role: str = "", extra: Mapping[str, Any] | None = None
) -> Step:
    return Step(
        index=index,
        source=_resolve_source(role if role in ("system", "tool", "function") else speaker),
        agent=speaker or "system",
        content=content,
        source_index=index,
        extra=extra or {},
    )


def _resolve_source(speaker: str) -> Source:
    name = speaker.lower().replace(" ", "_")
    if name in _USERS:
        return Source.USER
    if name in ("", "system"):
        return Source.SYSTEM
    return Source.ENVIRONMENT if name in _ENVIRONMENTS else Source.AGENT


def _collect_trace_extra(record: JsonNode) -> dict[str, Any]:
    trace = record.raw("trace")
    unmapped_fields = (
        JsonNode(trace).extra_fields("trajectory", "messages", "text") if isinstance(trace, dict) else {}
    )
    return {"trace": unmapped_fields} if unmapped_fields else {}


def _build_annotation(
    record: JsonNode, trajectory: Trajectory, inner_fields: Mapping[str, Any]
) -> Annotation:
    modes: dict[str, bool] = {}
    extra = record.extra_fields(*_KNOWN_FIELDS)
    if inner_fields:
        extra["trace"] = dict(inner_fields)
    ambiguous: dict[str, bool] = {}
    for label, present in _parse_labels(record):
        mode = parse_mode(label)
        if mode is not None:
            modes[mode] = modes.get(mode, False) or present
        else:
            ambiguous[label] = present
    if ambiguous:
        extra["ambiguous_modes"] = ambiguous
    outcome = next((key for key in _OUTCOMES if key in record), None)
    succeeded = None if outcome is None else _parse_yes(record.raw(outcome), record.field_path(outcome))
    return Annotation(
        failed=None if succeeded is None else not succeeded,
        modes=modes,
        answer=flatten_text(record.raw("ground_truth")) or None,
        group=normalize_group_key(trajectory.task) or None,
        extra=extra,
    )


def _parse_labels(record: JsonNode) -> Iterator[tuple[str, bool]]:
    """Yield (label, present) for every mode with a decision."""
    for key in (key for key in _LABELS if key in record):
        if isinstance(record.raw(key), dict):
            for label, value in record.node(key).data.items():
                decided = _parse_yes(value, f"{record.field_path(key)}.{label}")
                if decided is not None:
                    yield label, decided
        else:
            for item in record.nodes(key):
                answers = [
                    _parse_yes(v, item.field_path(k))
                    for k, v in item.data.items()
                    if k.startswith("annotator")
                ]
                answers += [
                    _parse_yes(item.raw(k), item.field_path(k))
                    for k in ("present", "value", "label")
                    if k in item
                ]
                votes = [vote for vote in answers if vote is not None]
                if votes:
                    yield _extract_label(item.data), 2 * sum(votes) > len(votes)


def _parse_yes(value: Any, path: str) -> bool | None:
    if value is None:
        return None
    word = str(value).strip().lower() if isinstance(value, (bool, int, float, str)) else ""
    word = word.removesuffix(".0")
    if word in _TRUE_VALUES or word in _FALSE_VALUES:
        return word in _TRUE_VALUES
    if word in ("", "null", "none", "n/a", "unknown") and isinstance(value, str):
        return None
    raise FormatError("expected yes or no", field=path)


def split_speakers(text: str) -> list[tuple[str, str]] | None:
    """Return ``(speaker, text)`` pairs in order; None if no speakers are visible.

    The speaker "" has the text before the first speaker. The pattern with the most matches is used, if it
    matches at least twice. Plain ``Name: ...`` lines count only if no other pattern matches, for two to
    twelve names that are not common labels ("Note:", "Error:").
    """
    best = max((list(pattern.finditer(text)) for pattern in _PATTERNS), key=len)
    if len(best) < 2:
        best = [match for match in _PLAIN_LABELS.finditer(text) if match.group(1).lower() not in _PLAIN_WORDS]
        if not 2 <= len({match.group(1) for match in best}) <= _MAX_SPEAKERS:
            return None
    return list(_split_turns(text, best))


def _split_paragraphs(text: str) -> list[str]:
    """Return the blocks of text between blank lines."""
    return [block.strip("\n") for block in re.split(r"\n[ \t]*\n", text) if block.strip()]


def _split_turns(text: str, marks: list[re.Match[str]]) -> Iterator[tuple[str, str]]:
    before = text[: marks[0].start()].strip()
    if before:
        yield "", before
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    for mark, end in zip(marks, ends, strict=True):
        yield mark.group(1).strip(), text[mark.end() : end].strip()


FORMAT = Mast()
