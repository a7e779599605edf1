"""Options of the guard and of capture: the sections ``guard`` and ``capture`` of the proxy's configuration.

::

    guard: {policy: guard.yaml, stream_mode: buffer_tool_calls, mode: auto, max_sessions: 1024}
    capture: {store: "sqlite:///runs.db", max_body_bytes: 1048576, max_queue_bytes: 8388608, redact: true}
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentguard.config.policy import Policy

StreamMode = Literal["observe", "buffer_tool_calls", "buffer_all"]
BundleCondition = Literal["on_failure", "always"]


class GuardOptions(BaseModel):
    """Section ``guard``: the policy, and the requests to which the proxy applies it.

    A string in place of the section is the path of the policy.

    Attributes:
        policy: path of the policy's file, or the policy itself.
        stream_mode: part of a streamed response that waits for the verdict. ``buffer_tool_calls`` buffers
            tool calls and forwards text at once. ``buffer_all`` buffers the whole response. ``observe``
            buffers nothing: the guard checks runs afterwards.
        mode: ``auto`` guards requests whose response can contain tool calls: requests that have tools, have
            calls in their history, or continue a guarded run. ``always`` guards every request. The guard
            checks the other runs afterwards.
        max_body_bytes: upper bound on the body of a guarded request; the guard skips and counts longer ones.
        max_sessions: maximum number of sessions per tenant in memory between requests.
        max_session_bytes: upper bound on the last requests of all sessions, in bytes. The memory in use is
            a small multiple of it.
        idle_timeout_s: time in seconds without a request after which a run ends.
        agent: name of the agent in the trajectory.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: str | Policy = Policy()
    stream_mode: StreamMode = "buffer_tool_calls"
    mode: Literal["auto", "always"] = "auto"
    max_body_bytes: Annotated[int, Field(ge=1024, le=1_073_741_824)] = 4_194_304
    max_sessions: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    max_session_bytes: Annotated[int, Field(ge=1024, le=68_719_476_736)] = 67_108_864
    idle_timeout_s: Annotated[float, Field(ge=1, le=604_800, allow_inf_nan=False)] = 900.0
    agent: Annotated[str, Field(min_length=1, max_length=64)] = "assistant"

    @model_validator(mode="before")
    @classmethod
    def _accept_path(cls, document: Any) -> Any:
        return {"policy": document} if isinstance(document, str) else document

    def load_policy(self) -> Policy:
        """Return the policy, read from its file if it has one. Raises ConfigError."""
        return Policy.load(self.policy) if isinstance(self.policy, str) else self.policy


class CaptureOptions(BaseModel):
    """Section ``capture``: recording of requests and responses.

    Attributes:
        store: path or URL of the store; by default ``AGENTGUARD_STORE`` or ``.agentguard/store.db``.
        max_body_bytes: upper bound on a captured body. Capture skips a request with a longer body. If only
            the response is longer, capture stores the request without it.
        max_queue_bytes: upper bound on messages that wait for the collector, per worker, and on compressed
            messages that wait in the collector; the worker drops and counts further messages.
        max_commit_delay_s: longest time that rows wait for the next commit. A killed collector loses the rows
            of this time.
        redact: removes secrets from steps before the collector stores them.
        diagnose: diagnoses ended runs with tool calls, and runs the detectors on the other ended runs.
        bundles: writes replayable bundles of ended runs: of those with the verdict ``failed``, or of all.
        bundles_dir: folder of the bundles.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    store: Annotated[str | None, Field(max_length=4096, repr=False)] = None
    max_body_bytes: Annotated[int, Field(ge=1024, le=268_435_456)] = 1_048_576
    max_queue_bytes: Annotated[int, Field(ge=65_536, le=4_294_967_296)] = 8_388_608
    max_commit_delay_s: Annotated[float, Field(ge=0, le=0.5, allow_inf_nan=False)] = 0.1
    redact: bool = True
    diagnose: bool = True
    bundles: BundleCondition | None = None
    bundles_dir: Annotated[str, Field(min_length=1, max_length=4096)] = ".agentguard/bundles"

    @model_validator(mode="after")
    def _check_bundles(self) -> Self:
        if self.bundles is not None and not self.diagnose:
            raise ValueError("bundles: needs diagnose: true")
        return self
