"""A scratch root on which runs are made and reverted, in this process."""

from factories import apply, put
from resource_fixtures import snapshot

from spark_cluster.agent.revert import revert
from spark_cluster.node.host import Host

OWNER = {"user": "me@laptop", "command": "provision", "run": "r1"}


class Node:
    """A scratch root on which runs are made and taken back."""

    def __init__(self, root):
        self.root = root

    def host(self, run, **options):
        return Host(root=self.root, run_id=run, owner={**OWNER, "run": run}, **options)

    def run(self, run, *resources):
        events = []
        apply(resources, self.host(run), events.append)
        return [e["verdict"] for e in events if e["event"] == "result"]

    def revert(self, run, by="r9", **options):
        """(the reply, events by path or id)."""
        diff = options.pop("diff", False)
        events = []
        reply = revert(self.host(by, **options), run, events.append, diff=diff)
        return reply, {e["id"]: e for e in events}

    def put(self, name, text, mode=0o644):
        return put(self.path(name), text, mode)

    def path(self, name):
        return self.root / name.lstrip("/")

    def tree(self):
        """Every path with its kind, mode, owner and content; our own folders left out."""
        return {
            name: about
            for name, about in snapshot(self.root).items()
            if not name.startswith("var/lib/spark-cluster") and name not in ("var", "var/lib")
        }
