"""Fixed texts of AgentDebug's prompts in our own words, for `judge_published.py`."""

from __future__ import annotations

from typing import Final

SYSTEM: Final = (
    "You are an expert in finding errors in the trajectories of agents, on the ground of the definitions of "
    "specific error types. Answer only with one valid JSON object that fits the form you are asked for."
)
ROLE: Final = "You are an expert in finding errors in the trajectories of agents."
ASKED: Final = """On the ground of the specific error definitions given above:
1. Find out whether there is an error in this module, by checking whether its output matches any of the
definitions.
2. If there is one, say exactly which error type it is, by the definitions.
3. Give evidence from the content of the module that bears directly on the definition.
4. Explain your reasoning, and show how it meets the criteria of that specific definition.

SPECIAL RULES:
- The input of this step holds all that the agent was given, with the history of the conversation.
- What each module is judged by:
  * Memory: it should recall and sum up rightly what is in the input of this step, and nothing else.
  * Reflection: it should judge rightly what has happened, on the ground of the input and of what the
    memory module of this step put out.
  * Planning: it should plan sensibly, on the ground of the input and of what the memory and reflection
    modules of this step put out.
  * Action: it should carry out rightly what the planning module of this step put out, given the input.
- Each module builds on what the modules before it put out in the same step.
- Errors of the system (the limit of steps, errors of tools, of the environment) are found separately.

REQUIRED FORM OF THE ANSWER (JSON):
{
    "error_detected": true or false,
    "error_type": "the specific error type, or no_error",
    "evidence": "a quote from the output of the module, or a description of what in it supports it",
    "reasoning": "an explanation of why this is, or is not, an error by the definition"
}

Be precise, and ground your finding on the actual content and on the error definitions. The answer must
be a single JSON object, without any comment or text outside of it."""
CRITICAL: Final = """Your task is to find the CRITICAL ERROR: the earliest and most important error that
led to the failure of the task.

HOW TO FIND IT:
Look at the run as a whole, to find the true root cause of the failure. Do not go by any ranking of how
bad the kinds of error are.

GUIDELINES:
1. Consider the whole trajectory: understand what the task asks for, and where the agent's way parted
from it.
2. Find the earliest point at which the agent made a decision or an error that set it on a way to
failure from which it could not return.
3. To explore in the first steps (1 to 3) is often normal and should not be called critical, unless
there is a clear and fundamental error.
4. An error is critical if it is the root cause that made success impossible, if it set off a chain of
later errors, and if the trajectory could have succeeded had this one error not been made. To correct
just this error would turn the trajectory towards success.
5. Follow chains of causes: trace back from the failure to where it began.
6. The first step has only planning and action: no memory and no reflection is possible there, since
there is no history. Do not call memory or reflection of the first step critical. Early steps without
them are to be expected.
7. Take errors of the system and others into account as well: the limit of steps, an error of a tool, a
limit of the model, or an error of the environment may be the true cause. If, for example, the agent did
well and ran into the limit of steps, then that is the critical error. Others are failures that no type
describes.

THE PRINCIPLE: ask which decision or error was the first that doomed this trajectory, and not which type
of error looks the worst. It is the one which, could we go back and mend only that, would most likely
let the whole trajectory succeed.

REQUIRED FORM OF THE ANSWER (JSON):
{
    "critical_step": number of the step,
    "critical_module": "name of the module",
    "error_type": "the specific error type out of the definitions above",
    "root_cause": "a detailed explanation of why this error at this step made the task fail",
    "evidence": "a quote or observation from the trajectory that supports this",
    "correction_guidance": "what the agent should have done instead, to avoid this error and succeed",
    "cascading_effects": "how the critical error affected which later steps",
    "confidence": 0.0 to 1.0
}

- Error types must be chosen from the definitions above, and must be among those of the module.
- Modules are: memory, reflection, planning, action, system, others.
- Choose the error whose correction would do most for the success of the task.

Find the true root cause. Answer with the JSON object alone, without any comment before or after it."""
