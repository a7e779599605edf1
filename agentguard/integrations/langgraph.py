"""LangGraph: a compiled graph under the guard, taken back by forking its checkpoints.

::

    app = guard.langgraph(graph)          # a graph with a checkpointer and a channel `messages`
    app.invoke({"messages": [...]}, {"configurable": {"thread_id": "1"}})

The graph is run from one turn boundary to the next. Where the session wants a turn undone, the checkpoint
before it is forked by ``update_state`` with the correction: *all* channels of the state are as they were
there, and the line that was left stays in the thread's history.

What tools did outside of the state stays done. So that nothing is done twice, let the ledger see the calls:
build the graph's tool node by ``guard.langgraph_tools(tools)``, or, in ``create_agent``, list
``guard.langchain()`` first among the middleware. That one also refuses answers before their tools run and
takes tools away, which a graph alone cannot.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentguard.errors import ConfigError, MissingExtra
from agentguard.live.acting import aundo_all, undo_all
from agentguard.live.session import Session
from agentguard.recover.base import Capabilities
from agentguard.trajectory.model import Trajectory

try:
    from langchain_core.runnables.config import ensure_config
    from langgraph.constants import END
    from langgraph.prebuilt import ToolNode
except ImportError as error:
    raise MissingExtra("LangGraph", "langchain") from error

from agentguard.integrations._langchain_messages import step_of, whole_turns
from agentguard.integrations._langchain_run import acall_tool, call_tool, run_here
from agentguard.integrations._langgraph_drive import RUN_ID, Change, Drive, GraphRun
from agentguard.integrations._langgraph_shape import UNGUARDED, shape_of
from agentguard.integrations._langgraph_state import (
    ForkPoint,
    answer_in,
    came_from,
    is_new,
    messages_in,
    task_in,
)
from agentguard.integrations._langgraph_stream import Chunks, with_question

if TYPE_CHECKING:
    from agentguard.guard import Guard

_KEPT = 1024
"""Threads whose latest run is kept in memory; an older one that goes on is read anew from its state."""


class GuardedGraph:
    """A compiled graph whose runs are guarded; whatever is not here is the graph's own.

    One call with an input is one run; calls that resume an interrupted run (with ``None`` or a ``Command``)
    belong to it. Threads may be run side by side; calls on one thread come one after the other, as for any
    graph. The graph must be run at the root: state inside sub-graphs is not forked, a sub-graph is run again
    as a whole where its node lies after the fork.

    Args:
        guard: whose rules hold; `Guard.langgraph` gives itself.
        graph: compiled, with a checkpointer and a channel ``messages``.
        name: of the agent, as the trajectory shows it.
        before: the nodes that begin a turn, where they are not those that follow the tools.
        as_node: the node that corrections are said to come from, where LangGraph cannot tell by itself.
        ask: called with a question when a person must decide; without it the run is interrupted, with the
            question as the interrupt's value, and goes on with ``Command(resume=answer)``.
        on_run: called with the session of each run when it begins.

    Raises:
        ConfigError: the graph cannot be guarded; says why and what to change.
    """

    def __init__(
        self,
        guard: Guard,
        graph: Any,
        *,
        name: str = "assistant",
        before: str | Iterable[str] | None = None,
        as_node: str | None = None,
        ask: Callable[[str], str] | None = None,
        on_run: Callable[[Session], None] | None = None,
    ) -> None:
        self.graph, self.shape = graph, shape_of(graph, before)
        self._guard, self._name, self._as_node = guard, name, as_node
        self._ask, self._on_run = ask, on_run
        self._runs: OrderedDict[str, GraphRun] = OrderedDict()
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        if name == "graph" or name in UNGUARDED:  # the former: a copy that is not filled yet
            raise AttributeError(
                f"a guarded graph has no {name!r}, which would run the graph without its guard; "
                f"if that is meant: .graph.{name}"
            )
        return getattr(self.graph, name)

    def invoke(self, input: Any, config: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """As the graph's own.

        Raises:
            ConfigError: the config names no thread, or the call is made inside of another graph.
            RecoveryError: the state cannot be forked where it must be.
            GraphRecursionError: the recursion limit is used up, steps that were taken back included.
        """
        if options.get("stream_mode", "values") != "values":
            return list(self.stream(input, config, **options))
        drive = self._begin(input, config, options)
        while True:
            out = self.graph.invoke(drive.input, drive.config(), **drive.options)
            self._settle(drive)
            if drive.over:
                return with_question(out, drive.run.question)

    async def ainvoke(self, input: Any, config: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """As `invoke`."""
        if options.get("stream_mode", "values") != "values":
            return [chunk async for chunk in self.astream(input, config, **options)]
        drive = await self._abegin(input, config, options)
        while True:
            out = await self.graph.ainvoke(drive.input, drive.config(), **drive.options)
            await self._asettle(drive)
            if drive.over:
                return with_question(out, drive.run.question)

    def stream(self, input: Any, config: Mapping[str, Any] | None = None, **options: Any) -> Iterator[Any]:
        """As the graph's own; what a line that is left had streamed before stays streamed.

        Raises:
            ConfigError, RecoveryError, GraphRecursionError: as for `invoke`.
        """
        drive = self._begin(input, config, options)
        chunks = Chunks(options, self.graph.stream_mode)
        while not drive.over:
            chunks.segment(first=drive.segment == 0, forked=drive.forked)
            for chunk in self.graph.stream(drive.input, drive.config(), **drive.options):
                yield from chunks.shown(chunk)
            self._settle(drive)
        yield from chunks.last(drive.run.question)

    async def astream(
        self, input: Any, config: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[Any]:
        """As `stream`."""
        drive = await self._abegin(input, config, options)
        chunks = Chunks(options, self.graph.stream_mode)
        while not drive.over:
            chunks.segment(first=drive.segment == 0, forked=drive.forked)
            async for chunk in self.graph.astream(drive.input, drive.config(), **drive.options):
                for one in chunks.shown(chunk):
                    yield one
            await self._asettle(drive)
        for one in chunks.last(drive.run.question):
            yield one

    def session_of(self, config: Mapping[str, Any]) -> Session | None:
        """The session of a thread's latest run; None before its first."""
        run = self._runs.get(str(config["configurable"]["thread_id"]))
        return None if run is None else run.session

    def _begin(self, input: Any, config: Mapping[str, Any] | None, options: Mapping[str, Any]) -> Drive:
        given, thread = _thread(config)
        head = self.graph.get_state(_head(given))
        run, answer = self._run(thread, input, given, head)
        drive = self._drive(run, input, given, options)
        drive.begin(head)
        if answer is not None:
            change = drive.answered(answer)
            if not drive.added(change, head):
                self._write(drive, change, head)
        return drive

    async def _abegin(
        self, input: Any, config: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> Drive:
        given, thread = _thread(config)
        head = await self.graph.aget_state(_head(given))
        run, answer = self._run(thread, input, given, head)
        drive = self._drive(run, input, given, options)
        drive.begin(head)
        if answer is not None:
            change = drive.answered(answer)
            if not drive.added(change, head):
                await self._awrite(drive, change, head)
        return drive

    def _settle(self, drive: Drive) -> None:
        """Look at what a segment did, and carry out what is planned."""
        if drive.closing:
            drive.over = True
            return
        head = self.graph.get_state(drive.thread)
        plan = drive.took(head)
        failed = () if plan is None else undo_all(drive.run.session, plan)
        change = drive.change(plan, failed, head)
        if change is not None and not drive.added(change, head):
            self._write(drive, change, head)

    async def _asettle(self, drive: Drive) -> None:
        """As `_settle`."""
        if drive.closing:
            drive.over = True
            return
        head = await self.graph.aget_state(drive.thread)
        plan = drive.took(head)
        failed = () if plan is None else await aundo_all(drive.run.session, plan)
        change = drive.change(plan, failed, head)
        if change is not None and not drive.added(change, head):
            await self._awrite(drive, change, head)

    def _write(self, drive: Drive, change: Change, head: Any) -> None:
        at = head
        if change.fork_at is not None:
            point = ForkPoint(drive.run, self.shape, change.fork_at, head)
            for snapshot in self.graph.get_state_history(drive.thread):
                if point.look(snapshot):
                    break
            at = point.found
        update, as_node = {"messages": change.messages}, self._as_node or came_from(at, self.shape)
        where = self.graph.update_state(drive.marked(at.config), update, as_node=as_node)
        if change.stop:
            self.graph.update_state(where, None, as_node=END)
        drive.went(self.graph.get_state(drive.thread), change)

    async def _awrite(self, drive: Drive, change: Change, head: Any) -> None:
        at = head
        if change.fork_at is not None:
            point = ForkPoint(drive.run, self.shape, change.fork_at, head)
            async for snapshot in self.graph.aget_state_history(drive.thread):
                if point.look(snapshot):
                    break
            at = point.found
        update, as_node = {"messages": change.messages}, self._as_node or came_from(at, self.shape)
        where = await self.graph.aupdate_state(drive.marked(at.config), update, as_node=as_node)
        if change.stop:
            await self.graph.aupdate_state(where, None, as_node=END)
        drive.went(await self.graph.aget_state(drive.thread), change)

    def _run(
        self, thread: str, input: Any, config: Mapping[str, Any], head: Any
    ) -> tuple[GraphRun, str | None]:
        """The run that a call belongs to, and what a person answers the guard by it."""
        known = self._runs.get(thread)
        earlier = "checkpoint_id" in config["configurable"]  # the caller goes back by themselves
        if known is not None and not (is_new(input) or earlier or known.session.ended):
            answer = answer_in(input) if known.question is not None else None
            return known, answer
        task = task_in(input)
        if task is None:
            task = task_in({"messages": messages_in(head)}) or ""
        kept = (head.metadata or {}).get(RUN_ID)
        if is_new(input) or earlier or not head.next or kept is None or self._guard.parts.store is None:
            return self._opened(thread, task), None
        run = self._opened(thread, task, id=kept)  # it was interrupted in another process
        said = messages_in(head)
        run.line.adopt(said, len(run.session))
        for turn in run.line.fresh(whole_turns(said), len(run.session)):
            run.session.commit(step_of(turn, agent=self._name))
        return run, None

    def _opened(self, thread: str, task: str, *, id: str | None = None) -> GraphRun:
        """A new run, or the one of that id as the store knows it."""
        meta = Trajectory(
            id=id or uuid.uuid4().hex[:12], format="event_log", task=task, steps=(), tools=self.shape.specs
        )
        inside = self.shape.middleware
        can = Capabilities(
            fork=True,
            compensate=True,
            restart=True,
            reject=inside,
            withhold=inside,
            # The middleware cannot interrupt: where a person is asked about an answer, `ask` must do it.
            hand_over=self._ask is not None or not inside,
        )
        run = GraphRun(self._guard.session(meta, can, resume=id is not None))
        run.ask = self._ask
        if self._on_run is not None:
            self._on_run(run.session)
        with self._lock:
            self._runs[thread] = run
            self._runs.move_to_end(thread)
            while len(self._runs) > _KEPT:
                self._runs.popitem(last=False)
        return run

    def _drive(
        self, run: GraphRun, input: Any, config: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Drive:
        return Drive(
            run,
            self.shape,
            input=input,
            config=config,
            options=options,
            defaults=self.graph,
            agent=self._name,
        )


def guarded_tools(guard: Guard, tools: Sequence[Any], **options: Any) -> ToolNode:
    """A tool node whose calls are entered in the ledger of the guarded run, so that each effect happens once.

    Args:
        guard: unused but for the form; a run finds its guard by itself.
        tools: as for ``ToolNode``.
        options: further arguments of ``ToolNode``.

    Raises:
        ConfigError: a wrapper of one's own is given, too.
    """
    del guard
    if {"wrap_tool_call", "awrap_tool_call"} & set(options):
        raise ConfigError("langgraph_tools: wraps the calls itself; give no wrap_tool_call")
    return ToolNode(tools, wrap_tool_call=_wrapped, awrap_tool_call=_awrapped, **options)


def _wrapped(request: Any, handler: Callable[[Any], Any]) -> Any:
    return call_tool(run_here(nested=True), request, handler)


async def _awrapped(request: Any, handler: Callable[[Any], Any]) -> Any:
    return await acall_tool(run_here(nested=True), request, handler)


def _thread(config: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], str]:
    """The config and its thread; refuses what cannot be forked."""
    given = dict(config or {})
    configurable = dict(given.get("configurable") or {})
    around = ensure_config().get("configurable") or {}
    if configurable.get("checkpoint_ns") or around.get("checkpoint_ns"):
        raise ConfigError(
            "langgraph: a guarded graph runs at the root; inside of another graph its checkpoints cannot be "
            "forked. Guard the outer graph, or give the inner agent the middleware guard.langchain()"
        )
    if configurable.get("thread_id") is None:
        raise ConfigError("langgraph: the config names no thread: {'configurable': {'thread_id': ...}}")
    return {**given, "configurable": configurable}, str(configurable["thread_id"])


def _head(config: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in config["configurable"].items() if key != "checkpoint_id"}
    return {"configurable": kept}


__all__ = ["GuardedGraph", "guarded_tools"]
