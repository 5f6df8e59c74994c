"""What a SavedModel is made of."""
