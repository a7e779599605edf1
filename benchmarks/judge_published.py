"""AgentDebug's two stages as published (arXiv 2509.25370), for comparison with ours on the same server.

Stage 1 sends one request for each module (memory, reflection, planning, action) of each step. The prompt
contains the task, the agent's input at that step (the conversation so far), the results of earlier modules of
the step, the module's output and the environment's answer cut to 500 characters. It also contains the
module's
error types with definitions and examples, and it asks for a verdict as JSON. The first step has no memory and
no reflection. If the environment's answer mentions an error, one more request checks for a system error.
Stage
2 sends one request over all steps and the results of stage 1, and asks for the critical error.

We wrote the texts. They contain all information of the published prompts and have about the same length (the
fixed text of stage 1 has about 3,200 characters, definitions included). Three differences from the
publication favour the published procedure:
- Stage 1 runs the steps concurrently, not one after the other.
- A JSON schema bounds each field (80 and 120 characters), so that a small model ends.
- Who&When does not split an agent's turn into modules. Each module reads the whole turn once, and not again
  as
  the output of an earlier module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from judge_published_texts import ASKED, CRITICAL, ROLE, SYSTEM

from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.types import CallError, CallUsage, Message
from agentguard.localize.agent_roles import find_agent_steps, has_environment_response
from agentguard.taxonomy.catalog import TaxonomyCatalog
from agentguard.taxonomy.model import TaxonomyCode
from agentguard.trajectory.model import Source, Step, Trajectory

MODULES: Final = ("memory", "reflection", "planning", "action")
GUIDANCE: Final = 120
"""Maximum of characters in a correction; our localizer has the same limit."""
_CUT: Final = 500
_TROUBLE: Final = ("error", "crashed", "exception", "timeout")
_STEP_LIMIT: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Result of stage 1 for one module of one step."""

    step: int
    module: str
    kind: str
    evidence: str
    reasoning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Result of the procedure: the critical step, the number of answers that are not JSON, and the cost."""

    step: int | None
    calls: int
    faults: int
    spent: CallUsage


class TwoStage:
    """One diagnosis by the published procedure.

    Args:
        endpoint: the model endpoint; its ``concurrency`` limits the concurrent requests.
        deadline_s: limit of one request.
    """

    def __init__(self, endpoint: JudgeEndpoint, *, deadline_s: float = 600.0) -> None:
        self._endpoint, self._deadline_s = endpoint, deadline_s
        self._calls = self._faults = 0
        self._spent = CallUsage()

    def locate(self, run: Trajectory) -> Published:
        """Run both stages over a failed run."""
        step = self._endpoint.loop.run(self._both(run))
        return Published(step=step, calls=self._calls, faults=self._faults, spent=self._spent)

    def warm(self) -> None:
        """Compile the schemas of all answers on the server, once for all runs."""
        forms = [*(_module_form(_codes(one)) for one in (*MODULES, "system")), _critical_form()]

        async def ask() -> None:
            for form in forms:
                await self._ask("Answer with JSON.", form, 900)

        self._endpoint.loop.run(ask())

    async def _both(self, run: Trajectory) -> int | None:
        steps = find_agent_steps(run) or tuple(step.index for step in run.steps)
        told = await asyncio.gather(*(self._step(run, step, modules(step == steps[0])) for step in steps))
        found = [one for held in told for one in held]
        found += [_limit(step) for place, step in enumerate(steps, 1) if place >= _STEP_LIMIT]
        said = await self._ask(critical_prompt(run, steps, found), _critical_form(), 900)
        return None if said is None else int(said["critical_step"])

    async def _step(self, run: Trajectory, step: int, asked: Sequence[str]) -> list[Found]:
        """Send the requests of one step in sequence, so that they share the server's prefix cache."""
        said = [await self._system(run, step)] if _troubled(run, step) else []
        said += [await self._module(run, step, module) for module in asked]
        return [one for one in said if one is not None]

    async def _module(self, run: Trajectory, step: int, module: str) -> Found | None:
        codes = _codes(module)
        said = await self._ask(module_prompt(run, step, module), _module_form(codes), 400)
        return None if said is None or not said["error_detected"] else _build_found(step, module, said)

    async def _system(self, run: Trajectory, step: int) -> Found | None:
        codes = _codes("system")
        said = await self._ask(system_prompt(run, step), _module_form(codes), 400)
        return None if said is None or not said["error_detected"] else _build_found(step, "system", said)

    async def _ask(self, prompt: str, form: Mapping[str, Any], most: int) -> Mapping[str, Any] | None:
        messages: tuple[Message, ...] = (
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": prompt},
        )
        self._calls += 1
        written = await self._endpoint.generate_json(
            messages, form, max_tokens=most, deadline_s=self._deadline_s
        )
        if isinstance(written, CallError):
            self._faults += 1
            return None
        value, spent = written
        self._spent += spent
        return value


def modules(first: bool) -> Sequence[str]:
    """Return the modules of a step; the first step has no memory and no reflection."""
    return MODULES[2:] if first else MODULES


