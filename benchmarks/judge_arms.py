"""Procedures that `benchmarks/judge.py` measures, their cost on the server, and a journal."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from judge_published import GUIDANCE, TwoStage
from model_server import DEADLINE_S

from agentguard.detect.detection import detect
from agentguard.errors import JudgeError
from agentguard.judge.base import build_text_schema
from agentguard.judge.llm.chat_judge import ChatJudge, ChatOptions
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.prompt import render_run
from agentguard.judge.llm.types import EndpointOptions
from agentguard.judge.vllm.server_metrics import ServerWork, fetch_work
from agentguard.localize.base import Diagnosis, Localizer
from agentguard.localize.llm.base import LlmLocalizer
from agentguard.localize.llm.fused import FusedLocalizer
from agentguard.localize.llm.two_stage import query_two_stages as two_stage
from agentguard.trajectory.model import Trajectory

ARMS: Final = ("published_two_stage", "two_stage", "fused", "diagnosis")
"""The last procedure is ``fused`` that also asks whether the run failed, as a diagnosis
of an unknown outcome does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Measurement of one procedure over one run.

    Attributes:
        run, arm: identify the run and the procedure.
        sent, cached, written: tokens by the server's own counters, or by its answers' usage (``counted``).
        seconds: waiting time.
        calls, faults: requests, and requests without an answer.
        step: the first hypothesis.
        gold: the annotated step.
        transcript: tokens of the run as the judge reads it.
        counted: ``server`` or ``usage``.
    """

    run: str
    arm: str
    sent: float
    cached: float
    written: float
    seconds: float
    calls: float
    faults: int
    step: int | None
    gold: int | None
    transcript: int
    counted: str

    @property
    def computed(self) -> float:
        return self.sent - self.cached

    @property
    def right(self) -> bool:
        return self.step is not None and self.step == self.gold


class Server:
    """Measured endpoint with its HTTP client and its counters."""

    def __init__(self, url: str, *, model: str | None, key: str | None, concurrency: int) -> None:
        self.url, self._model, self._key, self._concurrency = url, model, key, concurrency
        self.root = url.removesuffix("/v1")

    def endpoint(self, at_least: int = 1) -> JudgeEndpoint:
        """Return a client whose prompts share no cache with other clients, for a cold start.

        Args:
            at_least: concurrent calls that it must allow.
        """
        body = {"cache_salt": secrets.token_hex(8)} if self.work() is not None else {}
        concurrent = max(self._concurrency, at_least)
        options = EndpointOptions(deadline_s=DEADLINE_S, max_concurrent=concurrent, extra_body=body)
        return JudgeEndpoint(self.url, model=self._model, api_key=self._key, options=options)

    def work(self) -> ServerWork | None:
        """Return the server's counters; None if the server does not report them."""
        try:
            return fetch_work(self.root)
        except JudgeError:
            return None

    def tokens(self, text: str) -> int:
        """Return the tokens of a text; estimated from its length if the server does not report them."""
        endpoint = self.endpoint()

        async def ask() -> Any:
            return await endpoint.post("/tokenize", {"prompt": text}, deadline_s=60)

        try:
            said = endpoint.loop.run(ask())
        finally:
            endpoint.close()
        return len(said["tokens"]) if isinstance(said, dict) and "tokens" in said else len(text) // 4


def warm(server: Server, arms: Sequence[str]) -> None:
    """Compile the answer schemas of the procedures on the server before the measurement."""
    endpoint = server.endpoint()
    asked = ({"role": "user", "content": "Answer with JSON."},)
    try:
        if "published_two_stage" in arms:
            TwoStage(endpoint).warm()
        if "two_stage" in arms:
            endpoint.loop.run(endpoint.generate_json(asked, build_text_schema(GUIDANCE), max_tokens=200))
        endpoint.loop.run(endpoint.select_label(asked, ("A", "B")))
    finally:
        endpoint.close()


def measure(server: Server, arm: str, run: Trajectory, gold: int | None) -> Row:
    """Measure one procedure over one run, with the server's counters before and after."""
    findings = detect(run).findings
    endpoint = server.endpoint()
    try:
        before, started = server.work(), time.perf_counter()
        if arm == "published_two_stage":
            told = TwoStage(endpoint).locate(run)
            step, calls, faults, usage = told.step, told.calls, told.faults, told.spent.as_dict()
        else:
            found = localizer(arm, endpoint).locate(run, findings)
            step, calls, faults, usage = _read(found)
        seconds, after = time.perf_counter() - started, server.work()
    finally:
        endpoint.close()
    done = after - before if before is not None and after is not None else _by_usage(usage)
    return Row(
        run=run.id,
        arm=arm,
        sent=done.prompt_tokens,
        cached=done.cached_tokens,
        written=done.generated_tokens,
        seconds=seconds,
        calls=calls,
        faults=faults,
        step=step,
        gold=gold,
        transcript=server.tokens(render_transcript(run)),
        counted="server" if before is not None else "usage",
    )


def localizer(arm: str, endpoint: JudgeEndpoint) -> Localizer:
    """Return our localizer with its own judge at the endpoint."""
    judge = ChatJudge(endpoint, options=ChatOptions(deadline_s=DEADLINE_S, max_line_characters=GUIDANCE))
    if arm == "two_stage":
        return LlmLocalizer("two_stage", two_stage, judge, given_failed=True)
    return FusedLocalizer(judge=judge, given_failed=arm == "fused")


def render_transcript(run: Trajectory) -> str:
    """Return the transcript as judges read it, uncut."""
    return render_run(run, nonce="0" * 16, limit=10_000_000).text


def _read(found: Diagnosis) -> tuple[int | None, float, int, Mapping[str, Any]]:
    step = found.hypotheses[0].step if found.hypotheses else None
    return step, found.usage.get("calls", 0.0), len(found.failures), found.usage


def _by_usage(usage: Mapping[str, Any]) -> ServerWork:
    return ServerWork(
        prompt_tokens=usage.get("prompt_tokens", 0.0),
        cached_tokens=usage.get("cached_tokens", 0.0),
        generated_tokens=usage.get("completion_tokens", 0.0),
    )


class Journal:
    """Rows by model, procedure and run in a JSON Lines file, so that a benchmark can continue.

    Raises:
        SystemExit: a line of the file cannot be read.
    """

    def __init__(self, path: Path | None, model: str) -> None:
        self._path, self._model = path, model
        self._held: dict[tuple[str, str], Row] = {}
        lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                told = json.loads(line)
                row = Row(**told["row"])
            except (ValueError, KeyError, TypeError):
                raise SystemExit(f"{path}: line {number} is no result; delete it") from None
            if told.get("model") == model:
                self._held[row.run, row.arm] = row

    def rows(self, runs: Sequence[str], arms: Sequence[str]) -> list[Row]:
        """Return the rows of the runs that every procedure has processed."""
        whole = [run for run in runs if all((run, arm) in self._held for arm in arms)]
        return [self._held[run, arm] for run in whole for arm in arms]

    def get(self, run: str, arm: str, make: Callable[[], Row]) -> Row:
        """Return the row; measure it first if it is missing."""
        if (held := self._held.get((run, arm))) is not None:
            return held
        row = self._held[run, arm] = make()
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"model": self._model, "row": asdict(row)}) + "\n")
        return row
