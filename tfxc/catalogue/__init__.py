"""Another list of classes for a trained model."""

from tfxc.catalogue.change_classes import change_classes

__all__ = ["change_classes"]
