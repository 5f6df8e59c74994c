import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECIPE = re.search(r"^lint:.*\n((?:\t.+\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
COMMANDS = [line.strip().removeprefix("$(BIN)/") for line in RECIPE[1].splitlines()]


@pytest.mark.parametrize("command", COMMANDS)
def test_finds_nothing(command):
    program, *arguments = command.split()
    command = [str(Path(sys.executable).parent / program), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
