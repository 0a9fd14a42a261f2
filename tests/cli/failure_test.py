#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong: each documented error has its exit code and message, and nothing is left behind."""

import json
import os
import shutil
import signal
import socket
import subprocess

import cli
from cli import CliTest, tree_of, wait_for

STAGING = ".shoal-part-"


def file_list(*entries, count=None):
    lines = [{"format": "shoal-file-list", "version": 1, "entries": len(entries) if count is None else count}, *entries]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def file(path, size=5, **more):
    return {"path": path, "type": "file", "mode": 0o644, "size": size, **more}


class Seed(CliTest):
    def nothing_registered(self):
        self.assertEqual(self.run_shoal("ls", "--json")[0], "[]\n")

    def test_missing_file(self):
        self.make("f", b"x")
        self.fails(3, "missing: No such file or directory", "seed", "n", self.dir / "f", self.dir / "missing")
        self.nothing_registered()

    def test_file_with_slash(self):
        self.fails(1, "Not a directory", "seed", "n", f"{self.make('f', b'x')}/")

    def test_empty_path_and_root(self):
        self.fails(2, "an empty PATH", "seed", "n", "")
        self.fails(2, "has no name of its own", "seed", "n", "/")

    def test_nothing_in_it(self):
        (self.dir / "d").mkdir()
        self.fails(2, "there is no file in it", "seed", "n", self.dir / "d")

    def test_special_files(self):
        (self.dir / "d").mkdir()
        os.mkfifo(self.dir / "d/pipe")
        self.fails(2, "d/pipe is a pipe", "seed", "n", self.dir / "d")
        os.unlink(self.dir / "d/pipe")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(self.dir / "d/s"))
            self.fails(2, "d/s is a socket", "seed", "n", self.dir / "d")
        self.fails(2, "/dev/null is a character device", "seed", "n", "/dev/null")

    def test_links(self):
        self.make("d/f", b"x")
        (self.dir / "d/link").symlink_to("f")
        self.fails(2, "d/link is a symbolic link: with --follow", "seed", "n", self.dir / "d")
        (self.dir / "d/link").unlink()
        (self.dir / "d/link").symlink_to("nothing")
        self.fails(3, "symbolic link to nothing", "seed", "--follow", "n", self.dir / "d")
        (self.dir / "d/link").unlink()
        (self.dir / "d/link").symlink_to("..")
        self.fails(2, "leads back to a directory", "seed", "--follow", "n", self.dir / "d")

    def test_equal_names(self):
        self.make("1/f", b"x")
        self.make("2/f", b"y")
        self.fails(4, 'two of them have the name "f"', "seed", "n", self.dir / "1/f", self.dir / "2/f")
        err = self.fails(4, 'two of them have the name "f"', "seed", "n", self.dir / "1/f", self.dir / "1/f")
        self.assertIn("rename one of them", err)
        self.assertNotIn("--force", err)

    def test_hints_name_the_command(self):
        self.assertIn("try: shoal help seed\n", self.fails(2, "payload name is empty", "seed", "", self.make("f", b"x")))
        self.assertIn("try: shoal help kv put\n", self.fails(2, "it is a directory", "kv", "put", "k", self.dir))

    def test_unreadable_file(self):
        self.make("d/f", b"x", 0o000)
        self.fails(1, "d/f: Permission denied", "seed", "n", self.dir / "d", **self.as_nobody())

    def test_name_is_taken(self):
        self.make("f", b"x")
        self.seed("n", self.dir / "f")
        err = self.fails(4, "", "seed", "n", self.dir / "f")
        self.assertIn("--force", err)
        self.run_shoal("get", "n", self.dir / "dst")

    def test_address_is_taken(self):
        self.make("f", b"x")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            name = f"127.0.0.1:{taken.getsockname()[1]}"
            err = self.fails(9, name, "seed", "n", self.dir / "f", "--name", name)
        self.assertIn("HOST:PORT", err)
        self.nothing_registered()

    def test_address_is_not_here(self):
        self.make("f", b"x")
        self.fails(9, "no-such-host.invalid", "seed", "n", self.dir / "f", "--name", "no-such-host.invalid:0")
        self.fails(9, "192.0.2.1", "seed", "n", self.dir / "f", "--name", "192.0.2.1:0")

    def test_metadata_is_down(self):
        self.make("f", b"x")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for arguments in (["seed", "n", self.dir / "f"], ["get", "n", self.dir / "d"], ["ls"], ["stat", "n"]):
            err = self.fails(7, f"127.0.0.1:{port}", *arguments, "--metadata", f"etcd://127.0.0.1:{port}")
            self.assertIn("shoal doctor", err)
        self.fails(7, "", "ls", "--metadata", f"sqlite:{self.dir}/no/such/place.db")

    def test_metadata_answers_nonsense(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            import threading

            def answer():
                while True:
                    try:
                        peer, _ = server.accept()
                    except OSError:
                        return
                    with peer:
                        peer.recv(4096)
                        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\n}nonsense"[:-1])

            threading.Thread(target=answer, daemon=True).start()
            self.fails(7, "", "ls", "--metadata", f"etcd://127.0.0.1:{server.getsockname()[1]}", "--timeout", "20s")
            server.shutdown(socket.SHUT_RDWR)

    def test_metadata_is_silent(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            result = subprocess.run([cli.SHOAL, "ls", "--metadata", f"etcd://127.0.0.1:{server.getsockname()[1]}", "--timeout", "1s"],
                                    capture_output=True, env=self.env, timeout=60, check=False, stdin=subprocess.DEVNULL)
        self.assertIn(result.returncode, (6, 7), result.stderr)

    def test_file_shrinks_while_hashed(self):
        """Where the first page that is gone is read, SIGBUS is raised: it becomes an error that names the file."""
        path = self.dir / "f"
        with open(path, "wb") as f:
            f.truncate(6 << 30)
        seed = self.start("seed", "n", path, "--json")
        wait_for(lambda: '"progress"' in seed.out or seed.process.poll() is not None, "hashing")
        os.truncate(path, 1 << 20)
        self.assertEqual(seed.wait(), 1, seed.err)
        self.assertRegex(seed.err, r"/f has shrunk.* while it was read")
        self.nothing_registered()

    def test_file_changes_while_served(self):
        path = self.make("f", b"x" * 100_000)
        seed = self.seed("n", path)
        path.write_bytes(b"y" * 100_000)
        wait_for(lambda: "is seeded: receivers will refuse" in seed.err, "the warning")
        self.fails(5, "", "get", "n", self.dir / "dst")
        self.assertFalse((self.dir / "dst").exists())
        self.assertEqual(seed.stop(), 0)

    def test_file_shrinks_while_served(self):
        path = self.make("f", b"x" * 1_000_000)
        seed = self.seed("n", path)
        os.truncate(path, 10)
        wait_for(lambda: "f has shrunk while it is seeded" in seed.err, "the warning")
        result = subprocess.run([cli.SHOAL, "get", "n", self.dir / "dst", "--timeout", "20s"], capture_output=True, env=self.env, timeout=60,
                                check=False, stdin=subprocess.DEVNULL)
        self.assertIn(result.returncode, (5, 6, 8), result.stderr)
        self.assertFalse((self.dir / "dst").exists())
        self.assertIsNone(seed.process.poll())
        self.assertEqual(seed.stop(), 0)

    def test_staging_directories_are_no_data(self):
        self.make("d/f", b"x")
        self.make(f"d/{STAGING}0123/0", b"half")
        self.seed("n", self.dir / "d")
        self.run_shoal("get", "n", self.dir / "dst")
        self.assertEqual(sorted(tree_of(self.dir / "dst")), [b"d", b"d/f"])

    def test_signals_while_hashing(self):
        path = self.dir / "f"
        with open(path, "wb") as f:
            f.truncate(200 << 30)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            seed = self.start("seed", "n", path, "--json")
            wait_for(lambda: '"progress"' in seed.out or seed.process.poll() is not None, "hashing")
            self.assertEqual(seed.stop(number), 128 + number, seed.err)
            self.assertIn("ended by", seed.err)
        self.nothing_registered()


class Get(CliTest):
    def test_not_found(self):
        err = self.fails(3, 'cannot get "n"', "get", "n", self.dir / "dst")
        self.assertIn("shoal ls", err)
        self.fails(3, 'cannot look at "n"', "stat", "n")
        self.assertFalse((self.dir / "dst").exists())

    def test_options_that_exclude_each_other(self):
        self.fails(2, "exclude each other", "get", "--seed", "--no-share", "n", self.dir / "dst")

    def test_wait_ends_with_the_deadline(self):
        err = self.fails(6, "it did not appear in time", "get", "--wait", "--timeout", "2s", "n", self.dir / "dst")
        self.assertIn("--timeout", err)

    def test_wait_ends_with_a_signal(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            get = self.start("get", "--wait", "n", self.dir / "dst")
            wait_for(lambda: "waiting for" in get.err, "the note")
            self.assertEqual(get.stop(number), 128 + number)
        self.assertFalse((self.dir / "dst").exists())

    def test_source_is_dead(self):
        self.make("f", b"x" * 100_000)
        seed = self.seed("n", self.dir / "f")
        seed.kill()
        result = subprocess.run([cli.SHOAL, "get", "n", self.dir / "dst"], capture_output=True, env=self.env, timeout=60, check=False,
                                stdin=subprocess.DEVNULL)
        # 3: the lease was over already, and the payload with it.
        self.assertIn(result.returncode, (8, 3), result.stderr)
        self.assertFalse((self.dir / "dst").exists())

    def test_wrong_bytes(self):
        self.node("n", "--damage", 200_000)
        err = self.fails(5, "127.0.0.1", "get", "n", self.dir / "dst")
        self.assertIn("--force", err)
        self.assertFalse((self.dir / "dst").exists())

    def test_unsafe_lists(self):
        evil = {
            "up": file_list(file("../x")),
            "up inside": file_list(file("a/../../x")),
            "absolute": file_list(file("/tmp/x")),
            "twice": file_list(file("a", 2), file("a", 3)),
            "file as directory": file_list(file("a", 2), file("a/b", 3)),
            "empty component": file_list(file("a//b")),
            "huge count": file_list(file("a"), count=4_000_000_000),
            "long name": file_list(file("a" * 256)),
            "long path": file_list(file("/".join(["a" * 200] * 30))),
            "deep": file_list(file("/".join(["a"] * 300))),
            "link": file_list({"path": "a", "type": "link", "mode": 0o777, "target": "/etc"}),
            "size": file_list(file("a", 4)),
            "two sizes": file_list(file("a", 2), file("b", 3)),
            "no content": file_list(file("a", 0)),
            "garbage": b"\x00\xff" * 50,
            "json of another kind": b'{"a":1}\n',
        }
        for name, attachment in evil.items():
            with self.subTest(name=name):
                path = self.make("attachment", attachment)
                node = self.node(name, "--attachment", path)
                code = 1 if name == "huge count" else 5
                self.fails(code, f'cannot get "{name}"', "get", name, self.dir / "dst")
                self.assertFalse((self.dir / "dst").exists())
                self.run_shoal("stat", name)
                node.stop()
        self.assertFalse((self.dir / "x").exists())

    def test_modes_of_an_evil_list(self):
        self.node("n", "--attachment", self.make("attachment", file_list(file("a", mode=0o6755))))
        self.run_shoal("get", "n", self.dir / "dst")
        self.assertEqual(tree_of(self.dir / "dst"), {b"a": (0o755, bytes(range(5)))})

    def test_planted_links(self):
        """A link below DIR is never followed, neither for directories nor for files."""
        self.make("d/sub/f", b"evil")
        (self.dir / "outside").mkdir()
        (self.dir / "dst").mkdir()
        self.seed("n", self.dir / "d")
        (self.dir / "dst/d").symlink_to(self.dir / "outside")
        err = self.fails(4, '"d" is in the way', "get", "n", self.dir / "dst")
        self.assertIn("links are not followed", err)
        (self.dir / "dst/d").unlink()
        (self.dir / "dst/d").mkdir()
        (self.dir / "dst/d/sub").symlink_to(self.dir / "outside")
        self.fails(4, '"d/sub" is in the way', "get", "n", self.dir / "dst")
        self.assertEqual(os.listdir(self.dir / "outside"), [])
        self.assertEqual(sorted(os.listdir(self.dir / "dst")), ["d"])

    def test_in_the_way(self):
        self.make("d/f", b"x")
        self.seed("n", self.dir / "d")
        (self.dir / "1/d/f").mkdir(parents=True)
        self.fails(4, '"d/f" is in the way: it is a directory', "get", "n", self.dir / "1")
        self.make("2/d", b"a file")
        self.fails(4, '"d" is in the way: a directory is needed', "get", "n", self.dir / "2")
        (self.dir / "3/d").mkdir(parents=True)
        os.mkfifo(self.dir / "3/d/f")
        self.fails(4, "device, pipe or socket", "get", "n", self.dir / "3")
        self.make("4/d/f", b"old")
        self.fails(4, "--no-overwrite was given", "get", "--no-overwrite", "n", self.dir / "4")
        self.assertEqual((self.dir / "4/d/f").read_bytes(), b"old")
        self.make("5", b"a file")
        self.fails(4, "is not a directory", "get", "n", self.dir / "5")
        self.fails(3, "No such file or directory", "get", "n", self.dir / "6/7")
        for number in "1234":
            self.assertEqual([p for p in os.listdir(self.dir / number) if p.startswith(STAGING)], [])

    def test_directory_is_not_writable(self):
        self.make("f", b"x")
        (self.dir / "dst").mkdir()
        (self.dir / "dst").chmod(0o555)
        options = self.as_nobody()
        self.seed("n", self.dir / "f", **options)
        self.fails(1, "Permission denied", "get", "n", self.dir / "dst", **options)
        self.assertIn("FAIL", self.run_shoal("doctor", "--dir", self.dir / "dst", code=1, **options)[0])

    def in_small_disk(self, size, *arguments):
        """Runs shoal where self.dir/disk is a file system of that size; skips where that is not permitted."""
        (self.dir / "disk").mkdir(exist_ok=True)
        unshare = shutil.which("unshare")
        own = ["-m"] if os.geteuid() == 0 else ["-rm"]
        mount = f'mount -t tmpfs -o size={size} none "$0"'
        probe = [unshare, *own, "sh", "-c", mount, str(self.dir / "disk")]
        if not unshare or subprocess.run(probe, capture_output=True, check=False).returncode != 0:
            self.skipTest("cannot mount a small file system here")
        command = f'{mount} && shift && "$@"; code=$?; ls -A "$0" >&2; exit $code'
        return subprocess.run([unshare, *own, "sh", "-c", command, str(self.dir / "disk"), "x", cli.SHOAL, *map(str, arguments)],
                              capture_output=True, text=True, env=self.env, timeout=60, check=False, stdin=subprocess.DEVNULL)

    def test_disk_is_too_small(self):
        self.make("f", b"x" * 3_000_000)
        self.make("g", b"x" * 3_000_000)
        self.seed("n", self.dir / "f", self.dir / "g")
        result = self.in_small_disk("4m", "get", "n", self.dir / "disk")
        self.assertEqual(result.returncode, 11, result.stderr)
        self.assertIn("the payload needs 5.72 MiB", result.stderr)
        self.assertTrue(result.stderr.endswith("choose another directory\n"), result.stderr)
        self.assertEqual(self.in_small_disk("8m", "get", "n", self.dir / "disk").returncode, 0)

    def test_disk_has_too_few_inodes(self):
        for i in range(30):
            self.make(f"d/{i}", b"x")
        self.seed("n", self.dir / "d")
        result = self.in_small_disk("4m,nr_inodes=20", "get", "n", self.dir / "disk")
        self.assertEqual(result.returncode, 11, result.stderr)
        self.assertTrue(result.stderr.endswith("choose another directory\n"), result.stderr)

    def big_seed(self):
        """A payload that takes a while: many small pieces."""
        path = self.dir / "big/f"
        path.parent.mkdir()
        with open(path, "wb") as f:
            f.truncate(3 << 30)
        self.make("big/small", b"x")
        return self.seed("big", "--piece-size", "256K", self.dir / "big")

    def start_get(self, *options):
        get = self.start("get", "--json", "--no-resume", *options, "big", self.dir / "dst")

        def is_in_the_middle():
            if get.process.poll() is not None:
                raise AssertionError(f"ended too early: {get.out} {get.err}")
            return any(0 < line["done_bytes"] < line["total_bytes"] for line in self.json_lines(get.out.rpartition("\n")[0])
                       if line["event"] == "progress")

        wait_for(is_in_the_middle, "the middle of the transfer")
        return get

    def test_signals_in_the_middle(self):
        self.big_seed()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            get = self.start_get()
            self.assertEqual(get.stop(number), 128 + number, get.err)
            self.assertIn(f'nothing was left in "{self.dir}/dst"', get.err)
            self.assertFalse((self.dir / "dst").exists())
        out, _ = self.run_shoal("ls", "--json")
        self.assertEqual(json.loads(out)[0]["sources"], 1)

    def test_replaced_in_the_middle(self):
        """The old generation is gone, another has its name: never a mixture of both."""
        seed = self.big_seed()
        get = self.start_get()
        get.process.send_signal(signal.SIGSTOP)
        seed.kill()
        self.node("big", 100)
        get.process.send_signal(signal.SIGCONT)
        self.assertEqual(get.wait(), 10, get.err)
        self.assertIn("replaced", get.err)
        self.assertFalse((self.dir / "dst").exists())

    def test_deadline_in_the_middle(self):
        self.big_seed()
        (self.dir / "dst").mkdir()
        self.fails(6, "", "get", "--no-resume", "--timeout", "700ms", "big", self.dir / "dst")
        self.assert_nothing_left(self.dir / "dst")

    def test_kill_in_the_middle(self):
        self.big_seed()
        get = self.start_get()
        get.kill()
        names = os.listdir(self.dir / "dst")
        self.assertFalse((self.dir / "dst/big/f").exists())
        self.assertFalse((self.dir / "dst/big/small").exists())
        self.assertEqual(len([name for name in names if name.startswith(STAGING)]), 1)
        # The next one clears up what was left, but not what a living one or another payload may need.
        self.make("f", b"x")
        self.seed("n", self.dir / "f")
        living = self.start_get()
        (staging,) = [name for name in os.listdir(self.dir / "dst") if name.startswith(STAGING)]
        self.assertNotIn(staging, names)
        other = self.start_get()
        self.assertEqual(other.stop(), 143)
        self.run_shoal("get", "n", self.dir / "dst")
        self.assertEqual([name for name in os.listdir(self.dir / "dst") if name.startswith(STAGING)], [staging])
        self.assertEqual(living.stop(), 143)
        self.assertEqual(os.listdir(self.dir / "dst"), ["f"])

    def test_second_signal_ends_at_once(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            get = self.start("get", "--wait", "n", self.dir / "dst", "--metadata", f"etcd://127.0.0.1:{server.getsockname()[1]}",
                             "--timeout", "none")
            server.settimeout(cli.DEADLINE_S)
            with server.accept()[0]:
                get.process.send_signal(signal.SIGTERM)
                self.assertEqual(get.stop(), 143)


if __name__ == "__main__":
    cli.main()
