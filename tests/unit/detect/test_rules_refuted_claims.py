from __future__ import annotations

import json

import pytest

from tests.unit.detect.builders import call, found, run, said

OFFERS = json.dumps(
    {
        "offers": [
            {"id": "boat-a1", "price": 120, "available": True},
            {"id": "boat-b2", "price": 95, "available": False},
            {"id": "boat-c3", "price": 140, "available": True},
        ]
    }
)


@pytest.mark.parametrize(
    "claim",
    [
        "I found 5 offers for you.",
        "The cheapest one costs $120 a day.",
        "The most expensive boat is 120 crowns.",
        "Good news: boat-b2 is available for you.",
    ],
)
def test_statement_that_the_result_refutes_is_found(claim: str) -> None:
    (finding,) = found(run(call("list_offers", {}, OFFERS), said(claim)), "refuted_claim")
    assert finding.step == 1
    assert finding.evidence[1].step == 0


@pytest.mark.parametrize(
    "claim",
    [
        "I found 3 offers for you.",
        "I found 2 offers below 130.",
        "The cheapest one costs $95 a day.",
        "Only boat-a1 and boat-c3 are left, and boat-b2 is not available.",
        "boat-a1 is available.",
        "The cheapest way takes 40 minutes.",
    ],
)
def test_statement_that_the_result_supports_has_no_finding(claim: str) -> None:
    assert found(run(call("list_offers", {}, OFFERS), said(claim)), "refuted_claim") == ()
