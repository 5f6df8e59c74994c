import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfxc._keras import IS_KERAS_3

PROGRAM = Path(__file__).with_name("elsewhere.py")


@pytest.mark.long
@pytest.mark.skipif(not IS_KERAS_3, reason="the README imports Keras 3 by name")
@pytest.mark.skipif(sys.platform != "linux", reason="the process has to begin on Linux")
def test_what_other_systems_lack_is_not_needed(tmp_path):
    environment = {**os.environ, "TFXC_DISABLE_OPS": "1", "PYTHONPATH": str(PROGRAM.parents[1])}
    command = [sys.executable, PROGRAM, tmp_path, "--without-linux"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.endswith("everything ran\n"), done.stderr
