from __future__ import annotations

from tools.write_format_evidence import PAGE, build_sample_count_rows, build_sample_rows


def test_page_of_counts_has_the_rows_of_the_samples() -> None:
    page = PAGE.read_text("utf-8").splitlines()
    missing = [row for row in (*build_sample_count_rows(), *build_sample_rows()) if row not in page]
    assert missing == [], "run python -m tools.write_format_evidence"
