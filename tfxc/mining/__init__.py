"""The table of hard negatives, and the search behind training that fills it."""
