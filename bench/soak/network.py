"""A network of its own on one host: a process a node, each in a network namespace behind one
bridge, whose links can be cut. Nothing of it outlives the processes, and the host's network is
not touched.

Where namespaces are not allowed, nodes are addresses of the loopback and nothing can be cut."""

import os
import shutil
import subprocess
import sys
import time

_INSIDE = "SLUICE_SOAK_INSIDE"


def enter():
    """Starts this program again in a network namespace, if that is allowed; else says so."""
    if os.environ.get(_INSIDE):
        return
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *user, "--net", "--"]
    tools = all(shutil.which(tool) for tool in ("unshare", "nsenter", "ip"))
    probe = "ip link set lo up && ip link add br0 type bridge"
    if tools and subprocess.run([*command, "sh", "-c", probe], capture_output=True).returncode == 0:
        os.environ[_INSIDE] = "1"
        os.execvp(command[0], [*command, sys.executable, *sys.argv])
    print("no network namespaces here: links are not cut", file=sys.stderr)


class Network:
    def __init__(self):
        self.can_cut = bool(os.environ.get(_INSIDE))
        self._made = 0
        self._ports: dict[str, str] = {}  # by address: the bridge's end of its link
        if self.can_cut:
            # A bridge takes the least MAC of its ports otherwise: another one when a node dies,
            # and nobody would find the clients behind it.
            for command in ("link set lo up", "link add br0 address 02:00:00:00:00:01 type bridge",
                            "addr add 10.77.0.1/24 dev br0", "link set br0 up"):
                _ip(command)

    def address(self, number: int) -> str:
        """Of the node with this number, from 2 on."""
        return f"10.77.0.{number}" if self.can_cut else f"127.77.0.{number}"

    def start(self, address: str, argv: list[str], log) -> subprocess.Popen:
        """A process that has this address."""
        argv = ["setpriv", "--pdeathsig", "KILL", "--", *argv]
        if not self.can_cut:
            return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        waiting = ["unshare", "--net", "--", "sh", "-c", 'read _ && exec "$@"', "sh", *argv]
        process = subprocess.Popen(waiting, stdin=subprocess.PIPE, stdout=log, stderr=log)
        own = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{process.pid}/ns/net") == own:
            time.sleep(0.005)
        self._link(process.pid, address)
        process.stdin.write(b"\n")
        process.stdin.close()
        return process

    def _link(self, pid: int, address: str):
        self._made += 1
        port, mac = f"v{self._made}", f"02:00:00:00:00:{int(address.split('.')[-1]):02x}"
        # One MAC an address, so that nobody looks for a node that started again at its old one.
        _ip(f"link add {port} type veth peer name eth0 address {mac} netns {pid}")
        _ip(f"link set {port} master br0 up")
        for command in (f"addr add {address}/24 dev eth0", "link set eth0 up", "link set lo up"):
            _ip(command, pid)
        self._ports[address] = port

    def cut(self, address: str):
        """Nothing reaches the node or leaves it; nobody is told."""
        _ip(f"link set {self._ports[address]} down")

    def mend(self, address: str):
        _ip(f"link set {self._ports[address]} up")

    def part(self, one: subprocess.Popen, its: str, other: subprocess.Popen, others: str):
        """These two do not reach each other; everybody else does."""
        _ip(f"route add blackhole {others}/32", one.pid)
        _ip(f"route add blackhole {its}/32", other.pid)

    def join(self, one: subprocess.Popen, its: str, other: subprocess.Popen, others: str):
        _ip(f"route del blackhole {others}/32", one.pid)
        _ip(f"route del blackhole {its}/32", other.pid)


def _ip(command: str, pid: int | None = None):
    where = ["nsenter", "-t", str(pid), "-n"] if pid else []
    subprocess.run([*where, "ip", *command.split()], check=True, capture_output=True)
