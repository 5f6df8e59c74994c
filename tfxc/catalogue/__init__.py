"""Changes the list of classes of a trained model."""

from tfxc.catalogue.change_classes import change_classes

__all__ = ["change_classes"]
