"""Scripted replicas, and a pool over them in virtual time."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter

from agentguard.backends.base import BackendRequest, Response, UpstreamError
from agentguard.backends.config import BackendsOptions
from agentguard.backends.pool import Pool
from agentguard.errors import BackendError
from agentguard.model_api import API_FORMATS
from agentguard.resilience import Deadline
from agentguard.testing.virtual_clock import VirtualClock

HEAD = ((b"content-type", b"text/event-stream"),)


def chat(text, *, calls=None, name="x"):
    message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = calls
    return json.dumps({"id": f"id-{name}", "choices": [{"index": 0, "message": message}]}).encode()


def event(delta=None, *, id="id-1", finish=None, **more):
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    chunk = {"id": id, "created": 1, "model": "m", "choices": [choice], **more}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def ok(text="hi", seconds=0.1, **more):
    async def act(one, request):
        await one.clock.sleep(seconds)
        return Response(status=200, body=chat(text, name=one.name, **more), replica=one.name)

    return act


def body(data, status=200):
    async def act(one, request):
        return Response(status=status, body=data, replica=one.name)

    return act


def refuse(status, retry_after_s=None, seconds=0.01):
    async def act(one, request):
        await one.clock.sleep(seconds)
        raise UpstreamError(Response(status=status, replica=one.name), retry_after_s=retry_after_s)

    return act


def fail(stage="sent", seconds=0.01):
    async def act(one, request):
        await one.clock.sleep(seconds)
        raise BackendError("it failed", stage=stage)

    return act


def hang():
    return ok(seconds=1e6)


def stream(*texts, id="id-1", then="end", first=0.1, gap=0.01, before=()):
    """Return a streamed chat answer, word by word: then its end, a cut, a stall, junk, or an error."""

    async def act(one, request):
        return Words(one, texts, id=id, then=then, first=first, gap=gap, before=before)

    return act


class Words:
    status, headers, notes = 200, HEAD, ()

    def __init__(self, one, texts, *, id, then, first, gap, before):
        self.one, self.replica = one, one.name
        self.first, self.gap, self.then = first, gap, then
        self.chunks = [*before, event({"role": "assistant", "content": ""}, id=id)]
        self.chunks += [event({"content": text}, id=id) for text in texts]
        if then == "end":
            usage = {"prompt_tokens": 10, "completion_tokens": len(texts), "total_tokens": 10 + len(texts)}
            self.chunks += [event(id=id, finish="stop"), event(id=id, usage=usage), DONE]
        elif then == "junk":
            self.chunks.append(b"data: {not json\n\n")
        self.given = 0
        one.open += 1
        self.closed = False

    def __aiter__(self):
        return self

    async def __anext__(self):
        await self.one.clock.sleep(self.gap if self.given else self.first)
        if self.given < len(self.chunks):
            self.given += 1
            return self.chunks[self.given - 1]
        if self.then == "cut":
            raise BackendError("the connection was reset")
        if self.then == "stall":
            await self.one.clock.sleep(1e6)
        await self.aclose()  # a finished stream needs no close
        raise StopAsyncIteration

    async def aclose(self):
        if not self.closed:
            self.closed = True
            self.one.open -= 1


class One:
    """One endpoint: takes its next act from the script, and repeats the last act."""

    def __init__(self, name, clock, script):
        self.name, self.clock, self.script = name, clock, list(script)
        self.asked: list[BackendRequest] = []
        self.at: list[float] = []
        self.running = self.open = 0
        self.cancelled: list[float] = []
        self.closed = False
        self.beat = ok(seconds=0)
        self.beats: list[float] = []

    async def send(self, request, deadline):
        if request.method == "GET":
            self.beats.append(self.clock.now())
            return await self.beat(self, request)
        self.asked.append(request)
        self.at.append(self.clock.now())
        act = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self.running += 1
        try:
            return await act(self, request)
        except asyncio.CancelledError:
            self.cancelled.append(self.clock.now())
            raise
        finally:
            self.running -= 1

    async def aclose(self):
        self.closed = True


class Scene:
    """A pool in virtual time. ``scene = Scene(a=[ok()], b=[fail()])``; then ``scene.run(main)``."""

    def __init__(self, *, per=None, hints=None, seed=1, **scripts):
        section = {key: scripts.pop(key) for key in [*scripts] if len(key) > 1}  # replicas have short names
        if "order" in section:
            section["pipeline"] = section.pop("order")
        per = per or {}
        self.clock = VirtualClock()
        self.per, self.section = per, {"health": "off", **section}
        self.ones, self.made, self.events = {}, [], []
        self.scripts = scripts
        self.pool = Pool(
            self.options(*scripts),
            connect=self.connect,
            clock=self.clock,
            rng=random.Random(seed),
            observers=[self.events.append],
            hints=hints,
        )

    def options(self, *names, **changes):
        replicas = [self.replica(name) for name in names]
        return BackendsOptions.parse({"replicas": replicas, **self.section, **changes})

    def replica(self, name):
        return {"name": name, "url": f"http://{name}/v1", **self.per.get(name, {})}

    def connect(self, options):
        one = One(options.name, self.clock, self.scripts.get(options.name, [ok()]))
        self.ones[options.name] = one
        self.made.append(one)
        return one

    def run(self, main):
        async def whole():
            await self.pool.start()
            try:
                return await main()
            finally:
                await self.pool.aclose()

        found = self.clock.run(whole())
        assert all(one.running == 0 and one.open == 0 for one in self.made)
        return found

    async def ask(self, seconds=100.0, **fields):
        fields = {"body": b'{"model":"m","messages":[{"role":"user","content":"q"}]}', "model": "m", **fields}
        request = BackendRequest(target="/chat/completions", api=API_FORMATS["chat"], **fields)
        return await self.pool.send(request, Deadline.after(seconds, clock=self.clock))

    async def attempt(self, *args, **fields):
        """Return the answer or the error."""
        try:
            return await self.ask(*args, **fields)
        except Exception as error:
            return error

    def counts(self):
        return {name: len(one.asked) for name, one in self.ones.items()}

    def kinds(self):
        return Counter(str(event.kind) for event in self.events)


async def read(answer):
    """Return all chunks, and the error if there was one."""
    got = []
    try:
        async for chunk in answer:
            got.append(chunk)  # noqa: PERF401 - what came before an error is wanted
    except Exception as error:
        return got, error
    finally:
        await answer.aclose()
    return got, None


def texts(chunks):
    """Return the chunks as a client parses them: ids, text, ended."""
    ids, text, ended = set(), "", False
    for line in b"".join(chunks).split(b"\n\n"):
        if not line or line.startswith(b":"):
            continue
        data = line.removeprefix(b"data: ")
        if data == b"[DONE]":
            ended = True
            continue
        chunk = json.loads(data)
        ids.add(chunk["id"])
        for choice in chunk["choices"]:
            text += choice["delta"].get("content") or ""
    return ids, text, ended


def notes(answer):
    return dict(answer.notes)
