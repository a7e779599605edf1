"""The section ``shared`` of the proxy's configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class SharedOptions(BaseModel):
    """What is shared with other workers and machines; without this section each knows its own.

    Attributes:
        store: the database: ``postgresql://…`` for several machines; a file of SQLite does for several
            workers of one. Null: that of ``capture``.
        sessions: whether a guarded conversation may go on at another worker or machine.
        hints: whether replicas that one finds in trouble are left alone by the others for a while.
        every_s: seconds between two looks at the others' hints.
        wait_s: longest wait of a request for a conversation that may have begun elsewhere.
        keep_s: seconds after which a conversation that nobody goes on with is forgotten.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    store: Annotated[str | None, Field(min_length=1, max_length=4096, repr=False)] = None
    sessions: bool = True
    hints: bool = True
    every_s: Annotated[float, Field(ge=0.05, le=60)] = 1.0
    wait_s: Annotated[float, Field(ge=0.01, le=10)] = 0.25
    keep_s: Annotated[float, Field(ge=60, le=31_536_000)] = 86_400.0
