"""Conversion between ATIF steps and encoded steps of `agentguard.trajectory.serialization`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from agentguard.trajectory.formats._chat_messages import extract_content_text
from agentguard.trajectory.formats._content_parts import parse_content
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Source, Step
from agentguard.trajectory.serialization import encode_step

_OWN_EXTRA_KEY = "agentguard"
_ReadItem = Callable[[JsonNode], dict[str, Any]]
_METRICS = ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")
_LLM_METRICS = ("prompt_token_ids", "completion_token_ids", "logprobs")
_PRESERVED_FIELDS = ("reasoning_effort", "llm_call_count", "is_copied_context")
_LLM_FIELDS = ("reasoning_content", "metrics")


def read_step(index: int, node: JsonNode, *, agent: str) -> dict[str, Any]:
    """Return an ATIF step as an encoded step, with our own fields restored."""
    source = node.text("source")
    if source not in ("system", "user", "agent"):
        raise node.build_error("source", "expected system, user or agent")
    calls = [_read_call(one) for one in node.nodes_or("tool_calls")]
    names = {call["id"]: call["name"] for call in calls}
    results = list(node.node_or("observation").nodes_or("results"))
    message = parse_content(node.raw("message"), node.field_path("message"))
    contents = [parse_content(one.raw("content"), one.field_path("content")) for one in results]
    data: dict[str, Any] = {
        "index": index,
        "source": source,
        "agent": agent if source == "agent" else source,
        "content": message.text,
        "reasoning": node.text_or("reasoning_content"),
        "tool_calls": calls,
        "observations": [_read_result(one, names) for one in results],
        "source_index": index,
        "unknown_parts": [part for content in (message, *contents) for part in content.unknown_parts],
    }
    if "timestamp" in node:
        data["started_at"] = node.timestamp("timestamp")
    if "model_name" in node:
        data["model"] = node.text("model_name")
    if "metrics" in node:
        data["usage"] = {
            key: value for key in _METRICS if (value := node.node("metrics").raw(key)) is not None
        }
    if node.raw("is_copied_context") is True and source == "agent":
        # An earlier run did the work of this step; here it is a part of the prompt.
        data["source"] = str(Source.SYSTEM)
    data |= _read_harbor_extra(node.node_or("extra"), data["observations"])
    data["extra"] = _collect_extra(node)
    return apply_difference(_drop_defaults(data), node.node_or("extra").node_or(_OWN_EXTRA_KEY).data)


def _read_harbor_extra(extra: JsonNode, observations: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the step fields that Harbor writes into ``extra``; set the error flag of a single result."""
    is_error, stop_reason = extra.raw("tool_result_is_error"), extra.raw("stop_reason")
    if isinstance(is_error, bool) and len(observations) == 1:
        observations[0].setdefault("is_error", is_error)
    return {"stop_reason": stop_reason} if isinstance(stop_reason, str) else {}


def write_step(step: Step, *, agent: str, restore_extra: bool) -> dict[str, Any]:
    """Return a step as ATIF; ``restore_extra`` moves fields that came from ATIF back to their place."""
    source = "system" if step.source is Source.ENVIRONMENT else str(step.source)
    data: dict[str, Any] = {"step_id": step.index + 1, "source": source, "message": step.content}
    encoded = encode_step(step)
    if step.started_at is not None and (stamp := _format_timestamp(step.started_at)) is not None:
        data["timestamp"] = stamp
    if source == "agent":
        data |= _build_agent_fields(step, encoded)
    if step.observations and (source == "agent" or not step.tool_calls):
        names = {call.id: call.name for call in step.tool_calls}
        results = [
            _write_result(result, names, restore_extra=restore_extra) for result in encoded["observations"]
        ]
        data["observation"] = {"results": results}
    if restore_extra:
        _restore_extra(data, step.extra)
    # Fields that a reader could not restore from ATIF are written under our own name.
    if difference := compute_difference(encoded, read_step(step.index, JsonNode(data), agent=agent)):
        data["extra"] = {**data.get("extra", {}), _OWN_EXTRA_KEY: difference}
    return data


