"""A failure of our own, as a log may have it: neither its message nor its variables are told."""

from __future__ import annotations


def summarize_error(error: BaseException) -> str:
    """Which error it is, and where it came from."""
    where = error_location(error)
    return f"{type(error).__name__} at {where}" if where else type(error).__name__


def error_location(error: BaseException) -> str:
    """Where in the code an error came from: file, line and function; empty if it was never raised."""
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno} {code.co_name}"
