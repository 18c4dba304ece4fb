"""The costs of search: equal rows once, ordered by tokens, in a table."""

import search_costs

SHARE = {"value": 0.5, "low": 0.25, "high": 0.75}


def row_of(method, size, tokens):
    return {"method": method, "size": size, "tokens": tokens, "accuracy": SHARE}


def test_repeated_rows_are_left_out_and_a_sampled_answer_costs_a_share_of_the_votes():
    sampled, votes, beam = row_of("sampled answer", 1, None), row_of("votes of k", 4, 80.0), row_of("beam", 4, 50.0)
    rows = search_costs.drop_repeats([sampled, beam, votes, sampled, votes])
    assert [(row["method"], row["tokens"]) for row in rows] == [
        ("sampled answer", 20.0),
        ("beam", 50.0),
        ("votes of k", 80.0),
    ]
    assert "| beam | 4 | 50 | 50.0% (25 to 75) |" in search_costs.report_of(rows)


def test_independent_answers_are_listed_if_there_are_several():
    found = {"single": SHARE, "rows": []}
    for samples, responses in ((2, 1), (8, 3)):
        compared = {"responses": responses, "response_tokens": 20.0 * responses, "best": SHARE, "votes": SHARE}
        found["rows"].append({"samples": samples, "tokens": 10.0 * samples, "accuracy": SHARE} | compared)

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
