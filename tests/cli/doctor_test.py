# SPDX-License-Identifier: Apache-2.0
"""shoal doctor: every check that this machine can make fail says so, and what to do; the report for programs; exit codes."""

import contextlib
import ctypes
import http.server
import json
import os
import platform
import resource
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
import unittest

import cli

STATES = {"OK", "WARN", "FAIL", "SKIP"}


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def forbid(*numbers):
    """For a child before exec: the kernel refuses these system calls with EPERM, as a container's seccomp profile does."""
    program = [(0x20, 0, 0, 0)]  # A = number of the call
    for number in numbers:
        program += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050001)]  # equal: errno EPERM
    program += [(0x06, 0, 0, 0x7fff0000)]  # else: allowed

    class Filter(ctypes.Structure):
        _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]

    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.POINTER(Filter))]

    filters = (Filter * len(program))(*[Filter(*line) for line in program])
    filter_program = Program(len(program), filters)
    libc = ctypes.CDLL(None, use_errno=True)

    def install():
        if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, ctypes.byref(filter_program), 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "seccomp")

    return install


class FakeEtcd(http.server.BaseHTTPRequestHandler):
    """As much of etcd's gateway as doctor asks for."""

    protocol_version = "HTTP/1.1"
    answers = {"/v3/maintenance/status": {"header": {"revision": "1"}, "version": "3.4.23"},
               "/v3/lease/grant": {"header": {"revision": "1"}, "ID": "77", "TTL": "5"},
               "/v3/lease/revoke": {"header": {"revision": "1"}}}
    ahead_s = 0

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = self.answers.get(self.path)
        body = json.dumps(answer or {"error": "no such method", "code": 12, "message": "no such method"}).encode()
        self.send_response(200 if answer else 501)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def date_time_string(self, timestamp=None):
        return super().date_time_string(time.time() + self.ahead_s)

    def log_message(self, *arguments):
        pass


