"""LangGraph: a compiled graph under the guard, with rollback by forking its checkpoints.

::

    app = guard.langgraph(graph)          # a graph with a checkpointer and a channel `messages`
    app.invoke({"messages": [...]}, {"configurable": {"thread_id": "1"}})

The graph reports each turn boundary in its stream. To roll back a turn, the guard pauses the graph at the
boundary and forks the checkpoint before the turn by ``update_state`` with the correction. *All* channels of
the state return to their values at that checkpoint. The abandoned branch stays in the thread's history.

Side effects of tools outside the state remain. To prevent that a call is executed twice, the effect ledger
must see the calls. Either build the graph's tool node by ``guard.langgraph_tools(tools)``, or list
``guard.langchain()`` first among the middleware of ``create_agent``. The middleware can also reject answers
before their tools run and disable tools, which is impossible from outside the graph.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, suppress
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
    from langgraph.errors import GraphInterrupt
    from langgraph.prebuilt import ToolNode
except ImportError as error:
    raise MissingExtra("LangGraph", "langchain") from error

from agentguard.integrations.langchain.run import acall_tool, call_tool, get_current_run
from agentguard.integrations.langgraph.checkpoints import ForkPointSearch, find_source_node
from agentguard.integrations.langgraph.driver import GraphChange, GraphDriver, GraphRun
from agentguard.integrations.langgraph.graph_inspection import UNGUARDED_METHODS, inspect_graph
from agentguard.integrations.langgraph.stream_filter import ChunkFilter
from agentguard.integrations.langgraph.thread_runs import ThreadRuns

if TYPE_CHECKING:
    from agentguard.guard import Guard


@dataclass(frozen=True, slots=True)
class _GraphAccess:
    """Functions that read and write a graph's checkpoints and undo effects, sync or async."""

    get_state: Callable[..., Any]
    update_state: Callable[..., Any]
    find_fork_point: Callable[..., Any]
    undo_effects: Callable[..., Any]


