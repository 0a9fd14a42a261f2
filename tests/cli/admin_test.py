#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""--metrics: what monitoring asks a node for over HTTP, and clients that are rude."""

import http.client
import os
import re
import socket

import cli
from cli import CliTest, wait_for


class Admin(CliTest):
    def setUp(self):
        super().setUp()
        self.file = self.make("f", os.urandom(100_000))

    def address_of(self, command):
        text = wait_for(lambda: re.search(r"metrics at http://127\.0\.0\.1:(\d+)/metrics\n", command.err), "the address")
        return ("127.0.0.1", int(text.group(1)))

    def seed_with_metrics(self):
        seed = self.seed("n", "--metrics", "127.0.0.1:0", self.file)
        return seed, self.address_of(seed)

    def ask(self, address, path, method="GET", **options):
        """(status, headers, body)"""
        connection = http.client.HTTPConnection(*address, timeout=cli.DEADLINE_S)
        try:
            connection.request(method, path, **options)
            response = connection.getresponse()
            return response.status, response.headers, response.read().decode()
        finally:
            connection.close()

    def raw(self, address, data, step=None):
        with socket.create_connection(address, timeout=cli.DEADLINE_S) as connection:
            for i in range(0, len(data), step or len(data) or 1):
                connection.sendall(data[i:i + (step or len(data))])
            answer = b""
            while part := connection.recv(65536):
                answer += part
            return answer

    def test_metrics(self):
        seed, address = self.seed_with_metrics()
        status, headers, body = self.ask(address, "/metrics")
        self.assertEqual((status, headers["Content-Type"]), (200, "text/plain; version=0.0.4; charset=utf-8"))
        samples = [line for line in body.splitlines() if not line.startswith("#")]
        for line in samples:
            self.assertRegex(line, r"^[a-zA-Z_:][a-zA-Z0-9_:]*(\{.*\})? -?[0-9.e+]+$")
        self.assertIn("shoal_store_published 1", samples)
        self.assertIn("shoal_store_receivers 0", samples)
        self.run_shoal("get", "n", self.dir / "d")
        wait_for(lambda: "\nshoal_store_served_bytes_total 100000\n" in self.ask(address, "/metrics?x=1")[2], "the bytes given")
        self.assertEqual(seed.stop(), 0)
        with self.assertRaises(ConnectionRefusedError):
            self.ask(address, "/metrics")

    def test_health_and_readiness(self):
        get = self.start("get", "--seed", "--wait", "--metrics", "127.0.0.1:0", "n", self.dir / "d")
        address = self.address_of(get)
        self.assertEqual(self.ask(address, "/readyz")[::2], (503, "not published\n"))
        self.assertEqual(self.ask(address, "/healthz")[::2], (200, "ok\n"))
        self.seed("n", self.file)
        get.wait_for_output("got n")
        wait_for(lambda: self.ask(address, "/readyz")[::2] == (200, "ready\n"), "readiness")
        self.assertEqual(get.stop(), 0)

    def test_methods_and_paths(self):
        _, address = self.seed_with_metrics()
        status, headers, body = self.ask(address, "/metrics", "HEAD")
        self.assertEqual((status, body), (200, ""))
        self.assertGreater(int(headers["Content-Length"]), 1000)
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            status, headers, _ = self.ask(address, "/metrics", method, body="x" * 1000)
            self.assertEqual((status, headers["Allow"]), (405, "GET, HEAD"))
        for path in ("/", "/metricsx", "/metrics/", "/../etc/passwd", "/%6detrics"):
            self.assertEqual(self.ask(address, path)[0], 404)

    def test_malformed_requests(self):
        _, address = self.seed_with_metrics()
        for request in (b"\r\n\r\n", b"GET\r\n\r\n", b"GET /metrics\r\n\r\n", b"GET metrics HTTP/1.1\r\n\r\n", b"GET /metrics FTP/1\r\n\r\n",
                        b"GET /metrics\0 HTTP/1.1\r\n\r\n", bytes(range(256)) + b"\n\n"):
            with self.subTest(request=request):
                self.assertTrue(self.raw(address, request).startswith(b"HTTP/1.1 400 "))
        self.assertTrue(self.raw(address, b"GET / HTTP/2.0\r\n\r\n").startswith(b"HTTP/1.1 505 "))
        self.assertTrue(self.raw(address, b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000).startswith(b"HTTP/1.1 431 "))
        # One byte at a time, and with bare newlines, is slow but right.
        self.assertTrue(self.raw(address, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", step=1).endswith(b"\r\n\r\nok\n"))
        self.assertTrue(self.raw(address, b"GET /healthz HTTP/1.0\n\n").endswith(b"\r\n\r\nok\n"))

    def test_more_clients_than_it_takes(self):
        seed, address = self.seed_with_metrics()

        def descriptors():
            return len(os.listdir(f"/proc/{seed.process.pid}/fd"))

        before = descriptors()
        idle = [socket.create_connection(address, timeout=cli.DEADLINE_S) for _ in range(50)]
        wait_for(lambda: descriptors() == before + 32, "as many as it takes")
        with socket.create_connection(address, timeout=cli.DEADLINE_S) as waiting:
            waiting.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            for connection in idle:
                connection.close()
            self.assertTrue(waiting.recv(100).startswith(b"HTTP/1.1 200 "))
        wait_for(lambda: descriptors() == before, "the descriptors to be closed")
        self.run_shoal("get", "n", self.dir / "d")
        connection = socket.create_connection(address, timeout=cli.DEADLINE_S)
        self.assertEqual(seed.stop(), 0) # an open connection does not hold it
        connection.close()

    def test_wrong_addresses(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for command in (["seed", "n", self.file], ["get", "n", self.dir / "d"]):
                for code, text, address in ((2, "has no port", "127.0.0.1"), (2, "port", "127.0.0.1:x"), (2, "port", "127.0.0.1:70000"),
                                            (9, "already in use", f"127.0.0.1:{port}"), (9, "Cannot assign", "192.0.2.1:0"),
                                            (9, "does not resolve", "no-such-host.invalid:0")):
                    with self.subTest(command=command[0], address=address):
                        err = self.fails(code, f"cannot serve metrics at {address}: ", *command, "--metrics", address)
                        self.assertIn(text, err)
        self.assertEqual(self.run_shoal("ls", "--json")[0], "[]\n")

    def test_exposed_is_said(self):
        # It ends before anybody could ask: there is no such file.
        _, err = self.run_shoal("seed", "n", self.dir / "missing", "--metrics", "0.0.0.0:0", code=3)
        self.assertRegex(err, r"metrics at http://0\.0\.0\.0:\d+/metrics: whoever reaches this address can read them\n")
        out, _ = self.run_shoal("seed", "n", self.dir / "missing", "--json", code=3, env={"SHOAL_METRICS": "127.0.0.1:0"})
        event = self.json_lines(out)[0]
        self.assertEqual((event["event"], event["exposed"]), ("metrics", False))
        self.assertRegex(event["address"], r"^127\.0\.0\.1:\d+$")


if __name__ == "__main__":
    cli.main()
