"""Training on several machines: class tables cut into shards on parameter servers, workers that may die."""

from tfxc.cluster.checkpoint import Checkpoint
from tfxc.cluster.place import place
from tfxc.cluster.servers import start_server, strategy

__all__ = ["Checkpoint", "place", "start_server", "strategy"]
