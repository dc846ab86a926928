"""Executes shards of runs, over HTTP: says that it lives, does the rows of its shard, reports, and goes on where an earlier turn came to.

    pip install confluent-kafka
    python3 run_executor.py 127.0.0.1:8080 settlement      # until it is stopped; start as many as you like

The value of the run says how much there is to do: {"rows": 600, "ms": 20} are 600 rows in all, of 20 ms each.

In the environment: BROKERS says where Kafka is (localhost:9092). TOKEN has the token of the API, if there is one. HEARTBEAT is `heartbeat`
of the run in seconds (5). It must not be longer here than there.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

from confluent_kafka import Consumer, KafkaException

BROKERS = os.environ.get("BROKERS", "localhost:9092")
TOKEN = os.environ.get("TOKEN")
# `runs shards` shows who works on a shard.
NAME = f"{socket.gethostname()}-{os.getpid()}"
# A heartbeat has to come within so many seconds. It is sent at a third of them.
PERIOD = float(os.environ.get("HEARTBEAT", "5"))
# The work stops this long after the last heartbeat that was answered. The rest of the period is for a step that cannot be cut short.
SILENCE = 0.8 * PERIOD
# So long a report is sent again and again.
PATIENCE = 30
# With these answers the turn is over. A repeated call has the same answer.
GONE = ("stale", "unknown_task", "wrong_ticket", "bad_ticket")

opener = build_opener(ProxyHandler({}))  # a proxy of the environment is not for an instance
stopping = threading.Event()


class Over(Exception):
    """The turn is over for this executor, and this is why: stale, unheard, stopping, unreported."""


class Unanswered(Exception):
    """The same call may go well later."""


def code_of(error):
    """What is wrong, as an instance says it for programs."""
    try:
        return json.load(error)["code"]
    except (OSError, HTTPException, ValueError, TypeError, KeyError):
        return "without a code"


def post(server, task, what, timeout, fields):
    """The answer of an instance."""
    headers = {"Content-Type": "application/json"}
    if TOKEN:
        headers["Authorization"] = f"Bearer {TOKEN}"
    url = f"{server}/v1/tasks/{quote(task, safe='')}/{what}"
    try:
        with opener.open(Request(url, json.dumps(fields).encode(), headers, method="POST"), timeout=timeout) as answer:
            return json.load(answer)
    except HTTPError as error:
        code = code_of(error)
        if code in GONE:
            raise Over("stale") from error
        raise Unanswered(f"{error.code} {code}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise Unanswered(error) from error


def now_ms():
    """For people who compare the lines of several executors. Nothing is decided by it."""
    return time.time_ns() // 1_000_000


class Turn:
    """One attempt at one shard, in the hands of this executor."""

    def __init__(self, server, record):
        headers = {name: (value or b"").decode(errors="replace") for name, value in record.headers() or []}
        self.server, self.value = server, record.value() or b""
        self.task, self.ticket = headers.get("x-delay-id", ""), headers.get("x-delay-ticket", "")
        self.number = headers.get("x-delay-attempt", "1")
        # A task that is of no run is a whole by itself.
        self.shard = headers.get("x-delay-shard", "0/1")
        # For which time of its schedule it is, in milliseconds since 1970. None: it is of no schedule, or was asked for by hand.
        self.nominal = headers.get("x-delay-nominal")
        self.cursor, self.percent = headers.get("x-delay-cursor", ""), None
        self.heard = None  # when the last heartbeat was sent that was answered
        self.over = None
        self.ended = threading.Event()

    def say(self, word, what, at):
        print(f"{word} {self.shard} turn {self.number} {what} at {at}", flush=True)

    def end(self, why):
        """Ends it for this executor. What was said first counts."""
        self.over = self.over or why
        self.ended.set()

    def heartbeat(self):
        sent = time.monotonic()
        fields = {"ticket": self.ticket, "worker": NAME}
        if self.cursor:
            fields["cursor"] = self.cursor
        if self.percent is not None:
            fields["percent"] = self.percent
        post(self.server, self.task, "heartbeat", PERIOD / 3, fields)
        # The period is counted from a time that was later, so this is on the safe side.
        self.heard = sent

    def beat(self):
        """Sends heartbeats until the work has ended, or the turn."""
        pause = PERIOD / 3
        while not self.ended.wait(pause):
            try:
                self.heartbeat()
                pause = PERIOD / 3
            except Over as over:
                self.end(str(over))
            except Unanswered as error:
                print("no heartbeat:", error, file=sys.stderr, flush=True)
                pause = PERIOD / 12

    def check(self):
        """Stops the work here if the turn is over, or if it may be over: then another executor may have the shard soon."""
        if not self.over and time.monotonic() - self.heard > SILENCE:
            self.end("unheard")
        if self.over:
            raise Over(self.over)

    def reached(self, cursor, percent):
        """The work has come so far. The next heartbeat says so, and the next turn begins here if this one is lost."""
        self.cursor, self.percent = cursor, percent
        self.check()

    def sleep(self, seconds):
        """Sleeps for so long, or until the turn is over."""
        until = time.monotonic() + seconds
        while True:
            self.check()
            now = time.monotonic()
            if now >= until:
                return
            self.ended.wait(max(0, min(until, self.heard + SILENCE) - now) + 0.001)

    def report(self, outcome, error):
        """Says how the work went, and is told what became of the shard by that."""
        fields = {"ticket": self.ticket, "worker": NAME, "outcome": outcome}
        if self.cursor:
            fields["cursor"] = self.cursor
        if error:
            fields["error"] = error
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return post(self.server, self.task, "result", 10, fields)["outcome"]
            except Unanswered as failure:
                print("no report:", failure, file=sys.stderr, flush=True)
                if time.monotonic() > until or stopping.wait(0.5):
                    raise Over("unreported") from failure


def settle(turn, row, seconds):
    """Settles one row. It only takes its time here."""
    turn.sleep(seconds)


def work(turn, value):
    """This is what you replace: it settles the rows of this shard, which are those whose remainder by n is i.

    The cursor says how many of them are done. What this turn does behind its last heartbeat is done again if it is lost, so it must do
    no harm to settle a row twice.
    """
    told = json.loads(value)
    shard, shards = map(int, turn.shard.split("/"))
    rows = range(shard, told["rows"], shards)
    done = int(turn.cursor.removeprefix("row:") or 0)
    for row in rows[done:]:
        settle(turn, row, told["ms"] / 1000)
        done += 1
        turn.reached(f"row:{done}", 100 * done // len(rows))


def carry_out(turn):
    """Works on one shard, sends heartbeats meanwhile, and reports."""
    at = now_ms()
    try:
        turn.check()
    except Over as over:
        print(f"{turn.shard} turn {turn.number} does not begin: {over}", file=sys.stderr, flush=True)
        return
    nominal = f" nominal {turn.nominal}" if turn.nominal else ""
    turn.say("begin", f"from {turn.cursor or '-'}{nominal}", at)
    threading.Thread(target=turn.beat, daemon=True).start()
    outcome, error = "finished", None
    try:
        work(turn, turn.value)
    except Over as over:
        turn.say("stop", over, now_ms())
        return
    except Exception as failure:
        # One line of 200 bytes at most.
        outcome, error = "failed", ascii(f"{type(failure).__name__}: {failure}")[1:-1][:200]
    finally:
        turn.ended.set()
    # This is when the work has ended. The report may take longer.
    at = now_ms()
    try:
        turn.say("end", turn.report(outcome, error), at)
    except Over as over:
        turn.say("stop", over, at)


def take(consumer, turn, record):
    """What to do with a record: begin its turn, wait and take it again, or pass it over.

    A turn begins once a heartbeat was answered and then the offset committed.
    """
    place = f"{record.topic()}/{record.partition()}@{record.offset()}"
    verdict = "begin"
    try:
        if not turn.ticket:
            raise Over("no task")
        turn.heartbeat()
    except Over as over:
        print(f"{place} is passed over: {over}", file=sys.stderr, flush=True)
        verdict = "pass over"
    except Unanswered as error:
        print(f"{place} waits: {error}", file=sys.stderr, flush=True)
        return "wait"
    try:
        # Kafka refuses it if the partition was taken away. So only one executor begins the turn of a record, though two may have read it.
        consumer.commit(record, asynchronous=False)
    except KafkaException as error:
        print(f"{place} waits: {error}", file=sys.stderr, flush=True)
        return "wait"
    return verdict


class Executor:
    """Works on what is handed over, one shard after the other."""

    def __init__(self, server, topic):
        self.server, self.topic = server, topic
        self.waiting = deque()  # records whose work has not begun
        self.paused = []  # partitions of which nothing is read meanwhile
        self.not_before = 0  # when the first of the waiting is taken again
        self.turn, self.worker = None, None  # what is worked on, and by which thread

    def join(self):
        """Joins the group."""
        self.consumer = Consumer({
            "bootstrap.servers": BROKERS,
            "group.id": self.topic + "-executors",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            # So long after an executor has died another one reads its partitions.
            "session.timeout.ms": 10000,
        })
        self.consumer.subscribe([self.topic], on_revoke=self.revoked, on_lost=self.revoked)
        self.seen = time.monotonic()  # when it had partitions last, or was asked why not

    def revoked(self, consumer, partitions):
        """Who has the partitions next reads the records again that wait here."""
        lost = {partition.partition for partition in partitions}
        self.waiting = deque(record for record in self.waiting if record.partition() not in lost)
        # librdkafka would keep the pause until these partitions come back. Only what was paused may be resumed: the rest is read twice.
        consumer.resume([partition for partition in self.paused if partition.partition in lost])
        self.paused = [partition for partition in self.paused if partition.partition not in lost]

    def is_cut_off(self):
        """After an outage librdkafka may have forgotten all brokers: one that has just come back may name none. A new consumer helps."""
        now = time.monotonic()
        if self.consumer.assignment():
            self.seen = now
        if now - self.seen < 30:
            return False
        self.seen = now
        try:
            return not self.consumer.list_topics(self.topic, timeout=5).brokers
        except KafkaException:
            return True

    def read(self):
        """Reads a record, while there is work, too: who does not poll for max.poll.interval.ms is put out of the group."""
        record = self.consumer.poll(0.1)
        if record is None:
            return
        if record.error():
            print(record.error(), file=sys.stderr, flush=True)
            return
        self.waiting.append(record)
        self.paused = self.consumer.assignment()
        self.consumer.pause(self.paused)

    def begin(self):
        """Begins the turn of the first record that waits."""
        turn = Turn(self.server, self.waiting[0])
        verdict = take(self.consumer, turn, self.waiting[0])
        if verdict == "wait":
            self.not_before = time.monotonic() + 1
            return
        self.waiting.popleft()
        if verdict == "begin":
            self.turn, self.worker = turn, threading.Thread(target=carry_out, args=[turn])
            self.worker.start()

    def run(self):
        """Goes on until it is told to stop."""
        self.join()
        while not stopping.is_set():
            self.read()
            is_busy = self.worker is not None and self.worker.is_alive()
            if self.waiting and not is_busy and time.monotonic() >= self.not_before:
                self.begin()
            if self.paused and not self.waiting:
                self.consumer.resume(self.paused)
                self.paused = []
            if self.is_cut_off():
                print("no broker is known any more: the consumer is made anew", file=sys.stderr, flush=True)
                self.consumer.close()
                self.join()
        if self.worker is not None:
            self.turn.end("stopping")
            self.worker.join()
        # Leaves the group, so that others have the partitions at once.
        self.consumer.close()


def main(address, topic):
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopping.set())
    server = address if "://" in address else f"http://{address}"
    Executor(server.rstrip("/"), topic).run()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
