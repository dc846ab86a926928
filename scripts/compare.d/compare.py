"""The experiment of scripts/compare, whose --help says what it is: runs it on one system after the other and prints tables."""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DEPENDENCIES = Path(os.environ["COMPARE_DEPENDENCIES"])
# What is killed in the middle of a run.
KILLS = ("store", "waterclock", "worker", "consumer")
# As Kafka comes: scripts/kafka makes these faster, for tests.
KAFKA = """group.initial.rebalance.delay.ms=3000
group.min.session.timeout.ms=6000
transaction.abort.timed.out.transaction.cleanup.interval.ms=10000
broker.session.timeout.ms=9000
broker.heartbeat.interval.ms=2000
"""


def say(text):
    print(f"compare: {text}", file=sys.stderr, flush=True)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(what, is_there, seconds=60):
    until = time.monotonic() + seconds
    while not is_there():
        if time.monotonic() > until:
            raise RuntimeError(f"{what}: not there after {seconds} s")
        time.sleep(0.02)


def output(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


class Process:
    """A program in a session of its own, so that all that it starts ends with it."""

    all = []

    def __init__(self, log, command, env=None, user=None):
        self.log, self.command = log, command
        self.options = {"env": {**os.environ, **(env or {})}, "user": user, "group": user, "extra_groups": [] if user else None}
        self.start()
        Process.all.append(self)

    def start(self):
        with open(self.log, "a") as log:
            self.child = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **self.options)

    def signal(self, what, seconds=20):
        """True if it has ended."""
        try:
            os.killpg(self.child.pid, what)
        except ProcessLookupError:
            pass
        try:
            self.child.wait(seconds)
            return True
        except subprocess.TimeoutExpired:
            return False

    def kill(self):
        self.signal(signal.SIGKILL)

    def end(self):
        self.signal(signal.SIGTERM) or self.kill()
        # What it started and did not end.
        self.signal(signal.SIGKILL)

    def has(self, text):
        return text in Path(self.log).read_text(errors="replace")


def answers(port):
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", int(port))) == 0


class System:
    """A store and its clients. `address` is where both clients find it."""

    # What may be killed.
    kills = ("store", "worker")
    # How long a record that a killed worker had may stay with it, in seconds.
    patience = 10
    client = "clients.py"

    def __init__(self, name, directory):
        self.name, self.directory, self.server = name, Path(directory), None

    def clients(self, action, plan, file, outstanding, rate):
        program = [str(DEPENDENCIES / "venv/bin/python"), str(HERE / "clients.py"), self.name]
        return [*program, action, str(self.address), plan, file, str(outstanding), str(rate)]

    def up(self):
        """Starts the store again where it was killed."""
        self.server.start()
        wait_for(self.name, lambda: answers(self.port))

    def kill(self, what):
        assert what == "store"
        self.server.kill()
        self.up()

    def pids(self):
        return [self.server.child.pid]

    def down(self):
        """Ends what was started, though `begin` may have failed halfway."""
        if self.server:
            self.server.end()


