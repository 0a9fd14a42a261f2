#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The swarm on an emulated cluster (lab/lab): one source, N receivers that start at one moment, real binaries, a real etcd.

Node 1 is the source, nodes 2..N+1 are receivers 1..N, node "meta" runs etcd. In the same run, over the same links: a
plain copy to one node (the unit), every receiver pulling all from the source (naive), a chain of relays, aria2.
"""
import argparse
import ctypes
import json
import mmap
import os
import re
import selectors
import shutil
import signal
import statistics
import subprocess
import sys
import time

from lib import torrent

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.abspath(os.environ.get("BENCH_BUILD", os.path.join(HERE, "..", "build-bench")))
SHOAL = os.path.join(BUILD, "cmd", "shoal", "shoal")
RELAY = os.path.join(BUILD, "bench", "bench_relay")
LAB = os.path.join(HERE, "..", "lab", "lab")

SOURCE = 1  # node
META = "10.77.0.254"
METHODS = ["plain", "naive", "chain", "aria2", "shoal"]
SCENARIOS = ["slow", "kill", "late", "stagger"]  # of Shoal, by option
RELAY_PORT, ARIA2_PORT, TRACKER_PORT, ETCD_PORT = 7000, 6881, 6969, 2379
ARIA2_PIECE_BYTES = 256 << 10
NODES_MAX = 120
BUSY_LIMIT = 0.90
OVER = "swarm-lab-"  # prefix of what a run makes outside of its process; its process id follows
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GONE = "gone"  # the result of a child that was killed on purpose
ARIA2_OPTIONS = [
    # Nothing that limits it; the file in tmpfs needs no allocation; peers from the tracker and from each other.
    "--no-conf=true", "--summary-interval=0", "--file-allocation=none", "--enable-dht=false", "--enable-dht6=false",
    "--disable-ipv6=true", "--bt-enable-lpd=false", "--enable-peer-exchange=true", "--bt-max-peers=0",
    "--max-overall-upload-limit=0", "--max-upload-limit=0", "--max-overall-download-limit=0",
    "--bt-request-peer-speed-limit=1000M", "--bt-min-crypto-level=plain", "--bt-require-crypto=false",
    "--seed-ratio=0", "--seed-time=100000", "--bt-tracker-interval=5", "--disk-cache=64M", "--allow-overwrite=true",
    f"--listen-port={ARIA2_PORT}",
]  # fmt: skip


class Failure(Exception):
    """What the user is told; the benchmark ends with 1."""


def node_address(node):
    return f"10.77.0.{node}"


def parse_size(text):
    match = re.fullmatch(r"([1-9][0-9]*)([KMG]?)(?:iB)?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size such as 256M")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def parse_rate(text):
    match = re.fullmatch(r"([1-9][0-9]*)([kmg]?)(bit)?", text.lower())
    if not match:
        raise argparse.ArgumentTypeError(f"'{text}' is not a rate such as 400mbit")
    return int(match[1]) * {"": 1, "k": 1000, "m": 10**6, "g": 10**9}[match[2]]


def parse_slow(text):
    receiver, colon, rate = text.partition(":")
    if not colon or not receiver.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is not RECEIVER:RATE such as 2:100mbit")
    return int(receiver), parse_rate(rate)


def parse_only(text):
    names = text.split(",")
    for name in names:
        if name not in METHODS:
            raise argparse.ArgumentTypeError(f"no method '{name}' (there are {', '.join(METHODS)})")
    return names


def parse_options():
    parser = argparse.ArgumentParser(
        prog="bench/run swarm-lab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--nodes", type=int, default=4, metavar="N", help="receivers (default 4)")
    add("--rate", type=parse_rate, default=400 * 10**6, help="of each node, each direction (default 400mbit)")
    add("--size", type=parse_size, default=256 << 20, metavar="BYTES", help="payload (default 256M)")
    add("--runs", type=int, default=1, metavar="R", help="of everything, in turns; the medians count (default 1)")
    add("--only", type=parse_only, default=METHODS, metavar="A,B,...",
        help=f"only these of {', '.join(METHODS)}; plain, the unit, is always measured")  # fmt: skip
    add("--slow", type=parse_slow, metavar="I:RATE", help="also Shoal with receiver I at RATE: what the others take")
    add("--kill", type=int, metavar="I", help="also Shoal with receiver I killed when half a plain copy's time is over")
    add("--late", type=int, nargs="?", const=1, default=0, metavar="K",
        help="also Shoal with K more receivers, one after the other, that start when the N are complete (default 1)")  # fmt: skip
    add("--stagger", type=float, default=0, metavar="SECONDS",
        help="also Shoal with receivers that start so far apart: each one's own time")  # fmt: skip
    add("--piece-size", metavar="SIZE", help="of Shoal; default: as shoal seed chooses")
    add("--seed-args", default="", metavar="WORDS", help="more arguments of shoal seed")
    add("--get-args", default="", metavar="WORDS", help="more arguments of shoal get")
    add("--logs", metavar="DIR", help="keep the output of every process in DIR")
    options = parser.parse_args()
    if not 1 <= options.nodes <= NODES_MAX:
        parser.error(f"--nodes: 1 to {NODES_MAX} are possible")
    if not 1 <= options.runs <= 100:
        parser.error("--runs: 1 to 100 are possible")
    if not 0 <= options.late <= NODES_MAX:
        parser.error(f"--late: 1 to {NODES_MAX} are possible")
    if not 0 <= options.stagger <= 3600:
        parser.error("--stagger: 0 to 3600 seconds are possible")
    if not 1 << 16 <= options.size <= 1 << 36:
        parser.error("--size: 64K to 64G are possible")
    if not 10**5 <= options.rate <= 10**11:
        parser.error("--rate: 100kbit to 100gbit are possible")
    chosen = [("--slow", options.slow and options.slow[0]), ("--kill", options.kill)]
    for name, receiver in chosen:
        if receiver is not None and not 1 <= receiver <= options.nodes:
            parser.error(f"{name}: there are receivers 1 to {options.nodes}")
        if receiver is not None and options.nodes == 1:
            parser.error(f"{name}: needs another receiver to look at")
    if options.slow and not 10**5 <= options.slow[1] <= 10**11:
        parser.error("--slow: 100kbit to 100gbit are possible")
    if (options.slow or options.kill or options.late or options.stagger) and "shoal" not in options.only:
        parser.error("--slow, --kill, --late and --stagger need shoal among --only")
    return options


# --- processes ---


def die_with_parent():
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class Child:
    """A process in a node. Its standard output is read line by line, the rest of its output is a log."""

    def __init__(self, lab, node, name, argv, start_pipe=None):
        self.name = name
        self.log = os.path.join(lab.logs, f"{lab.next_log():03}-{name.replace(' ', '-')}.log")
        self.lines = []  # not looked at yet: (time, line)
        self.partial = b""
        self.done_s = None
        self.result = None
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(  # pylint: disable=subprocess-popen-preexec-fn
                [LAB, "exec", str(node), *argv], env=lab.environment, stdin=start_pipe or subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log, start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip
        os.set_blocking(self.process.stdout.fileno(), False)
        lab.children.append(self)
        lab.selector.register(self.process.stdout, selectors.EVENT_READ, self)
        self.selector = lab.selector

    def read(self):
        data = self.process.stdout.read()
        if data is None:
            return
        if not data:
            self.selector.unregister(self.process.stdout)
            self.process.stdout.close()
            return
        now = time.monotonic()
        *lines, self.partial = (self.partial + data).split(b"\n")
        for line in lines:
            if b'"event":"progress"' not in line and b'"event":"serving"' not in line:
                self.lines.append((now, line.decode(errors="replace")))

    def failure(self, what):
        code = self.process.poll()
        ended = "" if code is None else f", exit code {code}"
        with open(self.log, "rb") as log:
            text = log.read()[-2000:].decode(errors="replace")
        return Failure(f"{self.name}: {what}{ended}\n{text.strip()}")

    def send(self, number):
        if self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, timeout_s):
        """Its exit code."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self.failure(f"did not end within {timeout_s} s") from None
        while not self.process.stdout.closed:
            self.read()
        return code


