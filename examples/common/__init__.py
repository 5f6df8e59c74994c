"""What the programs share. They import it before TensorFlow, which then says nothing of devices not found."""

from common.quiet_start import start_quietly

start_quietly()
