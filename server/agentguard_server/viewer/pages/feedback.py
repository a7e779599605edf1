"""Labels of diagnoses and findings: the endpoint that stores them, and the review of undecided runs."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote, unquote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from agentguard.errors import ConfigError, StoreError, TaxonomyError
from agentguard.localize.human_labels import update_schema_counts
from agentguard.loopback import is_loopback
from agentguard.store.db.rows import JUDGED_OUTCOMES, JudgementRow
from agentguard.store.db.run_summary import RunSummaryFilter, VerdictFilter
from agentguard.store.read.pagination import MAX_PAGE_SIZE, Page
from agentguard.store.store import Store
from agentguard.store.write.summary_aggregation import select_current_judgements
from agentguard.taxonomy.catalog import TaxonomyCatalog
from agentguard.verdict import Verdict
from agentguard_server.viewer.form_parser import parse_form

SUBJECTS: Final = ("diagnosis", "finding", "hypothesis")
MAX_NOTE_CHARS: Final = 2000
_MAX_NAME_CHARS: Final = 64
_NAME_COOKIE: Final = "agentguard_reviewer"
_NAME_MAX_AGE_S: Final = 365 * 86_400
_DURABILITY_TIMEOUT_S: Final = 5.0
_OUTCOME_OF_VERDICT: Final = {Verdict.FAILED.value: "failed", Verdict.NO_FAILURE_FOUND.value: "passed"}


def routes() -> list[BaseRoute]:
    """Return the routes."""
    return [
        Route("/runs/{id:path}/judge", _handle_feedback, methods=["POST"]),
        Route("/review", _open_next_run, methods=["GET"]),
    ]


def get_reviewer(request: Request) -> str:
    """Return the name that the reviewer entered last; empty without a cookie."""
    return _clean_name(unquote(request.cookies.get(_NAME_COOKIE, "")))


def _open_next_run(request: Request) -> Response:
    """Redirect to the undecided run without a label that follows the run ``after``, newest runs first."""
    settings, store = request.app.state.settings, request.app.state.store
    unlabelled = RunSummaryFilter(verdicts=frozenset({VerdictFilter.UNDECIDED}), judged=False)
    page = store.list_run_summaries(unlabelled, None, Page(limit=MAX_PAGE_SIZE), tenant=settings.tenant)
    last_id = request.query_params.get("after", "")
    last_run = store.get_run_summary(last_id, tenant=settings.tenant) if last_id else None
    runs = [summary for summary in page.rows if summary.run_id != last_id]
    if last_run is not None:
        # The run itself is no longer in the queue if it has a label, so its position is that of its time.
        runs.sort(key=lambda run: (run.began_at, run.run_id) > (last_run.began_at, last_run.run_id))
    if not runs:
        return RedirectResponse(f"{settings.prefix}/?verdict={VerdictFilter.UNDECIDED}&judged=no", 303)
    return RedirectResponse(f"{settings.prefix}/runs/{quote(runs[0].run_id, safe='')}?review=yes", 303)


async def _handle_feedback(request: Request) -> Response:
    fields = parse_form(await request.body())
    return await run_in_threadpool(_respond_to_feedback, request, fields)


def store_judgement(
    request: Request, run_id: str, fields: dict[str, str]
) -> tuple[JudgementRow, Sequence[str]]:
    """Store the label of a form; return its row and the ids of the schemata whose counts changed.

    ``fields`` are those of the form: ``subject``, ``subject_id``, and ``right``, ``outcome`` or ``withdraw``;
    optionally ``step``, ``code``, ``note`` and ``by``.

    Raises:
        StoreError: the run has no such diagnosis or finding.
        ConfigError: a field is invalid.
    """
    settings, store = request.app.state.settings, request.app.state.store
    row = _build_judgement_row(
        store, run_id, fields, tenant=settings.tenant, author=_resolve_author(request, fields)
    )
    previous = _find_previous_judgement(store, row)
    store.write(row).wait(_DURABILITY_TIMEOUT_S)
    return row, update_schema_counts(store, row, previous, tenant=settings.tenant)


def _respond_to_feedback(request: Request, fields: dict[str, str]) -> Response:
    settings = request.app.state.settings
    if not settings.allows_feedback:
        raise ConfigError("labels cannot be stored here: give the viewer a store with --store")
    run_id = request.path_params["id"]
    row, schemata = store_judgement(request, run_id, fields)
    if "application/json" in request.headers.get("accept", ""):
        label = {"id": row.id, "right": row.right, "outcome": row.outcome or None, "by": row.by}
        return JSONResponse(label | {"schemata": schemata}, 201)
    path = quote(run_id, safe="")
    in_review = fields.get("review") == "yes"
    target = f"/review?after={path}" if in_review else f"/runs/{path}#judge"
    response = RedirectResponse(f"{settings.prefix}{target}", 303)
    if fields.get("by"):
        response.set_cookie(
            _NAME_COOKIE, quote(row.by, safe=""), _NAME_MAX_AGE_S, httponly=True, samesite="strict"
        )
    return response


def _build_judgement_row(
    store: Store, run_id: str, fields: dict[str, str], *, tenant: str, author: str
) -> JudgementRow:
    """Build the row. Raises StoreError if the subject is unknown, ConfigError if a field is invalid."""
    subject, subject_id = fields.get("subject", ""), fields.get("subject_id", "")
    if subject not in SUBJECTS:
        raise ConfigError(f"subject is {subject[:40]!r}, expected one of {', '.join(SUBJECTS)}")
    verdict = _require_subject(store, run_id, subject, subject_id, tenant)
    withdrawn = fields.get("withdraw") == "yes"
    outcome = "" if withdrawn else _parse_outcome(fields, verdict)
    if fields.get("right") not in ("yes", "no") and not withdrawn and not outcome:
        raise ConfigError("right is neither yes nor no")
    data: dict[str, Any] = {"withdrawn": True} if withdrawn else {}
    if outcome:
        data["outcome"] = outcome
    if step := fields.get("step"):
        data["step"] = _parse_step(store, run_id, step, tenant)
    if code := fields.get("code"):
        data["code"] = _parse_code(code)
    if note := fields.get("note"):
        data["note"] = note[:MAX_NOTE_CHARS]
    return JudgementRow(
        tenant=tenant,
        run_id=run_id,
        subject=subject,
        subject_id=subject_id,
        right=_OUTCOME_OF_VERDICT.get(verdict) == outcome if outcome else fields.get("right") == "yes",
        by=author,
        data=data,
    )


def _require_subject(store: Store, run_id: str, subject: str, subject_id: str, tenant: str) -> str:
    """Return the verdict if the subject is a diagnosis, else an empty text."""
    verdicts: dict[str, str]
    if subject == "finding":
        verdicts = {row.id: "" for row in store.list_findings(run_id, tenant=tenant)}
        name = subject_id
    else:
        verdicts = {row.id: row.verdict for row in store.list_diagnoses(run_id, tenant=tenant)}
        name, _, rank = subject_id.partition(":")
        if subject == "hypothesis" and not (rank.isascii() and rank.isdecimal() and len(rank) < 6):
            raise ConfigError("a hypothesis is named by its diagnosis, a colon and its rank from 0 on")
    if name not in verdicts:
        raise StoreError(
            f"the run has no such {'finding' if subject == 'finding' else 'diagnosis'}: reload its page"
        )
    return verdicts[name] if subject == "diagnosis" else ""


def _parse_outcome(fields: dict[str, str], verdict: str) -> str:
    """Return the outcome that a label of a diagnosis names; empty for a label as right or wrong.

    An undecided diagnosis names no outcome that could be right or wrong, so its label names the outcome. A
    step or a kind implies that the run failed.

    Raises:
        ConfigError: the outcome is unknown, missing, or contradicts another field.
    """
    outcome = fields.get("outcome", "")
    has_correction = bool(fields.get("step") or fields.get("code"))
    if not outcome and verdict == Verdict.UNDECIDED:
        if not has_correction:
            raise ConfigError(
                "the diagnosis is undecided, so it is neither right nor wrong: "
                "give outcome=failed or outcome=passed"
            )
        return "failed"
    if outcome and not verdict:
        raise ConfigError("only a label of a diagnosis has an outcome: leave outcome out")
    if outcome and outcome not in JUDGED_OUTCOMES:
        raise ConfigError(f"outcome is {outcome[:40]!r}, expected one of {', '.join(JUDGED_OUTCOMES)}")
    if outcome == "passed" and has_correction:
        raise ConfigError("a run that passed has no root cause: leave step and code out, or choose failed")
    return outcome


def _parse_code(code: str) -> str:
    try:
        return TaxonomyCatalog.load().get_code(code).qualified_id
    except TaxonomyError as error:
        reason = f"{error.reason}: {error.hint}" if error.hint else error.reason
        raise ConfigError(f"code is {code[:80]!r}, expected a kind of a taxonomy: {reason[:400]}") from None


def _parse_step(store: Store, run_id: str, text: str, tenant: str) -> int:
    summary = store.get_run_summary(run_id, tenant=tenant)
    steps = summary.steps if summary is not None else 0
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) < steps):
        raise ConfigError(f"step is {text[:20]!r}, expected a number from 0 to {max(0, steps - 1)}")
    return int(text)


def _find_previous_judgement(store: Store, row: JudgementRow) -> JudgementRow | None:
    """Return the current judgement of the same person on the same subject."""
    current_judgements = select_current_judgements(store.list_judgements(row.run_id, tenant=row.tenant))
    previous = (
        judgement
        for judgement in current_judgements
        if (judgement.subject, judgement.subject_id, judgement.by) == (row.subject, row.subject_id, row.by)
    )
    return next(previous, None)


def _clean_name(name: str) -> str:
    return " ".join(name.split())[:_MAX_NAME_CHARS]


def _resolve_author(request: Request, fields: dict[str, str]) -> str:
    """Return the author: from the form or the cookie, else on loopback the user of this machine."""
    name = _clean_name(fields.get("by", "")) or get_reviewer(request)
    if name or not is_loopback(request.app.state.settings.host):
        return name
    try:
        return getpass.getuser()[:_MAX_NAME_CHARS]
    except (OSError, KeyError):
        return ""