def watch(lab, children, on_line, deadline_s, actions=(), needed=()):
    """Reads until on_line(child, line) was true once for each of children, and notes when. actions: [(time, function)],
    in order. A child whose result is GONE is not waited for; none of needed may end. The output of all others
    is read as well."""
    actions = list(actions)
    waiting = set(children)
    while True:
        for child in list(waiting):
            while child.lines and child in waiting:
                now, line = child.lines.pop(0)
                if on_line(child, line):
                    child.done_s = now
                    waiting.discard(child)
            if child.result == GONE:
                waiting.discard(child)
            elif child in waiting and child.process.stdout.closed:
                child.wait(10)
                raise child.failure("ended early")
        if not waiting:
            return
        for child in needed:
            if child.process.stdout.closed:
                child.wait(10)
                raise child.failure("ended early")
        now = time.monotonic()
        if now > deadline_s:
            raise next(iter(waiting)).failure("not done in time")
        if actions and actions[0][0] <= now:
            actions.pop(0)[1]()
            continue
        next_s = min(deadline_s, actions[0][0] if actions else deadline_s)
        for key, _ in lab.selector.select(max(0.0, next_s - now) + 0.001):
            key.data.read()


def is_word(word):
    return lambda child, line: line == word


def is_event(event):
    """A JSON line of that event; it becomes the child's result."""

    def check(child, line):
        if f'"event":"{event}"' not in line:
            return False
        child.result = json.loads(line)
        return True

    return check


