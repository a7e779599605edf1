"""One vLLM for all modules of this folder."""

from tests.vllm_server import vllm, vllm_session

__all__ = ["vllm", "vllm_session"]
