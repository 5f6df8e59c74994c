"""Excludes modules from AutoGraph.

Inside a ``tf.function`` AutoGraph parses and recompiles every Python function that is called, so that ``if``
and ``for`` may depend on tensors. No function of tfxc needs that. Without it, as for Keras and NumPy, the
first call of every graph is faster.
"""

from tensorflow.python.autograph.core import config


def leave_alone(*modules):
    """Makes AutoGraph call the functions of modules, by name, and of their submodules without conversion."""
    config.CONVERSION_RULES = (*map(config.DoNotConvert, modules), *config.CONVERSION_RULES)
