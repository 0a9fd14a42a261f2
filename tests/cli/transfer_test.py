#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""seed, get, ls, stat, doctor: what goes through, and how it is shown."""

import json
import os
import signal
import socket

import cli
from cli import CliTest, tree_of, wait_for


class RoundTrip(CliTest):
    def make_tree(self):
        self.make("src/model/weights.bin", os.urandom(3_000_001))
        self.make("src/model/config.json", b"{}", 0o600)
        self.make("src/model/empty", b"", 0o444)
        self.make("src/model/run.sh", b"#!/bin/sh\n", 0o755)
        self.make("src/model/sub/deep/er/x", b"x")
        self.make("src/model-2", b"sorts between a directory and what is in it")
        for name in (b"-rf", b" lead and trail ", b"new\nline", b"tab\t", b"\xff\xfe not utf-8", "é汉🐟".encode(), b"a'b\"c\\d",
                     b"*?[x]", b"n" * 255):
            with open(os.path.join(os.fsencode(self.dir), b"src/model", name), "wb") as file:
                file.write(name)
        (self.dir / "src/model/no files in it").mkdir()
        (self.dir / "src/model/closed").mkdir()
        self.make("src/model/closed/f", b"1")
        (self.dir / "src/model/closed").chmod(0o555)
        (self.dir / "src/model/private").mkdir(mode=0o700)

    def test_directories_and_files(self):
        self.make_tree()
        self.seed("a tree/of v1", self.dir / "src/model/", self.dir / "src/model-2", env={"SHOAL_PIECE_SIZE": "64K"})
        out, err = self.run_shoal("get", "a tree/of v1", self.dir / "dst")
        self.assertEqual(tree_of(self.dir / "dst"), tree_of(self.dir / "src"))
        self.assertRegex(out, r"got a tree/of v1: 16 files, 2\.86 MiB in .* verified, in .*/dst\n  from .* \(gold\): 2\.86 MiB over (tcp|local)\n")
        self.assertEqual(err, "")

    def test_a_file_and_dot(self):
        self.make("src/f", b"content")
        seed = self.seed("one", self.dir / "src/f")
        self.run_shoal("get", "one", self.dir / "dst")
        self.assertEqual(tree_of(self.dir / "dst"), {b"f": (0o644, b"content")})
        self.assertEqual(seed.stop(), 0)
        self.assertRegex(seed.out, r"\nwithdrew one: \d.* given to others\n(  to 127\.0\.0\.1:\d+: .*\n)?$")
        self.seed("dot", ".", cwd=self.dir / "src")
        self.run_shoal("get", "dot", self.dir / "dst2")
        self.assertEqual(tree_of(self.dir / "dst2")[b"src/f"], (0o644, b"content"))

    def test_limits(self):
        self.make("src/f", os.urandom(400_000))
        seed = self.seed("slow", self.dir / "src/f", "--upload-limit", "8mbit", "--upload-slots", "1")
        self.run_shoal("get", "slow", self.dir / "dst", "--download-limit", "1M", env={"SHOAL_UPLOAD_LIMIT": "64KiB/s"})
        self.assertEqual(tree_of(self.dir / "dst"), tree_of(self.dir / "src"))
        self.assertEqual(seed.stop(), 0)

    def test_only_empty_files(self):
        self.make("src/a")
        self.make("src/b")
        self.seed("nothing", self.dir / "src")
        self.run_shoal("get", "nothing", self.dir / "dst")
        self.assertEqual(tree_of(self.dir / "dst/src"), tree_of(self.dir / "src"))

    def test_special_bits_do_not_travel(self):
        self.make("f", b"x", 0o6755)
        self.seed("suid", self.dir / "f")
        self.run_shoal("get", "suid", self.dir / "dst")
        self.assertEqual(tree_of(self.dir / "dst"), {b"f": (0o755, b"x")})

    def test_umask_does_not_matter(self):
        self.make("d/f", b"x", 0o666)
        (self.dir / "d").chmod(0o777)
        self.seed("open", self.dir / "d")
        self.run_shoal("get", "open", self.dir / "dst", umask=0o077)
        self.assertEqual(tree_of(self.dir / "dst"), {b"d": (0o777, None), b"d/f": (0o666, b"x")})

    def test_two_payloads_into_one_directory(self):
        self.make("one/d/a", b"1")
        self.make("two/d/b", b"2")
        self.seed("one", self.dir / "one/d")
        self.seed("two", self.dir / "two/d")
        for name in ("one", "two"):
            self.run_shoal("get", name, self.dir / "dst")
        self.assertEqual({k: v[1] for k, v in tree_of(self.dir / "dst").items()}, {b"d": None, b"d/a": b"1", b"d/b": b"2"})

    def test_existing_files_are_replaced(self):
        self.make("f", b"new")
        old = self.make("dst/f", b"old", 0o600)
        self.make("elsewhere", b"untouched")
        self.make("g", b"new g")
        (self.dir / "dst/g").symlink_to(self.dir / "elsewhere")
        self.seed("n", self.dir / "f", self.dir / "g")
        with open(old, "rb") as reader:
            self.run_shoal("get", "n", self.dir / "dst")
            self.assertEqual(reader.read(), b"old")
        self.assertEqual(tree_of(self.dir / "dst"), {b"f": (0o644, b"new"), b"g": (0o644, b"new g")})
        self.assertFalse((self.dir / "dst/g").is_symlink())
        self.assertEqual((self.dir / "elsewhere").read_bytes(), b"untouched")

    def test_options_of_get(self):
        self.make("f", b"x" * 300_000)
        self.seed("n", self.dir / "f", env={"SHOAL_MAX_SHARD_SIZE": "100000"})
        for number, option in enumerate((["--no-share"], ["--sync"], ["--max-sources", "1"], ["--timeout", "30s"], ["--timeout", "none"],
                                         ["--no-overwrite"])):
            out, _ = self.run_shoal("get", *option, "n", self.dir / f"d{number}")
            self.assertIn("verified", out)
            self.assertEqual((self.dir / f"d{number}/f").read_bytes(), b"x" * 300_000)
        out, err = self.run_shoal("get", "--no-verify", "n", self.dir / "d")
        self.assertIn("NOT VERIFIED", out)
        self.assertIn("were not verified", err)

    def test_follow(self):
        self.make("blobs/b1", b"blob")
        (self.dir / "snap").mkdir()
        (self.dir / "snap/weights").symlink_to("../blobs/b1")
        (self.dir / "snap/dir").symlink_to("../blobs")
        (self.dir / "named").symlink_to("snap/weights")
        self.seed("s", "--follow", self.dir / "snap", self.dir / "named")
        self.run_shoal("get", "s", self.dir / "dst")
        self.assertEqual({k: v[1] for k, v in tree_of(self.dir / "dst").items()},
                         {b"named": b"blob", b"snap": None, b"snap/dir": None, b"snap/dir/b1": b"blob", b"snap/weights": b"blob"})

    def test_force_replaces(self):
        self.make("1/f", b"first")
        self.make("2/f", b"second")
        self.seed("n", self.dir / "1/f")
        self.seed("n", "--force", self.dir / "2/f")
        self.run_shoal("get", "n", self.dir / "dst")
        self.assertEqual((self.dir / "dst/f").read_bytes(), b"second")

    def test_who_is_replaced_says_so(self):
        self.make("1/f", b"first")
        self.make("2/f", b"second")
        first = self.seed("n", "--json", self.dir / "1/f")
        replica = self.start("get", "--seed", "n", self.dir / "r").wait_for_output("got n")
        second = self.seed("n", "--force", "--json", self.dir / "2/f")
        owner = self.run_shoal("stat", "n", "--json")[0]
        owner = json.loads(owner)["sources"][0]["name"]
        for node in (first, replica):
            wait_for(lambda: f"{owner} replaced it" in node.err, "the line in the log: " + node.err)
            self.assertNotIn("published again", node.err)
        wait_for(lambda: any(event.get("replaced_by") == owner for event in self.json_lines(first.out)), "the event")
        self.assertNotIn("replaced", second.err)
        for node in (first, replica, second):
            self.assertEqual(node.stop(), 0)
        self.assertEqual(first.err.count("replaced it"), 1)

    def test_get_and_go_on_serving(self):
        self.make("f", b"z" * 1_000_000)
        seed = self.seed("n", self.dir / "f")
        replica = self.start("get", "--seed", "n", self.dir / "r").wait_for_output("got n")
        self.assertEqual(seed.stop(signal.SIGINT), 0)
        out, _ = self.run_shoal("get", "--json", "n", self.dir / "r2")
        result = self.json_lines(out)[-1]
        self.assertEqual([source["gold"] for source in result["sources"] if source["bytes"]], [False])
        self.assertEqual((self.dir / "r2/f").read_bytes(), b"z" * 1_000_000)
        self.assertEqual(replica.stop(), 0)
        self.assertEqual(self.run_shoal("ls", "--json")[0], "[]\n")

    def test_wait(self):
        self.make("f", b"late")
        get = self.start("get", "--wait", "n", self.dir / "dst")
        wait_for(lambda: "waiting for" in get.err, "the note")
        self.seed("n", self.dir / "f")
        self.assertEqual(get.wait(), 0, get.err)
        self.assertEqual((self.dir / "dst/f").read_bytes(), b"late")

    def test_payload_without_file_list(self):
        self.node("plain/x", 300, 0, 70)
        self.run_shoal("get", "plain/x", self.dir / "dst")
        expected = bytes(i & 255 for i in range(300)) + bytes(range(70))
        self.assertEqual((self.dir / "dst/plain/x").read_bytes(), expected)
        self.node("../evil")
        self.fails(2, "has a component", "get", "../evil", self.dir / "dst2")
        self.assertFalse((self.dir / "dst2").exists())
        self.assertFalse((self.dir / "evil").exists())

    def test_many_files(self):
        for i in range(20_000):
            path = self.dir / f"src/{i % 40}"
            path.mkdir(parents=True, exist_ok=True)
            (path / str(i)).write_bytes(b"%d" % i)
        self.seed("many", self.dir / "src")
        self.run_shoal("get", "many", self.dir / "dst")
        self.assertEqual(tree_of(self.dir / "dst/src"), tree_of(self.dir / "src"))


