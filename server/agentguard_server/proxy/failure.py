"""A failure of our own, as a log may have it."""

from __future__ import annotations


def place(error: BaseException) -> str:
    """Which error, and where in the code; neither its message nor its frames, which may hold contents."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    return f"{type(error).__name__}{where}"
