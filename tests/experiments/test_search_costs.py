"""The token costs of search methods: duplicate rows are dropped, and rows are sorted by tokens."""

import search_costs

ESTIMATE = {"value": 0.5, "low": 0.25, "high": 0.75}


def row_of(method, size, tokens):
    return {"method": method, "size": size, "tokens": tokens, "accuracy": ESTIMATE}


def test_drop_repeats_and_cost_of_one_answer():
    sampled, votes, beam = row_of("sampled answer", 1, None), row_of("votes of k", 4, 80.0), row_of("beam", 4, 50.0)
    rows = search_costs.drop_repeats([sampled, beam, votes, sampled, votes])
    assert [(row["method"], row["tokens"]) for row in rows] == [
        ("sampled answer", 20.0),
        ("beam", 50.0),
        ("votes of k", 80.0),
    ]
    assert "| beam | 4 | 50 | 50.0% (25 to 75) |" in search_costs.report_of(rows)


def test_rows_of_lists_independent_answers():
    found = {"single": ESTIMATE, "rows": []}
    for samples, responses in ((2, 1), (8, 3)):
        compared = {"responses": responses, "response_tokens": 20.0 * responses, "best": ESTIMATE, "votes": ESTIMATE}
        found["rows"].append({"samples": samples, "tokens": 10.0 * samples, "accuracy": ESTIMATE} | compared)

    class Report:
        def to_json(self):
            return found

    rows = search_costs.rows_of(Report(), "revision")
    assert [(row["method"], row["size"]) for row in rows] == [
        ("sampled answer", 1),
        ("revision", 2),
        ("revision", 8),
        ("best of k", 3),
        ("votes of k", 3),
    ]
