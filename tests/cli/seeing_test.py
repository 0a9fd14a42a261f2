#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Who gives what to whom: stat, seed and get --seed, in words, as JSON and on a terminal."""

import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import cli
from cli import CliTest, wait_for

SIZE = 3_000_000
GIVEN = r"2\.86 MiB"


class Seeing(CliTest):
    def setUp(self):
        super().setUp()
        self.file = self.make("f", os.urandom(SIZE))

    def stat(self, *options):
        return json.loads(self.run_shoal("stat", "--json", *options, "n")[0])

    def events(self, command, kind):
        return [line for line in self.json_lines(command.out) if line["event"] == kind]

    def wait_for_event(self, command, kind, **values):
        def look():
            # The last line may not be complete yet.
            lines = [json.loads(line) for line in command.out.splitlines(True) if line.endswith("\n")]
            return [line for line in lines if line["event"] == kind and values.items() <= line.items()]

        return wait_for(look, f"{kind} {values} in {command.out}")[0]


class Stat(Seeing):
    def test_who_gives(self):
        self.seed("n", self.file)
        self.run_shoal("get", "--no-share", "n", self.dir / "a")
        out = wait_for(lambda: (text := self.run_shoal("stat", "n")[0]) and re.search(f"gave {GIVEN}", text) and text, "bytes given")
        self.assertRegex(out, r"sources +1\n  gold +(127\.0\.0\.1:\d+), reached at \1\n +has 100 %, gave 2\.86 MiB, 0 receivers now\n")
        self.assertNotIn(" to 127", out)
        for option in ("--receivers", "-r", "-v"):
            self.assertRegex(self.run_shoal("stat", option, "n")[0], r"\n +to 127\.0\.0\.1:\d+: 2\.86 MiB over (tcp|local), done\n")

        source = self.stat()["sources"][0]
        self.assertEqual((source["gold"], source["status"], source["share_percent"], source["bytes_served"]), (True, "OK", 100, SIZE))
        self.assertEqual((source["receivers_now"], source["receivers_known"]), (0, 1))
        (receiver,) = source["receivers"]
        self.assertEqual((receiver["state"], receiver["bytes"]), ("done", SIZE))
        self.assertEqual(receiver["pieces_have"], source["pieces_have"])
        self.assertIn(receiver["transport"], ("tcp", "local"))
        self.assertIn("left_transports", receiver)

    def test_which_transport(self):
        """What is chosen is said on both sides."""
        self.seed("n", self.file)
        out, _ = self.run_shoal("get", "--no-share", "--protocol", "tcp", "--json", "n", self.dir / "a")
        (source,) = [line for line in self.json_lines(out) if line["event"] == "result"][0]["sources"]
        self.assertEqual((source["transport"], source["left_transports"]), ("tcp", ""))
        receiver = wait_for(lambda: [r for s in self.stat()["sources"] for r in s["receivers"] if r["state"] == "done"], "the last word")[0]
        self.assertEqual((receiver["transport"], receiver["left_transports"]), ("tcp", ""))

    def test_source_that_does_not_answer(self):
        self.seed("n", self.file)
        dead = self.start("get", "--seed", "n", self.dir / "dead").wait_for_output("got n")
        stopped = self.start("get", "--seed", "--json", "n", self.dir / "stopped").wait_for_output('"result"')
        name = self.events(stopped, "result")[0]["node"]
        dead.kill()
        # Not while it holds the lock of the metadata file: that would stop everybody.
        wait_for(lambda: self.pause(stopped), "a moment without lock")
        out, err = self.run_shoal("stat", "n")
        stopped.process.send_signal(signal.SIGCONT)
        self.assertEqual(err, "")
        self.assertRegex(out, r"(?m)^sources +3$")
        self.assertRegex(out, r"replica +(127\.0\.0\.1:\d+), reached at \1\n +DOES NOT ANSWER: \1: .*refused")
        self.assertRegex(out, f"replica +{re.escape(name)}, .*\n +DOES NOT ANSWER: {re.escape(name)}: deadline passed")
        self.assertIn("has 100 %", out)
        sources = {source["status"]: source for source in self.stat()["sources"]}
        self.assertIn("message", sources["UNREACHABLE"])
        self.assertNotIn("bytes_served", sources["UNREACHABLE"])
        self.assertEqual(sources["OK"]["share_percent"], 100)

    def pause(self, command):
        command.process.send_signal(signal.SIGSTOP)
        state = pathlib.Path(f"/proc/{command.process.pid}/stat")
        wait_for(lambda: state.read_text().rsplit(")", 1)[1].split()[0] == "T", "the process to stop")
        try:
            self.run_shoal("ls", "--timeout", "3s")
            return True
        except AssertionError:
            command.process.send_signal(signal.SIGCONT)
            return False