class Waterclock(System):
    kills = ("store", "waterclock", "consumer")
    patience = 20
    broker = KAFKA

    @staticmethod
    def missing():
        return None

    @staticmethod
    def version():
        return output(str(ROOT / "target/release/waterclock"), "--version").strip() + ", Apache Kafka " + next(
            line.split("=")[1] for line in (ROOT / "scripts/kafka").read_text().splitlines() if line.startswith("readonly KAFKA="))

    def __init__(self, name, directory):
        super().__init__(name, directory)
        self.kafka_dir = self.directory / "kafka"
        self.waterclock = None

    def begin(self):
        added = self.directory / "added"
        added.write_text(self.broker)
        self.kafka("start", "--add", str(added))
        lines = (self.kafka_dir / "env").read_text().splitlines()
        self.address = dict(line.split("=", 1) for line in lines)["KAFKA_BOOTSTRAP"]
        env = {"WATERCLOCK_BROKERS": self.address, "WATERCLOCK_ALLOW": "compare.due",
               "WATERCLOCK_DATA_DIR": str(self.directory / "data")}
        binary = str(ROOT / "target/release/waterclock")
        output(binary, "topics", "apply", env={**os.environ, **env})
        self.kafka("tool", "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.address,
                   "--create", "--topic", "compare.due", "--partitions", "3")
        self.waterclock = Process(self.directory / "waterclock.log", [binary, "run"], env)
        wait_for("waterclock", lambda: self.waterclock.has("ready"))

    def kafka(self, command, *arguments):
        output(str(ROOT / "scripts/kafka"), command, "--dir", str(self.kafka_dir), *arguments)

    def kill(self, what):
        if what == "store":
            self.kafka("kill")
            self.kafka("restart")
        else:
            self.waterclock.kill()
            self.waterclock.start()

    def pids(self):
        return [self.waterclock.child.pid, int((self.kafka_dir / "node-1/pid").read_text())]

    def down(self):
        if self.waterclock:
            self.waterclock.end()
        if (self.kafka_dir / "cluster").exists():
            self.kafka("stop")


class WaterclockFlushed(Waterclock):
    # Kafka leaves it to the operating system when what it acknowledged goes to the disk; here it does so before.
    broker = KAFKA + "log.flush.interval.messages=1\n"

    @staticmethod
    def version():
        return Waterclock.version() + ", log.flush.interval.messages=1"


class Beanstalkd(System):
    @staticmethod
    def missing():
        return None if shutil.which("beanstalkd") else "beanstalkd (Debian: beanstalkd)"

    @staticmethod
    def version():
        return output("beanstalkd", "-v").strip() + ", -b -f 0"

    def begin(self):
        self.port = self.address = free_port()
        self.server = Process(self.directory / "log", [
            shutil.which("beanstalkd"), "-l", "127.0.0.1", "-p", str(self.port), "-b", str(self.directory), "-f", "0"])
        wait_for(self.name, lambda: answers(self.port))


