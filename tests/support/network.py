"""Hosts of this machine: network namespaces, each with a link of its own that can be cut, joined again and slowed."""

import itertools
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

NETWORK = "10.77.0"


def may_make_namespaces() -> bool:
    try:
        return not subprocess.run(["unshare", "-n", "-m", "-u", "true"], capture_output=True).returncode and bool(
            shutil.which("ip")
        )
    except OSError:
        return False


NAMESPACES = may_make_namespaces()
NETWORKS = itertools.count()  # a name for each: Linux removes a namespace and its links some time after it is told to


def address(host: int) -> str:
    return f"{NETWORK}.{host + 1}"


@dataclass
class Network:
    """So many hosts that a bridge joins. Use it with `with`: afterwards their processes have no network."""

    count: int
    folder: Path  # for the names of hosts
    name: str = field(default_factory=lambda: f"s{os.getpid() % 100000}x{next(NETWORKS)}")

    def __enter__(self) -> "Network":
        ip("link", "add", self.name, "type", "bridge")
        ip("link", "set", self.name, "up")
        names = [f"{address(host)} host{host}" for host in range(self.count)]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
        for host in range(self.count):
            space, outside = self.space(host), self.link(host)
            ip("netns", "add", space)
            ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", outside, "master", self.name, "up")
            ip("-n", space, "addr", "add", f"{address(host)}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")
        return self

    def __exit__(self, *exception: object) -> None:
        for host in range(self.count):
            subprocess.run(["ip", "netns", "del", self.space(host)], capture_output=True)
        subprocess.run(["ip", "link", "del", self.name], capture_output=True)

    def space(self, host: int) -> str:
        return f"{self.name}n{host}"

    def link(self, host: int) -> str:
        """The end of a host's link that the bridge has."""
        return f"{self.name}v{host}"

    def within(self, host: int, own_disk: Path | None = None) -> list[str]:
        """The words before a command that a host runs, with a name of its own, and on request with a folder of its
        own."""
        mounted = f"mkdir -p {own_disk}; mount -t tmpfs none {own_disk};" if own_disk else ""
        prepared = f'hostname host{host}; mount --bind {self.folder}/hosts /etc/hosts; {mounted} exec "$@"'
        return ["ip", "netns", "exec", self.space(host), "unshare", "-u", "-m", "bash", "-c", prepared, "-"]

    def slow(self, host: int, rate: str) -> None:
        """Limit the bytes per second of a host's link, both ways."""
        for space, device in (([], self.link(host)), (["-n", self.space(host)], "eth0")):
            words = ["tc", *space, "qdisc", "add", "dev", device, "root", "tbf", "rate", rate]
            subprocess.run([*words, "burst", "32kbit", "latency", "400ms"], check=True, capture_output=True)

    def cut(self, host: int) -> None:
        """Pull the cable."""
        ip("link", "set", self.link(host), "down")

    def join(self, host: int) -> None:
        """Plug it in again."""
        ip("link", "set", self.link(host), "up")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
