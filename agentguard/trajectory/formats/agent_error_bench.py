"""AgentErrorBench: failed runs of one agent on ALFWorld, GAIA and WebShop, with the critical step and module.

Source: arXiv 2509.25370. A trajectory is ``{messages: [{role, content}], metadata: {won, environment,
steps}}``. A step is one assistant turn; the user message after it is its observation. The text before the
first assistant turn is the task (and the system prompt), not a step. So step n of the labels, the n-th
assistant turn, has index n - 1.

The harness renders the prompt again for each turn: task, history, current observation, instructions. The
observation of a step is the current observation of that prompt. Without the label of the current
observation, it is the lines that the first prompt does not have.

An assistant turn separates its modules by tags: memory (``<memory>``, ``<memory_recall>``), reflection
(``<reflection>``), planning (``<plan>``, ``<think>``) and action (``<action>``, ``<tool_call>``,
``<answer>``).

Labels are rows ``{trajectory_id, LLM, task_type, critical_failure_step, critical_failure_module,
step_annotations: [{step, <module>: {failure_type, reasoning}}]}`` in files called ``*label*.json`` of the
same folder. ``trajectory_id`` is the name of the trajectory's file. A row may also be in the field ``label``
of the trajectory. Strings are stripped and lower-cased; a type that is blank or not of that module gives no
code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentguard.errors import FormatError, InputError
from agentguard.trajectory.formats._action_parser import parse_action_text
from agentguard.trajectory.formats._chat_messages import extract_content_text
from agentguard.trajectory.formats._dataset_folder import iter_values, read_document
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import list_run_files
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import (
    Annotation,
    Observation,
    Record,
    RootCause,
    Source,
    Step,
    ToolCall,
    Trajectory,
)

TAG_MODULES = {
    "memory": "memory",
    "memory_recall": "memory",
    "reflection": "reflection",
    "plan": "planning",
    "think": "planning",
    "action": "action",
    "tool_call": "action",
    "answer": "action",
}
FAILURE_TYPES = {
    "memory": ("over_simplification", "retrieval_failure", "hallucination"),
    "reflection": (
        "progress_misjudge",
        "outcome_misinterpretation",
        "causal_misattribution",
        "hallucination",
    ),
    "planning": ("constraint_ignorance", "impossible_action", "inefficient_plan"),
    "action": ("misalignment", "invalid_action", "format_error", "parameter_error"),
    "system": ("step_limit", "tool_execution_error", "llm_limit", "environment_error"),
}
_ALIASES = {"plan": "planning", "plan_inefficient": "inefficient_plan"}
_TAG = re.compile(rf"<(/?)({'|'.join(sorted(TAG_MODULES, key=len, reverse=True))})>", re.IGNORECASE)
_METADATA_FACTS = ("environment", "steps", "max_steps", "model", "timestamp")
_ENVIRONMENTS = ("alfworld", "gaia", "webshop")
_CURRENT_PATTERN = re.compile(r"\bcurrent observation(?: is)?:[ \t]*\n?", re.IGNORECASE)
_INSTRUCTION_PATTERN = re.compile(
    r"\n\s*(?:your (?:admissible|available|valid) actions\b|(?:admissible|available|valid) actions\b"
    r"|available tools\b|now it'?s your turn\b)",
    re.IGNORECASE,
)
_STEP = "critical_failure_step"


class AgentErrorBench:
    """Importer of AgentErrorBench's runs and labels."""

    name = "agent_error_bench"
    summary = "AgentErrorBench: failed runs with the critical step and module"

    def score_match(self, value: Any) -> float:
        """Return a positive score for messages with a result or a known environment in the metadata."""
        if not isinstance(value, Mapping) or not isinstance(value.get("messages"), list):
            return 0.0
        metadata = value.get("metadata")
        has_known_metadata = isinstance(metadata, Mapping) and (
            isinstance(metadata.get("won"), bool) or metadata.get("environment") in _ENVIRONMENTS
        )
        label = value.get("label")
        return 0.95 if has_known_metadata or (isinstance(label, Mapping) and _STEP in label) else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a trajectory. Raises FormatError with the field."""
        record = JsonNode.from_value(value)
        metadata = record.node_or("metadata")
        task, prompt, steps = _parse_run(list(record.nodes("messages")))
        trajectory = Trajectory(
            id=record.scalar_or("trajectory_id", name),
            format=self.name,
            task=task,
            steps=steps,
            system_prompts={"agent": prompt} if prompt else {},
            extra={key: metadata.raw(key) for key in _METADATA_FACTS if key in metadata},
        )
        # An unknown field may reveal a judgement of the run, so it is in the annotation.
        extra = {
            **record.extra_fields("messages", "metadata", "label", "trajectory_id"),
            **metadata.extra_fields(*_METADATA_FACTS),
        }
        has_won = metadata.boolean_or("won")
        label = record.node_or("label")
        causes = tuple(_parse_failures(label))
        yield Record(
            trajectory=trajectory,
            annotation=Annotation(
                failed=(True if _STEP in label else None) if has_won is None else not has_won,
                root_cause=_find_root_cause(label, causes),
                failures=causes,
                group=normalize_group_key(task) or None,
                extra={**extra, **({"label": dict(label.data)} if label.data else {})},
            ),
        )

    def parse_folder(self, folder: Path) -> Iterator[Record | UnreadableRecord] | None:
        """Yield the runs of a folder with label files; None if no file has such labels."""
        paths = list_run_files(folder)
        labels = [path for path in paths if "label" in path.stem.lower() and _is_label_file(path)]
        return _join_labels([path for path in paths if path not in labels], labels) if labels else None


def _is_label_file(path: Path) -> bool:
    try:
        first_item = next(iter_values(path), None)
    except InputError:
        return False
    return first_item is not None and isinstance(first_item.value, dict) and _STEP in first_item.value


def _join_labels(runs: list[Path], labels: list[Path]) -> Iterator[Record | UnreadableRecord]:
    rows: dict[str, tuple[Path, Any]] = {}
    for path in labels:
        for item in iter_values(path):
            try:
                rows[JsonNode.from_value(item.read()).scalar("trajectory_id").strip()] = path, item.value
            except InputError as error:
                yield UnreadableRecord(error=error.with_location(file=str(path), record=item.position))
    for path in runs:
        try:
            _, row = rows.pop(path.stem, (None, None))
            run = dict(JsonNode.from_value(read_document(path)).data)
            yield from FORMAT.parse(run if row is None else {**run, "label": row}, name=path.stem)
        except InputError as error:
            yield UnreadableRecord(error=error.with_location(file=str(path)))
    for id, (path, _) in rows.items():
        reason = f"label {id!r:.80} has no trajectory"
        hint = "the file of the run must have this name"
        yield UnreadableRecord(error=FormatError(reason, file=str(path), field="trajectory_id", hint=hint))


def _parse_run(messages: list[JsonNode]) -> tuple[str, str, tuple[Step, ...]]:
    """Return (task, system prompt, steps) of a list of messages."""
    user_texts: list[str] = []
    prompts: list[str] = []
    turns: list[tuple[int, JsonNode, list[Observation]]] = []
    for i, message in enumerate(messages):
        role = message.text("role")
        text = extract_content_text(message.raw("content"), message.field_path("content"))
        if role == "assistant":
            turns.append((i, message, []))
        elif turns:
            extra = message.extra_fields("role", "content") | ({} if role == "user" else {"role": role})
            content = extract_new_text(text, "\n".join(user_texts))
            turns[-1][2].append(Observation(content=content, extra=extra))
        else:
            (prompts if role == "system" else user_texts).append(text)
    steps = tuple(
        _build_step(n, i, message, observations) for n, (i, message, observations) in enumerate(turns)
    )
    return "\n".join(user_texts), "\n".join(prompts), steps


def extract_new_text(text: str, prompt: str) -> str:
    """Return the new part of a user message that may be the first prompt, rendered again."""
    if marks := list(_CURRENT_PATTERN.finditer(text)):
        begin = marks[-1].end()
        end = _INSTRUCTION_PATTERN.search(text, begin)
        return text[begin : end.start() if end else len(text)].strip()
    known_lines = {line.strip() for line in prompt.splitlines()}
    lines = text.splitlines()
    if not lines or lines[0].strip() not in known_lines:
        return text
    return "\n".join(line for line in lines if line.strip() not in known_lines)


def _build_step(index: int, position: int, message: JsonNode, observations: list[Observation]) -> Step:
    text = extract_content_text(message.raw("content"), message.field_path("content"))
    sections = list(split_tagged_sections(text))
    modules: dict[str, str] = {}
    for tag, section_text in sections:
        modules[TAG_MODULES[tag]] = "\n".join(filter(None, (modules.get(TAG_MODULES[tag]), section_text)))
    acts = (section_text for tag, section_text in sections if tag in ("action", "tool_call"))
    calls: list[ToolCall] = []
    for act in acts:
        call = parse_action_text(act, id=f"call_{index}_{len(calls)}")
        calls += [call] if call is not None else []
    if len(calls) == 1 and len(observations) == 1:
        observations = [replace(observations[0], call_id=calls[0].id, tool=calls[0].name)]
    return Step(
        index=index,
        source=Source.AGENT,
        agent="agent",
        content=text,
        modules=modules,
        tool_calls=tuple(calls),
        observations=tuple(observations),
        source_index=position,
        extra=message.extra_fields("role", "content"),
    )


def split_tagged_sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield (tag, text) of every section; an open tag ends with the text, and the innermost tag counts."""
    inside: list[str] = []
    position = 0
    for mark in _TAG.finditer(text):
        section_text = text[position : mark.start()].strip()
        if inside and section_text:
            yield inside[-1], section_text
        position = mark.end()
        tag = mark.group(2).lower()
        if not mark.group(1):
            inside.append(tag)
        elif tag in inside:
            del inside[len(inside) - 1 - inside[::-1].index(tag) :]
    section_text = text[position:].strip()
    if inside and section_text:
        yield inside[-1], section_text


