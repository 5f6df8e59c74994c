"""Shared by the example programs, which import it before TensorFlow, so that TensorFlow starts silently."""

from common.quiet_start import start_quietly

start_quietly()
