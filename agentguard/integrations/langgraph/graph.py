"""LangGraph: a compiled graph under the guard, with rollback by forking its checkpoints.

::

    app = guard.langgraph(graph)          # a graph with a checkpointer and a channel `messages`
    app.invoke({"messages": [...]}, {"configurable": {"thread_id": "1"}})

The graph reports each turn boundary in its stream. To roll back a turn, the guard pauses the graph at the
boundary and forks the checkpoint before the turn: ``update_state`` adds the correction. *All* channels of
the state return to their values at that checkpoint. The abandoned branch stays in the thread's history.

Side effects of tools outside the state remain. To execute each call once, the effect ledger needs the calls.
Either build the graph's tool node with ``guard.langgraph_tools(tools)``, or list ``guard.langchain()`` first
among the middleware of ``create_agent``. The middleware can also reject responses before their tools run, and
disable tools, which is impossible from outside the graph.
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
from agentguard.integrations.langgraph.checkpoints import ForkPointSearch, find_source_node, select_latest
from agentguard.integrations.langgraph.driver import GraphChange, GraphDriver, GraphRun
from agentguard.integrations.langgraph.graph_inspection import UNGUARDED_METHODS, inspect_graph
from agentguard.integrations.langgraph.stream_filter import ChunkFilter
from agentguard.integrations.langgraph.thread_runs import ThreadRuns

if TYPE_CHECKING:
    from agentguard.guard import Guard


@dataclass(frozen=True, slots=True)
class _GraphAccess:
    """Functions that access a graph's checkpoints and undo effects, sync or async."""

    get_state: Callable[..., Any]
    update_state: Callable[..., Any]
    find_fork_point: Callable[..., Any]
    undo_effects: Callable[..., Any]


