"""How many of K votes decide (Wang et al. 2020, Theorem 1)."""


def majority_ranks(n_neighbors: int) -> tuple[int, int]:
    """The ranks of Theorem 1: (k of the k-th max over own sites, k of the k-th min over foreign ones).

    A misclassified point has at most (K - 1) / 2 own sites among its K nearest, hence (K + 1) / 2 foreign ones or more;
    for even K, where a tie may be lost, at most K / 2 own and K / 2 foreign ones or more.
    """
    return n_neighbors // 2 + 1, (n_neighbors + 1) // 2
