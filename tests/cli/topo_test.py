#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""shoal topo: this machine, a made-up one of two sockets, the matrix it proposes, and what is no topology."""

import json
import pathlib

import cli
from cli import CliTest

TWO_SOCKETS = pathlib.Path(__file__).resolve().parent.parent / "lib" / "two_sockets.xml"


class Topo(CliTest):
    def setUp(self):
        super().setUp()
        self.env.pop("SHOAL_METADATA", None)  # it joins nothing

    def test_this_machine(self):
        out, err = self.run_shoal("topo")
        for text in ("NUMA nodes\n  cpu:", "network devices\n", "RDMA devices\n", "GPUs\n", "NIC priority matrix"):
            self.assertIn(text, out)
        self.assertEqual(err, "")
        topology = json.loads(self.run_shoal("topo", "--json")[0])
        self.assertEqual(set(topology), {"nodes", "devices", "distances", "matrix"})
        self.assertGreaterEqual(topology["nodes"][0]["cpus"], 1)
        self.assertFalse((self.dir / "shoal").exists())

    def test_two_sockets(self):
        out, _ = self.run_shoal("topo", "--xml", TWO_SOCKETS)
        self.assertRegex(out, r"\n  mlx5_0 +0000:1a:00.0 +cpu:0 +up +ib0\n")
        self.assertRegex(out, r"\n  mlx5_8 +0000:90:09.0 +cpu:1 +down *\n")
        self.assertRegex(out, r"\n  cuda:7 +0000:ab:00.0 +cpu:1 +- +H100\n")
        self.assertRegex(out, r"\n  cuda:0 +switch +switch +root +root( +far){5}\n")
        self.assertIn('\n  "cuda:0": [["mlx5_0"], ["mlx5_1", "mlx5_2", "mlx5_3",', out)
        topology = json.loads(self.run_shoal("topo", "--json", "--xml", TWO_SOCKETS)[0])
        self.assertEqual([node["location"] for node in topology["nodes"]], ["cpu:0", "cpu:1"])
        self.assertIn({"kind": "rdma", "name": "mlx5_8", "pci": "0000:90:09.0", "numa_node": 1, "state": "down", "detail": ""},
                      topology["devices"])
        self.assertIn({"location": "cuda:0", "device": "mlx5_1", "distance": "switch", "steps": 2}, topology["distances"])
        self.assertIn({"location": "cpu:1", "device": "mlx5_0", "distance": "far", "steps": 21}, topology["distances"])
        self.assertEqual(len(topology["distances"]), 9 * (2 + 8))
        self.assertEqual(topology["matrix"]["cpu:1"][0], ["mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"])

    def test_matrix_alone(self):
        out, err = self.run_shoal("topo", "--matrix", "--xml", TWO_SOCKETS)
        matrix = json.loads(out)
        self.assertEqual(set(matrix), {"cpu:0", "cpu:1", *(f"cuda:{n}" for n in range(8))})
        self.assertEqual(err, "")
        self.assertEqual(json.loads(self.run_shoal("topo", "--matrix", "--json", "--xml", TWO_SOCKETS)[0]), matrix)
        # What it prints is what the other commands take: they miss the devices, not the form.
        file = self.make("matrix.json", out.encode())
        self.env["SHOAL_METADATA"] = f"sqlite:{self.dir}/metadata.db"
        err = self.fails(1, "", "ls", "--nic-priority-matrix", f"@{file}")
        self.assertNotIn("NIC priority matrix: line", err)

    def test_no_rdma(self):
        env = {"HWLOC_SYNTHETIC": "numa:2 core:2 pu:1"}
        out, err = self.run_shoal("topo", "--matrix", env=env)
        if out == "{}\n":  # unless this machine has RDMA without PCI
            self.assertIn("no RDMA device", err)
            self.assertEqual(self.run_shoal("topo", "--matrix", "-q", env=env), ("{}\n", ""))
            self.assertIn("bytes go over TCP", self.run_shoal("topo", env=env)[0])
        self.assertEqual(len(json.loads(self.run_shoal("topo", "--json", env=env)[0])["nodes"]), 2)

    def test_wrong_files(self):
        for text, path in (("No such file", self.dir / "none.xml"), ("Is a directory", self.dir),
                           ("it is empty", self.make("empty.xml", b"")), ("not the XML of hwloc", self.make("t.xml", b"eth0\n")),
                           ("cut.xml", self.make("cut.xml", TWO_SOCKETS.read_bytes()[:3000]))):
            with self.subTest(path=path):
                self.fails(2, text, "topo", "--xml", path)
        self.fails(2, "must not be empty", "topo", "--xml", "")
        self.fails(2, "unknown or ambiguous option", "topo", "--metadata", "x")


if __name__ == "__main__":
    cli.main()
