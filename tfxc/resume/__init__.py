"""Trainings that go on where a backup stands."""
