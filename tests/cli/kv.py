# SPDX-License-Identifier: Apache-2.0
"""What the tests of the KV store share: mooncake_master, mooncake_client and `shoal kv` as processes of their own."""

import json
import os
import signal
import socket
import struct
import subprocess
import urllib.error
import urllib.request

import cli
from cli import ROOT, CliTest, Running, wait_for

MASTER = os.environ.get("SHOAL_MASTER_EXE", str(ROOT / "build/cmd/mooncake_master/mooncake_master"))
CLIENT = os.environ.get("SHOAL_CLIENT_EXE", str(ROOT / "build/cmd/mooncake_client/mooncake_client"))
BULK = os.environ.get("SHOAL_KV_BULK", str(ROOT / "build/tests/cli/kv_bulk"))
# Sanitizers and slow machines may ask for less.
SCALE = float(os.environ.get("SHOAL_TEST_SCALE", "1"))


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def http(address, path):
    """(status, body); status 0: nobody answers."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def metric(text, name):
    """The value of a line without labels in Prometheus text."""
    for line in text.splitlines():
        if line.startswith(name + " "):
            return float(line.split()[1])
    raise AssertionError(f"no {name} in\n{text}")


def control(port, cluster=b"default"):
    """A control connection whose handshake (docs/wire-protocol.md) is over."""
    name = b"127.0.0.1:1"
    fields = struct.pack("<HBBQQ", 1, 2, 0, 0x1234567, 0)
    fields += struct.pack("<H", len(name)) + name + struct.pack("<H", len(cluster)) + cluster + struct.pack("<HH", 0, 0)
    sock = socket.create_connection(("127.0.0.1", port), cli.DEADLINE_S)
    sock.sendall(b"SHOL" + struct.pack("<I", 8 + len(fields)) + fields)
    head = receive(sock, 8)
    answer = receive(sock, struct.unpack("<I", head[4:])[0] - 8)
    if answer[3] != 0:
        sock.close()
        raise AssertionError(f"refused with verdict {answer[3]}")
    return sock


def receive(sock, count):
    """Less only if the other side has closed."""
    data = b""
    while len(data) < count:
        try:
            part = sock.recv(count - len(data))
        except ConnectionError:
            part = b""
        if not part:
            break
        data += part
    return data


def frame(method, body=b"", kind=1, length=None, timeout_ms=5000):
    return struct.pack("<IBBHQiI", len(body) if length is None else length, kind, 0, method, 7, 0, timeout_ms) + body


def answer_status(sock):
    """None: the connection was closed."""
    head = receive(sock, 24)
    if len(head) < 24:
        return None
    length, _, _, _, _, status, _ = struct.unpack("<IBBHQiI", head)
    receive(sock, length)
    return status


class Daemon(Running):
    """Its events are JSON lines on standard error."""

    def events(self, name):
        found = []
        for line in self.err.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event.get("event") == name:
                found.append(event)
        return found

    def wait_for_event(self, name):
        def look():
            found = self.events(name)
            if found:
                return found[-1]
            if self.process.poll() is not None:
                raise AssertionError(f"{self.arguments} ended with {self.process.returncode}\n{self.err}")
            return None

        return wait_for(look, f"event {name} of {self.arguments}: {self.err}")


class Client(Daemon):
    def wait_ready(self):
        ready = self.wait_for_event("ready")
        self.address = ready["address"]
        self.local = f"127.0.0.1:{ready['port']}"
        self.http = ready["http"]
        return self


def dram(capacity):
    return {"tiers": [{"type": "DRAM", "capacity": capacity}]}


def storage(path, capacity, dram_capacity=None):
    tiers = [{"type": "STORAGE", "capacity": capacity, "priority": 10, "storage_filepath": str(path)}]
    if dram_capacity:
        tiers.insert(0, {"type": "DRAM", "capacity": dram_capacity, "priority": 100})
    return {"tiers": tiers}


class KvTest(CliTest):
    def setUp(self):
        super().setUp()
        self.env.pop("SHOAL_METADATA")
        self.master_port = None

    def tearDown(self):
        """Whoever still runs ends cleanly when asked: nothing hangs, and sanitizers found nothing."""
        alive = [command for command in self.running if isinstance(command, Daemon) and command.process.poll() is None]
        for command in alive:
            command.process.send_signal(signal.SIGTERM)
        try:
            for command in alive:
                self.assertEqual(command.wait(), 0, f"{command.arguments}\n{command.err[-4000:]}")
        finally:
            super().tearDown()

    def daemon(self, kind, *arguments):
        command = kind(self.dir, [str(argument) for argument in arguments], self.env)
        self.running.append(command)
        return command

    def start_master(self, *options, port=0):
        command = self.daemon(Daemon, MASTER, "--rpc_address", "127.0.0.1", "--rpc_port", port, "--metrics_port", 0,
                              "--log_format", "json", *options)
        self.master = command.wait_for_event("listening")["address"]
        self.master_port = int(self.master.rsplit(":", 1)[1])
        return command

    def begin_client(self, tiers, *options):
        config = [] if tiers is None else ["--tiered_backend_config", json.dumps(tiers)]
        return self.daemon(Client, CLIENT, "--master_server_address", self.master, "--port", 0, "--client_rpc_port", 0,
                           "--log_format", "json", *config, *options)

    def start_client(self, tiers=None, *options):
        return self.begin_client(dram("64MiB") if tiers is None else tiers, *options).wait_ready()

    def kv(self, client, command, *arguments, **options):
        return self.run_shoal("kv", command, "--client", client.local, *arguments, **options)

    def put(self, client, key, content, *options, code=0):
        path = self.make("value", content)
        return self.kv(client, "put", key, path, *options, code=code)

    def get(self, client, key):
        path = self.dir / "got"
        self.kv(client, "get", key, path)
        content = path.read_bytes()
        path.unlink()
        return content

    def keys(self, client, *pattern):
        out, _ = self.kv(client, "ls", "--json", *pattern)
        return {entry["key"]: entry for entry in json.loads(out)}

    def bulk(self, client, what, prefix, count, size, code=0):
        result = subprocess.run([BULK, "--client", client.local, what, prefix, str(count), str(size)], env=self.env,
                                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                                timeout=4 * cli.DEADLINE_S)
        self.assertEqual(result.returncode, code, f"{what}: {result.stdout} {result.stderr}")
        return result.stdout

    def assert_serves(self, client):
        """Puts, gets and removes one value."""
        self.put(client, "alive", b"yes")
        self.assertEqual(self.get(client, "alive"), b"yes")
        self.kv(client, "rm", "alive")
