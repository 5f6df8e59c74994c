"""What a call of a reader, or of what holds its data, refuses."""

import pytest


def refused(message, function, *args, **kwargs):
    """Asserts that a call raises a ValueError whose text matches a pattern."""
    with pytest.raises(ValueError, match=message):
        function(*args, **kwargs)