class DoctorTest(cli.CliTest):
    def checks(self, *arguments, code=0, **options):
        """{check: [object, ...]} of the report for programs."""
        out, _ = self.run_shoal("doctor", "--json", *arguments, code=code, **options)
        self.report = json.loads(out.splitlines()[-1])
        found = {}
        for check in self.report["checks"]:
            found.setdefault(check["check"], []).append(check)
        return found

    def one(self, checks, name, state, text="", advice=None):
        self.assertIn(name, checks)
        self.assertEqual(checks[name][0]["state"], state, checks[name])
        self.assertIn(text, checks[name][0]["text"])
        if advice:
            self.assertIn(advice, checks[name][0]["advice"] or "")
        return checks[name][0]

    def fake_etcd(self, **members):
        handler = type("Handler", (FakeEtcd,), members)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        self.addCleanup(lambda: (server.shutdown(), thread.join(), server.server_close()))
        return f"127.0.0.1:{server.server_address[1]}"

    def etcd(self):
        if not shutil.which("etcd"):
            self.skipTest("there is no etcd")
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        command = cli.Running(self.dir, ["etcd", "--name", "m", "--data-dir", str(self.dir / "etcd"), "--listen-client-urls", client,
                                         "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls",
                                         peer, "--initial-cluster", f"m={peer}", "--log-level", "warn"], self.env)
        self.running.append(command)
        uri = client.replace("http", "etcd")
        cli.wait_for(lambda: "FAIL" not in subprocess.run([cli.SHOAL, "doctor", "-m", uri], stdout=subprocess.PIPE, text=True, env=self.env,
                                                          stderr=subprocess.DEVNULL, check=False).stdout, "etcd")
        return command, uri

    # --- the report ---

    def test_json_schema(self):
        checks = self.checks("--dir", self.dir, "--size", "8M")
        report = self.report
        self.assertEqual(report["event"], "result")
        self.assertEqual(report["command"], "doctor")
        self.assertIs(report["healthy"], True)
        for count, state in (("failures", "FAIL"), ("warnings", "WARN"), ("skipped", "SKIP")):
            self.assertEqual(report[count], sum(check["state"] == state for check in report["checks"]))
        for check in report["checks"]:
            self.assertLessEqual({"check", "state", "text", "advice"}, set(check))
            self.assertIn(check["state"], STATES)
            self.assertTrue(check["text"])
            if check["state"] in ("WARN", "FAIL"):
                self.assertTrue(check["advice"], check)
        self.assertLessEqual({"metadata", "metadata write", "name", "device", "cluster", "same host", "shared memory", "open files",
                              "locked memory", "threads", "tcp receive", "tcp send", "rmem_max", "tcp congestion", "numa", "huge pages", "directory",
                              "disk speed", "transports", "rdma", "cuda"}, set(checks))

    def test_cuda(self):
        self.env["SHOAL_CUDA_DRIVER"] = "/nowhere/libcuda.so.1"
        self.one(self.checks(), "cuda", "OK", "/nowhere/libcuda.so.1")
        self.env["SHOAL_CUDA_DRIVER"] = "libm.so.6"
        self.one(self.checks(), "cuda", "WARN", "is no CUDA driver", "nvidia-smi")
        self.env["SHOAL_CUDA_DRIVER"] = os.environ["SHOAL_TEST_CUDA_STUB"]
        checks = self.checks()
        self.one(checks, "cuda", "OK", "CUDA 12.4, 2 devices")
        self.assertGreater(self.one(checks, "cuda:1", "OK")["memory_bytes"], 0)
        self.assertNotIn("cuda:2", checks)

    def test_text_says_the_same(self):
        out, err = self.run_shoal("doctor")
        self.assertEqual(err, "")
        lines = out.splitlines()
        self.assertRegex(lines[-1], r"^0 failures, \d+ warnings?, \d+ skipped$")
        for line in lines[:-1]:
            self.assertRegex(line, r"^(OK   |WARN |FAIL |SKIP |      {15}do: ) *\S")
        self.assertRegex(out, r"(?m)^SKIP +disk speed ")

    def test_signal(self):
        """A doctor that waits for an etcd that does not answer ends at once, with the code of the signal."""
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            command = self.start("doctor", "-m", f"etcd://127.0.0.1:{silent.getsockname()[1]}", "--timeout", "none")
            silent.settimeout(cli.DEADLINE_S)
            connection, _ = silent.accept()
            with connection:
                self.assertEqual(command.stop(signal.SIGTERM), 143)

    # --- metadata ---

    def test_metadata_uri_is_wrong(self):
        for uri in ("ftp://x", "nonsense", "etcd://", "sqlite:"):
            self.one(self.checks("-m", uri, code=1), "metadata", "FAIL", advice="give --metadata")
        checks = self.checks("-m", f"sqlite:{self.dir}/no/such/place.db", code=1)
        self.one(checks, "metadata", "FAIL", "no/such/place.db")
        self.one(checks, "cluster", "SKIP", "without the metadata service")
        self.make("text", b"this is no database, but long enough to be looked at" * 100)
        self.one(self.checks("-m", f"sqlite:{self.dir}/text", code=1), "metadata", "FAIL", "is not a SQLite database")

    def test_metadata_may_not_be_written(self):
        (self.dir / "ro").mkdir()
        self.run_shoal("ls", "-m", f"sqlite:{self.dir}/ro/m.db")
        for path in (self.dir / "ro").iterdir():
            path.chmod(0o444)
        options = self.as_nobody()
        for path in (self.dir / "ro").iterdir():
            os.chown(path, 65534, 65534) if os.geteuid() == 0 else None
        (self.dir / "ro").chmod(0o555)
        self.checks("-m", f"sqlite:{self.dir}/ro/m.db", code=1, **options)
        self.assertTrue(any(check["state"] == "FAIL" and "writable" in check["text"] for check in self.report["checks"]), self.report)

    def test_etcd(self):
        etcd, uri = self.etcd()
        checks = self.checks("-m", uri)
        self.assertRegex(self.one(checks, "metadata", "OK", uri)["version"], r"^etcd \d+\.\d+")
        self.assertGreaterEqual(checks["metadata"][0]["request_us"], 0)
        self.one(checks, "metadata write", "OK")
        self.one(checks, "clock", "OK")
        etcd.process.send_signal(signal.SIGSTOP)
        try:
            self.one(self.checks("-m", uri, "--timeout", "2s", code=1), "metadata", "FAIL", uri, advice="start etcd")
        finally:
            etcd.process.send_signal(signal.SIGCONT)
        down = free_port()
        checks = self.checks("-m", f"{uri},127.0.0.1:{down}")
        self.one(checks, "endpoint", "WARN", f"127.0.0.1:{down}", advice="start that member")
        self.one(checks, "endpoints", "WARN", "1 of 2 answer")

    def test_clocks_are_apart(self):
        for ahead_s, text in ((7200, "7200 s behind that of etcd"), (-7200, "7200 s ahead of that of etcd")):
            check = self.one(self.checks("-m", f"etcd://{self.fake_etcd(ahead_s=ahead_s)}", "--timeout", "20s", code=1), "clock", "WARN",
                             "that of etcd", advice="chrony")
            self.assertAlmostEqual(check["service_ahead_ms"], ahead_s * 1000, delta=60000)
            self.assertIn(text.split()[2], check["text"])

    def test_etcd_does_not_take_changes(self):
        answers = {"/v3/maintenance/status": FakeEtcd.answers["/v3/maintenance/status"]}
        checks = self.checks("-m", f"etcd://{self.fake_etcd(answers=answers)}", "--timeout", "20s", code=1)
        self.one(checks, "metadata", "OK", "3.4.23")
        self.one(checks, "metadata write", "FAIL", "a change fails", advice="alarm")

    def test_password_is_not_shown(self):
        out, err = self.run_shoal("doctor", "-m", f"etcd://127.0.0.1:{free_port()}?user=u&password=geheim", "--timeout", "2s", code=1)
        self.assertRegex(out, r"(?m)^FAIL +metadata ")
        self.assertNotIn("geheim", out + err)

    # --- the address ---

    def test_address(self):
        self.one(self.checks("-n", "no-such-host.invalid:1", code=1), "name", "FAIL", "no-such-host.invalid", advice="--name")
        self.one(self.checks("-n", "192.0.2.77:0", code=1), "name", "FAIL", "no device of this machine has it")
        self.one(self.checks("-n", "a b:1", code=1), "name", "FAIL")
        self.one(self.checks("-n", "0.0.0.0:0", code=1), "name", "FAIL", "every address")
        checks = self.checks("-n", "127.0.0.1:0")
        self.one(checks, "name", "OK", "bound and connected to (loopback")
        self.one(checks, "device", "OK", "lo")

    def test_port_is_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            name = f"127.0.0.1:{taken.getsockname()[1]}"
            thread = threading.Thread(target=lambda: taken.accept()[0].close())
            thread.start()
            self.one(self.checks("-n", name), "name", "WARN", "by another program")
            thread.join()
        name = f"127.0.0.1:{free_port()}"
        self.make("f", b"x")
        self.seed("n", self.dir / "f", "-n", name)
        self.one(self.checks("-n", name), "name", "WARN", f"by the node {name}")

    def test_loopback_in_a_cluster(self):
        """The service is reached by an address that is not loopback: others may use it, too."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            try:
                sock.connect(("192.0.2.1", 9))
            except OSError:
                self.skipTest("this machine has only loopback")
            own = sock.getsockname()[0]
        if own.startswith("127."):
            self.skipTest("this machine has only loopback")
        self.one(self.checks("-m", f"etcd://{own}:{free_port()}", "--timeout", "2s", code=1), "name", "WARN", "serves a cluster", advice="10.0.0.5")

    def test_source_is_gone(self):
        self.make("f", b"x")
        seed = self.seed("n", self.dir / "f")
        seed.kill()
        self.one(self.checks(), "source", "WARN", '"n" is listed at 127.0.0.1', advice="whether it runs")

    # --- limits ---

    def with_limit(self, limit, soft, hard):
        return {"preexec_fn": lambda: resource.setrlimit(limit, (soft, hard))}

    def test_limits(self):
        self.one(self.checks(**self.with_limit(resource.RLIMIT_NOFILE, 100, 8192)), "open files", "WARN", "100 allowed", advice="ulimit -n 65536")
        self.one(self.checks(**self.with_limit(resource.RLIMIT_NOFILE, 100, 100)), "open files", "WARN", "no more than 100",
                 advice="raise the hard limit")
        self.one(self.checks(**self.with_limit(resource.RLIMIT_MEMLOCK, 65536, 65536)), "locked memory", "OK", "64.0 KiB allowed")

    def test_threads(self):
        if os.geteuid() != 0:
            self.skipTest("the number of this user's processes is not known")
        self.one(self.checks(**self.with_limit(resource.RLIMIT_NPROC, 300, 300)), "threads", "WARN", "300 allowed (ulimit -u)", advice="nproc")

    # --- the same host ---

    @unittest.skipUnless(platform.machine() == "x86_64", "the numbers of the system calls are those of x86-64")
    def test_same_host_is_refused(self):
        checks = self.checks(preexec_fn=forbid(310))  # process_vm_readv
        check = self.one(checks, "same host", "WARN", "Operation not permitted", advice="SYS_PTRACE")
        self.assertIn("a seccomp filter is active", check["text"])
        self.one(checks, "shared memory", "OK")
        checks = self.checks(preexec_fn=forbid(310, 319))  # and memfd_create
        self.one(checks, "same host", "WARN", "TCP is used")
        self.one(checks, "shared memory", "WARN", "Operation not permitted", advice="memfd_create")

    # --- the directory ---

    def test_directory(self):
        self.one(self.checks("-d", self.dir / "missing", code=1), "directory", "FAIL", "No such file", advice="make it")
        self.make("file", b"x")
        self.one(self.checks("-d", self.dir / "file", code=1), "directory", "FAIL", "Not a directory")
        (self.dir / "d").mkdir()
        checks = self.checks("-d", self.dir / "d", "-s", "20M")
        self.assertGreater(self.one(checks, "directory", "OK", "free")["free_bytes"], 0)
        speed = checks["disk speed"][0]
        self.assertIn(speed["state"], ("OK", "WARN"))
        self.assertGreater(speed["write_bytes_per_s"], 0)
        self.assertGreater(speed["read_bytes_per_s"], 0)
        self.assertIn("20.0 MiB", speed["text"])
        self.assert_nothing_left(self.dir / "d")
        self.one(self.checks("-d", self.dir / "d", "-s", "1M"), "disk speed", "SKIP", "too small a --size")

    def test_directory_is_read_only(self):
        (self.dir / "d").mkdir()
        (self.dir / "d").chmod(0o555)
        self.one(self.checks("-d", self.dir / "d", code=1, **self.as_nobody()), "directory", "FAIL", "Permission denied", advice="owner or mode")

    def in_mount(self, options, *arguments):
        """doctor where self.dir/disk is a file system of its own; skips where that is not permitted."""
        (self.dir / "disk").mkdir(exist_ok=True)
        own = ["-m"] if os.geteuid() == 0 else ["-rm"]
        mount = f'mount -t tmpfs -o {options} none "$0"'
        unshare = shutil.which("unshare")
        if not unshare or subprocess.run([unshare, *own, "sh", "-c", mount, str(self.dir / "disk")], capture_output=True, check=False).returncode:
            self.skipTest("cannot mount a small file system here")
        command = f'{mount} && shift && "$@"; code=$?; ls -A "$0" >&2; exit $code'
        result = subprocess.run([unshare, *own, "sh", "-c", command, str(self.dir / "disk"), "x", cli.SHOAL, "doctor", "--json", "-d",
                                 str(self.dir / "disk"), *arguments], capture_output=True, text=True, env=self.env, timeout=cli.DEADLINE_S,
                                check=False, stdin=subprocess.DEVNULL)
        self.assertEqual(result.stderr, "")  # nothing is left there
        checks = {check["check"]: [check] for check in json.loads(result.stdout)["checks"]}
        return checks, result.returncode

    def test_little_space(self):
        checks, code = self.in_mount("size=64m")
        self.assertEqual(code, 0)
        self.one(checks, "directory", "WARN", "64.0 MiB free", advice="free some space")
        self.assertIn("16.0 MiB", checks["disk speed"][0]["text"])  # a quarter of it
        checks, code = self.in_mount("size=1m")
        self.assertEqual(code, 0)
        self.one(checks, "disk speed", "SKIP", "too little space")

    def test_read_only_file_system(self):
        checks, code = self.in_mount("size=64m,ro")
        self.assertEqual(code, 1)
        self.one(checks, "directory", "FAIL", "Read-only file system")

    # --- another node ---

    def seed_at(self, *arguments):
        self.make("f", b"x" * 100000)
        name = f"127.0.0.1:{free_port()}"
        return self.seed("n", self.dir / "f", "-n", name, *arguments), name

    def test_peer(self):
        _, name = self.seed_at()
        checks = self.checks("--peer", name, "--size", "32M")
        self.assertEqual([self.one(checks, "peer", "OK", name)[key] for key in ("name", "address", "listed")], [name, name, True])
        self.assertGreater(self.one(checks, "peer call", "OK")["call_us"], 0)
        path = self.one(checks, "peer path", "OK", "over ")
        self.assertIn(path["transport"], ("tcp", "local"))
        self.assertGreater(self.one(checks, "peer read", "OK")["read_us"], 0)
        rate = self.one(checks, "peer rate", "OK")
        self.assertGreater(rate["rate_bytes_per_s"], 0)
        self.assertGreater(rate["bytes"], 0)
        self.assertLessEqual(rate["bytes"], 32 << 20)
        checks = self.checks("--peer", name, "--size", "1M", "--protocol", "tcp")
        self.assertEqual(self.one(checks, "peer path", "OK")["transport"], "tcp")

    def test_peer_by_its_address_only(self):
        """Its metadata are elsewhere: it is found all the same."""
        _, name = self.seed_at()
        checks = self.checks("--peer", name, "--size", "1M", "-m", f"sqlite:{self.dir}/other.db")
        self.assertIs(self.one(checks, "peer", "OK", "not listed")["listed"], False)
        self.one(checks, "peer rate", "OK")
        checks = self.checks("--peer", name, "--size", "1M", "-m", f"sqlite:{self.dir}/no/such/place.db", code=1)
        self.one(checks, "peer", "OK")
        self.one(checks, "peer rate", "SKIP", "no metadata service")

    def test_peer_is_not_there(self):
        self.one(self.checks("--peer", "nobody", code=1), "peer", "FAIL", "no live node has that name", advice="shoal stat")
        self.one(self.checks("--peer", "no-such-host.invalid:1", code=1), "peer", "FAIL", "no-such-host.invalid", advice="host's name")
        self.one(self.checks("--peer", f"127.0.0.1:{free_port()}", code=1), "peer", "FAIL", "Connection refused", advice="firewalls")
        seed, name = self.seed_at()
        seed.kill()  # listed until its lease ends
        self.one(self.checks("--peer", name, code=1), "peer", "FAIL", "Connection refused")

    def test_peer_of_another_cluster(self):
        _, name = self.seed_at("--cluster", "x")
        self.one(self.checks("--peer", name, code=1), "peer", "FAIL", "another cluster", advice="--cluster")

    def test_peer_is_stopped(self):
        seed, name = self.seed_at()
        seed.process.send_signal(signal.SIGSTOP)
        try:
            self.one(self.checks("--peer", name, code=1), "peer", "FAIL", "does not answer", advice="stopped")
        finally:
            seed.process.send_signal(signal.SIGCONT)

    def fake_node(self, answer):
        """Shakes hands as a node does; answer(frame) is what it says to a control call (None: nothing). Its address, and an event
        that is set once somebody has called."""
        server = socket.create_server(("127.0.0.1", 0))
        name = f"127.0.0.1:{server.getsockname()[1]}".encode()
        called = threading.Event()

        def receive(sock, count):
            data = b""
            while len(data) < count:
                part = sock.recv(count - len(data))
                if not part:
                    raise ConnectionError
                data += part
            return data

        def serve(sock):
            with sock, contextlib.suppress(ConnectionError):
                head = receive(sock, 8)
                receive(sock, struct.unpack("<I", head[4:])[0] - 8)
                fields = struct.pack("<HBBQQ", 1, 0, 0, 77, 0)
                for text in (name, b"default"):
                    fields += struct.pack("<H", len(text)) + text
                fields += struct.pack("<HH", 0, 0)
                sock.sendall(b"SHOL" + struct.pack("<I", 8 + len(fields)) + fields)
                while True:
                    head = receive(sock, 24)
                    receive(sock, struct.unpack("<I", head[:4])[0])
                    called.set()
                    reply = answer(head)
                    if reply is not None:
                        sock.sendall(reply)

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        self.addCleanup(server.close)
        return name.decode(), called

    @staticmethod
    def reply(head, status, body=b""):
        method, call = struct.unpack("<HQ", head[6:16])
        return struct.pack("<IBBHQiI", len(body), 2, 0, method, call, status, 0) + body

    def test_peer_of_an_older_version(self):
        name, _ = self.fake_node(lambda head: self.reply(head, -20, b"unknown method"))
        checks = self.checks("--peer", name)
        self.one(checks, "peer", "OK", name)
        self.one(checks, "peer rate", "SKIP", "of a version")

    def test_peer_answers_nonsense(self):
        name, _ = self.fake_node(lambda head: self.reply(head, 0, b"nonsense"))
        self.one(self.checks("--peer", name, code=1), "peer rate", "FAIL", "malformed")
        name, _ = self.fake_node(lambda head: b"nonsense" * 10)
        self.one(self.checks("--peer", name, code=1), "peer rate", "FAIL", name)

    def test_peer_does_not_answer_calls(self):
        name, _ = self.fake_node(lambda head: None)
        self.one(self.checks("--peer", name, code=1), "peer rate", "FAIL", name, advice="overloaded")
        name, called = self.fake_node(lambda head: None)
        command = self.start("doctor", "--peer", name)
        self.assertTrue(called.wait(cli.DEADLINE_S))
        self.assertEqual(command.stop(signal.SIGTERM), 143)

    # --- arguments ---

    def test_wrong_arguments(self):
        self.fails(2, "must be a size of at least 1 byte", "doctor", "--size", "0")
        self.fails(2, "must be a size of at least 1 byte", "doctor", "--size", "much")
        self.fails(2, "must not be empty", "doctor", "--dir", "")
        self.fails(2, "must be a duration", "doctor", "--timeout", "soon")
        self.fails(2, "must not be empty", "doctor", "--peer", "")
        self.fails(2, "is no name of a node", "doctor", "--peer", "a b")
        self.fails(2, "is no name of a node", "doctor", "--peer", "host:70000")
        self.fails(2, 'too many arguments: "x"', "doctor", "x")


if __name__ == "__main__":
    cli.main()
