import math

import pytest

from agentguard.resilience import DO_NOT_RETRY, parse_pushback, parse_retry_after

SUNDAY = 784_111_777.0  # RFC 9110's example date


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("1.5", 1.5),
        ("1e9", 1e9),
        ("inf", math.inf),
        ("9" * 100, 1e100),
        ("-1", DO_NOT_RETRY),
        ("-inf", DO_NOT_RETRY),
        ("-0.001", DO_NOT_RETRY),
        (None, None),
        ("", None),
        ("nan", None),
        ("NaN", None),
        ("soon", None),
        ("1_000", None),
        ("١٢", None),
        ("0x10", None),
        ("9" * 5000, None),
        ("Sun, 99 Nov 1994 08:49:37 GMT", None),
        ("Sun, 06 Nov 99999999 08:49:37 GMT", None),
        ("Sun, 06 Nov 1994 08:50:37 GMT", 60.0),
        ("Sunday, 06-Nov-94 08:50:37 GMT", 60.0),
        ("Sun Nov  6 08:50:37 1994", 60.0),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0.0),
    ],
)
def test_retry_after_values_are_parsed(value, seconds):
    assert parse_retry_after(value, wall_time=SUNDAY) == seconds


def test_date_is_relative_to_server_clock():
    later = "Sun, 06 Nov 1994 08:50:37 GMT"
    assert parse_retry_after(later, date="Sun, 06 Nov 1994 08:50:07 GMT", wall_time=0.0) == 30
    assert parse_retry_after(later, date="rubbish", wall_time=SUNDAY) == 60
    assert parse_retry_after(later) == 0  # in the past by the real wall clock


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "3", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "3", "retry-after-ms": "soon"}, 3.0),
        ({"retry-after-ms": "-5"}, DO_NOT_RETRY),
        ({"retry-after": "3", "x-should-retry": "False"}, DO_NOT_RETRY),
        ({"retry-after": "3", "x-should-retry": "true"}, 3.0),
    ],
)
def test_retry_after_headers_are_found(headers, seconds):
    assert parse_pushback(headers) == seconds
