"""LiteLLM's generic guardrail endpoint."""

from agentguard_server.proxy.litellm.guardrail import PATH, Guardrail
from agentguard_server.proxy.litellm.request import REQUEST_SCHEMA

__all__ = ["PATH", "REQUEST_SCHEMA", "Guardrail"]