def compute_difference(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes for `apply_difference` from ``actual`` to ``wanted``; null removes a field."""
    return {key: wanted.get(key) for key in {**wanted, **actual} if wanted.get(key) != actual.get(key)}


def apply_difference(actual: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Apply the output of `compute_difference`."""
    return {key: value for key, value in {**actual, **changes}.items() if value is not None}


def _build_agent_fields(step: Step, whole: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if step.reasoning:
        data["reasoning_content"] = step.reasoning
    if step.tool_calls:
        data["tool_calls"] = [_write_call(call) for call in whole["tool_calls"]]
    if step.model is not None:
        data["model_name"] = step.model
    if step.usage is not None:
        data["metrics"] = dict(whole["usage"])
    return data


def _restore_extra(data: dict[str, Any], extra: Mapping[str, Any]) -> None:
    """Move ATIF fields without a place in the model back to their place, if ATIF allows them there."""
    agent = data["source"] == "agent"
    effort, calls, copied = (extra.get(key) for key in _PRESERVED_FIELDS)
    if agent and isinstance(effort, str | float):
        data["reasoning_effort"] = effort
    if (
        agent
        and isinstance(calls, int)
        and (calls > 0 or (calls == 0 and data.keys().isdisjoint(_LLM_FIELDS)))
    ):
        data["llm_call_count"] = calls
    if isinstance(copied, bool):
        data["is_copied_context"] = copied
    if _is_content_parts(extra.get("message")):
        data["message"] = extra["message"]
    metrics = extra.get("metrics")
    if isinstance(metrics, dict) and "metrics" in data:
        data["metrics"] |= {key: metrics[key] for key in _LLM_METRICS if isinstance(metrics.get(key), list)}
        data["metrics"] |= {"extra": metrics["extra"]} if isinstance(metrics.get("extra"), dict) else {}
    if isinstance(extra.get("extra"), dict):
        data["extra"] = dict(extra["extra"])


def _is_content_parts(value: Any) -> bool:
    """Return True if a value is a list of ATIF content parts."""
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        return False
    return all(
        isinstance(part.get("text"), str)
        if part.get("type") == "text"
        else isinstance(part.get("source"), dict)
        for part in value
    )


def _read_call(node: JsonNode) -> dict[str, Any]:
    extra = node.node_or("extra")
    call: dict[str, Any] = {
        "id": node.scalar("tool_call_id"),
        "name": node.text("function_name"),
        "arguments": node.node_or("arguments").data,
    }
    if unmapped_fields := extra.extra_fields(_OWN_EXTRA_KEY):
        call["extra"] = {"extra": unmapped_fields}
    return apply_difference(call, extra.node_or(_OWN_EXTRA_KEY).data)


def _write_call(call: dict[str, Any]) -> dict[str, Any]:
    data = {"tool_call_id": call["id"], "function_name": call["name"]}
    data["arguments"] = call.get("arguments", {})
    own_extra = call.get("extra", {}).get("extra")
    return _add_own_fields(data, own_extra, call, _read_call)


def _read_result(node: JsonNode, names: Mapping[str, str]) -> dict[str, Any]:
    extra = node.node_or("extra")
    result: dict[str, Any] = {
        "content": extract_content_text(node.raw("content"), node.field_path("content"))
    }
    if "source_call_id" in node:
        result["call_id"] = node.scalar("source_call_id")
        result["tool"] = names.get(result["call_id"])
    extra_fields = node.extra_fields("source_call_id", "content", "extra")
    if isinstance(node.raw("content"), list):
        extra_fields["content"] = node.raw("content")
    if unmapped_fields := extra.extra_fields(_OWN_EXTRA_KEY):
        extra_fields["extra"] = unmapped_fields
    if extra_fields:
        result["extra"] = extra_fields
    return apply_difference(result, extra.node_or(_OWN_EXTRA_KEY).data)


def _write_result(
    observation: dict[str, Any], names: Mapping[str, str], *, restore_extra: bool
) -> dict[str, Any]:
    data: dict[str, Any] = {"content": observation["content"]}
    if observation.get("call_id") in names:
        data["source_call_id"] = observation["call_id"]
    result_extra = observation.get("extra", {}) if restore_extra else {}
    if isinstance(result_extra.get("subagent_trajectory_ref"), list):
        data["subagent_trajectory_ref"] = result_extra["subagent_trajectory_ref"]
    if _is_content_parts(result_extra.get("content")):
        data["content"] = result_extra["content"]
    return _add_own_fields(
        data, result_extra.get("extra"), observation, lambda node: _read_result(node, names)
    )


def _add_own_fields(
    data: dict[str, Any], own: Any, wanted: dict[str, Any], read: _ReadItem
) -> dict[str, Any]:
    if isinstance(own, dict) and own:
        data["extra"] = dict(own)
    if difference := compute_difference(wanted, read(JsonNode(data))):
        data["extra"] = {**data.get("extra", {}), _OWN_EXTRA_KEY: difference}
    return data


def _collect_extra(node: JsonNode) -> dict[str, Any]:
    mapped_fields = (
        "step_id",
        "timestamp",
        "source",
        "message",
        "reasoning_content",
        "tool_calls",
        "observation",
    )
    unmapped_fields = node.extra_fields(*mapped_fields, "model_name", "metrics", "extra")
    if isinstance(node.raw("message"), list):
        unmapped_fields["message"] = node.raw("message")
    if nested_fields := node.node_or("metrics").extra_fields(*_METRICS):
        unmapped_fields["metrics"] = nested_fields
    if nested_fields := node.node_or("extra").extra_fields(_OWN_EXTRA_KEY):
        unmapped_fields["extra"] = nested_fields
    return {key: value for key, value in unmapped_fields.items() if value is not None}


def _drop_defaults(data: dict[str, Any]) -> dict[str, Any]:
    """Remove the fields that the serialization omits, so that two values compare equal."""
    return {key: value for key, value in data.items() if value not in ("", [], {})}


def _format_timestamp(seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None
