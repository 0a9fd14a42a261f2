#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Options, environment, help: every wrong value has its own message and exit code 2, and nothing is registered."""

import os
import pathlib
import subprocess

import cli
from cli import CliTest


class Usage(CliTest):
    def test_no_command_shows_the_overview(self):
        out, err = self.run_shoal(code=2)
        self.assertIn("usage: shoal COMMAND", err)
        self.assertEqual(out, "")

    def test_unknown_command(self):
        self.fails(2, 'unknown command "frobnicate"', "frobnicate")
        self.fails(2, "a command comes first", "--json", "ls")

    def test_version(self):
        for arguments in (["version"], ["--version"], ["-V"]):
            out, err = self.run_shoal(*arguments)
            self.assertRegex(out, r"^shoal \d+\.\d+\.\d+\n$")
            self.assertEqual(err, "")

    def test_help(self):
        for arguments in (["help"], ["--help"], ["-h"]):
            self.assertIn("usage: shoal COMMAND", self.run_shoal(*arguments)[0])
        for command in ("seed", "get", "ls", "stat", "doctor", "topo", "version", "help", "completion", "man"):
            out, _ = self.run_shoal("help", command)
            self.assertIn(f"usage: shoal {command}", out)
            self.assertEqual(out, self.run_shoal(command, "--help")[0])
            self.assertTrue(all(len(line) <= 100 for line in out.splitlines()), out)
        self.fails(2, 'there is no command "x"', "help", "x")
        self.assertIn("corrupted", self.run_shoal("help", "exit-codes")[0])

    def test_argument_counts(self):
        self.fails(2, "too few arguments: NAME PATH...", "seed", "only-a-name")
        self.fails(2, "too few arguments: NAME DIR", "get", "only-a-name")
        self.fails(2, 'too many arguments: "c"', "get", "a", "b", "c")
        self.fails(2, 'too many arguments: "b"', "ls", "a", "b")
        self.fails(2, "too few arguments: NAME", "stat")
        self.fails(2, 'too many arguments: "b"', "stat", "a", "b")
        self.fails(2, 'too many arguments: "a"', "doctor", "a")
        self.fails(2, 'too many arguments: "a"', "topo", "a")
        self.fails(2, 'too many arguments: "a"', "version", "a")
        self.fails(2, "only bash", "completion", "fish")

    def test_unknown_options(self):
        for command in ("seed", "get", "ls", "stat", "doctor"):
            self.fails(2, "unknown or ambiguous option --frob", command, "--frob")
            self.fails(2, "unknown or ambiguous option -Z", command, "-Z")
            self.fails(2, "option --json takes no argument", command, "--json=1")
            self.fails(2, "option --metadata needs an argument", command, "--metadata")
            self.fails(2, "option -m needs an argument", command, "-m")

    def test_wrong_values(self):
        duration, size = "must be a duration", "must be a size of at least 1 byte"
        cases = [(["ls", "--timeout", value], duration) for value in ("0", "", "-1s", "soon", "5d", "1e9h", "ms")]
        cases += [(["seed", option, value, "n", "."], size) for option in ("--max-shard-size", "--piece-size")
                  for value in ("0", "", "-1", "64X", "big", "1.5", "9223372036854775808", " 1")]
        cases += [(["get", "--max-sources", value, "n", "d"], "must be a whole number from 1 to 128")
                  for value in ("0", "1025", "-1", "x", "", "1.0")]
        rate = "must be a rate in bytes per second"
        limits = [("seed", "--upload-limit", "n", "."), ("get", "--upload-limit", "n", "d"), ("get", "--download-limit", "n", "d")]
        for command, option, *rest in limits:
            cases += [([command, option, value, *rest], rate)
                      for value in ("", "fast", "-1", "-5M", "400Mb", "1e9", "9223372036854775808", "99999999T", " 1M")]
            cases += [([command, option, value, *rest], "must be more than zero") for value in ("0", "0mbit", "7bit")]
            cases += [([command, option, value, *rest], "must be at least 64KiB per second") for value in ("1", "65535", "500kbit")]
            cases += [([command, option, value, *rest], "must be at most 1TiB per second") for value in ("2T", "1099511627777")]
            cases += [([command, "--upload-slots", value, *rest], "must be a whole number from 1 to 1024")
                      for value in ("0", "1025", "-1", "all", "")]
            cases += [([command, "--io-threads", value, *rest], "must be a whole number from 1 to 16")
                      for value in ("0", "17", "-1", "all", "")]
        cases += [([command, "--download-limit", "1M", *rest], "unknown or ambiguous option")
                  for command, *rest in (["seed", "n", "."], ["ls"], ["stat", "n"])]
        cases += [([command, option, "", *rest], "must not be empty") for option in ("--metadata", "--name", "--cluster")
                  for command, *rest in (["seed", "n", "."], ["get", "n", "d"], ["ls"], ["stat", "n"], ["doctor"])]
        cases += [(["doctor", "--dir", ""], "must not be empty")]
        for arguments, text in cases:
            with self.subTest(arguments=arguments):
                self.fails(2, text, *arguments)

    def test_wrong_paths(self):
        """Every command that joins refuses a wrong matrix or protocol before it looks for anything."""
        long = self.make("long.json", b" " * (256 << 10) + b"{}")
        cases = [("unknown protocol 'pigeon': there is auto, tcp, local, rdma, ucx", ["--protocol", "pigeon"]),
                 ("must not be empty", ["--protocol", ""]),
                 ("must not be empty", ["--nic-priority-matrix", ""]),
                 ("is for protocol rdma or ucx, not for tcp", ["--protocol", "tcp", "--nic-priority-matrix", '{"*": [["m"], []]}']),
                 (f'cannot open "{self.dir}/none.json": No such file', ["--nic-priority-matrix", f"@{self.dir}/none.json"]),
                 ('cannot open "": No such file', ["--nic-priority-matrix", "@"]),
                 ("cannot read it: Is a directory", ["--nic-priority-matrix", f"@{self.dir}"]),
                 ("it is longer than 262144 bytes", ["--nic-priority-matrix", f"@{long}"]),
                 ("it is not text", ["--nic-priority-matrix", f"@{self.make('zero.json', b'{}' + bytes(1))}"]),
                 ("line 1, column 1: not JSON", ["--nic-priority-matrix", f"@{self.make('bad.json', b'{')}"])]
        cases += [(text, ["--nic-priority-matrix", matrix]) for text, matrix in (
            ("not JSON", "mlx5_0"), ("must be an object", "[]"), ('"gpu:0" is neither', '{"gpu:0": [["m"], []]}'),
            ("preferred devices is empty", '{"cpu:0": [[], ["m"]]}'), ('"m" appears twice', '{"cpu:0": [["m"], ["m"]]}'),
            ("appears twice", '{"cpu:0": [["m"], []], "cpu:0": [["m"], []]}'), ("two lists", '{"cpu:0": [["m"]]}'))]
        for text, options in cases:
            for command in (["seed", "n", self.make("f", b"x")], ["get", "n", self.dir / "d"], ["ls"], ["stat", "n"]):
                with self.subTest(command=command, options=options):
                    self.fails(2, text, *command, *options)
        self.fails(2, "unknown protocol 'x'", "ls", env={"SHOAL_PROTOCOL": "x"})
        self.assertFalse((self.dir / "d").exists())

    def test_empty_matrix_means_none(self):
        for matrix in ("{}", f"@{self.make('empty.json', b'')}", f"@{self.make('blank.json', b' {} ')}"):
            self.assertEqual(self.run_shoal("ls", "--json", "--nic-priority-matrix", matrix)[0], "[]\n")

    def test_wrong_environment(self):
        file = self.make("f", b"x")
        for variable, value, text in (("SHOAL_TIMEOUT", "soon", "must be a duration"), ("SHOAL_JSON", "maybe", "must be 1 or 0"),
                                      ("SHOAL_VERBOSE", "9", "must be 0, 1, 2 or 3"), ("SHOAL_QUIET", "x", "must be 1 or 0"),
                                      ("SHOAL_PIECE_SIZE", "0", "must be a size"), ("SHOAL_MAX_SHARD_SIZE", "x", "must be a size")):
            with self.subTest(variable=variable):
                err = self.fails(2, text, "seed", "n", file, env={variable: value})
                self.assertIn(f'environment variable {variable} is "{value}"', err)
        self.fails(2, "must be a whole number", "get", "n", "d", env={"SHOAL_MAX_SOURCES": "0"})
        for variable, value, text in (("SHOAL_UPLOAD_LIMIT", "0", "must be more than zero"), ("SHOAL_DOWNLOAD_LIMIT", "1k", "at least 64KiB"),
                                      ("SHOAL_UPLOAD_SLOTS", "0", "must be a whole number from 1 to 1024")):
            err = self.fails(2, text, "get", "n", "d", env={variable: value})
            self.assertIn(f'environment variable {variable} is "{value}"', err)

    def test_wrong_metadata_uri(self):
        for uri in ("sqlite:", "etcd://", "ftp://x", "etcd://h:notaport", ":::"):
            with self.subTest(uri=uri):
                self.fails(2, "cannot join", "ls", "--metadata", uri)

    def test_wrong_name(self):
        for name in ("a:b:c", "[::1", "host:99999", "host:x", "a b:1"):
            with self.subTest(name=name):
                self.fails(2, "cannot join the cluster", "seed", "n", self.make("f", b"x"), "--name", name)

    def test_wrong_payload_names(self):
        file = self.make("f", b"x")
        for name in ("", "n" * 513, "a\nb", b"\xff\xfe"):
            with self.subTest(name=name):
                for arguments in (["seed", name, file], ["get", name, self.dir / "d"], ["stat", name]):
                    result = subprocess.run([cli.SHOAL, *arguments], capture_output=True, env=self.env, timeout=60, check=False,
                                            stdin=subprocess.DEVNULL)
                    self.assertEqual(result.returncode, 2, result.stderr)
        self.assertFalse((self.dir / "d").exists())
        self.assertEqual(self.run_shoal("ls", "--json")[0], "[]\n")

    def test_option_goes_before_environment(self):
        other = f"sqlite:{self.dir}/other.db"
        self.run_shoal("ls", "--metadata", other)
        self.assertTrue((self.dir / "other.db").exists())
        self.assertFalse((self.dir / "metadata.db").exists())
        out, _ = self.run_shoal("ls", env={"SHOAL_JSON": "1"})
        self.assertEqual(out, "[]\n")
        self.assertTrue((self.dir / "metadata.db").exists())

    def test_quiet_and_verbose(self):
        self.assertNotEqual(self.run_shoal("ls")[1], "")
        self.assertEqual(self.run_shoal("ls", "-q")[1], "")
        self.assertGreater(len(self.run_shoal("ls", "-vvv")[1]), len(self.run_shoal("ls")[1]))


