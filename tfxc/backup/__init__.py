"""What of a training is kept, and the folder it is kept in."""
