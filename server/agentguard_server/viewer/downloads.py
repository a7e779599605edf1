"""What of a run can be taken away: raw JSON, ATIF, agentguard's own JSON, one HTML file, one long text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import PlainTextResponse, Response

from agentguard.detect.codec import as_data
from agentguard.errors import AgentGuardError
from agentguard.localize.codec import encode_diagnosis
from agentguard.trajectory.codec import encode_meta, encode_step
from agentguard.trajectory.formats._json import MAX_LOG_DEPTH, clean
from agentguard.trajectory.formats.base import Dumps, formats
from agentguard.trajectory.model import Record, Step
from agentguard_server.viewer.bundle import Bundle
from agentguard_server.viewer.export import html_of
from agentguard_server.viewer.render import Renderer
from agentguard_server.viewer.run.lines import LIVE
from agentguard_server.viewer.run.view import View

_UNFIT = re.compile(r"[^\w.-]+", re.ASCII)


def raw_json(view: View, asked: Mapping[str, str]) -> Response:
    """All that is known of a run as JSON, or one step of it (``step``, ``line``)."""
    number = asked.get("step", "")
    if not number:
        return _json(bundle_data(view.bundle))
    line = view.line(asked.get("line", LIVE))
    if line is None or not number.isdecimal() or len(number) > 9 or int(number) >= len(line.steps):
        return PlainTextResponse("There is no such step.", status_code=404)
    return _json(encode_step(line.steps[int(number)]))


def whole_text(view: View, asked: Mapping[str, str]) -> Response:
    """One text of a step as plain text, however long."""
    line, number = view.line(asked.get("line", LIVE)), asked.get("step", "")
    if line is None or not number.isdecimal() or len(number) > 9 or int(number) >= len(line.steps):
        return PlainTextResponse("There is no such step.", status_code=404)
    text = line.steps[int(number)].text(asked.get("field", "content"))
    return Response(text.encode("utf-8", "replace"), media_type="text/plain; charset=utf-8")


def download(view: View, kind: str, renderer: Renderer) -> Response:
    """The run as a file: ``html``, ``atif`` or ``json``."""
    run = view.bundle.run
    name = _UNFIT.sub("_", run.id).strip("._")[:80] or "run"
    if kind == "html":
        return _file(html_of(view.bundle, renderer).encode(), f"{name}.html", "text/html; charset=utf-8")
    if kind == "json":
        return _file(_dumped(bundle_data(view.bundle)), f"{name}.json", "application/json")
    writer = formats().get("atif")
    assert isinstance(writer, Dumps)  # noqa: S101: it is one of ours
    try:
        data = writer.dump(Record(trajectory=run))
    except AgentGuardError as error:
        return PlainTextResponse(f"This run cannot be written as ATIF: {error}", status_code=409)
    return _file(_dumped(data), f"{name}.atif.json", "application/json")


def bundle_data(bundle: Bundle) -> dict[str, Any]:
    """A bundle as JSON data."""
    run = bundle.run
    return {
        "run": encode_meta(run),
        "steps": [encode_step(step) for step in run.steps],
        "branches": [_branch(branch) for branch in run.branches],
        "diagnoses": [{"id": known.id} | encode_diagnosis(known.diagnosis) for known in bundle.diagnoses],
        "findings": [as_data(finding) for finding in bundle.findings],
        "recoveries": [as_data(recovery) for recovery in bundle.recoveries],
        "effects": [as_data(effect) for effect in bundle.effects],
        "judgements": [as_data(judgement) for judgement in bundle.judgements],
        "problems": list(bundle.problems),
    }


def _branch(branch: Any) -> dict[str, Any]:
    steps: tuple[Step, ...] = branch.steps
    return {
        "id": branch.id,
        "fork_step": branch.fork_step,
        "parent": branch.parent,
        "reason": branch.reason,
        "steps": [encode_step(step) for step in steps],
    }


def _json(data: Any) -> Response:
    return Response(_dumped(data), media_type="application/json")


def _dumped(data: Any) -> bytes:
    option = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(data, default=str, option=option)
    except TypeError:  # half a surrogate pair, a huge number: as our own event log would keep it
        return orjson.dumps(clean(data, depth=MAX_LOG_DEPTH), option=option)


def _file(body: bytes, name: str, kind: str) -> Response:
    return Response(body, media_type=kind, headers={"content-disposition": f'attachment; filename="{name}"'})