def module_prompt(run: Trajectory, step: int, module: str) -> str:
    """Return the prompt for one module of one step."""
    so_far = "\n".join(_format_step(one) for one in run.steps[:step]) or "(the task alone)"
    codes = _codes(module)
    return (
        f"{ROLE}\n\nTASK: {run.task}\nCURRENT STEP: {step}\n\nINPUT AND CONTEXT\n"
        f"Input of the step, with history:\n{so_far}\n\n"
        f"MODULE TO ANALYSE: {module}\nOUTPUT OF THE MODULE (what the agent produced):\n"
        f"{_format_step(run.steps[step])}\n\n"
        f"ANSWER OF THE ENVIRONMENT AFTER THIS STEP:\n{_answer(run, step)}\n\n"
        f"DEFINITIONS OF THE ERROR TYPES OF THE {module.upper()} MODULE:\n{_defined(codes, examples=True)}"
        f"- no_error: nothing is wrong with this module\n\n{ASKED}"
    )


def system_prompt(run: Trajectory, step: int) -> str:
    """Return the prompt that checks whether the environment's answer is a system error."""
    return (
        f"Does this answer of the environment show an error of the system, and of which type?\n\n"
        f"{_answer(run, step)}\n\n{_defined(_codes('system'))}\n"
        'Answer with JSON: {"error_detected": true or false, "error_type": "one of the types, or no_error", '
        '"evidence": "a quote", "reasoning": "why"}.'
    )


def critical_prompt(run: Trajectory, steps: Sequence[int], found: Sequence[Found]) -> str:
    """Return the prompt of stage 2: all steps, with the results of stage 1."""
    parts = []
    for step in steps:
        at = [one for one in found if one.step == step]
        errors = "\n".join(f"  - {o.module}: {o.kind}\n    {o.evidence}\n    {o.reasoning}" for o in at)
        parts.append(
            f"Step {step}:\nOutput of the agent: {_format_step(run.steps[step])}\n"
            f"Answer of the environment: {_answer(run, step)}\nErrors found:\n{errors or '  none'}\n"
        )
    types = "".join(f"{m.upper()}\n{_defined(_codes(m))}" for m in (*MODULES, "system"))
    told = "\n".join(parts)
    return (
        f"{ROLE}\n\nTASK: {run.task}\nRESULT: FAILED\n\nANALYSIS STEP BY STEP\n{told}\n\n{types}\n{CRITICAL}"
    )


def _format_step(step: Step) -> str:
    calls = "".join(f"\ncalled {one.name}({one.raw_arguments or one.arguments})" for one in step.tool_calls)
    seen = "".join(f"\ncame back: {one.content}" for one in step.observations)
    return f"[{step.index}] {step.agent}: {step.content}{calls}{seen}"


def _answer(run: Trajectory, step: int) -> str:
    held = run.steps[step]
    if held.observations:
        return held.observations[-1].content[:_CUT]
    after = run.steps[step + 1] if step + 1 < len(run.steps) else None
    return "none" if after is None or after.source is Source.AGENT else after.content[:_CUT]


def _troubled(run: Trajectory, step: int) -> bool:
    return has_environment_response(run, step) and any(w in _answer(run, step).lower() for w in _TROUBLE)


def _limit(step: int) -> Found:
    return Found(step=step, module="system", kind="step_limit", evidence=f"step {step}", reasoning="limit")


def _build_found(step: int, module: str, said: Mapping[str, Any]) -> Found:
    return Found(
        step=step,
        module=module,
        kind=said["error_type"],
        evidence=said["evidence"],
        reasoning=said["reasoning"],
    )


def _codes(module: str) -> tuple[TaxonomyCode, ...]:
    return tuple(
        code for code in TaxonomyCatalog.load().get_taxonomy("agent_error").codes if code.module == module
    )


def _defined(codes: Sequence[TaxonomyCode], *, examples: bool = False) -> str:
    lines = []
    for code in codes:
        lines.append(f"- {_name(code)}: {code.definition}")
        lines += [f"  Example: {one}" for one in code.examples] if examples else []
    return "\n".join(lines) + "\n"


def _name(code: TaxonomyCode) -> str:
    return code.id.split(".", 1)[-1]


def _module_form(codes: Sequence[TaxonomyCode]) -> Mapping[str, Any]:
    kinds = [*(_name(code) for code in codes), "no_error"]
    return _form(
        {
            "error_detected": {"type": "boolean"},
            "error_type": {"type": "string", "enum": kinds},
            "evidence": {"type": "string", "maxLength": 80},
            "reasoning": {"type": "string", "maxLength": 120},
        }
    )


def _critical_form() -> Mapping[str, Any]:
    text = {"type": "string", "maxLength": GUIDANCE}
    return _form(
        {
            "critical_step": {"type": "string", "enum": [str(n) for n in range(200)]},
            "critical_module": {"type": "string", "enum": [*MODULES, "system", "others"]},
            "error_type": {"type": "string", "maxLength": 40},
            "root_cause": text,
            "evidence": {"type": "string", "maxLength": 80},
            "correction_guidance": text,
            "cascading_effects": text,
            "confidence": {"type": "string", "enum": [f"0.{n}" for n in range(10)] + ["1.0"]},
        }
    )


def _form(properties: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
