#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""mooncake_master as a command: options and their file, what is wrong with them, ports, metrics, logs, signals."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess

import cli
from cli import CliTest, Running, wait_for

MASTER = os.environ.get("MOONCAKE_MASTER_EXE", str(cli.ROOT / "build/cmd/mooncake_master/mooncake_master"))
HERE = ("--rpc_address", "127.0.0.1", "--rpc_port", "0", "--metrics_port", "none")


class Master(CliTest):
    def run_master(self, *arguments, code=0):
        """Runs to the end; returns (stdout, stderr)."""
        result = subprocess.run([MASTER, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, check=False,
                                timeout=cli.DEADLINE_S, env=self.env)
        out, err = result.stdout.decode(), result.stderr.decode()
        self.assertEqual(result.returncode, code, f"{arguments}\nstdout: {out}\nstderr: {err}")
        return out, err

    def refuses(self, text, *arguments, code=2):
        out, err = self.run_master(*arguments, code=code)
        self.assertIn(text, err)
        self.assertIn("try: ", err)
        self.assertEqual(out, "")

    def start_master(self, *arguments):
        """(process, port, metrics port or None), once it listens."""
        command = Running(self.dir, [MASTER, *map(str, arguments)], self.env)
        self.running.append(command)

        def look():
            self.assertIsNone(command.process.poll(), command.err)
            return re.search(r"listening at [^ ,\n]*:(\d+)(?:, metrics at [^ \n\"]*:(\d+))?", command.err)

        found = wait_for(look, "the first line")
        return command, int(found.group(1)), int(found.group(2) or 0) or None

    def config(self, value):
        text = value if isinstance(value, str) else json.dumps(value)
        return self.make("master.json", text.encode())

    # --- options ---

    def test_help_teaches(self):
        out, err = self.run_master("--help")
        for text in ("usage: mooncake_master", "--rpc_port PORT", "Default: 50051", "--client_ttl", "--config_path",
                     "mooncake_client --master_server_address 127.0.0.1:50051", "exit codes:"):
            self.assertIn(text, out)
        self.assertEqual(err, "")
        self.assertRegex(self.run_master("--version")[0], r"^mooncake_master \(Shoal\) \d+\.\d+\.\d+\n$")

    def test_wrong_usage(self):
        self.refuses("must be a whole number from 0 to 65535", "--rpc_port", "65536")
        self.refuses("must be a whole number", "--rpc_port", "-1")
        self.refuses("must be a whole number", "--rpc_thread_num=0")
        self.refuses("must be a duration", "--client_ttl", "soon")
        self.refuses("such as 500ms, 30s or 5m\n", "--client_ttl", "0")
        self.refuses("must be from 100ms to 1h", "--client_ttl", "99ms")
        self.refuses("must be from 100ms to 1h", "--client_ttl", "none")
        self.refuses("must be a port, or none", "--metrics_port", "many")
        self.refuses("only P2P is there", "--deployment_mode", "standalone")
        self.refuses("must be plain or json", "--log_format", "xml")
        self.refuses("unknown or ambiguous option --rpc_prot", "--rpc_prot", "1")
        self.refuses("unknown or ambiguous option -x", "-x")
        self.refuses("needs an argument", "--rpc_port")
        self.refuses("is no option", "extra")
        self.refuses("must not be empty", "--cluster", "")
        self.refuses("takes no argument", "--verbose=2")
        self.refuses("needs --etcd_endpoints", "--enable_ha")
        self.refuses("needs --rpc_address", "--enable_ha=true", "--etcd_endpoints", "127.0.0.1:2379")
        self.refuses("it must be 1 or 0", "--enable_ha=maybe")

    def test_both_forms_of_names(self):
        master, port, metrics = self.start_master("--rpc-address=127.0.0.1", "--rpc-port", "0", "--metrics-port=none",
                                                  "--deployment-mode", "p2p", "--client-ttl", "10")
        self.assertGreater(port, 0)
        self.assertIsNone(metrics)
        self.assertEqual(master.stop(), 0)

    def test_endpoints_alone_are_no_election(self):
        master, _, _ = self.start_master(*HERE, "--etcd_endpoints", "127.0.0.1:1")
        wait_for(lambda: "not used: this master is alone without --enable_ha" in master.err, "the warning")
        self.assertEqual(master.stop(), 0)

    # --- file ---

    def test_config_file(self):
        path = self.config({"rpc_address": "127.0.0.1", "rpc-port": 1, "metrics_port": "none", "client_ttl": "500ms",
                            "log_format": "json"})
        master, port, _ = self.start_master("--config_path", path, "--rpc_port", "0")  # the command line beats it
        self.assertNotEqual(port, 1)
        first = json.loads(master.err.splitlines()[0])
        self.assertEqual((first["event"], first["address"]), ("listening", f"127.0.0.1:{port}"))
        self.assertEqual(master.stop(), 0)

    def test_bad_config_files(self):
        for value, text in (({"rpc_prt": 1}, 'there is no option "rpc_prt"'),
                            ({"rpc_port": True}, '"rpc_port" has a value of the wrong type'),
                            ({"rpc_port": None}, '"rpc_port" has a value of the wrong type'),
                            ({"rpc_port": [1]}, '"rpc_port" has a value of the wrong type'),
                            ({"rpc_port": 70000}, '"rpc_port" is "70000": it must be a whole number'),
                            ({"config_path": "x"}, "belongs on the command line only"),
                            ({"deployment_mode": "standalone"}, "only P2P is there"),
                            ("[1]", "must be one JSON object"),
                            ('{"rpc_port": 1', "master.json:1:"),
                            ('{"rpc_port": 1, "rpc_port": 2}', "duplicate"),
                            ("", "master.json:")):
            self.refuses(text, "--config_path", self.config(value))
        self.refuses("cannot read the configuration", "--config_path", self.dir / "none.json")

    # --- ports ---

    def test_port_in_use(self):
        _, port, _ = self.start_master(*HERE)
        _, err = self.run_master(*HERE[:2], "--rpc_port", port, "--metrics_port", "none", code=9)
        self.assertIn(f"127.0.0.1, port {port}", err)
        self.assertIn("--rpc_port", err)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            metrics = taken.getsockname()[1]
            _, err = self.run_master(*HERE[:4], "--metrics_port", metrics, code=9)
            self.assertIn(f"port {metrics}", err)
            self.assertIn("--metrics_port", err)

    def test_foreign_address(self):
        _, err = self.run_master("--rpc_address", "192.0.2.1", "--rpc_port", "0", "--metrics_port", "none", code=9)
        self.assertIn("192.0.2.1", err)

    def test_a_listener_for_others_says_so(self):
        master, port, _ = self.start_master("--rpc_port", "0", "--metrics_port", "none")
        wait_for(lambda: "nothing proves who they are" in master.err, "the warning")
        with socket.create_connection(("127.0.0.1", port), timeout=cli.DEADLINE_S):
            pass
        quiet, _, _ = self.start_master(*HERE)
        self.assertEqual(quiet.stop(), 0)
        self.assertNotIn("nothing proves", quiet.err)

    def test_masters_of_one_machine(self):
        """Without etcd, too: who leads stands in a SQLite file."""
        ha = ("--enable_ha", "--etcd_endpoints", f"sqlite:{self.dir}/leader.db")
        first, _, metrics = self.start_master(*HERE[:4], "--metrics_port", "0", *ha)
        wait_for(lambda: self.ask(metrics, "/readyz")[0] == 200, "the first one leads")
        second, _, metrics = self.start_master(*HERE[:4], "--metrics_port", "0", *ha)
        self.assertEqual(self.ask(metrics, "/readyz"), (503, "another master leads\n"))
        self.assertEqual(first.stop(), 0)
        wait_for(lambda: self.ask(metrics, "/readyz")[0] == 200, "the second one leads")
        self.assertEqual(second.stop(), 0)
        _, err = self.run_master(*HERE, "--enable_ha", "--etcd_endpoints", "nonsense:x", code=2)
        self.assertIn("nonsense:x", err)

    # --- metrics, logs, signals ---

    def ask(self, port, path):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=cli.DEADLINE_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def test_metrics(self):
        master, _, metrics = self.start_master(*HERE[:4], "--metrics_port", "0")
        status, text = self.ask(metrics, "/metrics")
        self.assertEqual(status, 200)
        for line in text.splitlines():
            if not line.startswith("#"):
                self.assertRegex(line, r"^shoal_master_[a-z_]+(\{.*\})? [0-9]+$")
        self.assertIn("\nshoal_master_clients 0\n", text)
        self.assertEqual(self.ask(metrics, "/healthz"), (200, "ok\n"))
        self.assertEqual(self.ask(metrics, "/readyz"), (200, "ready\n"))
        self.assertEqual(master.stop(), 0)

    def test_json_lines(self):
        master, _, _ = self.start_master(*HERE, "--log_format", "json", "-v")
        self.assertEqual(master.stop(), 0)
        for line in master.err.splitlines():
            self.assertLessEqual({"time", "level", "module", "message"}, set(json.loads(line)))
        _, err = self.run_master("--rpc_address", "192.0.2.1", "--rpc_port", "0", "--log_format", "json", code=9)
        error = json.loads(err.splitlines()[-1])
        self.assertEqual((error["event"], error["status"], error["exit_code"]), ("error", "ADDRESS", 9))

    def test_signals_end_it(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            master, port, _ = self.start_master(*HERE)
            with socket.create_connection(("127.0.0.1", port), timeout=cli.DEADLINE_S):
                self.assertEqual(master.stop(number), 0)


if __name__ == "__main__":
    cli.main()
