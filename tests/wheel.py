"""Installs wheels where there is no compiler, beside each TensorFlow they are for, and trains the quickstart.

    python tests/wheel.py dist/tfxc-*.whl [--tensorflow 2.19 2.20 2.21]

A wheel for any system is tried with the newest.

Every version gets a new environment in a folder that is removed afterwards. Prints the seconds that each
took to install, to import and to train; the exit status is 1 if one of them failed.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHECK = "import tfxc; from tfxc.ops import library; assert library.available() == {}"


def quickstart():
    return re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]


def timed(*command, cwd):
    environment = {**os.environ, "PATH": f"{Path(command[0]).parent}:/nowhere", "CXX": "/nowhere/g++"}
    environment.pop("PYTHONPATH", None)
    start = time.perf_counter()
    subprocess.run([*map(str, command)], cwd=cwd, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def check(wheel, version, folder):
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = Path(folder, "bin", "python")
    packages = [f"tensorflow=={version}.*", str(wheel.resolve())]
    install = timed(python, "-m", "pip", "install", "--quiet", "--only-binary=:all:", *packages, cwd=folder)
    imported = timed(python, "-c", CHECK.format(not for_any_system(wheel)), cwd=folder)
    return install, imported, timed(python, "-c", quickstart(), cwd=folder)


def for_any_system(wheel):
    return wheel.stem.endswith("-any")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--tensorflow", nargs="+", default=["2.19", "2.20", "2.21"], metavar="MINOR")
    args, failed = parser.parse_args(), False
    pairs = [
        (wheel, version)
        for wheel in args.wheels
        for version in args.tensorflow[-1 if for_any_system(wheel) else 0 :]
    ]
    for wheel, version in pairs:
        with tempfile.TemporaryDirectory() as folder:
            try:
                install, imported, trained = check(wheel, version, folder)
            except subprocess.CalledProcessError as error:
                failed = True
                print(f"{wheel.name}, TensorFlow {version}: FAILED, {error}", flush=True)
                continue
        seconds = f"installed in {install:.0f} s, imported in {imported:.0f} s, trained in {trained:.0f} s"
        print(f"{wheel.name}, TensorFlow {version}: {seconds}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
