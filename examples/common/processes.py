"""A cluster of processes on this machine: starts them, watches them, and restarts them when they die."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

COORDINATOR = "chief"
_CHILD = "CLUSTER_CHILD"


def die_with_parent():
    """Ends this process when the ``Cluster`` that started it is gone; a process started by hand stays."""
    if _CHILD not in os.environ:
        return

    def wait():
        sys.stdin.read()  # returns when the parent's end of the pipe closes, for whatever reason
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class Cluster:
    """The coordinator, workers and parameter servers of a training, each a process of the same program.

    TF_CONFIG tells a process its role, as on separate machines.

    Args:
        command: the program and its arguments.
        num_workers: number of workers.
        num_servers: number of parameter servers.
    """

    def __init__(self, command, num_workers, num_servers):
        self._command = command
        self._sizes = {"worker": num_workers, "ps": num_servers, COORDINATOR: 1}
        self._running = {}
        self.num_restarts = 0  # restarts of the whole cluster
        self.num_new_workers = 0

    def run(self):
        """Watches the processes until the coordinator ends.

        A worker that dies is restarted, while the others continue. After the death of a server or of the
        coordinator all processes are restarted, and training resumes from its last checkpoint.

        Raises:
            RuntimeError: A process ended with an error, and none was killed.
        """
        try:
            self._start_all()
            while (code := self._running[COORDINATOR, 0].poll()) != 0:
                codes = {task: process.poll() for task, process in self._running.items()}
                dead = [task for task, own in codes.items() if own is not None]
                if dead and not any(codes[task] < 0 for task in dead):
                    raise RuntimeError(f"{name_of(dead[0])} failed; what it said stands above.")
                if code is not None or any(job == "ps" for job, _ in dead):
                    print(f"Gone: {name_of(dead[0])}. All are started again.", flush=True)
                    self.num_restarts += 1
                    self._stop_all()
                    self._start_all()
                    continue
                for task in dead:
                    print(f"Gone: {name_of(task)}. It is started again.", flush=True)
                    self.num_new_workers += 1
                    self._start(task)
                time.sleep(0.2)
        finally:
            self._stop_all()

    def kill(self, task):
        """Kills a process, (job, number), as ``kill -9`` does."""
        self._running[task].send_signal(signal.SIGKILL)

    def tasks(self):
        """The running processes: (job, number) -> process id."""
        return {task: process.pid for task, process in self._running.items()}

    def _start_all(self):
        addresses = iter(_free_addresses(sum(self._sizes.values())))
        self._addresses = {job: [next(addresses) for _ in range(size)] for job, size in self._sizes.items()}
        for job, size in self._sizes.items():
            for number in range(size):
                self._start((job, number))

    def _start(self, task):
        config = {"cluster": self._addresses, "task": {"type": task[0], "index": task[1]}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(config), "TF_USE_LEGACY_KERAS": "1", _CHILD: "1"}
        if task[0] != COORDINATOR:  # the coordinator prints the same as they do
            environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
        self._running[task] = subprocess.Popen(self._command, env=environment, stdin=subprocess.PIPE)

    def _stop_all(self):
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
        self._running = {}


def name_of(task):
    """The name of a process (job, number)."""
    return {"worker": "worker", "ps": "server", COORDINATOR: "the coordinator, process"}[
        task[0]
    ] + f" {task[1]}"


def _free_addresses(number):
    sockets = [socket.create_server(("localhost", 0)) for _ in range(number)]
    addresses = [f"localhost:{own.getsockname()[1]}" for own in sockets]
    for own in sockets:
        own.close()
    return addresses
