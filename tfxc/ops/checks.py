"""Checks that several wrappers share."""

# As in the compiled ops: no real call comes near, and a mistake beyond it would only fill the memory.
_MOST_PER_QUERY = 1 << 24


def check_number(name, number):
    """Refuses a number of draws or candidates of a query that is not in [1, 2^24].

    >>> check_number("num_samples", 0)
    Traceback (most recent call last):
    ValueError: num_samples must be at least 1, but is 0.
    """
    if number < 1:
        raise ValueError(f"{name} must be at least 1, but is {number}.")
    if number > _MOST_PER_QUERY:
        raise ValueError(f"{name} must be at most {_MOST_PER_QUERY}, but is {number}.")
