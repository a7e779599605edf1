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

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from agentguard import _sync_async
from agentguard.errors import ConfigError, MissingExtra
from agentguard.runtime.session import Session
from agentguard.runtime.tool_execution import aundo_effects, undo_effects

try:
    from langchain_core.runnables.config import ensure_config
    from langgraph.constants import END
    from langgraph.prebuilt import ToolNode
except ImportError as error:
    raise MissingExtra("LangGraph", "langchain") from error

from agentguard.integrations.langchain.run import acall_tool, call_tool, run_here
from agentguard.integrations.langgraph.checkpoints import ForkPoint, came_from
from agentguard.integrations.langgraph.driver import Drive, GraphChange, GraphRun
from agentguard.integrations.langgraph.graph_inspection import UNGUARDED, shape_of
from agentguard.integrations.langgraph.streaming import Chunks, with_question
from agentguard.integrations.langgraph.thread_runs import ThreadRuns

if TYPE_CHECKING:
    from agentguard.guard import Guard


@dataclass(frozen=True, slots=True)
class _Doing:
    """How a graph's checkpoints are read and written and effects undone: at once, or awaited."""

    get_state: Callable[..., Any]
    update_state: Callable[..., Any]
    look: Callable[..., Any]
    undo: Callable[..., Any]


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
        self._name, self._as_node = name, as_node
        self._now = _Doing(graph.get_state, graph.update_state, look=self._look, undo=undo_effects)
        self._later = _Doing(graph.aget_state, graph.aupdate_state, look=self._alook, undo=aundo_effects)
        self._runs = ThreadRuns(guard, self.shape, agent=name, ask=ask, on_run=on_run)

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
        drive = _sync_async.run_sync(self._begin(self._now, input, config, options), _sync_async.call)
        while True:
            out = self.graph.invoke(drive.input, drive.config(), **drive.options)
            _sync_async.run_sync(self._settle(self._now, drive), _sync_async.call)
            if drive.over:
                return with_question(out, drive.run.question)

    async def ainvoke(self, input: Any, config: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """As `invoke`."""
        if options.get("stream_mode", "values") != "values":
            return [chunk async for chunk in self.astream(input, config, **options)]
        drive = await _sync_async.run_async(
            self._begin(self._later, input, config, options), _sync_async.call
        )
        while True:
            out = await self.graph.ainvoke(drive.input, drive.config(), **drive.options)
            await _sync_async.run_async(self._settle(self._later, drive), _sync_async.call)
            if drive.over:
                return with_question(out, drive.run.question)

    def stream(self, input: Any, config: Mapping[str, Any] | None = None, **options: Any) -> Iterator[Any]:
        """As the graph's own; what a line that is left had streamed before stays streamed.

        Raises:
            ConfigError, RecoveryError, GraphRecursionError: as for `invoke`.
        """
        drive = _sync_async.run_sync(self._begin(self._now, input, config, options), _sync_async.call)
        chunks = Chunks(options, self.graph.stream_mode)
        while not drive.over:
            chunks.segment(first=drive.segment == 0, forked=drive.forked)
            for chunk in self.graph.stream(drive.input, drive.config(), **drive.options):
                yield from chunks.shown(chunk)
            _sync_async.run_sync(self._settle(self._now, drive), _sync_async.call)
        yield from chunks.last(drive.run.question)

    async def astream(
        self, input: Any, config: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[Any]:
        """As `stream`."""
        drive = await _sync_async.run_async(
            self._begin(self._later, input, config, options), _sync_async.call
        )
        chunks = Chunks(options, self.graph.stream_mode)
        while not drive.over:
            chunks.segment(first=drive.segment == 0, forked=drive.forked)
            async for chunk in self.graph.astream(drive.input, drive.config(), **drive.options):
                for one in chunks.shown(chunk):
                    yield one
            await _sync_async.run_async(self._settle(self._later, drive), _sync_async.call)
        for one in chunks.last(drive.run.question):
            yield one

    def session_of(self, config: Mapping[str, Any]) -> Session | None:
        """The session of a thread's latest run; None before its first."""
        run = self._runs.latest(str(config["configurable"]["thread_id"]))
        return None if run is None else run.session

    def _begin(
        self, do: _Doing, input: Any, config: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> _sync_async.Effects[Drive]:
        """Yields what is to be called, at once or awaited; as the next two."""
        given, thread = _thread(config)
        head = yield partial(do.get_state, _head(given))
        run, answer = self._runs.of(thread, input, given, head)
        drive = self._drive(run, input, given, options)
        drive.begin(head)
        if answer is not None:
            change = drive.answered(answer)
            if not drive.added(change, head):
                yield from self._write(do, drive, change, head)
        return drive

    def _settle(self, do: _Doing, drive: Drive) -> _sync_async.Effects[None]:
        """Look at what a segment did, and carry out what is planned."""
        if drive.closing:
            drive.over = True
            return
        head = yield partial(do.get_state, drive.thread)
        plan = yield from drive.took(head)
        failed = () if plan is None else (yield partial(do.undo, drive.run.session, plan))
        change = drive.change(plan, failed, head)
        if change is not None and not drive.added(change, head):
            yield from self._write(do, drive, change, head)

    def _write(self, do: _Doing, drive: Drive, change: GraphChange, head: Any) -> _sync_async.Effects[None]:
        at = head
        if change.fork_at is not None:
            point = ForkPoint(drive.run, self.shape, change.fork_at, head)
            yield partial(do.look, drive.thread, point)
            at = point.found
        update, as_node = {"messages": change.messages}, self._as_node or came_from(at, self.shape)
        where = yield partial(do.update_state, drive.marked(at.config), update, as_node=as_node)
        if change.stop:
            yield partial(do.update_state, where, None, as_node=END)
        drive.went((yield partial(do.get_state, drive.thread)), change)

    def _look(self, thread: Any, point: ForkPoint) -> None:
        for snapshot in self.graph.get_state_history(thread):
            if point.look(snapshot):
                return

    async def _alook(self, thread: Any, point: ForkPoint) -> None:
        async for snapshot in self.graph.aget_state_history(thread):
            if point.look(snapshot):
                return

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
