"""Tells AutoGraph that nothing in tfxc is for it to rewrite.

Inside a ``tf.function`` TensorFlow parses and compiles every Python function that is called once more, so
that ``if`` and ``for`` may depend on tensors. None does here, so it is left alone, as Keras and NumPy are:
the first call of every graph comes sooner.
"""

from tensorflow.python.autograph.core import config


def leave_alone(*modules):
    """Has AutoGraph call the functions of modules, and of those inside them, as they are.

    Args:
        modules: names of modules.
    """
    config.CONVERSION_RULES = (*map(config.DoNotConvert, modules), *config.CONVERSION_RULES)