class GuardedGraph:
    """Compiled graph whose runs are guarded; other attributes are those of the graph.

    - A call with an input starts a run. A call with ``None`` or a ``Command`` resumes the interrupted run.
    - Threads may run concurrently; calls on one thread must be sequential, as for any graph.
    - The graph must be the root graph.
    - State inside subgraphs is not forked: a subgraph whose node follows the fork runs again as a whole.

    Args:
        guard: the guard whose rules apply; set by `Guard.langgraph`.
        graph: compiled graph with a checkpointer and a channel ``messages``.
        name: name of the agent in the trajectory.
        turn_nodes: names of the nodes that begin a turn; by default the nodes that follow the tools.
        as_node: source node of corrections, if LangGraph cannot infer it.
        ask: called with a question when a person must decide. Without it, the question is the value of an
            interrupt, and ``Command(resume=answer)`` resumes the run.
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
                f"use .graph.{name} to run it without the guard"
            )
        return getattr(self.graph, name)

    def invoke(self, input: Any, config: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Run the graph's ``invoke``, guarded.

        Raises:
            ConfigError: the configuration has no thread, or the call is made inside another graph.
            RecoveryError: the state cannot be forked at the required step.
            GraphRecursionError: the run has reached the recursion limit; rolled back steps count too.
            RunStopped: the guard rejects the final output.
        """
        return self._invoker.invoke(input, config, **options)

    async def ainvoke(self, input: Any, config: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Run like `invoke`, asynchronously."""
        return await self._invoker.ainvoke(input, config, **options)

    def stream(self, input: Any, config: Mapping[str, Any] | None = None, **options: Any) -> Iterator[Any]:
        """Run the graph's ``stream``, guarded; the chunks include those of turns that are rolled back later.

        Raises:
            ConfigError, RecoveryError, GraphRecursionError, RunStopped: as for `invoke`.
        """
        driver = _sync_async.run_sync(
            self._start_call(self._sync_access, input, config, options), _sync_async.call
        )
        chunks = ChunkFilter(driver.options, self.graph.stream_mode)
        while not driver.is_finished:
            chunks.start_segment(is_first=driver.segment_count == 0, is_forked=driver.is_forked)
            segment = self.graph.stream(driver.input, driver.build_config(), **chunks.options)
            with closing(segment):
                for chunk in segment:
                    yield from chunks.filter(chunk)
                    checkpoint = chunks.get_checkpoint(chunk)
                    if checkpoint is not None and driver.check_boundary(checkpoint):
                        with suppress(StopIteration):
                            yield from chunks.filter(segment.throw(GraphInterrupt()))
            _sync_async.run_sync(self._complete_segment(self._sync_access, driver), _sync_async.call)
        yield from chunks.finish(driver.run.pending_question)

    async def astream(
        self, input: Any, config: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[Any]:
        """Run like `stream`, asynchronously."""
        driver = await _sync_async.run_async(
            self._start_call(self._async_access, input, config, options), _sync_async.call
        )
        chunks = ChunkFilter(driver.options, self.graph.stream_mode)
        while not driver.is_finished:
            chunks.start_segment(is_first=driver.segment_count == 0, is_forked=driver.is_forked)
            segment = self.graph.astream(driver.input, driver.build_config(), **chunks.options)
            async with aclosing(segment):
                async for chunk in segment:
                    for one in chunks.filter(chunk):
                        yield one
                    checkpoint = chunks.get_checkpoint(chunk)
                    if checkpoint is not None and driver.check_boundary(checkpoint):
                        with suppress(StopAsyncIteration):
                            for one in chunks.filter(await segment.athrow(GraphInterrupt())):
                                yield one
            await _sync_async.run_async(self._complete_segment(self._async_access, driver), _sync_async.call)
        for one in chunks.finish(driver.run.pending_question):
            yield one

    def get_session(self, config: Mapping[str, Any]) -> Session | None:
        """Return the session of a thread's latest run; None before its first run."""
        run = self._runs.get_latest(str(config["configurable"]["thread_id"]))
        return None if run is None else run.session

    def _start_call(
        self, access: _GraphAccess, input: Any, config: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> _sync_async.SharedBody[GraphDriver]:
        """Build the driver of a call; yield functions for the caller to call or to await."""
        parsed_config, thread = _parse_config(config)
        head = yield partial(access.get_state, select_latest(parsed_config["configurable"]))
        run, answer = self._runs.resolve(thread, input, parsed_config, head)
        driver = self._build_driver(run, input, parsed_config, options)
        driver.begin(head)
        if answer is not None:
            change = driver.build_answer_change(answer)
            if not driver.add_as_input(change, head):
                yield from self._write_change(access, driver, change, head)
        return driver

    def _complete_segment(self, access: _GraphAccess, driver: GraphDriver) -> _sync_async.SharedBody[None]:
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
    ) -> _sync_async.SharedBody[None]:
        snapshot = head
        if change.fork_step is not None:
            point = ForkPointSearch(driver.run, self.info, change.fork_step, head)
            yield partial(access.find_fork_point, driver.thread, point)
            snapshot = point.snapshot
        update, as_node = (
            {"messages": change.messages},
            self._as_node or find_source_node(snapshot, self.info),
        )
        checkpoint_config = yield partial(
            access.update_state, driver.add_run_id(snapshot.config), update, as_node=as_node
        )
        if change.is_stop:
            yield partial(access.update_state, checkpoint_config, None, as_node=END)
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
        guard: not used; a call uses the guard of its run.
        tools: as for ``ToolNode``.
        options: further arguments of ``ToolNode``.

    Raises:
        ConfigError: the options contain a tool call wrapper.
    """
    del guard
    if {"wrap_tool_call", "awrap_tool_call"} & set(options):
        raise ConfigError(
            "langgraph_tools: the guard wraps the calls: remove wrap_tool_call and awrap_tool_call"
        )
    return ToolNode(tools, wrap_tool_call=_call_tool, awrap_tool_call=_acall_tool, **options)


def _call_tool(request: Any, handler: Callable[[Any], Any]) -> Any:
    return call_tool(get_current_run(include_nested=True), request, handler)


async def _acall_tool(request: Any, handler: Callable[[Any], Any]) -> Any:
    return await acall_tool(get_current_run(include_nested=True), request, handler)


def _parse_config(config: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], str]:
    """Return the configuration and its thread. Raises ConfigError if the graph cannot be forked."""
    parsed_config = dict(config or {})
    configurable = dict(parsed_config.get("configurable") or {})
    outer_configurable = ensure_config().get("configurable") or {}
    if configurable.get("checkpoint_ns") or outer_configurable.get("checkpoint_ns"):
        raise ConfigError(
            "langgraph: a guarded graph must be the root graph; its checkpoints inside another graph cannot "
            "be forked. Guard the outer graph, or add the middleware guard.langchain() to the inner agent"
        )
    if configurable.get("thread_id") is None:
        raise ConfigError("langgraph: the config has no thread: {'configurable': {'thread_id': ...}}")
    return {**parsed_config, "configurable": configurable}, str(configurable["thread_id"])
