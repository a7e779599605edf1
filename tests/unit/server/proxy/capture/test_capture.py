"""Capture in a separate process: its faults do not delay requests."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from agentguard_server.proxy.capture.collector_supervisor import build_socket_path
from agentguard_server.proxy.capture.diagnosis_worker import DiagnosisWorker, EndedRun
from agentguard_server.proxy.capture.protocol import (
    HEADER_BYTES,
    CapturedExchange,
    CollectorStatus,
    decode_messages,
    encode_frame,
    parse_frame_length,
)
from agentguard_server.proxy.capture.recorder import CaptureRecorder, CollectorClient
from agentguard_server.proxy.config.schema import ProxySettings
from agentguard_server.proxy.guard.inline_guard import InlineGuard, RunLogFactory
from agentguard_server.proxy.guard.options import CaptureOptions, GuardOptions
from agentguard_server.proxy.hooks import CompletedRequest, GuardOutcome, ProxyRequest
from agentguard_server.proxy.process.bootstrap import Bootstrap
from hypothesis import given, strategies as st

from agentguard.config.policy import Policy
from agentguard.guard import Guard
from agentguard.runtime.error_schema_feedback import SchemaFeedback
from agentguard.schemata.lazy_store import LazySchemaStore
from agentguard.schemata.persistence import SqlSchemaStore
from agentguard.store import Store
from tests.unit.judge.chat_server import serving
from tests.unit.localize.runs import chat
from tests.unit.server.proxy.guard.scripted_model import APIS, CHAT, Api, Played, calls
from tests.unit.test_guard_judge import matching_schema

SECRET = "sk-" + "a1B2" * 12
TASK: Any = {"role": "user", "content": f"Book seat 4 with {SECRET}."}
POLICY = Policy.parse({"localizer": {"name": "first_finding"}, "recover": {"on_fail": ["rollback"]}})


@asynccontextmanager
async def capturing(
    folder: Path, *, runs: GuardOptions | None = None, policy: Policy = POLICY, **options: Any
) -> AsyncIterator[CaptureRecorder]:
    made = CaptureOptions(**{"store": str(folder / "runs.db"), **options})
    capture = CaptureRecorder(
        made,
        (runs or GuardOptions()).model_copy(update={"policy": policy}),
        socket_path_override=str(folder / "k.sock"),
    )
    capture.start()
    try:
        yield capture
    finally:
        await capture.aclose()


async def until(said: Callable[[], bool], *, most_s: float = 60.0) -> None:
    async with asyncio.timeout(most_s):
        while not said():
            await asyncio.sleep(0.02)


def recorded(api: Api, body: Any, answer: bytes, **more: Any) -> CompletedRequest:
    of = {key: more.pop(key) for key in ("tenant", "run_id") if key in more}
    asked = ProxyRequest(
        api=api.name,
        method="POST",
        target="/x",
        headers=(),
        body=body if isinstance(body, bytes) else json.dumps(body).encode(),
        stream=answer[:1] != b"{",
        model="m",
        request_id="r",
        started_at=0.0,
        **{"tenant": "", "run_id": "", **of},
    )
    made = {"status": 200, "is_complete": True, "guard_outcome": None, **more}
    return CompletedRequest(
        request=asked,
        sent_body=None,
        response_body=answer,
        replica="a",
        error_code="",
        notes=(),
        time_to_first_byte_s=0.1,
        duration_s=0.1,
        **made,
    )


@pytest.mark.parametrize(("name", "stream"), [("chat", False), ("responses", True), ("messages", True)])
def test_captured_exchange_is_correlated_and_diagnosed(name: str, stream: bool, tmp_path: Path) -> None:
    api = APIS[name]

    async def play() -> None:
        async with capturing(tmp_path, runs=GuardOptions(idle_timeout_s=1)) as capture:
            history: list[Any] = [TASK]
            for turn in [*calls("find", 3), ("say", "There is none.")]:
                made = api.answer(turn)
                answer = b"".join(api.stream(made)) if stream else json.dumps(made).encode()
                capture.record(recorded(api, api.body(history), answer, tenant="team", run_id="mine"))
                history += api.given(made)
                history += [api.result(id, "nothing found") for id in api.calls(made)]
            assert capture.client.accepted == 4
            await until(
                lambda: capture.client.collector_status.diagnosed == 1
            )  # a collector that ends abandons slow work
            assert (capture.client.pending, capture.client.dropped) == (0, 0)

    asyncio.run(play())
    with Store.open(tmp_path / "runs.db") as store:
        run = store.get_trajectory("mine", tenant="team")
        assert run is not None
        assert [[call.name for call in step.tool_calls] for step in run.steps] == [
            [],
            ["find"],
            ["find"],
            ["find"],
            [],
        ]
        assert SECRET not in repr(run)
        assert "[redacted:" in run.task
        assert store.list_diagnoses("mine", tenant="team")[0].verdict == "failed"
        assert store.list_findings("mine", tenant="team")
        assert store.get_trajectory("mine") is None, "it is no other tenant's"
        row = store.get_run("mine", tenant="team")
        assert row is not None
        assert row.data["ended"]


def test_guarded_run_is_stored_with_its_recoveries(tmp_path: Path) -> None:
    async def play() -> str:
        async with capturing(tmp_path) as capture:
            inline = InlineGuard(GuardOptions(policy=POLICY), run_log_factory=capture.client)
            turns = [*calls("find", 3), ("call", "book", "b", "hall"), ("say", "Done.")]
            world = Played(api=CHAT, guarding=inline, turns=iter(turns), tenant="team")
            history: list[Any] = [TASK]
            for _ in turns:
                made = json.loads(await world._whole(json.dumps(CHAT.body(history)).encode()))
                history += CHAT.given(made)
                history += [CHAT.result(id, "nothing found") for id in CHAT.calls(made)]
            inline.close()
            await until(lambda: capture.client.collector_status.diagnosed == 1)
            return world.heads[0]["agentguard-run"]

    run = asyncio.run(play())
    with Store.open(tmp_path / "runs.db") as store:
        kept = store.get_trajectory(run, tenant="team")
        assert kept is not None
        assert [call.id for step in kept.steps for call in step.tool_calls] == ["find0", "b"]
        assert [call.id for b in kept.branches for s in b.steps for call in s.tool_calls] == [
            "find1",
            "find2",
        ]
        assert [one.strategy for one in store.list_recoveries(run, tenant="team")] == ["rollback"]
        assert len(store.list_diagnoses(run, tenant="team")) == 1
        assert SECRET not in repr(kept)


def test_workers_have_the_schemata_of_the_store_of_capture_by_tenant(tmp_path: Path) -> None:
    document = {
        "backends": {"replicas": [{"name": "a", "url": "http://127.0.0.1:9"}]},
        "capture": {"store": str(tmp_path / "runs")},
        "guard": {"policy": str(tmp_path / "policy.yaml")},
    }
    (tmp_path / "policy.yaml").write_text("version: 1\n")
    options = Bootstrap(ProxySettings.parse(document))._guard
    assert options is not None
    assert options.load_policy().schemata == f"sqlite+pysqlite:///{tmp_path}/runs"
    inline = InlineGuard(options, run_log_factory=cast("RunLogFactory", object()))
    with Store.open(tmp_path / "runs") as store:
        SqlSchemaStore(store, tenant="a").upsert([matching_schema(chat(), "Read the answer first.")])
    cited = [
        [id for one in inline._create_guard(tenant).diagnose(chat()).hypotheses for id in one.schemata]
        for tenant in ("a", "a", "b", "")
    ]
    assert list(map(len, cited)) == [1, 1, 0, 0]
    inline.close()


def test_collector_cites_only_the_schemata_of_the_runs_tenant(tmp_path: Path) -> None:
    with Store.open(tmp_path / "runs.db") as store:
        SqlSchemaStore(store, tenant="a").upsert([matching_schema(chat(), "Read the answer first.")])
        for tenant in ("a", "b"):
            store.write_run(chat(), tenant=tenant)
        store.flush()
        feedback = SchemaFeedback(LazySchemaStore(tmp_path / "runs.db"))
        worker = DiagnosisWorker(store, Guard(schemata=feedback))
        for tenant in ("a", "b"):
            worker.enqueue(EndedRun(tenant=tenant, id=chat().id))
        worker.close()
        store.flush()
        cited = [
            [one["schemata"] for one in row.data["hypotheses"] if one.get("schemata")]
            for tenant in ("a", "b")
            for row in store.list_diagnoses(chat().id, tenant=tenant)
        ]
    assert list(map(len, cited)) == [1, 0]


def test_acceptance_verdicts_of_a_guarded_run_are_stored_without_secrets(tmp_path: Path) -> None:
    acceptance = {"rules": [{"contains": "nothing is free"}], "on_fail": ["restart"]}
    policy = Policy.parse({"localizer": {"name": "first_finding"}, "acceptance": acceptance})

    async def play() -> str:
        async with capturing(tmp_path) as capture:
            inline = InlineGuard(GuardOptions(policy=policy), run_log_factory=capture.client)
            turns = [*calls("find", 1), ("say", f"Seat {SECRET}."), ("say", "Sorry, nothing is free.")]
            world = Played(api=CHAT, guarding=inline, turns=iter(turns), tenant="team")
            history: list[Any] = [TASK]
            for _ in range(2):
                made = json.loads(await world._whole(json.dumps(CHAT.body(history)).encode()))
                history += CHAT.given(made)
                history += [CHAT.result(id, "nothing found") for id in CHAT.calls(made)]
            inline.close()
            await until(lambda: capture.client.collector_status.diagnosed == 1)
            return world.heads[0]["agentguard-run"]

    run = asyncio.run(play())
    with Store.open(tmp_path / "runs.db") as store:
        rows = store.list_run_acceptances(run, tenant="team")
    assert [(row.attempt, row.accepted) for row in rows] == [(1, False), (2, True)]
    assert rows[1].data["output"] == "Sorry, nothing is free."
    assert SECRET not in repr(rows)


def test_captured_run_is_diagnosed_with_the_judge_of_the_policy(tmp_path: Path) -> None:
    async def play(policy: Policy) -> None:
        async with capturing(tmp_path, runs=GuardOptions(idle_timeout_s=1), policy=policy) as capture:
            history: list[Any] = [TASK]
            for turn in [*calls("find", 2), ("say", "There is none.")]:
                made = CHAT.answer(turn)
                answer = json.dumps(made).encode()
                capture.record(recorded(CHAT, CHAT.body(history), answer, tenant="team", run_id="mine"))
                history += CHAT.given(made)
                history += [CHAT.result(id, "nothing found") for id in CHAT.calls(made)]
            await until(lambda: capture.client.collector_status.diagnosed == 1)

    with serving() as (url, script):
        asyncio.run(play(Policy.parse({"judge": {"base_url": url}})))
        assert len(script.seen) == 4, "two questions in both orders"
    with Store.open(tmp_path / "runs.db") as store:
        (row,) = store.list_diagnoses("mine", tenant="team")
    assert (row.method, row.data["usage"]["calls"]) == ("fused", 4)
    assert row.data["judge"].startswith("judge (/models/small); prompts ")


def test_dead_collector_is_restarted(tmp_path: Path) -> None:
    async def play() -> None:
        async with capturing(tmp_path) as capture:
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            answer = json.dumps(CHAT.answer(("say", "ho"))).encode()
            capture.record(recorded(CHAT, body, answer, run_id="first"))
            await until(
                lambda: capture.client.collector_status.written > 0 == capture.client.collector_status.pending
            )
            keeping = capture._supervisor
            assert keeping is not None
            assert keeping.pid is not None
            before = keeping.pid
            inline = InlineGuard(GuardOptions(policy=POLICY), run_log_factory=capture.client)
            world = Played(api=CHAT, guarding=inline, turns=iter(calls("find", 2)), run_id="second")
            await world._whole(json.dumps(CHAT.body([TASK])).encode())
            await until(lambda: capture.client.pending == capture.client.collector_status.pending == 0)
            os.kill(before, signal.SIGKILL)
            await until(lambda: keeping.restarts == 1)
            history = [TASK, *CHAT.given(CHAT.answer(calls("find", 1)[0])), CHAT.result("find0", "none")]
            await world._whole(json.dumps(CHAT.body(history)).encode())
            await until(lambda: capture.client.collector_status.handled > 0 == capture.client.pending)
            assert capture.status()["restarts"] == 1

    asyncio.run(play())
    with Store.open(tmp_path / "runs.db") as store:
        assert store.get_trajectory("first") is not None
        second = store.get_trajectory("second")
        assert second is not None
        assert [step.source.value for step in second.steps] == ["user", "agent"], "it was gone on with"


def test_unusable_store_is_reported_and_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")

    async def play() -> None:
        async with capturing(tmp_path, store=str(tmp_path / "file" / "runs.db")) as capture:
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            answer = json.dumps(CHAT.answer(("say", "ho"))).encode()
            for i in range(50):
                capture.record(recorded(CHAT, body, answer, run_id=f"r{i}"))
            await until(lambda: capture.client.pending == 0 and capture.client.accepted == 50)
            await until(lambda: bool(capture.client.collector_status.error))
            collector = capture.status()["collector"]
            assert collector["error"]
            assert collector["pending"] > 0
            assert collector["written"] == 0

    asyncio.run(play())


def test_full_queue_drops_and_counts_exchanges(tmp_path: Path) -> None:
    async def play() -> None:
        link = CollectorClient(str(tmp_path / "nobody"), max_queue_bytes=65_536)
        for _ in range(100):
            link.enqueue(CapturedExchange("", "", "chat", False, b"x" * 1000, b"", 0.0, 0.0), 1000)
        assert link.dropped == 100 - 65_536 // 1128
        await asyncio.to_thread(link.enqueue, CapturedExchange("", "", "chat", False, b"", b"", 0.0, 0.0), 0)
        await asyncio.sleep(0)
        await link.aclose()
        assert (link.accepted, link.dropped) == (101, 101)
        assert link.pending == 0

    asyncio.run(play())


def test_rows_of_a_lost_collector_stay_counted(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(parse_frame_length(await reader.readexactly(HEADER_BYTES)))
        writer.write(encode_frame(CollectorStatus(handled=1, lost=3, pending=2)))
        writer.close()

    async def play() -> None:
        path = str(tmp_path / "k.sock")
        async with await asyncio.start_unix_server(answer, path):
            link = CollectorClient(path, max_queue_bytes=65_536)
            link.enqueue(CapturedExchange("", "", "chat", False, b"{}", b"", 0.0, 0.0), 2)
            await until(lambda: link.disconnects == 1)
        assert (link.dropped, link.dropped_rows, link.collector_status.lost) == (0, 5, 0)

    asyncio.run(play())


def test_oversized_exchange_is_counted(tmp_path: Path) -> None:
    async def play() -> None:
        capture = CaptureRecorder(
            CaptureOptions(max_body_bytes=1024),
            GuardOptions(policy=POLICY),
            worker=1,
            socket_path_override=str(tmp_path / "nobody"),
        )
        capture.record(recorded(CHAT, b"x" * 1025, b"{}"))
        capture.record(recorded(CHAT, b"x", b"{" * capture.max_captured_bytes))
        capture.record(recorded(CHAT, b"x", b"{", guard_outcome=GuardOutcome(run_id="r", step=1)))
        for run in ("off", "no name", "n" * 129):
            capture.record(recorded(CHAT, b"x", b"{", is_complete=False, run_id=run))
        assert (capture.skipped_requests, capture.truncated_responses, capture.client.accepted) == (1, 1, 4)
        kept = [message for message, _ in capture.client._queue]
        assert all(
            isinstance(one, CapturedExchange) and one.response == one.run_id.encode() == b"" for one in kept
        )
        capture.client.close()

    asyncio.run(play())


def test_malformed_exchanges_do_not_stop_collector(tmp_path: Path) -> None:
    async def play() -> None:
        async with capturing(tmp_path) as capture:
            good = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            for body, answer in [
                (b"{", b"{}"),
                (good, b"[1]"),
                ({"messages": [{"role": 1}]}, b"{}"),
                ({"messages": [1]}, b"data: {}\n\n"),
                (good, b'data: {"choices": ["?"]}\n\n'),
                (good, b"data: {}\n\n"),
            ]:
                capture.record(recorded(CHAT, body, answer))
            capture.record(
                recorded(CHAT, good, json.dumps(CHAT.answer(("say", "ho"))).encode(), run_id="good")
            )
            await until(lambda: capture.client.pending == 0)
            assert capture.client.disconnects == 0

    asyncio.run(play())
    with Store.open(tmp_path / "runs.db") as store:
        good = store.get_trajectory("good")
        assert good is not None
        assert [step.content for step in good.steps] == ["hi", "ho"]


def test_socket_folder_is_private(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = Path(build_socket_path(7))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.name == "collector-7.sock"
    path.parent.chmod(0o755)
    with pytest.raises(Exception, match="chmod 700"):
        build_socket_path(7)


texts, times = st.text(max_size=20), st.floats(allow_nan=False)
exchanges = st.builds(
    CapturedExchange, texts, texts, texts, st.booleans(), st.binary(), st.binary(), times, times
)


@given(st.lists(exchanges))
def test_frames_round_trip(messages: list[CapturedExchange]) -> None:
    made = encode_frame(messages)
    assert parse_frame_length(made[:4]) == len(made) - 4
    assert decode_messages(made[4:]) == messages
