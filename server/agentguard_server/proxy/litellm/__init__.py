"""LiteLLM's generic guardrail endpoint."""

from agentguard_server.proxy.litellm.guardrail import PATH, LiteLLMGuardrail
from agentguard_server.proxy.litellm.request import REQUEST_SCHEMA

__all__ = ["PATH", "REQUEST_SCHEMA", "LiteLLMGuardrail"]
