"""Execution of an agent under test, with one fault or none."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentguard.bundles import Bundle
from agentguard.bundles.bindings import RecordableAgent, call_agent
from agentguard.bundles.call_recorder import BindingRecorder
from agentguard.bundles.call_replayer import CallReplayer
from agentguard.bundles.network_block import block_network
from agentguard.bundles.replay_scope import ReplayMode, build_scope
from agentguard.chaos.campaign import Campaign
from agentguard.chaos.injection import MAX_MODEL_CALLS, CallLimitExceeded, FaultPlacement, InjectionBinding
from agentguard.detect.tool_names import is_read_tool
from agentguard.errors import ConfigError, ReplayMismatch, RunStopped
from agentguard.recover.tool_effects import EffectClass
from agentguard.testing.virtual_clock import VirtualClock
from agentguard.trajectory.model import Trajectory

_clock: ContextVar[VirtualClock | None] = ContextVar("agentguard_virtual_time", default=None)


@contextmanager
def virtual_time(clock: VirtualClock) -> Iterator[None]:
    """Make the functions of the module ``time`` use a virtual clock inside the ``with`` block.

    The block follows the context: it includes tasks that copy the context, and no other threads.
    ``time.sleep`` advances the clock. Functions that a module has imported by ``from time import …``, and the
    waits of locks, threads and sockets, use the real time.
    """
    token = _clock.set(clock)
    try:
        with _PATCH:
            yield
    finally:
        _clock.reset(token)


class _TimePatch:
    """Replacement of functions of ``time`` while at least one block is active, in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._originals: dict[str, Any] = {}

    def __enter__(self) -> None:
        with self._lock:
            self._blocks += 1
            if self._blocks == 1:
                replacements = _build_replacements()
                self._originals = {name: vars(time)[name] for name in replacements}
                vars(time).update(replacements)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                # A thread may still have a replacement; outside a block it calls the original.
                vars(time).update(self._originals)


_PATCH = _TimePatch()


def _build_replacements() -> dict[str, Callable[..., Any]]:
    begin = time.time()
    replacements: dict[str, Callable[..., Any]] = {}
    for name, start in (("monotonic", 0.0), ("perf_counter", 0.0), ("time", begin)):
        for suffix, unit in (("", 1.0), ("_ns", 1e9)):
            original = getattr(time, name + suffix)
            replacements[name + suffix] = _build_reader(original, start, type(original())(unit))
    original_sleep = time.sleep

    def sleep(seconds: float, /) -> None:
        clock = _clock.get()
        if clock is None:
            original_sleep(seconds)
        else:
            clock.advance(seconds)

    return replacements | {"sleep": sleep}


def _build_reader(original: Callable[[], float], start: float, unit: float) -> Callable[[], float]:
    """Return a function like ``original``; ``unit`` has the type of its result."""

    def get_time() -> float:
        clock = _clock.get()
        return original() if clock is None else type(unit)((start + clock.now()) * unit)

    return get_time


_MAX_ERROR_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRun:
    """Run of the agent under test.

    Attributes:
        trajectory: the run, finished or not; None if the agent raised an exception without a session.
        error: type and text of the exception; empty without one.
        binding: counts of the calls.
        seconds: duration, in virtual time without the time of computation.
        is_undecided: True if the recording of the target has no answer to a request of the run.
        recorder: calls of the run, as the agent saw them; None if the run was not recorded.
    """

    trajectory: Trajectory | None
    error: str
    binding: InjectionBinding
    seconds: float
    is_undecided: bool = False
    recorder: BindingRecorder | None = None

    @property
    def answer(self) -> str:
        """Text of the last step; empty without a run."""
        return self.trajectory.steps[-1].content if self.trajectory and self.trajectory.steps else ""

    @property
    def tokens(self) -> int:
        """Tokens of all steps, also of those that a rollback removed; 0 if the run reports none."""
        run = self.trajectory
        branches = (run.steps, *(branch.steps for branch in run.branches)) if run else ()
        spent = (step.usage for steps in branches for step in steps if step.usage)
        return sum((usage.prompt_tokens or 0) + (usage.completion_tokens or 0) for usage in spent)


class AgentExecution:
    """Execution of the agent of a campaign, in virtual time and with recorded calls if the campaign has them.

    Raises:
        ConfigError: the agent cannot be imported.
        BundleError: the recording of the target cannot be read.
    """

    def __init__(self, campaign: Campaign, agent: RecordableAgent | None = None) -> None:
        self._campaign = campaign
        self.agent = agent if agent is not None else campaign.load_agent()
        self._recording = campaign.load_recording()
        self._is_virtual = campaign.schedule.virtual_time and campaign.target.command is None

    def run(
        self,
        placement: FaultPlacement | None,
        run_id: str,
        max_calls: int = MAX_MODEL_CALLS,
        *,
        is_recorded: bool = False,
    ) -> ExperimentRun:
        """Run the agent.

        Args:
            placement: the fault; None for a run without a fault.
            run_id: ID for the run.
            max_calls: number of model calls after which the run ends.
            is_recorded: True to record the calls with their faults, unless the agent is a program.
        """
        replayer = _build_replayer(self._recording) if self._recording is not None else None
        binding = InjectionBinding(
            placement,
            run_id=run_id,
            effects=self._has_effect,
            max_calls=max_calls,
            delay_s=self._campaign.faults.delay_s,
            source=replayer,
        )
        recorder = BindingRecorder(binding, {}) if is_recorded else None
        trajectory, error, clock = None, "", VirtualClock()
        begin = time.perf_counter()
        try:
            with ExitStack() as stack:
                if self._is_virtual:
                    stack.enter_context(virtual_time(clock))
                if replayer is not None:
                    stack.enter_context(block_network())
                trajectory = call_agent(
                    self.agent,
                    recorder or binding,
                    binding.sessions,
                    run_coroutine=partial(clock.run, allow_leaks=True) if self._is_virtual else asyncio.run,
                )
        except ConfigError:
            raise
        except (RunStopped, CallLimitExceeded) as stopped:
            error = f"{type(stopped).__name__}: {stopped}"
        except Exception as raised:  # the agent under test may raise anything
            error = f"{type(raised).__name__}: {raised}"
        seconds = clock.now() if self._is_virtual else time.perf_counter() - begin
        mismatch = _find_mismatch(replayer)
        if error and binding.sessions:
            trajectory = binding.sessions[-1].run
        return ExperimentRun(
            trajectory=trajectory,
            error=(f"ReplayMismatch: {mismatch}" if mismatch else error)[:_MAX_ERROR_CHARS],
            binding=binding,
            seconds=round(seconds, 3),
            is_undecided=mismatch is not None,
            recorder=recorder,
        )

    def _has_effect(self, tool: str) -> bool:
        """Return whether calls of a tool are effects: declared, recorded, or guessed by the name."""
        if self._campaign.target.effects is not None:
            return tool in self._campaign.target.effects
        calls = self._recording.tool_calls if self._recording is not None else ()
        recorded = next((call.effect for call in calls if call.name == tool and call.effect), None)
        return not is_read_tool(tool) if recorded is None else recorded != EffectClass.READ.value


def _build_replayer(recording: Bundle) -> CallReplayer:
    scope = build_scope(recording, ReplayMode.SCRIPTED, None, None)
    return CallReplayer(recording, scope, repeat_results=True)


def _find_mismatch(replayer: CallReplayer | None) -> ReplayMismatch | None:
    # A guard converts the exception of a tool to a message for the agent, so the run may end normally.
    try:
        if replayer is not None:
            replayer.raise_mismatch()
    except ReplayMismatch as mismatch:
        return mismatch
    return None
