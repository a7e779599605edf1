from __future__ import annotations

from tests.unit.detect.builders import call, found, run

QUERIES = ("harbour fees of Bergen 2019", "Bergen harbour fees in 2019", "2019 fees, harbour Bergen")


def test_same_words_in_another_order_without_results_are_found_at_the_second_call() -> None:
    told = run(*[call("find_pages", {"q": query}, "No results found") for query in QUERIES])
    (finding,) = found(told, "paraphrased_repetition")
    assert (finding.step, finding.noticed_at, finding.data["count"]) == (1, 2, 3)


def test_queries_with_results_or_corrections_after_errors_are_not_repetitions() -> None:
    fine = run(*[call("find_pages", {"q": q}, f"page {i} about it") for i, q in enumerate(QUERIES)])
    errors = run(*[call("find_pages", {"q": q}, f"Error: bad word {q}") for q in QUERIES])
    other = run(*[call("find_pages", {"q": q}, "[]") for q in ("a red boat", "the old crane", "nine gulls")])
    for told in (fine, errors, other):
        assert found(told, "paraphrased_repetition") == ()


def test_change_between_two_calls_ends_a_repetition() -> None:
    calls = [call("find_pages", {"q": query}, "[]") for query in QUERIES]
    told = run(calls[0], calls[1], call("create_page", {"q": "harbour fees Bergen 2019"}, "ok"), calls[2])
    assert found(told, "paraphrased_repetition") == ()
