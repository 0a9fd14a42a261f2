#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a BitTorrent client needs in a closed network: the description of one file, and a tracker.

usage: torrent.py tracker IPV4:PORT     (prints "ready", then one line per announcement: IP:PORT BYTES-LEFT)
"""
import hashlib
import http.server
import os
import socket
import sys
import urllib.parse

PEERS_MAX = 200
ANNOUNCE_INTERVAL_S = 30


def bencode(value):
    if isinstance(value, int):
        return b"i%de" % value
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return b"%d:%s" % (len(value), value)
    if isinstance(value, list):
        return b"l" + b"".join(map(bencode, value)) + b"e"
    if isinstance(value, dict):
        return b"d" + b"".join(bencode(key) + bencode(value[key]) for key in sorted(value)) + b"e"
    raise TypeError(type(value))


def make(path, announce_url, piece_bytes):
    """The bytes of a torrent file for the file at path."""
    hashes = bytearray()
    with open(path, "rb") as file:
        while piece := file.read(piece_bytes):
            hashes += hashlib.sha1(piece).digest()
    info = {
        "length": os.path.getsize(path),
        "name": os.path.basename(path),
        "piece length": piece_bytes,
        "pieces": bytes(hashes),
    }
    return bencode({"announce": announce_url, "info": info})


class Announce(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"
    swarms = {}  # info hash -> {(ip, port): None}, in order of arrival

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, encoding="latin-1"))
        try:
            peer = (self.client_address[0], int(query["port"]))
            left = int(query.get("left", 0))
            swarm = self.swarms.setdefault(query["info_hash"], {})
        except (KeyError, ValueError):
            self.send_error(400)
            return
        if query.get("event") == "stopped":
            swarm.pop(peer, None)
        else:
            swarm[peer] = None
        others = [other for other in swarm if other != peer][:PEERS_MAX]
        body = bencode(
            {
                "interval": ANNOUNCE_INTERVAL_S,
                "peers": b"".join(socket.inet_aton(ip) + port.to_bytes(2, "big") for ip, port in others),
            }
        )
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        print(f"{peer[0]}:{peer[1]} {left}", flush=True)

    def log_message(self, format, *args):  # pylint: disable=redefined-builtin
        pass


def main():
    if len(sys.argv) != 3 or sys.argv[1] != "tracker":
        sys.exit(__doc__)
    host, port = sys.argv[2].rsplit(":", 1)
    server = http.server.ThreadingHTTPServer((host, int(port)), Announce)
    print("ready", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
