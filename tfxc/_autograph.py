"""Excludes modules from AutoGraph, which no function of tfxc needs: the first call of a graph is faster."""

from tensorflow.python.autograph.core import config


def leave_alone(*modules):
    """Makes AutoGraph call the functions of modules, by name, and of their submodules without conversion."""
    config.CONVERSION_RULES = (*map(config.DoNotConvert, modules), *config.CONVERSION_RULES)