class Start:
    """Children that begin their work at one moment: the end of their standard input."""

    def __init__(self):
        self.read_end, self.write_end = os.pipe()

    def release(self):
        os.close(self.read_end)
        now = time.monotonic()
        os.close(self.write_end)
        return now


# Says that it is there, waits for the start, becomes the command.
WAITING = ["sh", "-c", 'echo ready; read -r line; exec "$@" </dev/null', "sh"]


class CpuMeter:
    def __init__(self):
        self.begin = self.read()

    @staticmethod
    def read():
        with open("/proc/stat", encoding="ascii") as file:
            return [int(field) for field in file.readline().split()[1:9]]

    def busy(self):
        """The share of all processors' time that was used, by anyone."""
        spent = [after - before for before, after in zip(self.begin, self.read())]
        idle = spent[3] + spent[4]
        return 1 - idle / max(1, sum(spent))


# --- the cluster ---


def sweep():
    """Removes what a run left that was killed the hard way."""
    left = {entry.split("-meta")[0] for entry in os.listdir("/run/netns")} if os.path.isdir("/run/netns") else set()
    for name in left | set(os.listdir("/dev/shm")):
        match = re.match(rf"({OVER}([0-9]+))(?:$|-)", name)
        if not match or os.path.exists(f"/proc/{match[2]}"):
            continue
        subprocess.run([LAB, "down"], env=dict(os.environ, LAB_PREFIX=match[1]), check=False, capture_output=True)
        shutil.rmtree(f"/dev/shm/{match[1]}", ignore_errors=True)


