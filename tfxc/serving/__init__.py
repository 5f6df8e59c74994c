"""Exports for serving: how the next version of one is made without the model."""

from tfxc.serving.update import update

__all__ = ["update"]
