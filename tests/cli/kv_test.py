#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The KV store with real processes: what users see of it, and what happens when processes die."""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import cli
import kv
import terminal_test
from cli import wait_for
from kv import KvTest, dram, storage


def answer_nonsense(server):
    while True:
        try:
            connection = server.accept()[0]
        except OSError:
            return
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 100)
            connection.recv(4096)


MIB = 1 << 20


class Contract(KvTest):
    """The two command lines that README.md promises, as they are written there, with their fixed ports: in a network
    namespace of their own."""

    LINES = """\
mooncake_master --deployment_mode P2P --rpc_port 50051
mooncake_client --master_server_address 127.0.0.1:50051 --port 50052 --client_rpc_port 12345 \\
  --deployment_mode P2P \\
  --tiered_backend_config '{"tiers":[{"type":"DRAM","capacity":536870912,"priority":100,"allocator_type":"OFFSET"}]}'
"""

    def namespace(self):
        if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("nsenter"):
            self.skipTest("needs root, unshare and nsenter for a network namespace")
        if subprocess.run(["unshare", "-n", "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode:
            self.skipTest("no network namespaces here (or no iproute2)")
        holder = kv.Running(self.dir, ["unshare", "-n", "sh", "-c", "ip link set lo up && echo up && exec sleep 100000"],
                            self.env)
        self.running.append(holder)
        holder.wait_for_output("up")
        return ["nsenter", f"--net=/proc/{holder.process.pid}/ns/net"]

    def test_lines_work_as_written(self):
        inside = self.namespace()
        folders = {os.path.dirname(os.path.abspath(exe)) for exe in (kv.MASTER, kv.CLIENT, cli.SHOAL)}
        self.env["PATH"] = ":".join([*folders, self.env.get("PATH", "/usr/bin:/bin")])
        commands = re.split(r"(?<!\\)\n", self.LINES.strip())
        self.assertEqual(len(commands), 2)
        for command in commands:
            running = kv.Running(self.dir, [*inside, "sh", "-c", f"exec {command}"], self.env)
            self.running.append(running)

        def shoal(*arguments):
            return subprocess.run([*inside, "shoal", "kv", *map(str, arguments)], env=self.env, capture_output=True,
                                  stdin=subprocess.DEVNULL, check=False, timeout=cli.DEADLINE_S)

        value = random.Random(1).randbytes(3 * MIB)
        path = self.make("value", value)
        wait_for(lambda: shoal("put", "first", path).returncode in (0, 4), "the first put")
        self.assertEqual(shoal("get", "first", "-").stdout, value)
        self.assertEqual(shoal("get", "--master", "127.0.0.1:50051", "first", "-").stdout, value)
        answer = json.loads(shoal("stat", "--json").stdout)
        self.assertEqual(answer["clients"][0]["address"], "127.0.0.1:12345")
        self.assertEqual(answer["clients"][0]["tiers"][0]["capacity_bytes"], 536870912)
        for running in self.running[1:]:
            self.assertEqual(running.stop(), 0, running.err)

    def test_readme_has_them(self):
        readme = (cli.ROOT / "README.md").read_text()
        for line in self.LINES.splitlines():
            self.assertIn(line, readme)


class Values(KvTest):
    def setUp(self):
        super().setUp()
        self.start_master()

    def test_put_get_rm(self):
        """F23, on two clients: what one does the other sees."""
        one, two = self.start_client(), self.start_client()
        value = random.Random(2).randbytes(200000)
        self.put(one, "key", value)
        self.assertEqual(self.get(one, "key"), value)
        self.assertEqual(self.get(two, "key"), value)
        self.put(two, "key", value, code=4)
        self.put(one, "key", b"something else", code=4)
        self.assertEqual(self.get(two, "key"), value)
        self.fails(3, "no-such-key", "kv", "rm", "--client", one.local, "no-such-key")
        self.kv(two, "rm", "key")
        for client in (one, two):
            self.fails(3, "key", "kv", "get", "--client", client.local, "key", "-")
            self.assertEqual(self.keys(client), {})
        self.put(one, "key", b"new")
        self.assertEqual(self.get(two, "key"), b"new")

    def test_doctor_measures_the_way_to_a_client(self):
        client = self.start_client()
        out, _ = self.run_shoal("doctor", "--json", "--peer", client.address, "--size", "4M")
        checks = {check["check"]: check for check in json.loads(out.splitlines()[-1])["checks"]}
        self.assertIs(checks["peer"]["listed"], True)
        self.assertEqual(checks["peer rate"]["state"], "OK", checks["peer rate"])

    def test_sizes_and_keys(self):
        client = self.start_client()
        other = self.start_client()
        for i, size in enumerate((0, 1, 4096, 32768, 32769, MIB, MIB + 1, 5 * MIB)):
            value = random.Random(size).randbytes(size)
            self.put(client, f"size/{i}", value)
            self.assertEqual(self.get(other, f"size/{i}"), value, size)
        for key in ("a b", "ü/☃", "*[x]?\\", "k" * 1024):
            self.put(client, key, key.encode())
            self.assertEqual(self.get(other, key), key.encode())
            out, _ = self.kv(other, "stat", "--json", key)
            self.assertEqual(json.loads(out), {"key": key, "bytes": len(key.encode()), "replicas": 1})
        for key in ("", "k" * 1025, "k" * 65536):
            self.put(client, key, b"x", code=2)
            self.fails(2, "", "kv", "get", "--client", client.local, key, "-")
        self.assertEqual(len(self.keys(client, "size/*")), 8)
        self.assertEqual(len(self.keys(client)), 12)

    def test_pipes(self):
        client = self.start_client()
        value = random.Random(3).randbytes(3 * MIB)
        arguments = [cli.SHOAL, "kv", "put", "--client", client.local, "piped", "-"]
        subprocess.run(arguments, input=value, env=self.env, check=True, timeout=cli.DEADLINE_S, capture_output=True)
        arguments = [cli.SHOAL, "kv", "get", "--client", client.local, "piped", "-"]
        result = subprocess.run(arguments, env=self.env, check=True, timeout=cli.DEADLINE_S, capture_output=True)
        self.assertEqual(result.stdout, value)
        self.fails(3, "No such file", "kv", "put", "--client", client.local, "k", self.dir / "missing")
        self.fails(2, "directory", "kv", "put", "--client", client.local, "k", self.dir)
        self.fails(1, "No such file", "kv", "get", "--client", client.local, "piped", self.dir / "no/such/file")
        err = self.fails(11, "No space left", "kv", "get", "--client", client.local, "piped", "/dev/full")
        self.assertIn("another place for the file", err)
        self.assertEqual([p for p in self.dir.rglob("*.shoal-*")], [])

    def progress_of(self, out, total):
        """{step: its lines}, of lines of JSON that end with a result."""
        lines = self.json_lines(out)
        self.assertEqual(lines.pop()["event"], "result")
        steps = {}
        for line in lines:
            self.assertEqual((line["event"], line["name"], line["total_bytes"], line["sources"]),
                             ("progress", "large", total, []))
            steps.setdefault(line["step"], []).append(line)
        for reports in steps.values():
            done = [report["done_bytes"] for report in reports]
            self.assertEqual(done, sorted(done))
            self.assertEqual(done[-1], total)
        return steps

    def test_progress_of_large_values(self):
        client, other = self.start_client(), self.start_client()
        value = random.Random(6).randbytes(24 * MIB)
        path = self.make("value", value)
        for way, name in ((["--client", client.local], "got-1"), (["--master", self.master], "got-2")):
            out, _ = self.run_shoal("kv", "put", "--json", *way, "--prefer", other.address, "large", path)
            self.assertEqual(list(self.progress_of(out, len(value))), ["reading", "putting"])
            out, _ = self.run_shoal("kv", "get", "--json", *way, "large", self.dir / name)
            self.assertEqual(list(self.progress_of(out, len(value))), ["getting", "writing"])
            self.assertEqual((self.dir / name).read_bytes(), value)
            out, err = self.run_shoal("kv", "get", *way, "large", "/dev/null")
            self.assertEqual((out, len(err.splitlines())), ("", 1), err)
            out, err = self.run_shoal("kv", "get", "--quiet", *way, "large", "/dev/null")
            self.assertEqual((out, err), ("", ""))
            self.kv(client, "rm", "large")
        self.put(client, "small", b"x" * MIB)
        out, _ = self.kv(client, "get", "--json", "small", self.dir / "small")
        self.assertEqual([line["event"] for line in self.json_lines(out)], ["result"])

    def test_progress_while_a_file_is_written(self):
        """Into a pipe that is emptied only as long as nothing was told."""
        client = self.start_client()
        value = random.Random(7).randbytes(24 * MIB)
        self.put(client, "large", value)
        os.mkfifo(self.dir / "pipe")
        command = self.start("kv", "get", "--json", "--client", client.local, "large", self.dir / "pipe")

        def has_told():
            return any(line.get("step") == "writing" and line["done_bytes"] < len(value)
                       for line in self.json_lines(command.out[:command.out.rfind("\n") + 1]))

        with open(self.dir / "pipe", "rb") as pipe:
            got = b""
            while len(got) < len(value) and not has_told():
                got += pipe.read(MIB)
                time.sleep(0.05)
            self.assertTrue(has_told(), command.out)
            got += pipe.read()
        self.assertEqual(command.wait(), 0)
        self.assertEqual(got, value)
        self.assertEqual(set(self.progress_of(command.out, len(value))), {"getting", "writing"})

    def test_progress_on_a_terminal(self):
        client = self.start_client()
        path = self.make("value", bytes(24 * MIB))
        on_terminal = terminal_test.Terminal.on_terminal
        code, out, screen = on_terminal(self, "kv", "put", "--client", client.local, "large", path)
        self.assertEqual((code, out), (0, ""), screen)
        for step in ("reading", "putting"):
            self.assertRegex(screen, step + r" large +100% \[=*>? *\] 24\.0 MiB of 24\.0 MiB ")
        code, _, screen = on_terminal(self, "kv", "get", "--client", client.local, "large", self.dir / "got")
        self.assertEqual(code, 0, screen)
        for step in ("getting", "writing"):
            self.assertRegex(screen, step + r" large +100% \[=*>? *\] 24\.0 MiB of 24\.0 MiB ")
        code, _, screen = on_terminal(self, "kv", "get", "-q", "--client", client.local, "large", "/dev/null")
        self.assertEqual((code, screen), (0, ""))

    def test_rm_forms(self):
        client = self.start_client()
        for i in range(6):
            self.put(client, f"rm/{i}", b"x")
        self.fails(2, "only one of them", "kv", "rm", "--client", client.local)
        self.fails(2, "only one of them", "kv", "rm", "--client", client.local, "--all", "rm/0")
        out, _ = self.kv(client, "rm", "--json", "rm/0", "rm/1")
        self.assertEqual(json.loads(out)["removed"], 2)
        for pattern, problem in (("rm/[23", "no ']' ends its '['"), ("[", "no ']'"), ("rm/[3-2]", "nothing is in"), ("rm/\\", "backslash")):
            for arguments in (("ls", pattern), ("rm", "--pattern", pattern)):
                _, err = self.kv(client, *arguments, code=2)
                self.assertIn(problem, err)
                self.assertIn(f"'{pattern}'", err)
        self.put(client, 1024 * "*", b"x")
        self.assertIn("replicas  1", self.kv(client, "stat", 1024 * "*")[0])
        self.kv(client, "rm", 1024 * "*")
        self.put(client, "rm[", b"x")
        self.assertEqual(list(self.keys(client, "rm\\[*")), ["rm["])
        self.kv(client, "rm", "--pattern", "rm\\[")
        out, _ = self.kv(client, "rm", "--json", "--pattern", "rm/[23]")
        self.assertEqual(json.loads(out)["removed"], 2)
        self.assertEqual(set(self.keys(client)), {"rm/4", "rm/5"})
        out, err = self.kv(client, "rm", "rm/4", "missing", code=3)
        self.assertIn("missing", err)
        self.assertEqual(set(self.keys(client)), {"rm/5"})
        out, _ = self.kv(client, "rm", "--json", "--all")
        self.assertEqual(json.loads(out)["removed"], 1)

    def test_through_the_master(self):
        client = self.start_client()
        master = ["--master", self.master]
        value = random.Random(4).randbytes(2 * MIB)
        path = self.make("value", value)
        self.run_shoal("kv", "put", *master, "direct", path)
        self.assertEqual(self.get(client, "direct"), value)
        self.run_shoal("kv", "get", *master, "direct", self.dir / "got")
        self.assertEqual((self.dir / "got").read_bytes(), value)
        out, _ = self.run_shoal("kv", "stat", *master)
        self.assertIn(client.address, out)
        self.run_shoal("kv", "rm", *master, "direct")
        self.fails(3, "direct", "kv", "get", "--client", client.local, "direct", "-")

    def test_bench_leaves_nothing(self):
        client = self.start_client()
        self.put(client, "mine", b"x")
        out, _ = self.kv(client, "bench", "--size", "4K", "--keys", 50, "--threads", 2, "--duration", "200ms", "--json")
        results = {line["op"]: line for line in self.json_lines(out)}
        self.assertEqual(results["put"]["ops"], 50)
        self.assertGreater(results["get"]["ops"], 0)
        self.assertEqual(set(self.keys(client)), {"mine"})

    def test_bench_larger_than_its_memory(self):
        client = self.start_client()
        for size, threads in (("1G", 1), ("2M", 64)):
            err = self.fails(1, "is too much", "kv", "bench", "--client", client.local, "--size", size, "--threads", threads)
            self.assertIn(f"--threads {threads} times --size", err)
        _, err = self.kv(client, "bench", "--size", "1M", "--keys", "200", code=11)
        self.assertIn("--keys 200 times --size 1048576 bytes is more than the tiers hold", err)
        self.assertEqual(self.keys(client), {})
        self.assert_serves(client)

    def test_wrong_preferred_client(self):
        client = self.start_client()
        value = self.make("v", b"v")
        for way in (("--client", client.local), ("--master", self.master)):
            for prefer in ("nobody", "127.0.0.1:0x1", "[::1"):
                err = self.fails(2, "the client to prefer", "kv", "put", *way, "--prefer", prefer, "k", value)
                self.assertIn("try: shoal help kv put", err)
        self.put(client, "k", b"v", "--prefer", "127.0.0.1:1")  # who is not there now has no room

    def test_larger_than_staging_and_than_every_tier(self):
        """F20: the STORAGE tier's staging buffers have 1 MiB."""
        client = self.start_client(storage(self.dir / "store", "64MiB", dram_capacity="4MiB"))
        other = self.start_client(None)
        value = random.Random(5).randbytes(17 * MIB + 12345)
        self.put(client, "large", value, "--prefer", client.address)
        self.assertEqual(self.get(client, "large"), value)
        self.assertEqual(self.get(other, "large"), value)
        too_large = self.make("too-large", bytes(80 * MIB))
        for target in (client, other):
            _, err = self.kv(target, "put", "too-large", too_large, code=1)
            self.assertRegex(err, r"larger than|too large")
        self.assertEqual(set(self.keys(client)), {"large"})
        self.assert_serves(client)

    def test_replicas(self):
        clients = [self.start_client() for _ in range(3)]
        self.put(clients[0], "copied", b"v" * 100000, "--replicas", 2)
        self.assertEqual(self.keys(clients[1])["copied"]["replicas"], 2)
        for client in clients:
            self.assertEqual(self.get(client, "copied"), b"v" * 100000)
        path = self.make("more", b"m" * 1000)
        out, err = self.kv(clients[0], "put", "more*[", path, "-r", 5, "--json")
        self.assertEqual(json.loads(out), {"event": "result", "key": "more*[", "bytes": 1000, "replicas": 3})
        self.assertIn("3 of 5 copies: no other client has room", err)
        self.kv(clients[2], "rm", "copied")
        for client in clients:
            self.fails(3, "copied", "kv", "get", "--client", client.local, "copied", "-")

    def test_a_malformed_time_to_look(self):
        client = self.start_client()
        for text in ("abc", "-1", "1001", "5us"):
            _, err = self.kv(client, "stat", env={"SHOAL_SPIN_US": text})
            self.assertIn(f"SHOAL_SPIN_US is '{text}': want microseconds, 0 to 1000; 200 are taken", err)


class Storage(KvTest):
    def setUp(self):
        super().setUp()
        self.start_master()

    def test_content_is_found_again(self):
        path = self.dir / "store"
        for number in (signal.SIGTERM, signal.SIGKILL):
            shutil.rmtree(path, ignore_errors=True)
            owner = self.start_client(storage(path, "64MiB"))
            self.bulk(owner, "fill", "kept/", 100, 50000)
            owner.stop(number)
            owner = self.start_client(storage(path, "64MiB"))
            other = self.start_client({"tiers": [{"type": "DRAM", "capacity": "1MiB"}]})
            self.bulk(owner, "check", "kept/", 100, 50000)
            self.bulk(other, "check", "kept/", 100, 50000)
            self.bulk(owner, "again", "kept/", 100, 50000)
            self.kv(other, "rm", "--all")
            owner.stop()
            other.stop()

    def test_removed_stays_removed(self):
        path = self.dir / "store"
        owner = self.start_client(storage(path, "64MiB"))
        self.bulk(owner, "fill", "gone/", 20, 50000)
        self.kv(owner, "rm", "--pattern", "gone/1*")
        owner.stop(signal.SIGKILL)
        owner = self.start_client(storage(path, "64MiB"))
        self.assertEqual(len(self.keys(owner)), 20 - 11)
        self.assertIn("found 9 missing 11", self.bulk(owner, "sweep", "gone/", 20, 50000))

    def test_overfilled(self):
        """F25: more than fits. What is evicted is gone everywhere; what is listed can be read."""
        size, count = 256 << 10, 200
        owner = self.start_client(storage(self.dir / "store", 16 * MIB))
        other = self.start_client({"tiers": [{"type": "DRAM", "capacity": 64 << 10}]})
        self.bulk(owner, "fill", "much/", count, size)
        for client in (owner, other):
            out = self.bulk(client, "sweep", "much/", count, size)
            found = int(re.search(r"found (\d+)", out).group(1))
            self.assertTrue(0 < found * size <= 16 * MIB, out)
        self.assert_serves(other)

    def test_one_process_per_directory(self):
        path = self.dir / "store"
        self.start_client(storage(path, "16MiB"))
        second = self.begin_client(storage(path, "16MiB"))
        self.assertNotEqual(second.wait(), 0)
        self.assertIn(str(path), second.err)


class Dying(KvTest):
    def test_master_restart_loses_nothing(self):
        """F22: at once after the restart, while clients still announce, nothing is missing and nothing is overwritten."""
        count = max(100, int(10000 * kv.SCALE))
        master = self.start_master()
        port = self.master_port
        one, two = self.start_client(dram("128MiB")), self.start_client(dram("128MiB"))
        self.bulk(one, "fill", "first/", count // 2, 1000)
        self.bulk(two, "fill", "second/", count // 2, 1000)
        for _ in range(2):
            master.kill()
            master = self.start_master(port=port)
            self.bulk(two, "again", "first/", count // 2, 1000)
            self.bulk(one, "check", "second/", count // 2, 1000)
            self.bulk(one, "again", "second/", count // 2, 1000)
            self.bulk(two, "check", "first/", count // 2, 1000)
            self.assertEqual(len(self.keys(one)), count // 2 * 2)

    def test_removed_while_the_master_restarts(self):
        master = self.start_master()
        port = self.master_port
        one, two = self.start_client(), self.start_client()
        self.bulk(one, "fill", "k/", 50, 1000)
        self.kv(two, "rm", "--pattern", "k/1*")
        master.kill()
        self.start_master(port=port)
        self.assertIn("found 39 missing 11", self.bulk(two, "sweep", "k/", 50, 1000))
        self.assert_serves(one)

    def test_owner_dies(self):
        """F24: its values are gone, or come from the other copy; its routes disappear."""
        self.start_master("--client_ttl", 3)
        owner, other, third = (self.start_client() for _ in range(3))
        self.put(owner, "single", b"s" * 300000, "--prefer", owner.address)
        self.put(owner, "double", b"d" * 300000, "--prefer", owner.address, "--replicas", 2)
        # Routes are known before it dies.
        for client in (other, third):
            self.assertEqual(self.get(client, "single"), b"s" * 300000)
        owner.kill()
        for client in (other, third):
            self.assertEqual(self.get(client, "double"), b"d" * 300000)
            result = subprocess.run([cli.SHOAL, "kv", "get", "--client", client.local, "single", "-"], env=self.env,
                                    capture_output=True, check=False, timeout=cli.DEADLINE_S, stdin=subprocess.DEVNULL)
            self.assertIn(result.returncode, (3, 12), result.stderr)
        wait_for(lambda: "single" not in self.keys(other), "the route of a dead client to go")
        self.fails(3, "single", "kv", "get", "--client", other.local, "single", "-")
        self.assertEqual(self.keys(third)["double"]["replicas"], 1)
        out, _ = self.kv(other, "stat", "--json")
        self.assertNotIn(owner.address, [client["address"] for client in json.loads(out)["clients"]])
        self.put(other, "single", b"again")
        self.assertEqual(self.get(third, "single"), b"again")

    def test_owner_that_is_stopped(self):
        """It answers nobody, and its connections stay open: the other copy is asked in time."""
        self.start_master("--client_ttl", 600)  # nobody tells that it is gone
        owner, other, third = (self.start_client() for _ in range(3))
        for size in (100, 300000):
            self.put(owner, f"double/{size}", b"d" * size, "--prefer", owner.address, "--replicas", 2)
            for client in (other, third):
                self.assertEqual(self.get(client, f"double/{size}"), b"d" * size)
        owner.process.send_signal(signal.SIGSTOP)
        try:
            for size in (100, 300000):
                for client in (other, third):
                    self.assertEqual(self.get(client, f"double/{size}"), b"d" * size)
        finally:
            owner.process.send_signal(signal.SIGCONT)
        self.assert_serves(owner)

    def test_clean_end_takes_routes_along(self):
        self.start_master()
        owner, other = self.start_client(), self.start_client()
        self.put(owner, "mine", b"x" * 1000, "--prefer", owner.address)
        self.assertEqual(owner.stop(), 0, owner.err)
        self.fails(3, "mine", "kv", "get", "--client", other.local, "mine", "-")
        self.assertEqual(self.keys(other), {})

    def test_waits_for_the_master(self):
        port = kv.free_port()
        self.master = f"127.0.0.1:{port}"
        client = self.begin_client(dram("16MiB"))
        address = client.wait_for_event("metrics")["address"]
        retry = client.wait_for_event("retry")
        self.assertIn(self.master, retry["message"])
        self.assertEqual(kv.http(address, "/readyz")[0], 503)
        self.assertEqual(kv.http(address, "/healthz")[0], 200)
        self.start_master(port=port)
        client.wait_ready()
        wait_for(lambda: kv.http(address, "/readyz")[0] == 200, "ready")
        self.assert_serves(client)
        status, text = kv.http(address, "/metrics")
        self.assertEqual(status, 200)
        for name in ("shoal_kv_", "shoal_tier_"):
            self.assertIn(name, text)
        self.assertEqual(client.stop(), 0)

    def test_signal_while_it_waits(self):
        self.master = f"127.0.0.1:{kv.free_port()}"
        for number in (signal.SIGTERM, signal.SIGINT):
            client = self.begin_client(dram("16MiB"))
            client.wait_for_event("metrics")
            self.assertEqual(client.stop(number), 0, client.err)

    def test_ready_ends_with_the_master(self):
        master = self.start_master()
        client = self.start_client()
        self.assertEqual(kv.http(client.http, "/readyz")[0], 200)
        master.kill()
        wait_for(lambda: kv.http(client.http, "/readyz")[0] == 503, "not ready without a master")
        self.start_master(port=self.master_port)
        wait_for(lambda: kv.http(client.http, "/readyz")[0] == 200, "ready again")


class Hostile(KvTest):
    """F26, F27 at the ports of both daemons."""

    GARBAGE = (b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 4096, bytes(range(256)) * 64)

    def test_garbage_and_silence(self):
        master = self.start_master()
        client = self.start_client()
        ports = [self.master_port, int(client.address.rsplit(":", 1)[1]), int(client.local.rsplit(":", 1)[1])]
        for port in ports:
            for garbage in self.GARBAGE:
                with socket.create_connection(("127.0.0.1", port), cli.DEADLINE_S) as sock:
                    sock.settimeout(cli.DEADLINE_S)
                    try:
                        sock.sendall(garbage)
                        while sock.recv(4096):
                            pass
                    except ConnectionError:
                        pass
            with socket.create_connection(("127.0.0.1", port), cli.DEADLINE_S) as sock:
                sock.sendall(b"S")  # and ends in the middle of the first message
            self.assert_serves(client)
        idle = []
        try:
            for port in ports:
                for _ in range(200):
                    idle.append(socket.create_connection(("127.0.0.1", port), cli.DEADLINE_S))
            self.assert_serves(client)
            self.run_shoal("kv", "stat", "--master", self.master)
        finally:
            for sock in idle:
                sock.close()
        self.assertIsNone(master.process.poll())
        self.assertIsNone(client.process.poll())

    def test_wrong_frames(self):
        """After a good handshake: what closes the connection, what is answered with an error. Others are served."""
        self.start_master()
        client = self.start_client()
        ports = [(self.master_port, range(1, 8)), (int(client.address.rsplit(":", 1)[1]), range(8, 20))]
        for port, methods in ports:
            for wrong in (kv.frame(8, length=0xffffffff), kv.frame(8, length=64 << 20), kv.frame(8, kind=9), kv.frame(8, kind=2)):
                with kv.control(port) as sock:
                    sock.sendall(wrong)
                    self.assertIsNone(kv.answer_status(sock), wrong)
            with kv.control(port) as sock:
                sock.sendall(kv.frame(999))
                self.assertEqual(kv.answer_status(sock), -20)
                # No message of any method begins so.
                for method in methods:
                    sock.sendall(kv.frame(method, b"\xff" * 40))
                    self.assertLess(kv.answer_status(sock), 0, method)
            with kv.control(port) as sock:
                sock.sendall(kv.frame(8, b"x" * 100)[:60])
            with self.assertRaisesRegex(AssertionError, "verdict 2"):
                kv.control(port, b"another")
            self.assert_serves(client)
        # All of that is seen by those who look.
        _, metrics = kv.http(client.http, "/metrics")
        self.assertGreater(kv.metric(metrics, "shoal_kv_service_malformed_total"), 5)

    def test_texts_with_a_nul(self):
        """The key "k\\0x" is not the key "k"."""
        self.start_master()
        client = self.start_client()
        self.put(client, "k", b"value")
        for port, method in ((self.master_port, 4), (int(client.address.rsplit(":", 1)[1]), 8)):
            with kv.control(port) as sock:
                sock.sendall(kv.frame(method, b"\x0a\x01k"))
                self.assertEqual(kv.answer_status(sock), 0)
                sock.sendall(kv.frame(method, b"\x0a\x03k\x00x"))
                self.assertEqual(kv.answer_status(sock), -24)  # PROTOCOL

    def test_silent_requests(self):
        """200 connections that have begun a request and say nothing more."""
        self.start_master()
        client = self.start_client()
        socks = []
        try:
            for port in (self.master_port, int(client.address.rsplit(":", 1)[1])):
                for _ in range(200):
                    socks.append(kv.control(port))
                    socks[-1].sendall(kv.frame(8, b"x" * 1000)[:100])
            self.assert_serves(client)
        finally:
            for sock in socks:
                sock.close()

    def test_ports_in_use(self):
        self.start_master()
        first = self.start_client()
        rpc_port, port = first.address.rsplit(":", 1)[1], first.local.rsplit(":", 1)[1]
        for option, number in (("--client_rpc_port", rpc_port), ("--port", port), ("--http_port", first.http.rsplit(":", 1)[1])):
            second = self.begin_client(dram("16MiB"), option, number)
            self.assertEqual(second.wait(), 9, second.err)
            self.assertIn(number, second.err)
            self.assertIn("choose another port", second.err)
        self.assert_serves(first)


class Usage(KvTest):
    def fails_with(self, code, text, *arguments):
        result = subprocess.run([kv.CLIENT, *map(str, arguments)], env=self.env, capture_output=True, text=True, check=False,
                                stdin=subprocess.DEVNULL, timeout=cli.DEADLINE_S)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertIn(text, result.stderr)
        self.assertIn("try:", result.stderr)
        return result.stderr

    def test_help_and_version(self):
        out = subprocess.run([kv.CLIENT, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
        for option in ("--master_server_address", "--port", "--client_rpc_port", "--rpc_thread_num", "--deployment_mode",
                       "--tiered_backend_config", "--host", "--metadata_server", "--protocol", "--nic_priority_matrix",
                       "--http_port", "--cluster",
                       "--config_path", "--verbose", "--version"):
            self.assertIn(option, out)
        self.assertIn("auto (on one machine without a network, else TCP; RDMA with a NIC priority matrix), tcp, local, rdma or ucx",
                      " ".join(out.split()))
        out = subprocess.run([kv.CLIENT, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
        self.assertRegex(out, r"\d+\.\d+\.\d+")

    def test_wrong_options(self):
        for text, arguments in (("unknown", ["--frob"]), ("needs an argument", ["--port"]), ("from 0 to 65535", ["--port", "65536"]),
                                ("from 0 to 65535", ["--client-rpc-port", "x"]), ("from 1 to 64", ["--rpc_thread_num", "0"]),
                                ("only P2P", ["--deployment_mode", "centralized"]), ("there is auto", ["--protocol", "pigeon"]),
                                ("cannot open", ["--nic_priority_matrix", f"@{self.dir}/missing.json"]),
                                ("not JSON, which begins with '{', and not @", ["--nic_priority_matrix", "mlx5_0"]),
                                ("for protocol rdma or ucx, not for tcp", ["--protocol", "tcp", "--nic_priority_matrix", '{"*": [["m"], []]}']),
                                ("must differ", ["--port", "5000", "--client_rpc_port", "5000"]),
                                ("no arguments", ["word"]), ("not be empty", ["--cluster", ""]),
                                ("cannot read", ["--config_path", self.dir / "missing.json"]), ("is a directory", ["--config_path", self.dir])):
            with self.subTest(arguments=arguments):
                self.fails_with(2, text, *arguments)
        for text, content in (("no_such_option", {"no_such_option": 1}), ("wrong type", {"cluster": ["default"]}),
                              ("wrong type", {"host": {"name": "127.0.0.1"}}), ("wrong type", {"port": None})):
            with self.subTest(content=content):
                self.fails_with(2, text, "--config_path", self.make("config.json", json.dumps(content).encode()))

    def test_how_control_calls_travel(self):
        for protocol, code, text in (
                ("pigeon", 2, "MC_RPC_PROTOCOL: 'pigeon' is not a protocol for control calls: use 'auto', 'tcp', 'rdma', 'ucx'"),
                ("rdma", 1, "MC_RPC_PROTOCOL=rdma: "), ("ucx", 1, "MC_RPC_PROTOCOL=ucx: ")):
            if protocol == "rdma" and os.path.exists("/sys/class/infiniband"):
                continue
            env = dict(os.environ, MC_RPC_PROTOCOL=protocol, SHOAL_UCX_LIBRARY="/nowhere/libucp.so")
            for command in ([kv.MASTER, "--rpc_port", "0"], [kv.CLIENT, "--port", "0", "--client_rpc_port", "0"],
                            [cli.SHOAL, "kv", "get", "key", "-"],
                            [cli.SHOAL, "seed", "--metadata", f"sqlite:{self.dir}/meta.db", "name", __file__]):
                with self.subTest(protocol=protocol, command=command[:2]):
                    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
                    self.assertEqual(result.returncode, code, result.stderr)
                    self.assertIn(text, result.stderr)
                    self.assertNotIn("tier", result.stderr)

    def test_wrong_tiers(self):
        closed = self.dir / "file"
        closed.write_bytes(b"")
        common = ["--master_server_address", "127.0.0.1:1", "--port", 0, "--client_rpc_port", 0, "--tiered_backend_config"]
        for code, text, tiers in (
                (2, "", '{"tiers":['), (2, "tiers", '{"tiers":[]}'), (2, "TAPE", '{"tiers":[{"type":"TAPE","capacity":1}]}'),
                (2, "capacity", '{"tiers":[{"type":"DRAM","capacity":0}]}'),
                (2, "capacity", '{"tiers":[{"type":"DRAM","capacity":"much"}]}'),
                (2, "storage_filepath", '{"tiers":[{"type":"STORAGE","capacity":"1GB"}]}'),
                (2, "No such file", str(self.dir / "missing.json")),
                (1, "", '{"tiers":[{"type":"DRAM","capacity":"1000TB"}]}'),
                (2, "file", json.dumps(storage(closed / "store", "16MiB"))),
                (1, "/proc/kv", json.dumps(storage("/proc/kv", "16MiB")))):
            with self.subTest(tiers=tiers):
                self.fails_with(code, text, *common, tiers)

    def test_wrong_addresses(self):
        tiers = json.dumps(dram("16MiB"))
        other = self.make("other.db", b"this is no database")
        for code, text, option, value in ((2, "a:b:c", "--master_server_address", "a:b:c"), (9, "", "--host", "192.0.2.1"),
                                          (2, "want HOST:PORT[,HOST:PORT...], or etcd://", "--master_server_address", "http://x:1"),
                                          (7, "not a SQLite database", "--metadata_server", f"sqlite:{other}"),
                                          (7, "/nowhere", "--metadata_server", "sqlite:/nowhere/meta.db"),
                                          (9, "", "--http_host", "192.0.2.1"), (2, "", "--metadata_server", "ftp://x")):
            with self.subTest(option=option):
                err = self.fails_with(code, text, "--port", 0, "--client_rpc_port", 0, "--tiered_backend_config", tiers, option,
                                      value)
                self.assertNotIn("format of the tiers", err)
                self.assertNotIn("trying again", err)
        self.assertEqual(other.read_bytes(), b"this is no database")

    def test_file_and_dashes(self):
        self.start_master()
        tiers = self.make("tiers.json", json.dumps(dram("16MiB")).encode())
        config = self.make("config.json", json.dumps({"master_server_address": self.master, "port": 0, "client_rpc_port": 1,
                                                      "log_format": "json", "tiered_backend_config": str(tiers)}).encode())
        client = self.daemon(kv.Client, kv.CLIENT, "--config-path", config, "--client-rpc-port=0").wait_ready()
        self.assert_serves(client)
        inline = self.make("inline.json", json.dumps({"master_server_address": self.master, "port": 0, "client_rpc_port": 0,
                                                      "log_format": "json", "tiered_backend_config": dram("16MiB")}).encode())
        client = self.daemon(kv.Client, kv.CLIENT, "--config_path", inline).wait_ready()
        self.assert_serves(client)

    def test_cli_without_a_client(self):
        address = f"127.0.0.1:{kv.free_port()}"
        for command in (["get", "k", "-"], ["ls"], ["rm", "k"], ["stat"], ["put", "k", self.make("v", b"x")]):
            err = self.fails(12, address, "kv", command[0], "--client", address, *command[1:])
            self.assertIn("start a mooncake_client", err)
        err = self.fails(12, address, "kv", "ls", "--master", address, "--timeout", "2s")
        self.assertIn("mooncake_master", err)
        self.fails(2, "unknown command", "kv", "frob")
        self.assertIn("usage: shoal kv", self.run_shoal("kv", code=2)[1])
        for command in ("put", "get", "ls", "rm", "stat", "bench"):
            out, _ = self.run_shoal("help", "kv", command)
            self.assertEqual(out, self.run_shoal("kv", command, "--help")[0])
        for option, value in (("--size", "0"), ("--threads", "65"), ("--keys", "0"), ("--duration", "x")):
            self.fails(2, "must be", "kv", "bench", option, value)

    def test_another_cluster(self):
        self.start_master()
        client = self.begin_client(dram("16MiB"), "--cluster", "other")
        client.wait_for_event("retry")
        self.assertEqual(client.stop(), 0)

    def test_client_of_another_cluster(self):
        """Its port says which one, unless another one is asked for."""
        self.start_master("--cluster", "other")
        client = self.start_client(dram("16MiB"), "--cluster", "other")
        self.put(client, "key", b"value")
        self.assertEqual(self.get(client, "key"), b"value")
        self.assertIn("key", self.kv(client, "ls", "--cluster", "other")[0])
        err = self.fails(12, "another cluster: 'other', not 'default'", "kv", "ls", "--client", client.local, "--cluster",
                         "default")
        self.assertIn(client.local, err)

    def test_no_client_at_all(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            threading.Thread(target=answer_nonsense, args=(server,), daemon=True).start()
            err = self.fails(12, "protocol", "kv", "ls", "--client", f"127.0.0.1:{port}", "--cluster", "default")
            self.assertIn("mooncake_client", err)

    def test_ports_of_other_programs(self):
        self.start_master()
        client = self.start_client(dram("16MiB"))
        for address in (client.address, self.master):
            err = self.fails(12, address, "kv", "ls", "--client", address)
            self.assertIn("give the --port of the one that runs", err)

    def test_a_client_that_does_not_answer_gets_the_timeout_once(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
            err = self.fails(6, "does not answer", "kv", "ls", "--client", address, "--timeout", "500ms")
            self.assertIn(address, err)
            server.accept()[0].close()
            server.setblocking(False)
            self.assertRaises(BlockingIOError, server.accept)

    def test_a_master_that_is_gone_is_not_taken_for_the_client(self):
        master = self.start_master()
        client = self.start_client(dram("16MiB"))
        master.kill()
        err = self.fails(12, self.master, "kv", "put", "--client", client.local, "--timeout", "2s", "k", self.make("v", b"v"))
        self.assertNotIn("start a mooncake_client", err)
        self.assertIn("mooncake_master", err)


if __name__ == "__main__":
    cli.main()