class Lab:
    def __init__(self, options):
        self.options = options
        self.node_count = options.nodes + 1 + options.late
        self.prefix = f"{OVER}{os.getpid()}"
        self.directory = f"/dev/shm/{self.prefix}"
        self.environment = dict(os.environ, LAB_PREFIX=self.prefix)
        for name in [name for name in self.environment if name.startswith("SHOAL_")]:
            del self.environment[name]
        self.children = []
        self.selector = selectors.DefaultSelector()
        self.log_count = 0
        self.logs = os.path.abspath(options.logs) if options.logs else f"{self.directory}/logs"
        self.payload = f"{self.directory}/payload"
        # The longest that any method may take: naive needs N copies' time.
        self.limit_s = 60 + 3 * self.node_count * options.size * 8 / options.rate
        if options.slow:
            self.limit_s += 3 * options.size * 8 / options.slow[1]

    def next_log(self):
        self.log_count += 1
        return self.log_count

    def call(self, *words):
        done = subprocess.run([LAB, *map(str, words)], env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failure(f"lab {words[0]} failed: {done.stderr.strip()}")
        return done.stdout

    def up(self):
        os.makedirs(self.directory, exist_ok=True)
        os.makedirs(self.logs, exist_ok=True)
        self.call("up", self.node_count, f"{self.options.rate}bit")
        with open(self.payload, "wb") as file:
            for at in range(0, self.options.size, 8 << 20):
                file.write(os.urandom(min(8 << 20, self.options.size - at)))

    def start_etcd(self):
        url = f"http://{META}:{ETCD_PORT}"
        etcd = Child(self, "meta", "etcd", [
            "etcd", "--name", "meta", "--data-dir", f"{self.directory}/etcd", "--listen-client-urls", url,
            "--advertise-client-urls", url, "--listen-peer-urls", "http://127.0.0.1:2380",
            "--initial-advertise-peer-urls", "http://127.0.0.1:2380", "--initial-cluster", "meta=http://127.0.0.1:2380",
        ])  # fmt: skip
        deadline_s = time.monotonic() + 60
        while subprocess.run([LAB, "exec", "meta", SHOAL, "ls", "-q", "-m", self.metadata(), "-t", "2s"],
                             env=self.environment, capture_output=True, check=False).returncode != 0:  # fmt: skip
            if etcd.process.poll() is not None or time.monotonic() > deadline_s:
                raise etcd.failure("etcd did not become ready")

    def metadata(self):
        return f"etcd://{META}:{ETCD_PORT}"

    def bytes_sent(self, node):
        text = subprocess.run(["ip", "-n", f"{self.prefix}-{node}", "-s", "-j", "link", "show", "dev", "eth0"],
                              capture_output=True, check=True).stdout  # fmt: skip
        return json.loads(text)[0]["stats64"]["tx"]["bytes"]

    def receiver_directory(self, receiver):
        path = f"{self.directory}/{receiver}"
        os.makedirs(path)
        return path

    def kill_all(self, children):
        for child in children:
            child.send(signal.SIGKILL)
        for child in children:
            child.wait(30)

    def down(self):
        for child in self.children:
            child.send(signal.SIGKILL)
        for child in self.children:
            child.process.wait()
            child.process.stdout.close()
        subprocess.run([LAB, "down"], env=self.environment, check=False)
        shutil.rmtree(self.directory, ignore_errors=True)


def check_bytes(lab, path, who):
    """Outside the measured time."""
    step = 8 << 20
    with open(lab.payload, "rb") as want, open(path, "rb") as got:
        if os.fstat(got.fileno()).st_size != lab.options.size:
            raise Failure(f"{who}: the file has a wrong size")
        with mmap.mmap(want.fileno(), 0, access=mmap.ACCESS_READ) as a:
            with mmap.mmap(got.fileno(), 0, access=mmap.ACCESS_READ) as b:
                for at in range(0, lab.options.size, step):
                    if a[at : at + step] != b[at : at + step]:
                        raise Failure(f"{who}: wrong bytes were received (after {at} bytes)")


# --- methods: each returns a Measured ---


class Measured:
    def __init__(self, seconds, busy, sent_bytes):
        self.seconds = seconds  # of each receiver that finished, by its number
        self.last_s = max(seconds.values())
        self.mean_s = statistics.mean(seconds.values())
        self.busy = busy
        self.sent_bytes = sent_bytes  # by the source's link
        self.gold_bytes = None
        self.pull_s = None  # the longest get_replica alone, as the receivers tell
        self.late_s = []


def run_start(lab, start, receivers, on_line, actions_of=lambda start_s: ()):
    """Releases the receivers; {number: Child}."""
    deadline_s = time.monotonic() + 60
    watch(lab, list(receivers.values()), is_word("ready"), deadline_s)
    sent = lab.bytes_sent(SOURCE)
    meter = CpuMeter()
    start_s = start.release()
    watch(lab, list(receivers.values()), on_line, start_s + lab.limit_s, actions_of(start_s))
    busy = meter.busy()
    seconds = {number: child.done_s - start_s for number, child in receivers.items() if child.result != GONE}
    return Measured(seconds, busy, lab.bytes_sent(SOURCE) - sent)


def verify_and_remove(lab, receivers, filename):
    for number, child in receivers.items():
        if child.result != GONE:
            check_bytes(lab, f"{lab.directory}/{number}/{filename}", child.name)
        shutil.rmtree(f"{lab.directory}/{number}")


def run_relays(lab, kind, count):
    """Plain sockets: plain (one receiver), naive (all from the source), chain (each from the one before)."""
    source = Child(lab, SOURCE, f"{kind} source", [
        RELAY, "source", f"{node_address(SOURCE)}:{RELAY_PORT}", lab.payload, str(1 if kind == "chain" else count)
    ])  # fmt: skip
    watch(lab, [source], is_word("ready"), time.monotonic() + 60)
    start = Start()
    receivers = {}
    for number in range(1, count + 1):
        node = number + 1
        upstream = node - 1 if kind == "chain" else SOURCE
        argv = [RELAY, "node", f"{node_address(upstream)}:{RELAY_PORT}", f"{lab.receiver_directory(number)}/payload",
                str(lab.options.size)]  # fmt: skip
        if kind == "chain" and number < count:
            argv.append(f"{node_address(node)}:{RELAY_PORT}")
        receivers[number] = Child(lab, node, f"{kind} receiver {number}", argv, start.read_end)
    measured = run_start(lab, start, receivers, is_word("done"))
    for child in [*receivers.values(), source]:
        if child.wait(30) != 0:
            raise child.failure("failed")
    verify_and_remove(lab, receivers, "payload")
    return measured


def run_aria2(lab, count):
    url = f"http://{META}:{TRACKER_PORT}/announce"
    torrent_path = f"{lab.directory}/payload.torrent"
    hook = f"{lab.directory}/aria2-complete"
    with open(torrent_path, "wb") as file:
        file.write(torrent.make(lab.payload, url, ARIA2_PIECE_BYTES))
    with open(hook, "w", encoding="ascii") as file:
        file.write("#!/bin/sh\necho complete\n")
    os.chmod(hook, 0o700)
    tracker = Child(lab, "meta", "tracker", [
        sys.executable, os.path.join(HERE, "lib", "torrent.py"), "tracker", f"{META}:{TRACKER_PORT}"
    ])  # fmt: skip
    watch(lab, [tracker], is_word("ready"), time.monotonic() + 60)
    source = Child(lab, SOURCE, "aria2 source", [
        "aria2c", *ARIA2_OPTIONS, "--bt-seed-unverified=true", f"--dir={lab.directory}", torrent_path
    ])  # fmt: skip
    announced = is_word(f"{node_address(SOURCE)}:{ARIA2_PORT} 0")
    watch(lab, [tracker], announced, time.monotonic() + 60, needed=[source])
    start = Start()
    receivers = {}
    for number in range(1, count + 1):
        argv = [*WAITING, "aria2c", *ARIA2_OPTIONS, f"--on-bt-download-complete={hook}",
                f"--dir={lab.receiver_directory(number)}", torrent_path]  # fmt: skip
        receivers[number] = Child(lab, number + 1, f"aria2 receiver {number}", argv, start.read_end)
    measured = run_start(lab, start, receivers, is_word("complete"))
    lab.kill_all([*receivers.values(), source, tracker])
    verify_and_remove(lab, receivers, "payload")
    return measured


class Shoal:
    """One payload, seeded anew on node 1."""

    def __init__(self, lab):
        self.lab = lab
        self.name = f"payload-{lab.next_log()}"
        options = lab.options
        argv = [SHOAL, "seed", *self.common(SOURCE), *options.seed_args.split()]
        if options.piece_size:
            argv += ["--piece-size", options.piece_size]
        self.source = Child(lab, SOURCE, "shoal seed", [*argv, self.name, lab.payload])
        watch(lab, [self.source], is_event("seeding"), time.monotonic() + 60)

    def common(self, node):
        return ["--json", "--metadata", self.lab.metadata(), "--name", f"{node_address(node)}:0"]

    def receiver(self, number, start):
        # It goes on serving, as a node that uses what it got would.
        argv = [*WAITING, SHOAL, "get", "--seed", *self.common(number + 1), *self.lab.options.get_args.split(),
                self.name, self.lab.receiver_directory(number)]  # fmt: skip
        return Child(self.lab, number + 1, f"shoal get {number}", argv, start.read_end)

    def finish(self, receivers, measured):
        lab = self.lab
        for child in receivers.values():
            child.send(signal.SIGTERM)
        for child in receivers.values():
            if child.wait(30) != 0 and child.result != GONE:
                raise child.failure("did not withdraw")
        self.source.send(signal.SIGTERM)
        watch(lab, [self.source], is_event("result"), time.monotonic() + 30)
        if self.source.wait(30) != 0:
            raise self.source.failure("did not withdraw")
        sent = self.source.result["bytes_served"]
        taken = sum(
            source["bytes"]
            for child in receivers.values()
            if child.result != GONE
            for source in child.result["sources"]
            if source["gold"]
        )
        measured.gold_bytes = max(sent, taken)
        measured.pull_s = max(child.result["seconds"] for child in receivers.values() if child.result != GONE)
        verify_and_remove(lab, receivers, "payload")
        return measured


def run_shoal(lab, count, kill=None, kill_after_s=0.0, late=0):
    swarm = Shoal(lab)
    start = Start()
    receivers = {number: swarm.receiver(number, start) for number in range(1, count + 1)}

    def kill_one():
        child = receivers[kill]
        if child.done_s is not None and child.result is not None:
            raise Failure(f"receiver {kill} was complete before it could be killed: choose a larger --size")
        child.result = GONE
        child.send(signal.SIGKILL)

    actions_of = (lambda start_s: [(start_s + kill_after_s, kill_one)]) if kill else (lambda start_s: ())
    measured = run_start(lab, start, receivers, is_event("result"), actions_of)
    for number in range(count + 1, count + late + 1):
        start = Start()
        receivers[number] = swarm.receiver(number, start)
        measured.late_s.append(run_start(lab, start, {number: receivers[number]}, is_event("result")).last_s)
    return swarm.finish(receivers, measured)


def run_staggered(lab, count, apart_s):
    """Each receiver's time from its own start."""
    swarm = Shoal(lab)
    starts = {number: Start() for number in range(1, count + 1)}
    receivers = {number: swarm.receiver(number, starts[number]) for number in starts}
    watch(lab, list(receivers.values()), is_word("ready"), time.monotonic() + 60)
    begun = {}

    def release(number):
        begun[number] = starts[number].release()

    sent = lab.bytes_sent(SOURCE)
    meter = CpuMeter()
    now = time.monotonic()
    actions = [(now + apart_s * (number - 1), lambda number=number: release(number)) for number in receivers]
    watch(lab, list(receivers.values()), is_event("result"), now + apart_s * count + lab.limit_s, actions)
    seconds = {number: child.done_s - begun[number] for number, child in receivers.items()}
    measured = Measured(seconds, meter.busy(), lab.bytes_sent(SOURCE) - sent)
    return swarm.finish(receivers, measured)


# --- the run ---


class Results:
    def __init__(self, options):
        self.options = options
        self.runs = {}  # name -> [Measured]

    def add(self, name, measured):
        self.runs.setdefault(name, []).append(measured)
        gold = f", source sent {measured.sent_bytes / self.options.size:.3f} copies"
        print(f"  {name:<10} last {measured.last_s:8.3f} s{gold}, CPU {measured.busy:.0%} busy", flush=True)

    def median(self, name, value_of):
        return statistics.median(value_of(measured) for measured in self.runs[name])

    def last_s(self, name):
        return self.median(name, lambda measured: measured.last_s)

    def stretch(self, name, value_of=lambda measured: measured.last_s):
        """Against the plain copy of the same turn."""
        pairs = zip(self.runs[name], self.runs["plain"])
        return statistics.median(value_of(measured) / plain.last_s for measured, plain in pairs)


def run_all(lab, results):
    options = lab.options
    for run in range(options.runs):
        print(f"run {run + 1} of {options.runs}", flush=True)
        for method in METHODS:
            if method != "plain" and method not in options.only:
                continue
            if method == "aria2":
                measured = run_aria2(lab, options.nodes)
            elif method == "shoal":
                measured = run_shoal(lab, options.nodes)
            else:
                measured = run_relays(lab, method, 1 if method == "plain" else options.nodes)
            results.add(method, measured)
        if options.slow:
            receiver, rate = options.slow
            lab.call("rate", receiver + 1, f"{rate}bit")
            results.add("slow", run_shoal(lab, options.nodes))
            lab.call("rate", receiver + 1, f"{options.rate}bit")
        if options.kill:
            plain_s = results.runs["plain"][-1].last_s
            results.add("kill", run_shoal(lab, options.nodes, options.kill, plain_s / 2))
        if options.late:
            results.add("late", run_shoal(lab, options.nodes, late=options.late))
        if options.stagger:
            results.add("stagger", run_staggered(lab, options.nodes, options.stagger))


def others_last_s(receiver):
    return lambda measured: max(seconds for number, seconds in measured.seconds.items() if number != receiver)


def report_scenarios(results, fields):
    options = results.options
    for name, receiver, what in (
        ("slow", options.slow and options.slow[0], "slow"),
        ("kill", options.kill, "killed"),
    ):
        if receiver is None:
            continue
        value_of = others_last_s(receiver)
        stretch = results.stretch(name, value_of)
        ratio = results.median(name, value_of) / results.median("shoal", value_of)
        print(f"{name}: the others' last with receiver {receiver} {what}: {results.median(name, value_of):.3f} s, stretch "
              f"{stretch:.3f}, {ratio:.3f} times that of the run without")  # fmt: skip
        fields[f"{name}_others_stretch"] = round(stretch, 4)
        fields[f"{name}_others_ratio"] = round(ratio, 4)
    if options.late:
        stretch = results.stretch("late", lambda measured: max(measured.late_s))
        print(f"late: the slowest of {options.late} that started when the {options.nodes} were complete: "
              f"stretch {stretch:.3f}")  # fmt: skip
        fields["late_stretch"] = round(stretch, 4)
    if options.stagger:
        stretch = results.stretch("stagger")
        print(f"stagger: the slowest receiver, from its own start ({options.stagger:g} s apart): stretch {stretch:.3f}")
        fields["stagger_stretch"] = round(stretch, 4)


def report(results):
    options = results.options
    size = options.size
    print()
    print(f"{'':<10}{'last':>12}{'mean':>12}{'stretch':>10}{'source sent':>16}{'CPU busy':>10}")
    busiest = 0.0
    for name in results.runs:
        sent = results.median(name, lambda measured: measured.sent_bytes) / size
        busy = results.median(name, lambda measured: measured.busy)
        busiest = max(busiest, busy)
        mean_s = results.median(name, lambda measured: measured.mean_s)
        print(f"{name:<10}{results.last_s(name):>10.3f} s{mean_s:>10.3f} s{results.stretch(name):>10.3f}"
              f"{sent:>9.3f} copies{busy:>10.0%}")  # fmt: skip
    fields = {"bench": "swarm-lab", "n": options.nodes}
    if "shoal" in results.runs:
        copies = results.median("shoal", lambda measured: measured.gold_bytes) / size
        print(f"shoal: the gold gave pieces of {copies:.3f} copies; receivers go on serving (--seed) until all are done")
        pull_stretch = results.stretch("shoal", lambda measured: measured.pull_s)
        print(f"shoal: stretch {pull_stretch:.3f} for the transfer alone; the rest is to start, to look up the payload and to "
              "prepare files")  # fmt: skip
        fields["stretch"] = round(results.stretch("shoal"), 4)
        fields["gold_copies"] = round(copies, 4)
        fields["pull_stretch"] = round(pull_stretch, 4)
    report_scenarios(results, fields)
    for name in results.runs:
        if name not in ("shoal", "plain", *SCENARIOS):
            fields[f"{name}_stretch"] = round(results.stretch(name), 4)
    if busiest > BUSY_LIMIT:
        print(f"WARNING: the CPU was the limit ({busiest:.0%} busy), not the links: choose a lower --rate or fewer --nodes")
    fields |= {
        "plain_s": round(results.last_s("plain"), 4),
        "rate_bps": options.rate,
        "size_bytes": size,
        "runs": options.runs,
        "cpu_busy": {name: round(results.median(name, lambda measured: measured.busy), 3) for name in results.runs},
        "cpu_limited": busiest > BUSY_LIMIT,
    }
    print(json.dumps(fields, separators=(",", ":")))


def check_machine(options):
    if os.geteuid() != 0:
        raise Failure("needs root, for network namespaces")
    for program in ("ip", "tc", "bridge", "etcd"):
        if not shutil.which(program):
            raise Failure(f"needs {program} (tools/setup --bench installs it)")
    for program in (SHOAL, RELAY):
        if not os.access(program, os.X_OK):
            raise Failure(f"{program} is not there: start this with bench/run swarm-lab")
    probe = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        raise Failure(f"this machine lets root make no network namespaces: {probe.stderr.strip()}")
    if "aria2" in options.only and not shutil.which("aria2c"):
        print("SKIPPED: aria2, it is not installed (Debian package aria2)", flush=True)
        options.only = [name for name in options.only if name != "aria2"]
    need = (options.nodes + options.late + 1) * options.size + (256 << 20)
    shm = os.statvfs("/dev/shm")
    with open("/proc/meminfo", encoding="ascii") as file:
        available = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
    if min(shm.f_bavail * shm.f_frsize, available) < need:
        raise Failure(f"needs {need / 2**30:.1f} GiB in /dev/shm, {shm.f_bavail * shm.f_frsize / 2**30:.1f} GiB are free "
                      f"there and {available / 2**30:.1f} GiB of memory are available: choose a smaller --size")  # fmt: skip


def interrupted(number, _frame):
    # A second signal must not end the tearing down.
    ignore_signals()
    sys.exit(128 + number)


def ignore_signals():
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def main():
    options = parse_options()
    for number in SIGNALS:
        signal.signal(number, interrupted)
    try:
        check_machine(options)
        sweep()
        lab = Lab(options)
        results = Results(options)
        print(f"swarm-lab: {options.nodes} receivers, {options.rate / 1e6:g} Mbit/s per node, {options.size} bytes, "
              f"{os.cpu_count()} CPUs", flush=True)  # fmt: skip
        try:
            lab.up()
            if "shoal" in options.only:
                lab.start_etcd()
            run_all(lab, results)
        finally:
            ignore_signals()
            lab.down()
        report(results)
    except (Failure, OSError, subprocess.SubprocessError) as failure:
        sys.stdout.flush()
        print(f"bench swarm-lab: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
