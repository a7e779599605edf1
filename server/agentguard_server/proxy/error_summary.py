"""Summary of an internal error for the log, without its message and variables."""

from __future__ import annotations


def summarize_error(error: BaseException) -> str:
    """Return type and location of an error."""
    where = error_location(error)
    return f"{type(error).__name__} at {where}" if where else type(error).__name__


def error_location(error: BaseException) -> str:
    """Return the location of an error: file, line and function; empty if it was never raised."""
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno} {code.co_name}"