def _parse_failures(label: JsonNode) -> Iterator[RootCause]:
    """Yield every annotated failure of a row, with steps from 0."""
    for row in label.nodes_or("step_annotations"):
        step = _parse_one_based_step(row, "step")
        for key in row.data:
            if key != "step" and isinstance(row.raw(key), dict):
                detail = row.node(key)
                module, code = _parse_module(key), _resolve_code(key, detail.text_or("failure_type"))
                reason = detail.text_or("reasoning").strip()
                yield RootCause(
                    step=step, agent="agent", module=module, codes=(code,) if code else (), reason=reason
                )


def _find_root_cause(label: JsonNode, causes: tuple[RootCause, ...]) -> RootCause | None:
    if _STEP not in label:
        return None
    step, module = (
        _parse_one_based_step(label, _STEP),
        _parse_module(label.text_or("critical_failure_module")),
    )
    same = (cause for cause in causes if cause.step == step and cause.module == module)
    return next(same, RootCause(step=step, agent="agent", module=module))


def _parse_one_based_step(node: JsonNode, key: str) -> int:
    number = node.integer(key)
    if number < 1:
        raise node.build_error(key, "expected a number from 1")
    return number - 1


def _parse_module(text: str) -> str | None:
    name = text.strip().lower()
    name = _ALIASES.get(name, name)
    return name if name in FAILURE_TYPES else None


def _resolve_code(module: str, type: str) -> str | None:
    name = re.sub(r"[\s\-]+", "_", type.strip().lower())
    name, module_name = _ALIASES.get(name, name), _parse_module(module)
    return (
        f"agent_error:{module_name}.{name}"
        if module_name is not None and name in FAILURE_TYPES[module_name]
        else None
    )


FORMAT = AgentErrorBench()
