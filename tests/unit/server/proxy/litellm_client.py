"""Runs LiteLLM's own translation of a chat and its generic guardrail client against an endpoint.

Needs a separate Python with ``litellm[proxy]``: ``python litellm_client.py URL``. Prints the results.
"""

import asyncio
import copy
import json
import sys
import types

from litellm.exceptions import GuardrailRaisedException
from litellm.llms.openai.chat.guardrail_translation.handler import OpenAIChatCompletionsHandler
from litellm.proxy.guardrails.guardrail_hooks.generic_guardrail_api.generic_guardrail_api import (
    GenericGuardrailAPI,
)
from litellm.types.utils import ModelResponse

TASK = {"role": "user", "content": "Book seat 4."}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("book", "find")
]


def answer(tool):
    call = {"id": f"{tool}-1", "type": "function", "function": {"name": tool, "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return ModelResponse(model="m", choices=[{"index": 0, "finish_reason": "tool_calls", "message": message}])


async def main(url):
    guardrail = GenericGuardrailAPI(
        api_base=url, guardrail_name="agentguard", event_hook=["pre_call", "post_call"], default_on=True
    )
    handler = OpenAIChatCompletionsHandler()

    def logged(call):
        return types.SimpleNamespace(
            litellm_call_id=call, litellm_trace_id=f"t-{call}", model_call_details={}
        )

    async def before(call):
        data = {"model": "m", "messages": [copy.deepcopy(TASK)], "tools": copy.deepcopy(TOOLS)}
        return await handler.process_input_messages(data, guardrail, logged(call))

    async def after(call, tool):
        made = await handler.process_output_response(answer(tool), guardrail, logged(call))
        return made.choices[0].message.tool_calls[0].function.name

    stays = [one["content"] for one in (await before("one"))["messages"]]
    try:
        await after("one", "fly")
        blocked = ""
    except GuardrailRaisedException as error:
        blocked = str(error)
    rewritten = [str(one["content"]) for one in (await before("two"))["messages"]]
    passed = await after("two", "book")
    print(json.dumps({"stays": stays, "blocked": blocked, "rewritten": rewritten, "passed": passed}))


asyncio.run(main(sys.argv[1]))
