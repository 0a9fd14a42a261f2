# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command line share: a private directory, metadata file and environment per test; commands that
are always ended; waiting for a condition with a deadline."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

# Without the environment that Meson gives: what "make" has built.
ROOT = pathlib.Path(__file__).resolve().parents[2]
SHOAL = os.environ.get("SHOAL_EXE", str(ROOT / "build/cmd/shoal/shoal"))
HELPER = os.environ.get("SHOAL_HELPER", str(ROOT / "build/tests/cli/cli_node"))
DEADLINE_S = float(os.environ.get("SHOAL_TEST_DEADLINE", "120"))


def wait_for(condition, what):
    """Polls; the pause only keeps the machine free for the processes that are waited for."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {DEADLINE_S} s for: {what}")


class Running:
    """A command in the background, its output in files."""

    def __init__(self, directory, arguments, env, **options):
        self.out_path = directory / f"out-{time.monotonic_ns()}"
        self.err_path = self.out_path.with_suffix(".err")
        self.arguments = arguments
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, **options)

    @property
    def out(self):
        return self.out_path.read_text(errors="replace")

    @property
    def err(self):
        return self.err_path.read_text(errors="replace")

    def wait_for_output(self, text):
        def look():
            if text in self.out:
                return True
            if self.process.poll() is not None and text not in self.out:
                raise AssertionError(f"{self.arguments} ended with {self.process.returncode}\n{self.out}\n{self.err}")
            return False

        wait_for(look, f"{text!r} from {self.arguments}: {self.out} {self.err}")
        return self

    def wait(self):
        self.process.wait(DEADLINE_S)
        return self.process.returncode

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class CliTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="shoal-cli-"))
        self.env = {key: value for key, value in os.environ.items() if not key.startswith("SHOAL_")}
        self.env["SHOAL_METADATA"] = f"sqlite:{self.dir}/metadata.db"
        self.env["XDG_RUNTIME_DIR"] = str(self.dir)
        self.env["LC_ALL"] = "C.UTF-8"
        self.running = []

    def tearDown(self):
        for command in self.running:
            command.kill()
        for root, names, _ in os.walk(self.dir):
            for name in names:
                path = os.path.join(root, name)
                if not os.path.islink(path):
                    os.chmod(path, 0o700)
        shutil.rmtree(self.dir, ignore_errors=True)

    def run_shoal(self, *arguments, code=0, env=None, **options):
        """Runs to the end; checks the exit code; returns (stdout, stderr)."""
        result = subprocess.run([SHOAL, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, check=False,
                                timeout=DEADLINE_S, env={**self.env, **(env or {})}, **options)
        out, err = result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace")
        self.assertEqual(result.returncode, code, f"{arguments}\nstdout: {out}\nstderr: {err}")
        return out, err

    def fails(self, code, text, *arguments, **options):
        """The command ends with this code and says text on stderr; nothing is on stdout."""
        out, err = self.run_shoal(*arguments, code=code, **options)
        self.assertIn(text, err)
        self.assertEqual(out, "")
        return err

    def start(self, *arguments, env=None, **options):
        command = Running(self.dir, [SHOAL, *map(str, arguments)], {**self.env, **(env or {})}, **options)
        self.running.append(command)
        return command

    def seed(self, name, *paths, **options):
        return self.start("seed", name, *paths, **options).wait_for_output("seeding")

    def node(self, *arguments):
        """The helper program: a node that registers what the command line never would."""
        command = Running(self.dir, [HELPER, self.env["SHOAL_METADATA"], *map(str, arguments)], self.env)
        self.running.append(command)
        return command.wait_for_output("ready")

    def as_nobody(self):
        """Options for commands that must not be root, who may read and write everything."""
        if os.geteuid() != 0:
            return {}
        for path in (self.dir, *self.dir.iterdir()):
            os.chown(path, 65534, 65534)
        return {"user": 65534, "group": 65534, "extra_groups": []}

    def make(self, path, content=b"", mode=0o644):
        path = self.dir / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
        return path

    def json_lines(self, out):
        return [json.loads(line) for line in out.splitlines()]

    def assert_nothing_left(self, directory):
        """No half file, no staging directory."""
        self.assertEqual([str(p) for p in pathlib.Path(directory).rglob("*")] if os.path.exists(directory) else [], [])


def tree_of(directory):
    """{relative name in bytes: (mode, content)}; content None for a directory."""
    directory = os.fsencode(directory)
    result = {}
    for root, directories, files in os.walk(directory):
        for name in directories + files:
            path = os.path.join(root, name)
            info = os.lstat(path)
            content = None
            if not os.path.isdir(path):
                with open(path, "rb") as file:
                    content = file.read()
            result[os.path.relpath(path, directory)] = (info.st_mode & 0o7777, content)
    return result


def main():
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the programs are to end by it, under nohup, too
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
