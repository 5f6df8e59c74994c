"""Callbacks: when something happens during training."""

from tfxc.callbacks.sampler_refresh import SamplerRefresh

__all__ = ["SamplerRefresh"]
