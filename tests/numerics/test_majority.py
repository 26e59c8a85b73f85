"""The ranks of Theorem 1."""

from robustmetric.numerics.majority import majority_ranks


def test_ranks_of_odd_and_even_votes() -> None:
    # 3 votes: 2 own hold the majority, 2 foreign take it. 4 votes: 3 own hold it, and 2 foreign tie, which may lose.
    assert [majority_ranks(k) for k in (1, 3, 11, 2, 4)] == [(1, 1), (2, 2), (6, 6), (2, 1), (3, 2)]
