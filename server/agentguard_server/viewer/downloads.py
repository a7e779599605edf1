"""Downloads of a run: raw JSON, ATIF, agentguard's JSON, an HTML file, and the text of a step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import PlainTextResponse, Response

from agentguard.detect.serialization import to_json_data
from agentguard.errors import AgentGuardError
from agentguard.localize.serialization import encode_diagnosis
from agentguard.trajectory.formats.base import WritableFormat, formats
from agentguard.trajectory.model import Branch, Record, Step
from agentguard.trajectory.safe_json import MAX_LOG_DEPTH, normalize_json
from agentguard.trajectory.serialization import encode_meta, encode_step
from agentguard_server.viewer.data.run_data import RunData
from agentguard_server.viewer.export import render_html
from agentguard_server.viewer.renderer import Renderer
from agentguard_server.viewer.run.branches import CURRENT_BRANCH
from agentguard_server.viewer.run.page_model import RunPageModel

_UNSAFE_FILE_NAME = re.compile(r"[^\w.-]+", re.ASCII)


def respond_raw_json(view: RunPageModel, query: Mapping[str, str]) -> Response:
    """Return a run with all its data as JSON, or the step that ``step`` and ``line`` select."""
    if not query.get("step"):
        return _build_json_response(run_data_to_dict(view.data))
    step = _find_step(view, query)
    if step is None:
        return PlainTextResponse("There is no such step.", status_code=404)
    return _build_json_response(encode_step(step))


def respond_full_text(view: RunPageModel, query: Mapping[str, str]) -> Response:
    """Return the field ``field`` of the step that ``step`` and ``line`` select, as plain text."""
    step = _find_step(view, query)
    if step is None:
        return PlainTextResponse("There is no such step.", status_code=404)
    text = step.text(query.get("field", "content"))
    return Response(text.encode("utf-8", "replace"), media_type="text/plain; charset=utf-8")


def _find_step(view: RunPageModel, query: Mapping[str, str]) -> Step | None:
    """Return the step that the parameters ``line`` (id of a branch) and ``step`` select, or None."""
    branch, number = view.get_branch(query.get("line", CURRENT_BRANCH)), query.get("step", "")
    if branch is None or not number.isdecimal() or len(number) > 9 or int(number) >= len(branch.steps):
        return None
    return branch.steps[int(number)]


def respond_download(view: RunPageModel, kind: str, renderer: Renderer) -> Response:
    """Return the run as a file: ``html``, ``atif`` or ``json``."""
    run = view.data.run
    name = _UNSAFE_FILE_NAME.sub("_", run.id).strip("._")[:80] or "run"
    if kind == "html":
        return _build_file_response(
            render_html(view.data, renderer).encode(), f"{name}.html", "text/html; charset=utf-8"
        )
    if kind == "json":
        return _build_file_response(
            _dump_json(run_data_to_dict(view.data)), f"{name}.json", "application/json"
        )
    writer = formats().get("atif")
    assert isinstance(writer, WritableFormat)
    try:
        data = writer.dump(Record(trajectory=run))
    except AgentGuardError as error:
        return PlainTextResponse(f"This run cannot be written as ATIF: {error}", status_code=409)
    return _build_file_response(_dump_json(data), f"{name}.atif.json", "application/json")


def run_data_to_dict(data: RunData) -> dict[str, Any]:
    """Return a run with its diagnoses, findings, recoveries, effects and labels as JSON data."""
    run = data.run
    return {
        "run": encode_meta(run),
        "steps": [encode_step(step) for step in run.steps],
        "branches": [_branch_to_dict(branch) for branch in run.branches],
        "diagnoses": [{"id": stored.id} | encode_diagnosis(stored.diagnosis) for stored in data.diagnoses],
        "findings": [to_json_data(finding) for finding in data.findings],
        "recoveries": [to_json_data(recovery) for recovery in data.recoveries],
        "effects": [to_json_data(effect) for effect in data.effects],
        "judgements": [to_json_data(judgement) for judgement in data.judgements],
        "problems": list(data.problems),
    }


def _branch_to_dict(branch: Branch) -> dict[str, Any]:
    return {
        "id": branch.id,
        "fork_step": branch.fork_step,
        "parent": branch.parent,
        "reason": branch.reason,
        "steps": [encode_step(step) for step in branch.steps],
    }


def _build_json_response(data: Any) -> Response:
    return Response(_dump_json(data), media_type="application/json")


def _dump_json(data: Any) -> bytes:
    option = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(data, default=str, option=option)
    except TypeError:  # lone surrogates or large integers, which the event log writes, too
        return orjson.dumps(normalize_json(data, depth=MAX_LOG_DEPTH), option=option)


def _build_file_response(body: bytes, name: str, kind: str) -> Response:
    return Response(body, media_type=kind, headers={"content-disposition": f'attachment; filename="{name}"'})
