"""Runs the fuzzers for a time: each in processes of its own, so that a crash is a finding like any other.

``python tests/fuzz/run_fuzz.py --seconds 3600`` is what ``make fuzz`` does. It prints the calls of each op
and the findings: what differed, crashed or hung, as a line for ``findings.jsonl``, which the tests replay.
The exit status is 1 if there is any.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXAMPLES_A_ROUND = 400
SEEDS_A_CASE = 5
# A case takes milliseconds; on a busy machine a process may have to wait for minutes.
HANG_PROCESSOR_SECONDS, HANG_SECONDS = 60, 1200
SECONDS_A_PROCESS = 120  # with one thread or with more than there is work for


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", help="names of targets; all of them if none is given")
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("TFXC_FUZZ_SECONDS", 3600)))
    parser.add_argument(
        "--seed", type=int, default=None, help="of the first round; from the clock if not given"
    )
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker[0], arguments.seed, float(arguments.worker[1]))
        return 0
    known = target_names()
    names = arguments.targets or known
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"there are no targets {unknown}, but {known}")
    seed = int(time.time()) if arguments.seed is None else arguments.seed
    calls, findings = Counter(), []
    for number, name in enumerate(names):
        stop = time.monotonic() + arguments.seconds / len(names)
        mine = Counter()
        while (left := stop - time.monotonic()) > 0:
            done, finding = run_apart(name, seed, left, threads=1 if seed % 4 else 8)
            mine += done
            seed += 1_000_003
            if finding:
                findings.append(finding)
                print(f"FINDING {finding}", flush=True)
        calls += mine
        print(f"[{number + 1}/{len(names)}] {name}: {sum(mine.values())} calls {dict(mine)}", flush=True)
    for op, count in sorted(calls.items()):
        print(f"{count:12} {op}")
    print(f"{sum(calls.values()):12} calls in all, {len(findings)} findings")
    return bool(findings)


def target_names():
    found = subprocess.run(
        [sys.executable, "-c", "import fuzz_all; print(*fuzz_all.TARGETS)"],
        cwd=HERE, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return found.stdout.split()


def run_apart(name, seed, seconds, threads):
    with tempfile.TemporaryDirectory() as folder:
        case, counts, errors = (Path(folder, part) for part in ("case", "counts", "errors"))
        environment = os.environ | {"TFXC_FUZZ_CASE_FILE": str(case), "TFXC_FUZZ_COUNTS_FILE": str(counts)}
        environment |= {"TF_NUM_INTRAOP_THREADS": str(threads), "TF_NUM_INTEROP_THREADS": "1"}
        environment["TF_CPP_MIN_LOG_LEVEL"] = "2"
        worker = ["--worker", name, str(min(seconds, SECONDS_A_PROCESS))]
        command = [sys.executable, __file__, "--seed", str(seed), *worker]
        with open(errors, "w") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        hung = wait(process, case)
        calls = Counter(json.loads(counts.read_text())) if counts.exists() else Counter()
        if process.returncode == 0:
            return calls, None
        last = case.read_text() if case.exists() else "before the first case"
        reason = "hung" if hung else f"exit status {process.returncode}"
        return calls, f"{last} {reason}\n{errors.read_text()[-3000:]}"


def wait(process, case):
    """Waits for a process; kills it, and gives True, if a case takes too much processor time or too long."""
    since, began, spent = None, time.monotonic(), 0.0
    while process.poll() is None:
        time.sleep(0.2)
        changed, now = case.stat().st_mtime_ns if case.exists() else None, processor_seconds(process.pid)
        if changed != since:
            since, began, spent = changed, time.monotonic(), now
        if now - spent > HANG_PROCESSOR_SECONDS or time.monotonic() - began > HANG_SECONDS:
            process.kill()
            process.wait()
            return True
    return False


def processor_seconds(pid):
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def work(name, seed, seconds):
    import fuzz_all
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    target, stop = fuzz_all.TARGETS[name], time.monotonic() + seconds
    counts = Path(os.environ["TFXC_FUZZ_COUNTS_FILE"])

    @settings(
        max_examples=EXAMPLES_A_ROUND,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(target.strategy)
    def one_round(case):
        if time.monotonic() < stop:
            target.run_with_neighbours(case, SEEDS_A_CASE)

    with fuzz_all.limited_memory():
        while time.monotonic() < stop:
            try:
                seeded(seed)(one_round)()
            finally:
                counts.write_text(json.dumps(fuzz_all.CALLS))
            seed += 1


if __name__ == "__main__":
    sys.exit(main())