class GuardedGraph:
    """Compiled graph whose runs are guarded; other attributes are those of the graph.

    One call with an input is one run. Calls that resume an interrupted run (with ``None`` or a ``Command``)
    continue that run. Threads may run concurrently; calls on one thread must be sequential, as for any graph.
    The graph must be the root graph. State inside subgraphs is not forked: a subgraph whose node comes after
    the fork runs again as a whole.

    Args:
        guard: the guard whose rules apply; set by `Guard.langgraph`.
        graph: compiled graph with a checkpointer and a channel ``messages``.
        name: name of the agent in the trajectory.
        turn_nodes: the nodes that begin a turn, if they are not those that follow the tools.
        as_node: source node of corrections, if LangGraph cannot infer it.
        ask: called with a question when a person must decide. Without it the run is interrupted with the
            question as the interrupt's value, and ``Command(resume=answer)`` resumes it.
        on_run: called with the session of each run when the run begins.

    Raises:
        ConfigError: the graph cannot be guarded; the message gives the reason and the remedy.
    """

    def __init__(
        self,
        guard: Guard,
        graph: Any,
        *,
        name: str = "assistant",
        turn_nodes: str | Iterable[str] | None = None,
        as_node: str | None = None,
        ask: Callable[[str], str] | None = None,
        on_run: Callable[[Session], None] | None = None,
    ) -> None:
        self.graph, self.info = graph, inspect_graph(graph, turn_nodes)
        self._name, self._as_node = name, as_node
        # `invoke` of a compiled graph reduces its stream; that of the copy reduces the guarded stream.
        self._invoker = copy.copy(graph)
        self._invoker.stream, self._invoker.astream = self.stream, self.astream
        self._sync_access = _GraphAccess(
            graph.get_state,
            graph.update_state,
            find_fork_point=self._find_fork_point,
            undo_effects=undo_effects,
        )
        self._async_access = _GraphAccess(
            graph.aget_state,
            graph.aupdate_state,
            find_fork_point=self._afind_fork_point,
            undo_effects=aundo_effects,
        )
        self._runs = ThreadRuns(guard, self.info, agent=name, ask=ask, on_run=on_run)

    def __getattr__(self, name: str) -> Any:
        if name == "graph" or name in UNGUARDED_METHODS:  # "graph" is missing in a copy under construction
            raise AttributeError(
                f"a guarded graph has no {name!r}, which would run the graph without its guard; "
                f"if that is meant: .graph.{name}"
            )
        return getattr(self.graph, name)

    def invoke(self, input: Any, config: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Run the graph's ``invoke``, guarded.

        Raises:
            ConfigError: the configuration has no thread, or the call is made inside another graph.
            RecoveryError: the state cannot be forked at the required step.
            GraphRecursionError: the recursion limit is used up; rolled back steps count too.
        """
        return self._invoker.invoke(input, config, **options)

    async def ainvoke(self, input: Any, config: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Run like `invoke`, asynchronously."""
        return await self._invoker.ainvoke(input, config, **options)

    def stream(self, input: Any, config: Mapping[str, Any] | None = None, **options: Any) -> Iterator[Any]:
        """Run the graph's ``stream``, guarded; chunks of a branch that is rolled back later are not recalled.

        Raises:
            ConfigError, RecoveryError, GraphRecursionError: as for `invoke`.
        """
        drive = _sync_async.run_sync(
            self._start_call(self._sync_access, input, config, options), _sync_async.call
        )
        chunks = ChunkFilter(drive.options, self.graph.stream_mode)
        while not drive.is_finished:
            chunks.start_segment(is_first=drive.segment_count == 0, is_forked=drive.is_forked)
            segment = self.graph.stream(drive.input, drive.build_config(), **chunks.options)
            with closing(segment):
                for chunk in segment:
                    yield from chunks.filter(chunk)
                    checkpoint = chunks.get_checkpoint(chunk)
                    if checkpoint is not None and drive.check_boundary(checkpoint):
                        with suppress(StopIteration):
                            yield from chunks.filter(segment.throw(GraphInterrupt()))
            _sync_async.run_sync(self._complete_segment(self._sync_access, drive), _sync_async.call)
        yield from chunks.finish(drive.run.pending_question)

    async def astream(
        self, input: Any, config: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[Any]:
        """Run like `stream`, asynchronously."""
        drive = await _sync_async.run_async(
            self._start_call(self._async_access, input, config, options), _sync_async.call
        )
        chunks = ChunkFilter(drive.options, self.graph.stream_mode)
        while not drive.is_finished:
            chunks.start_segment(is_first=drive.segment_count == 0, is_forked=drive.is_forked)
            segment = self.graph.astream(drive.input, drive.build_config(), **chunks.options)
            async with aclosing(segment):
                async for chunk in segment:
                    for one in chunks.filter(chunk):
                        yield one
                    checkpoint = chunks.get_checkpoint(chunk)
                    if checkpoint is not None and drive.check_boundary(checkpoint):
                        with suppress(StopAsyncIteration):
                            for one in chunks.filter(await segment.athrow(GraphInterrupt())):
                                yield one
            await _sync_async.run_async(self._complete_segment(self._async_access, drive), _sync_async.call)
        for one in chunks.finish(drive.run.pending_question):
            yield one

    def get_session(self, config: Mapping[str, Any]) -> Session | None:
        """Return the session of a thread's latest run; None before its first run."""
        run = self._runs.get_latest(str(config["configurable"]["thread_id"]))
        return None if run is None else run.session

    def _start_call(
        self, access: _GraphAccess, input: Any, config: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> _sync_async.Effects[GraphDriver]:
        """Build the driver of a call; yield functions for the caller to call or to await."""
        given, thread = _parse_config(config)
        head = yield partial(access.get_state, _select_latest(given))
        run, answer = self._runs.resolve(thread, input, given, head)
        drive = self._build_driver(run, input, given, options)
        drive.begin(head)
        if answer is not None:
            change = drive.build_answer_change(answer)
            if not drive.add_as_input(change, head):
                yield from self._write_change(access, drive, change, head)
        return drive

    def _complete_segment(self, access: _GraphAccess, driver: GraphDriver) -> _sync_async.Effects[None]:
        """Commit the turns of a segment and apply the resulting plan."""
        if driver.is_closing:
            driver.is_finished = True
            return
        head = yield partial(access.get_state, driver.thread)
        plan = yield from driver.complete_segment(head)
        failed = () if plan is None else (yield partial(access.undo_effects, driver.run.session, plan))
        change = driver.build_change(plan, failed, head)
        if change is not None and not driver.add_as_input(change, head):
            yield from self._write_change(access, driver, change, head)

    def _write_change(
        self, access: _GraphAccess, driver: GraphDriver, change: GraphChange, head: Any
    ) -> _sync_async.Effects[None]:
        at = head
        if change.fork_step is not None:
            point = ForkPointSearch(driver.run, self.info, change.fork_step, head)
            yield partial(access.find_fork_point, driver.thread, point)
            at = point.snapshot
        update, as_node = {"messages": change.messages}, self._as_node or find_source_node(at, self.info)
        where = yield partial(access.update_state, driver.add_run_id(at.config), update, as_node=as_node)
        if change.is_stop:
            yield partial(access.update_state, where, None, as_node=END)
        driver.complete_change((yield partial(access.get_state, driver.thread)), change)

    def _find_fork_point(self, thread: Any, search: ForkPointSearch) -> None:
        for snapshot in self.graph.get_state_history(thread):
            if search.visit(snapshot):
                return

    async def _afind_fork_point(self, thread: Any, search: ForkPointSearch) -> None:
        async for snapshot in self.graph.aget_state_history(thread):
            if search.visit(snapshot):
                return

    def _build_driver(
        self, run: GraphRun, input: Any, config: Mapping[str, Any], options: Mapping[str, Any]
    ) -> GraphDriver:
        return GraphDriver(
            run,
            self.info,
            input=input,
            config=config,
            options=options,
            defaults=self.graph,
            agent=self._name,
        )


def build_tool_node(guard: Guard, tools: Sequence[Any], **options: Any) -> ToolNode:
    """Build a tool node whose calls use the effect ledger of the guarded run, so each effect happens once.

    Args:
        guard: unused; a run finds its guard by itself.
        tools: as for ``ToolNode``.
        options: further arguments of ``ToolNode``.

    Raises:
        ConfigError: the options contain a tool call wrapper.
    """
    del guard
    if {"wrap_tool_call", "awrap_tool_call"} & set(options):
        raise ConfigError("langgraph_tools: wraps the calls itself: remove wrap_tool_call")
    return ToolNode(tools, wrap_tool_call=_call_tool, awrap_tool_call=_acall_tool, **options)


def _call_tool(request: Any, handler: Callable[[Any], Any]) -> Any:
    return call_tool(get_current_run(include_nested=True), request, handler)


async def _acall_tool(request: Any, handler: Callable[[Any], Any]) -> Any:
    return await acall_tool(get_current_run(include_nested=True), request, handler)


def _parse_config(config: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], str]:
    """Return the configuration and its thread. Raises ConfigError if the graph cannot be forked."""
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


def _select_latest(config: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in config["configurable"].items() if key != "checkpoint_id"}
    return {"configurable": kept}


__all__ = ["GuardedGraph", "build_tool_node"]
