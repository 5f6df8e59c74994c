"""k-core filtering: keeps only users and items with enough interactions."""

from dataclasses import dataclass, replace

import numpy as np

from tfxc.arguments import positive_int
from tfxc.data.sequences import Sequences, require_sequences
from tfxc.data.vocabulary import Vocabulary


@dataclass(frozen=True)
class CoreReport:
    """The numbers of users, items and interactions that `k_core` dropped, and of its rounds.

    Example:
        >>> k_core(Sequences.from_lists(["aab", "aa"]), min_user=2, min_item=2)[1]
        CoreReport(num_users_dropped=0, num_items_dropped=1, num_interactions_dropped=1, num_rounds=2)
    """

    num_users_dropped: int
    num_items_dropped: int
    num_interactions_dropped: int
    num_rounds: int


def k_core(sequences: Sequences, min_user: int = 5, min_item: int = 5) -> tuple[Sequences, CoreReport]:
    """Drops rare items and users with few interactions repeatedly until every remaining one has enough.

    Repeats count. Class ids are renumbered without gaps, in their old order.

    Args:
        sequences: the interactions.
        min_user: fewest interactions of a user, at least 1.
        min_item: fewest interactions with an item, at least 1.

    Returns:
        The largest such part of the sequences, with its own vocabulary, and a report of what was dropped.

    Raises:
        ValueError: if a minimum is below 1, or nothing is left.

    Example:
        >>> sequences = Sequences.from_lists([["tea", "milk", "rum"], ["milk", "tea"], ["rum"]])
        >>> core, report = k_core(sequences, min_user=2, min_item=2)
        >>> core.vocabulary.decode(core[0]), len(core), report.num_interactions_dropped
        (['tea', 'milk'], 2, 2)

    Reference: S. B. Seidman, "Network structure and minimum degree", 1983.
    """
    require_sequences(sequences)
    min_user, min_item = positive_int(min_user, "min_user"), positive_int(min_item, "min_item")
    users = np.repeat(np.arange(len(sequences)), sequences.lengths)
    items = sequences.items
    kept = np.arange(len(items))  # positions of the interactions still in the core
    num_rounds = 0
    while True:
        num_rounds += 1
        user_counts = np.bincount(users[kept], minlength=len(sequences))
        item_counts = np.bincount(items[kept], minlength=sequences.num_classes)
        enough = (user_counts[users[kept]] >= min_user) & (item_counts[items[kept]] >= min_item)
        if enough.all():
            break
        kept = kept[enough]
    if not len(kept):
        raise ValueError(f"No interaction is left with min_user={min_user}, min_item={min_item}: lower one.")
    num_users, num_items = (int((counts == 0).sum()) for counts in (user_counts, item_counts))
    report = CoreReport(num_users, num_items, len(items) - len(kept), num_rounds)
    left = np.flatnonzero(user_counts)
    core = sequences._at(kept, np.concatenate([[0], np.cumsum(user_counts[left])]), left)
    new_ids, old = np.cumsum(item_counts > 0) - 1, sequences.vocabulary
    vocabulary = Vocabulary(old.names[np.flatnonzero(item_counts)], old.normalize)
    return replace(core, items=new_ids[core.items], vocabulary=vocabulary), report
