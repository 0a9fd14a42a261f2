#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The progress display: on a terminal only, within its width, gone at the end."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios

import cli
from cli import CliTest


class Terminal(CliTest):
    def on_terminal(self, *arguments, columns=100, term="xterm"):
        """Runs with stderr on a terminal; (exit code, stdout, what the terminal got)."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        out = self.dir / "out"
        with open(out, "wb") as file:
            process = subprocess.Popen([cli.SHOAL, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=file, stderr=slave,
                                       env={**self.env, "TERM": term})
        os.close(slave)
        got = b""
        while select.select([master], [], [], cli.DEADLINE_S)[0]:
            try:
                data = os.read(master, 65536)
            except OSError:
                break
            if not data:
                break
            got += data
        os.close(master)
        return process.wait(cli.DEADLINE_S), out.read_text(), got.decode(errors="replace")

    def setUp(self):
        super().setUp()
        with open(self.dir / "f", "wb") as file:
            file.truncate(1 << 30)
        self.seed("model\N{FISH}", self.dir / "f")

    def test_progress(self):
        code, out, screen = self.on_terminal("get", "model\N{FISH}", self.dir / "dst")
        self.assertEqual(code, 0, screen)
        self.assertRegex(screen, r"getting model🐟 +\d+% \[=*>? *\] .* of 1\.00 GiB  .*B/s  .* left")
        self.assertRegex(screen, r"1 source: 127\.0\.0\.1:\d+ \(gold\) ")
        self.assertTrue(screen.endswith("\x1b[2A\x1b[J"), repr(screen[-100:]))
        self.assertRegex(out, r"^got model🐟: 1 file, 1\.00 GiB")
        self.assertNotIn("\x1b", out)

    def test_narrow(self):
        _, _, screen = self.on_terminal("get", "model\N{FISH}", self.dir / "dst", columns=40)
        for line in re.sub(r"\x1b\[\d*[AJ]", "", screen).splitlines():
            self.assertLessEqual(len(line.strip("\r")), 40)

    def test_no_progress(self):
        for number, (options, term) in enumerate((([], "dumb"), (["-q"], "xterm"), (["--json"], "xterm"))):
            code, _, screen = self.on_terminal("get", *options, "model\N{FISH}", self.dir / f"dst{number}", term=term)
            self.assertEqual((code, screen), (0, ""))

    def test_errors_stay(self):
        code, out, screen = self.on_terminal("get", "--no-overwrite", "model\N{FISH}", self.dir)
        self.assertEqual((code, out), (4, ""))
        self.assertIn("in the way", screen)


if __name__ == "__main__":
    cli.main()
