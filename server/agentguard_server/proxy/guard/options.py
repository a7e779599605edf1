"""What is configured of guarded runs and of capture: the sections ``runs`` and ``capture`` of the proxy.

::

    runs: {inline: auto, most_bytes: 4194304, kept: 1024, kept_bytes: 67108864, idle_s: 900}
    capture: {store: "sqlite:///runs.db", most_bytes: 1048576, queue_bytes: 8388608, redact: true}
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

StreamMode = Literal["pass", "hold_tools", "hold_all"]


class RunsOptions(BaseModel):
    """How runs are guarded as they pass.

    Attributes:
        inline: ``auto`` guards the requests in whose answer a client could act: those that offer tools, have
            calls in their history, or go on with a run that is guarded. ``all`` guards each one. What is not
            guarded is looked at afterwards.
        most_bytes: a request with a longer body is not guarded; that is counted.
        kept: runs of one tenant that are remembered between their requests.
        kept_bytes: what their last requests may have in all; about that much memory, some times over.
        idle_s: a run that waits for its next request for longer has ended.
        agent: name of the agent in its trajectory.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["auto", "all"] = "auto"
    max_body_bytes: Annotated[int, Field(ge=1024, le=1_073_741_824)] = 4_194_304
    max_sessions: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    max_session_bytes: Annotated[int, Field(ge=1024, le=68_719_476_736)] = 67_108_864
    idle_timeout_s: Annotated[float, Field(ge=1, le=604_800, allow_inf_nan=False)] = 900.0
    agent: Annotated[str, Field(min_length=1, max_length=64)] = "assistant"


class CaptureOptions(BaseModel):
    """How what passes is kept.

    Attributes:
        store: a path or URL; ``AGENTGUARD_STORE`` or ``.agentguard/store.db`` if absent.
        most_bytes: of a body, or of an answer, that is kept; a longer one is noted without its contents.
        queue_bytes: that may wait for the keeper, in each worker; what comes on top is lost and counted.
        redact: whether secrets are taken out of steps before they are written.
        diagnose: whether a run in which tools were called is diagnosed when it has ended, and detectors look
            through one in which none were.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    store: Annotated[str | None, Field(max_length=4096, repr=False)] = None
    max_body_bytes: Annotated[int, Field(ge=1024, le=268_435_456)] = 1_048_576
    max_queue_bytes: Annotated[int, Field(ge=65_536, le=4_294_967_296)] = 8_388_608
    redact: bool = True
    diagnose: bool = True