class BullMQ(System):
    # A worker's lock lasts 30 s, and every 30 s jobs without one are looked for.
    patience = 70
    settings = ("--appendonly", "yes", "--appendfsync", "always")

    @staticmethod
    def missing():
        if not shutil.which("redis-server"):
            return "redis-server (Debian: redis-server)"
        return None if (DEPENDENCIES / "node_modules/bullmq").is_dir() else "BullMQ (npm, Node.js; Debian: nodejs npm)"

    @classmethod
    def version(cls):
        package = json.loads((DEPENDENCIES / "node_modules/bullmq/package.json").read_text())
        redis = output("redis-server", "--version").split()[2].removeprefix("v=")
        return f"BullMQ {package['version']}, Redis {redis}, " + (" ".join(cls.settings) or "its defaults (snapshots, no log)")

    def begin(self):
        self.port = self.address = free_port()
        self.server = Process(self.directory / "log", [
            "redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory), *self.settings])
        wait_for(self.name, lambda: answers(self.port))

    def clients(self, action, plan, file, outstanding, rate):
        return ["node", str(HERE / "bullmq.js"), action, str(self.port), plan, file, str(outstanding), str(rate)]


class BullMQSnapshots(BullMQ):
    settings = ()


class RabbitMQ(System):
    binaries = Path("/usr/lib/rabbitmq/bin")
    names = None

    @classmethod
    def missing(cls):
        return None if (cls.binaries / "rabbitmq-server").exists() else "rabbitmq-server (Debian: rabbitmq-server)"

    @staticmethod
    def version():
        packaged = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"], capture_output=True, text=True)
        return f"RabbitMQ {packaged.stdout.split('-')[0]}, classic durable queues, persistent messages, publisher confirms"

    def begin(self):
        self.port = self.address = free_port()
        names = free_port()
        at = self.directory
        (at / "plugins").write_text("[].\n")
        env = {
            "ERL_EPMD_PORT": str(names), "ERL_EPMD_ADDRESS": "127.0.0.1", "HOME": str(at),
            "RABBITMQ_NODENAME": "compare@localhost", "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()), "RABBITMQ_MNESIA_BASE": str(at / "mnesia"), "RABBITMQ_LOG_BASE": str(at / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(at / "plugins"), "RABBITMQ_CONFIG_FILE": str(at / "none"),
            "RABBITMQ_CONF_ENV_FILE": str(at / "none"), "RABBITMQ_PID_FILE": str(at / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        # Erlang's own register of names, which it would leave running.
        self.names = Process(at / "epmd.log", ["epmd", "-port", str(names), "-address", "127.0.0.1"])
        wait_for("epmd", lambda: answers(names))
        self.server = Process(at / "server.log", [str(self.binaries / "rabbitmq-server")], env)
        wait_for(self.name, lambda: answers(self.port))

    def down(self):
        super().down()
        if self.names:
            self.names.end()


class Procrastinate(System):
    @staticmethod
    def binaries():
        if shutil.which("initdb"):
            return Path(shutil.which("initdb")).resolve().parent
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3].split(".")[0]))
        return found[-1].parent if found else None

    @classmethod
    def missing(cls):
        return None if cls.binaries() else "PostgreSQL's server (Debian: postgresql)"

    @classmethod
    def version(cls):
        library = output(str(DEPENDENCIES / "venv/bin/pip"), "show", "procrastinate").split("Version: ")[1].split()[0]
        return f"Procrastinate {library}, PostgreSQL {output(str(cls.binaries() / 'postgres'), '--version').split()[2]}, its defaults"

    def begin(self):
        self.port = free_port()
        # It does not run as root.
        user = "postgres" if os.geteuid() == 0 else None
        if user:
            shutil.chown(self.directory, user, user)
        data = self.directory / "data"
        output(str(self.binaries() / "initdb"), "-D", str(data), "-A", "trust", "-U", "compare",
               user=user, group=user, extra_groups=[] if user else None, cwd=self.directory)
        self.server = Process(self.directory / "log", [
            str(self.binaries() / "postgres"), "-D", str(data), "-p", str(self.port), "-h", "127.0.0.1", "-k", str(self.directory)],
            user=user)
        self.address = f"host=127.0.0.1 port={self.port} user=compare dbname=postgres"
        self.wait()
        schema = ("import asyncio, sys; from procrastinate import App, PsycopgConnector\n"
                  "async def run():\n"
                  "    app = App(connector=PsycopgConnector(conninfo=sys.argv[1]))\n"
                  "    async with app.open_async(): await app.schema_manager.apply_schema_async()\n"
                  "asyncio.run(run())")
        output(str(DEPENDENCIES / "venv/bin/python"), "-c", schema, self.address)

    def wait(self):
        ready = [str(self.binaries() / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        wait_for(self.name, lambda: subprocess.run(ready).returncode == 0)

    def up(self):
        # It does not start before the last process of the killed one has left.
        until = time.monotonic() + 60
        while time.monotonic() < until:
            self.server.start()
            try:
                self.server.child.wait(0.5)
                time.sleep(0.1)
            except subprocess.TimeoutExpired:
                break
        self.wait()

    def down(self):
        if self.server:
            # Its fast way to stop; SIGTERM would wait for clients.
            self.server.signal(signal.SIGINT)
            self.server.kill()


systems = {
    "waterclock": Waterclock,
    "waterclock-flushed": WaterclockFlushed,
    "beanstalkd": Beanstalkd,
    "bullmq": BullMQ,
    "bullmq-snapshots": BullMQSnapshots,
    "rabbitmq": RabbitMQ,
    "rabbitmq-queues": RabbitMQ,
    "procrastinate": Procrastinate,
    "procrastinate-tuned": Procrastinate,
}


def resident(pids):
    """The memory of these processes and all that they started, in MiB: shared pages are counted once."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents.setdefault(int(stat.read_text().rsplit(")", 1)[1].split()[1]), []).append(int(stat.parent.name))
        except OSError:
            pass
    total, todo = 0, list(pids)
    while todo:
        pid = todo.pop()
        todo += parents.get(pid, [])
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (OSError, StopIteration):
            pass
    return total / 1024


def fsync_ms(directory):
    """What it takes to write to this disk now: the median of 50."""
    took = []
    with open(directory / "fsync", "wb") as file:
        for _ in range(50):
            file.write(b"x" * 300)
            file.flush()
            begun = time.monotonic()
            os.fsync(file.fileno())
            took.append((time.monotonic() - begun) * 1000)
    return sorted(took)[25]


def lines_of(file):
    if not Path(file).exists():
        return []
    return [[float(word) for word in line.split()] for line in Path(file).read_text().splitlines()]


def percentile(sorted_values, part):
    return sorted_values[min(len(sorted_values) - 1, int(part * len(sorted_values)))] if sorted_values else float("nan")


def experiment(name, run, options):
    """Runs one system once; what was seen from outside."""
    directory = tempfile.mkdtemp(prefix="waterclock-compare-")
    # So that a server that does not run as root may come in.
    os.chmod(directory, 0o755)
    at = Path(directory)
    store = at / "store"
    store.mkdir()
    spread = [2000 + 1000 * (n % 11) for n in range(options.records)]
    random.Random(options.seed).shuffle(spread)
    plan, acks, receipts = (str(at / file) for file in ("plan", "acks", "receipts"))
    Path(plan).write_text(json.dumps(spread))
    kill = run if run in KILLS else None
    rate = 0 if run == "flood" else options.rate
    system = systems[name](name, store)
    first = len(Process.all)
    load, fsync = os.getloadavg()[0], fsync_ms(at)
    try:
        began = time.monotonic()
        system.begin()
        started = time.monotonic() - began
        receiver = Process(at / "receive.log", system.clients("receive", plan, receipts, options.outstanding, rate))
        wait_for("the consumer", lambda: receiver.has("ready"))
        time.sleep(1)
        submitter = Process(at / "submit.log", system.clients("submit", plan, acks, options.outstanding, rate))
        wait_for("the first record", lambda: lines_of(acks))
        begun = time.monotonic()
        is_killed, last_count, last_change, memory = kill is None, 0, time.monotonic(), 0.0
        while True:
            time.sleep(0.2)
            if not is_killed and time.monotonic() - begun >= options.kill_after:
                is_killed = True
                if kill in ("worker", "consumer"):
                    receiver.kill()
                    receiver.start()
                else:
                    system.kill(kill)
                last_change = time.monotonic()
            got = lines_of(receipts)
            if len(got) != last_count:
                last_count, last_change = len(got), time.monotonic()
                if is_killed and kill is None and not memory and len(got) > options.records / 2:
                    memory = resident(system.pids())
            is_submitted = submitter.child.poll() is not None
            is_whole = len({n for n, _ in got}) >= options.records
            quiet = time.monotonic() - last_change
            # Longer than anything here waits before it tries again, if it is known to have a record left.
            patience = system.patience if kill else 3
            if is_killed and is_submitted and quiet > (patience if is_whole else max(patience, 30)):
                break
            if time.monotonic() - begun > 400:
                say(f"{name}: given up after 400 s")
                break
        return judge(name, run, lines_of(acks), lines_of(receipts)) | {
            "start_s": started, "fsync_ms": fsync, "memory_mib": memory, "load": [load, os.getloadavg()[0]]}
    finally:
        # Whoever asks for the end a second time waits until all that was started has ended.
        handlers = {which: signal.signal(which, signal.SIG_IGN) for which in (signal.SIGINT, signal.SIGTERM)}
        if options.keep:
            say(f"{name}: kept {directory}")
        # Clients first, so that they do not write of servers that leave.
        for process in reversed(Process.all[first:]):
            if process not in (system.server, getattr(system, "names", None), getattr(system, "waterclock", None)):
                process.end()
        system.down()
        for process in Process.all[first:]:
            process.kill()
        del Process.all[first:]
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)
        for which, handler in handlers.items():
            signal.signal(which, handler)


def judge(name, run, acks, receipts):
    # A record may have been sent more than once: its last line counts.
    due = {int(n): due for n, due, _, _ in acks}
    seen = {}
    early = 0
    for n, at in receipts:
        seen.setdefault(int(n), []).append(at)
        early += at < due.get(int(n), at)
    late = sorted(times[0] - due[n] for n, times in seen.items() if n in due)
    sent, acked = min(row[2] for row in acks), max(row[3] for row in acks)
    waits = sorted(row[3] - row[2] for row in acks)
    return {
        "system": name, "run": run, "acked": len(due), "accept_per_s": len(due) / max((acked - sent) / 1000, 0.001),
        "ack_p50_ms": percentile(waits, 0.5), "ack_max_ms": waits[-1], "early": early, "lost": len(due.keys() - seen.keys()),
        "doubled": sum(len(times) - 1 for times in seen.values()),
        "late_p50_ms": percentile(late, 0.5), "late_p99_ms": percentile(late, 0.99), "late_max_ms": late[-1] if late else float("nan"),
    }


def table(results):
    head = ["run", "system", "accepted/s", "accepted after, p50 / max ms", "late, p50 / p99 / max ms", "early", "lost", "doubled", "ready in, s",
            "memory, MiB", "load", "fsync, ms"]
    rows = [[
        r["run"], r["system"], f"{r['accept_per_s']:,.0f}" if r["run"] == "flood" else "–", f"{r['ack_p50_ms']:,.1f} / {r['ack_max_ms']:,.0f}",
        f"{r['late_p50_ms']:,.0f} / {r['late_p99_ms']:,.0f} / {r['late_max_ms']:,.0f}", str(r["early"]), str(r["lost"]), str(r["doubled"]),
        f"{r['start_s']:.1f}", f"{r['memory_mib']:,.0f}" if r["memory_mib"] else "–",
        f"{r['load'][0]:.0f}", f"{r['fsync_ms']:.1f}"] for r in results]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for n, row in enumerate([head, *rows]):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |")
        if n == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")


class Parser(argparse.ArgumentParser):
    def error(self, message):
        say(message)
        sys.exit(64)


def main():
    parser = Parser(add_help=False)
    parser.add_argument("systems", nargs="*")
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--outstanding", type=int, default=64)
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--run", action="append", choices=("flood", "steady", *KILLS))
    parser.add_argument("--kill-after", type=float, default=10)
    parser.add_argument("--json-file")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    for name in options.systems:
        if name not in systems:
            say(f"{name}: no such system; there are {' '.join(systems)}")
            return 64
    names, absent = [], 0
    for name in options.systems or systems:
        missing = systems[name].missing()
        if missing:
            say(f"left out: {name}: {missing} is missing")
            absent += 1
        else:
            names.append(name)
    if not names or (absent and options.systems):
        return 69
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results, code = [], 0
    print(f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}: {os.cpu_count()} cores, kernel {os.uname().release}, "
          f"load average {os.getloadavg()[0]:.1f}; {options.records} records, {options.rate:g}/s, "
          f"{options.outstanding} outstanding, seed {options.seed}, killed after {options.kill_after:g} s")
    for name in names:
        print(f"{name}: {systems[name].version()}", flush=True)
    # Round by round, so that what else the machine does meets all systems.
    for run in options.run or ("flood", "steady", *KILLS):
        for n in range(options.rounds):
            for name in names:
                if run in KILLS and run not in systems[name].kills:
                    continue
                say(f"{run}: {name}, round {n + 1}")
                try:
                    results.append(experiment(name, run, options))
                except (RuntimeError, OSError, subprocess.CalledProcessError, ValueError) as error:
                    say(f"{name}: failed: {error} {getattr(error, 'stderr', '') or ''}")
                    code = 1
                else:
                    say(json.dumps(results[-1]))
                if options.json_file:
                    Path(options.json_file).write_text(json.dumps(results, indent=1) + "\n")
    print()
    table(results)
    print(f"\nload average {os.getloadavg()[0]:.1f} at the end")
    return code


try:
    sys.exit(main())
except KeyboardInterrupt:
    sys.exit(130)
