"""Compiled TensorFlow ops, each with its gradient and its reference path."""