class DefaultMetadata(CliTest):
    def setUp(self):
        super().setUp()
        del self.env["SHOAL_METADATA"]

    def test_made_for_the_user_alone(self):
        self.run_shoal("ls")
        self.assertEqual((self.dir / "shoal").stat().st_mode & 0o777, 0o700)
        self.assertTrue((self.dir / "shoal/metadata.db").exists())

    def test_writable_by_others_is_refused(self):
        (self.dir / "shoal").mkdir()
        (self.dir / "shoal").chmod(0o777)
        self.fails(1, "others may write to", "ls")

    def test_link_is_refused(self):
        (self.dir / "elsewhere").mkdir(mode=0o700)
        (self.dir / "shoal").symlink_to(self.dir / "elsewhere")
        self.fails(1, "is not a directory of user", "ls")
        self.assertEqual(list((self.dir / "elsewhere").iterdir()), [])

    def test_missing_runtime_directory(self):
        self.fails(1, "give --metadata URI", "ls", env={"XDG_RUNTIME_DIR": str(self.dir / "no/such")})


class Made(CliTest):
    """What is made from the tables."""

    def test_reference_is_current(self):
        reference = pathlib.Path(__file__).resolve().parents[2] / "docs/cli.md"
        self.assertEqual(reference.read_text(), self.run_shoal("man", "--markdown")[0],
                         "docs/cli.md: write it anew with: build/cmd/shoal/shoal man --markdown > docs/cli.md")

    def test_manual(self):
        out, _ = self.run_shoal("man")
        self.assertIn(".TH SHOAL 1", out)
        for word in (r"\-\-max\-shard\-size", "SHOAL_METADATA", "EXIT STATUS"):
            self.assertIn(word, out)

    def test_completion(self):
        out, _ = self.run_shoal("completion", "bash")
        script = self.make("completion", out.encode())

        def complete(*words):
            text = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shoal; printf "%s\\n" "${COMPREPLY[@]}"'
            env = {**self.env, "PATH": os.path.dirname(os.path.abspath(cli.SHOAL)) + ":" + os.environ["PATH"]}
            return subprocess.run(["bash", "-c", text, "bash", script, *words], capture_output=True, text=True, env=env,
                                  check=True, timeout=60).stdout.split()

        self.assertEqual(complete("shoal", "se"), ["seed"])
        self.assertEqual(complete("shoal", "seed", "--max"), ["--max-shard-size"])
        self.assertEqual(complete("shoal", "get", "--no-s"), ["--no-share"])
        self.assertIn("exit-codes", complete("shoal", "help", "ex"))
        self.assertEqual(complete("shoal", "k"), ["kv"])
        self.assertEqual(complete("shoal", "kv", ""), ["put", "get", "ls", "rm", "stat", "bench"])
        self.assertEqual(complete("shoal", "help", "kv", "pu"), ["put"])
        self.assertEqual(complete("shoal", "kv", "rm", "--pat"), ["--pattern"])
        self.assertEqual(complete("shoal", "kv", "ls", "--metadata"), [])


if __name__ == "__main__":
    cli.main()
