#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""get that was interrupted and runs again, and get of a new generation: what is there is not pulled."""

import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess

import cli
from cli import CliTest, tree_of, wait_for

STAGING = ".shoal-part-"
PIECE = 65536
SIZES = {"w/a": 160 * PIECE + 17, "w/b": 96 * PIECE, "w/c": 30}
MODES = {"w/a": 0o644, "w/b": 0o444, "w/c": 0o400}
TOTAL = sum(SIZES.values())
# The first 640 KiB of a connection are not paced; then the whole takes some seconds.
RATE = 3_000_000


def summary(tree):
    """What a failed comparison can show."""
    return {path: (oct(mode), content if content is None else (len(content), hashlib.md5(content).hexdigest()))
            for path, (mode, content) in tree.items()}


class Resume(CliTest):
    def setUp(self):
        super().setUp()
        self.env["SHOAL_PROTOCOL"] = "tcp"  # which can be paced
        entries = [{"path": "w", "type": "dir", "mode": 0o750}]
        arguments = []
        self.content = {b"w": (0o750, None)}
        for path, size in SIZES.items():
            data = os.urandom(size)
            arguments += ["--file", self.make(f"src/{path}", data)]
            entries.append({"path": path, "type": "file", "mode": MODES[path], "size": size})
            self.content[path.encode()] = (MODES[path], data)
        lines = [{"format": "shoal-file-list", "version": 1, "entries": len(entries)}, *entries]
        attachment = self.make("attachment", b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        self.arguments = ["--piece", PIECE, "--attachment", attachment, *arguments]
        self.dst = self.dir / "dst"

    def paced_node(self, name="n"):
        return self.node(name, "--pace", RATE, *self.arguments)

    def start_get(self, *options, directory=None, **more):
        """A get that is in the middle, and how many bytes it has at least."""
        get = self.start("get", "--json", *options, "n", directory or self.dst, **more)

        def verified():
            if get.process.poll() is not None:
                raise AssertionError(f"ended too early: {get.out} {get.err}")
            lines = self.json_lines(get.out.rpartition("\n")[0])
            return max((line["done_bytes"] for line in lines if line["event"] == "progress"), default=0) >= TOTAL // 5

        wait_for(verified, "the middle of the transfer")
        return get

    def killed_get(self, node, **more):
        get = self.start_get(**more)
        get.kill()
        node.process.send_signal(signal.SIGUSR1)
        return self.partial(more.get("directory") or self.dst)

    def partial(self, directory):
        (name,) = [name for name in os.listdir(directory) if name.startswith(STAGING)]
        return directory / name

    def get(self, *options, directory=None, **more):
        """To the end; the files are exact and nothing else is there."""
        directory = directory or self.dst
        out, err = self.run_shoal("get", "--json", *options, "n", directory, **more)
        result = self.json_lines(out)[-1]
        self.assertEqual(result["reused_bytes"] + sum(source["bytes"] for source in result["sources"]), result["bytes"])
        self.assertEqual(summary(tree_of(directory)), summary(self.content), err)
        return result

    def test_killed_and_started_again(self):
        node = self.paced_node()
        partial = self.killed_get(node)
        self.assertEqual(sorted(os.listdir(self.dst)), [partial.name, "w"])
        self.assertEqual(os.listdir(self.dst / "w"), [])
        result = self.get()
        self.assertGreaterEqual(result["reused_bytes"], TOTAL // 5)
        self.assertLess(result["reused_bytes"], TOTAL)

    def test_signals_and_deadline(self):
        node = self.paced_node()
        for number in (signal.SIGINT, signal.SIGTERM):
            get = self.start_get()
            self.assertEqual(get.stop(number), 128 + number, get.err)
            self.assertRegex(get.err, rf'partial files are kept in "{self.dst}/{STAGING}[0-9a-f-]+" \(.* verified\); run the same')
            self.assertEqual(os.listdir(self.dst), [self.partial(self.dst).name])
        node.process.send_signal(signal.SIGUSR1)
        self.assertGreaterEqual(self.get()["reused_bytes"], TOTAL // 5)

    def test_deadline(self):
        node = self.node("n", "--pace", RATE // 20, *self.arguments)
        err = self.fails(6, "partial files are kept", "get", "--timeout", "15s", "n", self.dst)
        self.assertIn("--timeout", err)
        node.process.send_signal(signal.SIGUSR1)
        self.assertGreater(self.get()["reused_bytes"], 0)

    def test_directory_that_no_list_names(self):
        """It gets its mode also when it was made by a get that was killed."""
        node = self.node("team/model", "--pace", RATE, "--piece", PIECE, TOTAL)
        get = self.start("get", "team/model", self.dst)
        wait_for((self.dst / "team").exists, "the directory")
        get.kill()
        node.process.send_signal(signal.SIGUSR1)
        self.run_shoal("get", "team/model", self.dst)
        self.assertEqual((self.dst / "team").stat().st_mode & 0o7777, 0o755)
        self.assertEqual((self.dst / "team/model").read_bytes(), bytes(i & 255 for i in range(TOTAL)))

    def test_zeros(self):
        """Holes are what they should be."""
        path = self.make("zeros", bytes(TOTAL))
        node = self.node("n", "--pace", RATE, "--piece", PIECE, "--file", path)
        self.killed_get(node)
        self.content = {b"n": (0o644, bytes(TOTAL))}
        self.assertEqual(self.get()["reused_bytes"], TOTAL)

    def stop_node(self, node):
        """SIGSTOP, but not while it holds the lock of the metadata."""

        def is_stopped():
            node.process.send_signal(signal.SIGSTOP)
            metadata = sqlite3.connect(self.dir / "metadata.db", timeout=2, isolation_level=None)
            try:
                metadata.execute("BEGIN IMMEDIATE")
                metadata.execute("ROLLBACK")
                return True
            except sqlite3.OperationalError:
                node.process.send_signal(signal.SIGCONT)
                return False
            finally:
                metadata.close()

        wait_for(is_stopped, "metadata that nobody has locked")

    def shrink_while_read(self, mode, mapped):
        """Its mapping raises SIGBUS then: what is gone is pulled."""
        data = os.urandom(TOTAL)
        self.make("dst/n", data, mode)
        # Without a list of files the first thing that the source is asked for comes after the files have been mapped.
        node = self.node("n", "--piece", PIECE, "--file", self.make("new", data))
        self.stop_node(node)
        get = self.start("get", "--json", "n", self.dst)

        def is_mapped():
            with open(f"/proc/{get.process.pid}/maps", encoding="utf-8") as maps:
                text = maps.read()
            return all(name in text for name in mapped)

        wait_for(is_mapped, "the mappings")
        os.truncate(self.dst / "n", 3 * PIECE)
        node.process.send_signal(signal.SIGCONT)
        self.assertEqual(get.wait(), 0, get.err)
        self.assertEqual(self.json_lines(get.out)[-1]["reused_bytes"], 3 * PIECE)
        self.assertEqual((self.dst / "n").read_bytes(), data)

    def test_replaced_file_shrinks_while_it_is_read(self):
        self.shrink_while_read(0o600, [f"{self.dst}/n\n", f"{self.dst}/{STAGING}"])

    def test_kept_file_shrinks_while_it_is_read(self):
        self.shrink_while_read(0o644, [f"{self.dst}/n\n"])

    def test_partial_file_shrinks_while_it_is_filled(self):
        """Nothing can be right then; the next get repairs it."""
        node = self.paced_node()
        get = self.start_get()
        largest = max(self.partial(self.dst).iterdir(), key=lambda path: path.stat().st_size)
        os.truncate(largest, PIECE)
        node.process.send_signal(signal.SIGUSR1)
        self.assertNotEqual(get.wait(), 0)
        self.get()

    def test_replaced_file_is_let_go(self):
        """Who goes on serving does not hold on to it."""
        self.make("dst/w/a", b"old" * PIECE)
        (self.dst / "w").chmod(0o750)
        self.node("n", *self.arguments)
        get = self.start("get", "--seed", "n", self.dst).wait_for_output("got n")
        with open(f"/proc/{get.process.pid}/maps", encoding="utf-8") as maps:
            self.assertEqual([line for line in maps if "dst" in line and "(deleted)" in line], [])
        self.assertEqual(get.stop(), 0)

    def test_no_source_any_more(self):
        """What is there stays for another time, also when nobody could look at it."""
        node = self.paced_node()
        get = self.start_get()
        node.kill()
        self.assertEqual(get.wait(), 8, get.err)
        self.assertIn("partial files are kept", get.err)
        self.assertIn(subprocess.run([cli.SHOAL, "get", "n", self.dst], capture_output=True, env=self.env, timeout=60, check=False,
                                     stdin=subprocess.DEVNULL).returncode, (3, 8))
        self.node("n", *self.arguments)
        self.assertGreaterEqual(self.get()["reused_bytes"], TOTAL // 5)

    def test_no_resume(self):
        node = self.paced_node()
        get = self.start_get("--no-resume")
        self.assertEqual(get.stop(), 143)
        self.assertIn(f'nothing was left in "{self.dst}"', get.err)
        self.assertFalse(self.dst.exists())
        self.killed_get(node)
        self.assertEqual(self.get("--no-resume")["reused_bytes"], 0)
        self.assertEqual(self.get("--no-resume")["reused_bytes"], 0)

    def test_same_again(self):
        self.node("n", *self.arguments)
        self.assertEqual(self.get()["reused_bytes"], 0)
        inodes = [(self.dst / path).stat().st_ino for path in SIZES]
        self.assertEqual(self.get("--sync")["reused_bytes"], TOTAL)
        self.assertEqual([(self.dst / path).stat().st_ino for path in SIZES], inodes)
        # Served from where they are.
        get = self.start("get", "--seed", "n", self.dst).wait_for_output("got n")
        out, _ = self.run_shoal("get", "--json", "n", self.dir / "other")
        self.assertEqual(len(self.json_lines(out)[-1]["sources"]), 2)
        self.assertEqual(get.stop(), 0)
        # One that only has another mode is brought anew, from itself.
        (self.dst / "w/b").chmod(0o600)
        self.assertEqual(self.get()["reused_bytes"], TOTAL)
        self.assertEqual(self.get("--no-resume")["reused_bytes"], 0)
        out, _ = self.run_shoal("get", "n", self.dst)
        self.assertRegex(out, r"(?m)^  there already: 16\.0 MiB$")
        self.assertEqual(summary(tree_of(self.dst)), summary(self.content))

    def test_same_again_needs_no_right_to_write(self):
        self.node("n", *self.arguments)
        self.dst.mkdir()
        options = self.as_nobody()
        self.get(**options)
        self.dst.chmod(0o555)
        (self.dst / "w").chmod(0o550)
        self.content[b"w"] = (0o550, None)
        self.assertEqual(self.get(**options)["reused_bytes"], TOTAL)
        (self.dst / "w").chmod(0o750)
        self.dst.chmod(0o755)

    def test_same_again_after_a_kill(self):
        """What was left of it is cleared up, too."""
        node = self.paced_node()
        self.killed_get(node)
        partial = self.partial(self.dst)
        self.run_shoal("get", "n", self.dir / "other")
        for path in SIZES:
            shutil.copy2(self.dir / "other" / path, self.dst / path)
        (self.dst / "w").chmod(0o750)
        self.assertTrue(partial.exists())
        self.assertEqual(self.get()["reused_bytes"], TOTAL)

    def test_new_generation(self):
        """One file changes in two pieces, one grows, one shrinks, one is new; the replaced files stay whole for those who
        read them."""
        self.make("1/m/same", os.urandom(40 * PIECE))
        old = os.urandom(100 * PIECE)
        self.make("1/m/changed", old)
        long = os.urandom(10 * PIECE)
        self.make("1/m/grows", long[:5 * PIECE])
        self.make("1/m/shrinks", long)
        shutil.copytree(self.dir / "1", self.dir / "2")
        changed = bytearray(old)
        changed[3 * PIECE] ^= 1
        changed[77 * PIECE - 1] ^= 1
        self.make("2/m/changed", bytes(changed))
        self.make("2/m/grows", long)
        self.make("2/m/shrinks", long[:3 * PIECE])
        self.make("2/m/new", os.urandom(2 * PIECE))
        first = self.seed("n", self.dir / "1/m", "--piece-size", PIECE)
        self.content = tree_of(self.dir / "1")
        self.get()
        self.seed("n", "--force", self.dir / "2/m", "--piece-size", PIECE)
        first.stop()
        self.content = tree_of(self.dir / "2")
        with open(self.dst / "m/changed", "rb") as reader:
            result = self.get()
            self.assertEqual(reader.read(), old)
        self.assertEqual(result["bytes"] - result["reused_bytes"], (2 + 5 + 2) * PIECE)

    def test_new_generation_after_a_kill(self):
        """The partial files and those to be replaced both count."""
        self.node("n", *self.arguments)
        self.get()
        old = self.content[b"w/b"][1]
        self.content[b"w/a"] = (0o644, os.urandom(SIZES["w/a"]))
        self.content[b"w/b"] = (0o444, bytes([old[0] ^ 1]) + old[1:])
        for path in (b"w/a", b"w/b"):
            self.make("src/" + path.decode(), self.content[path][1])
        node = self.paced_node()
        self.killed_get(node)
        self.assertEqual((self.dst / "w/b").read_bytes(), old)
        self.assertGreater(self.get()["reused_bytes"], SIZES["w/b"])

    def test_unlike_file_in_place(self):
        """Neither its content nor its kind matters."""
        self.node("n", *self.arguments)
        self.make("dst/w/a", os.urandom(3 * SIZES["w/a"]))
        self.make("elsewhere", self.content[b"w/b"][1])
        (self.dst / "w/b").symlink_to(self.dir / "elsewhere")
        self.make("dst/w/c")
        (self.dst / "w").chmod(0o750)
        self.assertEqual(self.get()["reused_bytes"], 0)
        self.assertEqual((self.dir / "elsewhere").read_bytes(), self.content[b"w/b"][1])

    def test_unreadable_file_in_place(self):
        self.node("n", *self.arguments)
        self.dst.mkdir()
        options = self.as_nobody()
        self.get(**options)
        (self.dst / "w/b").chmod(0)
        self.assertEqual(self.get(**options)["reused_bytes"], TOTAL - SIZES["w/b"])

    def each_with_partial(self, spoils, is_nobody=False):
        """Copies of one partial directory, each spoiled in its own way; yields the result of the get that meets it."""
        node = self.paced_node()
        self.dst.mkdir()
        more = self.as_nobody() if is_nobody else {}
        partial = self.killed_get(node, **more)
        largest = max(partial.iterdir(), key=lambda path: path.stat().st_size).name
        for spoil in spoils:
            directory = self.dir / f"copy-{spoil.__name__}"
            shutil.copytree(self.dst, directory, symlinks=True)
            if more:
                subprocess.run(["chown", "-R", f"{more['user']}:{more['group']}", directory], check=True)
            spoil(directory / partial.name, largest)
            with self.subTest(spoil.__name__):
                yield self.get(directory=directory, **more)

    def test_spoiled_partial_files(self):
        self.make("elsewhere", b"untouched" * 100_000)

        def foreign_files(partial, _):
            self.make(partial / "junk", b"junk")
            self.make(partial / ("f" * 32), b"junk")
            (partial / "empty").mkdir()
            os.mkfifo(partial / "pipe")
            (partial / "link").symlink_to(self.dir / "elsewhere")

        def truncated(partial, name):
            os.truncate(partial / name, PIECE // 2)

        def empty(partial, name):
            os.truncate(partial / name, 0)

        def too_long(partial, name):
            with open(partial / name, "ab") as file:
                file.write(os.urandom(1_000_000))

        def garbage(partial, name):
            (partial / name).write_bytes(os.urandom(SIZES["w/a"]))

        def link(partial, name):
            (partial / name).unlink()
            (partial / name).symlink_to(self.dir / "elsewhere")

        def hard_link(partial, name):
            (partial / name).unlink()
            os.link(self.dir / "elsewhere", partial / name)

        def pipe(partial, name):
            (partial / name).unlink()
            os.mkfifo(partial / name)

        def directory(partial, name):
            (partial / name).unlink()
            (partial / name).mkdir()

        def swapped(partial, _):
            first, second = [path for path in partial.iterdir() if path.stat().st_size > PIECE]
            first.rename(partial / "x")
            second.rename(first)
            (partial / "x").rename(second)

        def is_a_file(partial, _):
            shutil.rmtree(partial)
            partial.write_bytes(b"x")

        def is_a_link(partial, _):
            partial.rename(self.dir / "moved")
            partial.symlink_to(self.dir / "moved")

        spoils = [foreign_files, truncated, empty, too_long, garbage, link, hard_link, pipe, directory, swapped]
        for result in self.each_with_partial(spoils):
            self.assertLess(result["reused_bytes"], TOTAL)
        self.assertEqual((self.dir / "elsewhere").read_bytes(), b"untouched" * 100_000)
        # What has the name but is no directory is none of ours: it stays as it is.
        partial = self.partial(self.start_and_kill())
        for spoil in (is_a_file, is_a_link):
            copy = self.dir / f"copy-{spoil.__name__}"
            shutil.copytree(partial.parent, copy)
            spoil(copy / partial.name, None)
            self.run_shoal("get", "n", copy)
            tree = {path: entry for path, entry in tree_of(copy).items() if path.startswith(b"w")}
            self.assertEqual(summary(tree), summary(self.content))
            self.assertTrue(os.path.lexists(copy / partial.name))
        self.assertTrue(any((self.dir / "moved").iterdir()))

    def start_and_kill(self):
        directory = self.dir / "again"
        self.killed_get(self.paced_node(), directory=directory)
        return directory

    def test_content_that_was_damaged_is_pulled_anew(self):
        """A good piece counts, the bad one beside it does not."""

        def bad_middle(partial, name):
            with open(partial / name, "r+b") as file:
                for offset in range(PIECE // 2, SIZES["w/a"], 2 * PIECE):
                    file.seek(offset)
                    byte = file.read(1)
                    file.seek(offset)
                    file.write(bytes([byte[0] ^ 0xff]))

        for result in self.each_with_partial([bad_middle]):
            self.assertGreater(result["reused_bytes"], 0)

    def test_partial_files_without_permission(self):
        def read_only(partial, name):
            (partial / name).chmod(0o444)

        def no_mode(partial, name):
            (partial / name).chmod(0)

        def read_only_directory(partial, _):
            partial.chmod(0o500)

        def all_of_them(partial, _):
            for path in partial.iterdir():
                path.chmod(0o444)

        spoils = [read_only, no_mode, read_only_directory, all_of_them]
        for result in self.each_with_partial(spoils, is_nobody=True):
            self.assertLess(result["reused_bytes"], TOTAL)

    def test_partial_directory_that_cannot_be_opened(self):
        """It is in nobody's way."""
        node = self.paced_node()
        self.dst.mkdir()
        options = self.as_nobody()
        partial = self.killed_get(node, **options)
        partial.chmod(0)
        self.run_shoal("get", "n", self.dst, **options)
        tree = {path: entry for path, entry in tree_of(self.dst).items() if path.startswith(b"w")}
        self.assertEqual(summary(tree), summary(self.content))

    def test_many_partial_directories(self):
        """The best is taken, the others go."""
        node = self.paced_node()
        partial = self.killed_get(node)
        stem = partial.name.rpartition("-")[0]
        for i in range(20):
            shutil.copytree(partial, self.dst / f"{stem}-{i:016x}")
            for path in (self.dst / f"{stem}-{i:016x}").iterdir():
                path.write_bytes(b"x")
        self.assertGreater(self.get()["reused_bytes"], 0)

    def test_partial_files_of_others(self):
        """Another payload's partial files stay; what has no such name is cleared up as ever."""
        self.killed_get(self.paced_node())
        mine = self.partial(self.dst).name
        self.make(f"dst/{STAGING}0123456789abcdef/0", b"x")
        self.make("f", b"x")
        self.seed("other", self.dir / "f")
        self.run_shoal("get", "other", self.dst)
        self.assertEqual(sorted(os.listdir(self.dst)), [mine, "f", "w"])

    def test_space_of_partial_files(self):
        """They do not need their space again; those of another payload give way."""
        node, other = self.paced_node(), self.node("other", *self.arguments)
        disk = self.dir / "disk"
        disk.mkdir()
        unshare = shutil.which("unshare")
        own = ["-m"] if os.geteuid() == 0 else ["-rm"]
        mount = f'mount -t tmpfs -o size={TOTAL + (1 << 19)} none "$1"'
        if not unshare or subprocess.run([unshare, *own, "sh", "-c", mount, "sh", disk], capture_output=True, check=False).returncode:
            self.skipTest("cannot mount a small file system here")
        script = mount + ''' || exit 90
            begin() {
                "$0" get --json n "$1" >"$1.out" & get=$!
                until grep -Eq '"done_bytes":[0-9]{7}' "$1.out"; do kill -0 $get || exit 91; sleep 0.05; done
                kill -9 $get; wait $get
            }
            begin "$1"; kill -USR1 "$2"
            "$0" get --json n "$1" | tail -n 1 || exit 92
            rm -r "$1"/w; kill -USR2 "$2"
            begin "$1"
            "$0" get --json other "$1" | tail -n 1 || exit 93
            ls -A "$1"'''
        result = subprocess.run([unshare, *own, "sh", "-c", script, cli.SHOAL, str(disk), str(node.process.pid)], capture_output=True,
                                text=True, env=self.env, timeout=cli.DEADLINE_S, check=False, stdin=subprocess.DEVNULL)
        self.assertEqual(result.returncode, 0, result.stderr)
        first, second, names = result.stdout.split("\n", 2)
        self.assertGreaterEqual(json.loads(first)["reused_bytes"], 1_000_000)
        self.assertEqual(json.loads(second)["status"], "OK")
        self.assertEqual(names, "w\n")
        self.assertIsNone(other.process.poll())


if __name__ == "__main__":
    cli.main()