class Shown(CliTest):
    def test_ls(self):
        self.assertIn("no payload begins with zz", self.run_shoal("ls", "zz")[1])
        self.make("f", b"x" * 5000)
        self.seed("alpha", self.dir / "f")
        self.seed("beta", self.dir / "f", "--piece-size", "1000", "--max-shard-size", "2KB")
        out, _ = self.run_shoal("ls")
        self.assertEqual([line.split()[0] for line in out.splitlines()], ["NAME", "alpha", "beta"])
        self.assertIn("4.88 KiB", out)
        out, _ = self.run_shoal("ls", "be", "--json")
        (entry,) = json.loads(out)
        self.assertEqual((entry["name"], entry["bytes"], entry["sources"], entry["max_shard_bytes"], entry["status"]),
                         ("beta", 5000, 1, 2000, "OK"))

    def test_stat(self):
        for i in range(25):
            self.make(f"d/f{i:02}", b"x" * i)
        self.seed("n", self.dir / "d")
        out, _ = self.run_shoal("stat", "n")
        self.assertRegex(out, r"name +n\n")
        self.assertRegex(out, r"sources +1\n  gold +127\.0\.0\.1:\d+, reached at 127\.0\.0\.1:\d+\n +has 100 %, gave 0 B, 0 receivers now\n")
        self.assertIn("6 more (--files shows all)", out)
        self.assertIn("d/f24", self.run_shoal("stat", "--files", "n")[0])
        entry = json.loads(self.run_shoal("stat", "--json", "n")[0])
        self.assertEqual(entry["bytes"], 300)
        self.assertEqual(len(entry["files"]), 26)
        self.assertEqual(entry["files"][2], {"path": "d/f01", "type": "file", "mode": "0644", "bytes": 1})
        self.assertEqual(entry["region_bytes"], list(range(1, 25)))

    def test_json_events(self):
        self.make("f", b"x" * 100_000)
        seed = self.start("seed", "--json", "n", self.dir / "f").wait_for_output('"seeding"')
        seeding = [line for line in self.json_lines(seed.out) if line["event"] == "seeding"][0]
        self.assertEqual((seeding["name"], seeding["bytes"], seeding["files"]), ("n", 100_000, 1))
        out, err = self.run_shoal("get", "--json", "n", self.dir / "dst")
        self.assertEqual(err, "")
        lines = self.json_lines(out)
        self.assertEqual({line["event"] for line in lines[:-1]}, {"progress"})
        result = lines[-1]
        self.assertEqual((result["event"], result["status"], result["bytes"], result["files"], result["verified"]),
                         ("result", "OK", 100_000, 1, True))
        self.assertRegex(result["generation"], "^[0-9a-f]{16}$")
        self.assertEqual(result["generation"], seeding["generation"])
        self.assertEqual(sum(source["bytes"] for source in result["sources"]), 100_000)
        self.assertEqual(result["sources"][0]["name"], seeding["node"])
        self.assertEqual(seed.stop(), 0)
        last = self.json_lines(seed.out)[-1]
        self.assertEqual((last["event"], last["command"], last["bytes"]), ("result", "seed", 100_000))
        self.assertLessEqual(last["bytes_served"], 100_000)

    def test_json_error(self):
        out, err = self.run_shoal("get", "--json", "missing", self.dir / "dst", code=3)
        (line,) = self.json_lines(out)
        self.assertEqual((line["event"], line["status"], line["exit_code"]), ("error", "PAYLOAD_NOT_FOUND", 3))
        self.assertIn("shoal ls", line["hint"])
        self.assertIn("cannot get", err)

    def test_closed_output_is_a_failure(self):
        self.make("f", b"x")
        self.seed("n", self.dir / "f")
        with open("/dev/full", "wb") as full:
            import subprocess
            result = subprocess.run([cli.SHOAL, "ls"], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, env=self.env, timeout=60,
                                    check=False)
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"cannot write to standard output", result.stderr)

    def test_doctor(self):
        self.make("f", b"x")
        self.seed("n", self.dir / "f")
        out, _ = self.run_shoal("doctor", "--dir", self.dir)
        self.assertRegex(out, r"(?m)^OK +metadata +sqlite:")
        self.assertRegex(out, r"(?m)^OK +cluster .*1 of 1 sources")
        report = json.loads(self.run_shoal("doctor", "--json", "--dir", self.dir)[0])
        self.assertTrue(report["healthy"])
        self.assertTrue({"metadata", "name", "cluster", "directory"} <= {check["check"] for check in report["checks"]})

    def test_doctor_finds_what_is_wrong(self):
        out, _ = self.run_shoal("doctor", "--dir", self.dir / "missing", code=1)
        self.assertRegex(out, r"(?m)^FAIL +directory")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        out, _ = self.run_shoal("doctor", "--metadata", f"etcd://127.0.0.1:{port}", "--timeout", "5s", code=1)
        self.assertRegex(out, r"(?m)^FAIL +metadata .*127\.0\.0\.1")
        self.assertIn("do: start etcd", out)
        out, _ = self.run_shoal("doctor", "--name", "no-such-host.invalid:1", code=1)
        self.assertRegex(out, r"(?m)^FAIL +name")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            out, _ = self.run_shoal("doctor", "--name", f"127.0.0.1:{taken.getsockname()[1]}")
        self.assertRegex(out, r"(?m)^WARN +name .*in use")


if __name__ == "__main__":
    cli.main()
