"""Parameters of tests of which only the first belong to the quick suite."""

import pytest


def long_after(number, *cases):
    """Cases of a test, those after so many marked ``long``: they go the same way with other parts."""
    params = [pytest.param(*case if isinstance(case, tuple) else [case]) for case in cases]
    return params[:number] + [param._replace(marks=[pytest.mark.long]) for param in params[number:]]
