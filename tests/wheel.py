"""Installs wheels where there is no compiler, beside each TensorFlow they are for, and trains the quickstart.

    python tests/wheel.py dist/tfxc-*.whl [--tensorflow 2.19 2.20 2.21]

A wheel for any system is tried with the newest, and one for ARM in an emulator, with fewer classes.

Every version gets a new environment in a folder that is removed afterwards. Prints the seconds that each
took to install, to import and to train; the exit status is 1 if one of them failed.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHECK = "import tfxc; from tfxc.ops import library; assert library.available() == {}"
sys.path.insert(0, str(ROOT / "custom_ops"))


def quickstart(small=False):
    """The README's, if small with fewer classes and examples."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    for large, fewer in (("100_000", "300"), ("30_000", "256"), ("28_000", "192"), ("=256", "=32")):
        program = program.replace(large, fewer) if small else program
    return program


def timed(*command, cwd, packages=""):
    environment = {**os.environ, "PATH": f"{Path(command[0]).parent}:/nowhere", "CXX": "/nowhere/g++"}
    environment["PYTHONPATH"] = packages
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


def check_in_emulator(wheel, version, folder):
    import arm64

    packages = f"{folder}:{arm64.packages_of(version)}"
    install = timed(*arm64.PIP, "--no-deps", "--target", folder, wheel.resolve(), cwd=folder)
    imported = timed(*arm64.command("-c", CHECK.format(True)), cwd=folder, packages=packages)
    trained = timed(*arm64.command("-c", quickstart(small=True)), cwd=folder, packages=packages)
    return install, imported, trained


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
                is_foreign = "aarch64" in wheel.name and platform.machine() != "aarch64"
                tried = check_in_emulator if is_foreign else check
                install, imported, trained = tried(wheel, version, folder)
            except subprocess.CalledProcessError as error:
                failed = True
                print(f"{wheel.name}, TensorFlow {version}: FAILED, {error}", flush=True)
                continue
        seconds = f"installed in {install:.0f} s, imported in {imported:.0f} s, trained in {trained:.0f} s"
        print(f"{wheel.name}, TensorFlow {version}: {seconds}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