class Seed(Seeing):
    def test_events_and_summary(self):
        seed = self.start("seed", "--json", "n", self.file).wait_for_output('"seeding"')
        nodes = []
        for number in range(2):
            out, _ = self.run_shoal("get", "--json", "--no-share", "n", self.dir / f"d{number}")
            nodes.append(self.json_lines(out)[-1]["node"])
        for node in nodes:
            done = self.wait_for_event(seed, "receiver", name=node, state="done")
            self.assertEqual((done["payload"], done["bytes"], done["pieces_have"]), ("n", SIZE, done["pieces"]))
        self.assertEqual(seed.stop(), 0)
        states = [(line["name"], line["state"]) for line in self.events(seed, "receiver")]
        for node in nodes:
            self.assertEqual([state for name, state in states if name == node], ["joined", "done"])
        result = self.json_lines(seed.out)[-1]
        self.assertEqual((result["event"], result["bytes_served"]), ("result", 2 * SIZE))
        self.assertEqual({(receiver["name"], receiver["state"], receiver["bytes"]) for receiver in result["receivers"]},
                         {(node, "done", SIZE) for node in nodes})

    def test_words(self):
        seed = self.seed("n", "-v", self.file)
        self.run_shoal("get", "n", self.dir / "d")
        wait_for(lambda: re.search(r"shoal seed: receiver 127\.0\.0\.1:\d+: 2\.86 MiB over (tcp|local), done\n", seed.err), "the line")
        self.assertEqual(len(re.findall(r"receiver \S+: joined\n", seed.err)), 1)
        self.assertEqual(seed.stop(), 0)
        self.assertRegex(seed.out, r"\nwithdrew n: 2\.86 MiB given to others\n  to 127\.0\.0\.1:\d+: 2\.86 MiB over (tcp|local), done\n$")

    def test_silent_without_v(self):
        seed = self.seed("n", self.file)
        self.run_shoal("get", "n", self.dir / "d")
        wait_for(lambda: self.stat()["sources"][0]["receivers_known"], "the receiver")
        self.assertEqual(seed.stop(), 0)
        self.assertNotIn("receiver", seed.err)

    def test_killed_receiver_has_left(self):
        with open(self.dir / "big", "wb") as file:
            file.truncate(128 << 20)
        seed = self.start("seed", "--json", "--upload-limit", "1M", "n", self.dir / "big").wait_for_output('"seeding"')
        get = self.start("get", "--json", "n", self.dir / "d").wait_for_output('"progress"')
        self.wait_for_event(seed, "receiver", state="joined")
        get.kill()
        left = self.wait_for_event(seed, "receiver", state="left")
        self.assertLess(left["pieces_have"], left["pieces"])
        self.assertEqual(seed.stop(), 0)
        self.assertEqual([receiver["state"] for receiver in self.json_lines(seed.out)[-1]["receivers"]], ["left"])

    def test_get_that_serves(self):
        seed = self.seed("n", self.file)
        replica = self.start("get", "--seed", "--json", "n", self.dir / "r").wait_for_output('"result"')
        words = self.start("get", "--seed", "n", self.dir / "w").wait_for_output("got n")
        self.assertEqual(seed.stop(), 0)
        self.assertEqual(words.stop(), 0)
        self.assertRegex(words.out, r"\nwithdrew n: 0 B given to others\n$")
        self.run_shoal("get", "n", self.dir / "d")
        self.wait_for_event(replica, "receiver", state="done", bytes=SIZE)
        self.assertEqual(replica.stop(), 0)
        last = self.json_lines(replica.out)[-1]
        self.assertEqual(last["event"], "withdrawn")
        self.assertIn(("done", SIZE), [(receiver["state"], receiver["bytes"]) for receiver in last["receivers"]])


class OnTerminal(Seeing):
    def test_status_line(self):
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
        with open(self.dir / "out", "wb") as out:
            process = subprocess.Popen([cli.SHOAL, "seed", "n", str(self.file)], stdin=subprocess.DEVNULL, stdout=out, stderr=slave,
                                       env={**self.env, "TERM": "xterm"})
        os.close(slave)
        screen = b""
        end = time.monotonic() + cli.DEADLINE_S
        try:
            wait_for(lambda: "seeding" in (self.dir / "out").read_text(), "the seed")
            self.run_shoal("get", "n", self.dir / "d")
            while b"2.86 MiB given" not in screen and time.monotonic() < end:
                if select.select([master], [], [], 1)[0]:
                    screen += os.read(master, 65536)
            process.send_signal(signal.SIGTERM)
            while select.select([master], [], [], cli.DEADLINE_S)[0]:
                try:
                    screen += os.read(master, 65536)
                except OSError:
                    break
            self.assertEqual(process.wait(cli.DEADLINE_S), 0)
        finally:
            process.kill()
            process.wait()
            os.close(master)
        text = screen.decode()
        self.assertRegex(text, r"serving n: 2\.86 MiB given, .*B/s, [01] receivers? now")
        # Gone at the end.
        self.assertRegex(text, r"\x1b\[[12]A\x1b\[J$")
        for line in re.sub(r"\x1b\[\d*[AJ]", "", text).splitlines():
            self.assertLessEqual(len(line.strip("\r")), 60)


if __name__ == "__main__":
    cli.main()
