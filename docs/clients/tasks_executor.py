"""An executor over gRPC: works on Kafka tasks with feedback, sends heartbeats, reports, and goes on where an earlier turn came to.

Needs what tasks_grpc.py needs, which stands beside it, and confluent-kafka.

    pip install grpcio grpcio-tools confluent-kafka
    python3 tasks_executor.py 127.0.0.1:8080 imports &       # works on the tasks for this topic, until it is stopped
    python3 tasks_executor.py 127.0.0.1:8080 imports 90      # creates a task: 90 rows are to be imported

BROKERS in the environment says where Kafka is: localhost:9092.
"""

import os
import sys
import threading
import time
import uuid

import grpc
from confluent_kafka import Consumer, KafkaError
from google.protobuf.duration_pb2 import Duration
from tasks_grpc import METADATA, patient
from waterclock.v1 import tasks_pb2 as wc
from waterclock.v1.tasks_pb2_grpc import TasksStub

# A heartbeat has to come within so many seconds. An executor sends them at a third of it.
PERIOD = 6


class Over(Exception):
    """The turn is over, so its executor stops: another executor has the task, or it was cancelled."""


class Turn:
    """A turn in the hands of its executor."""

    def __init__(self, tasks, headers):
        self.tasks = tasks
        self.id, self.ticket = headers["x-delay-id"].decode(), headers["x-delay-ticket"].decode()
        self.cursor = headers.get("x-delay-cursor", b"").decode()
        self.heard = time.monotonic()  # when the last heartbeat was sent that was answered
        self.is_stale = False

    def heartbeat(self, call=patient):
        sent = time.monotonic()
        request = wc.HeartbeatRequest(task_id=self.id, ticket=self.ticket, cursor=self.cursor)
        try:
            call(self.tasks.Heartbeat, request)
            self.heard = sent
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.ABORTED:
                raise
            self.is_stale = True  # its ErrorInfo has the reason stale

    def beat(self, ended):
        """Sends heartbeats until the work has ended, or the turn."""
        while not self.is_stale and not ended.wait(PERIOD / 3):
            try:
                self.heartbeat(lambda call, request: call(request, metadata=METADATA, timeout=PERIOD / 3))
            except grpc.RpcError as error:
                print("the next heartbeat may be answered:", error.code(), file=sys.stderr)

    def reached(self, cursor):
        """The work has come so far. It stops here if an instance has said that the turn is over, or if it may be over."""
        self.cursor = cursor
        if self.is_stale or time.monotonic() - self.heard > PERIOD:
            raise Over

    def report(self, outcome, error=""):
        """Says how the work went, and is told what became of the task by that."""
        request = wc.ReportResultRequest(task_id=self.id, ticket=self.ticket, outcome=outcome, cursor=self.cursor, error=error)
        try:
            return patient(self.tasks.ReportResult, request).outcome
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.ABORTED:
                raise Over from error
            raise


def work(turn, value):
    """This is what you replace: it imports so many rows. The cursor says how many are done, and an earlier turn may have done some.

    What this turn does behind its last heartbeat is done again if it is lost, so it must do no harm to do a row twice.
    """
    rows, done = int(value), int(turn.cursor.removeprefix("row:") or 0)
    print("from row", done)
    for row in range(done, rows):
        time.sleep(0.1)
        turn.reached(f"row:{row + 1}")


def take(turn, value):
    """Works on one task, sends heartbeats meanwhile, and reports."""
    ended = threading.Event()
    beats = threading.Thread(target=turn.beat, args=[ended])
    beats.start()
    failure = ""
    try:
        work(turn, value)
    except Over:
        raise
    except Exception as error:
        # One line of 200 bytes at most.
        failure = ascii(str(error))[:200]
    finally:
        # A heartbeat behind the result would be stale.
        ended.set()
        beats.join()
    if failure:
        return turn.report(wc.REPORTED_OUTCOME_FAILED, failure)
    return turn.report(wc.REPORTED_OUTCOME_FINISHED)


def no_kafka(error):
    """What librdkafka says of Kafka. Of each try to connect it would say more than anybody reads."""
    if error.code() == KafkaError._ALL_BROKERS_DOWN:
        print("no broker answers; trying again:", error.str(), file=sys.stderr)


def execute(tasks, topic):
    """Works on what is handed over."""
    consumer = Consumer({
        "bootstrap.servers": os.environ.get("BROKERS", "localhost:9092"),
        "group.id": topic + "-executors",
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        # So long after an executor has died another one reads its partitions.
        "session.timeout.ms": 10000,
        "error_cb": no_kafka,
        "log_level": 2,
        "reconnect.backoff.ms": 1000,
    })
    consumer.subscribe([topic])
    while True:
        record = consumer.poll(1)
        if record is None:
            continue
        if record.error():
            # Work of more than max.poll.interval.ms loses the partitions to others, say. It gets some again.
            print(record.error(), file=sys.stderr)
            continue
        headers = dict(record.headers() or [])
        if "x-delay-ticket" not in headers:
            print(f"{record.topic()}/{record.partition()}@{record.offset()} is no task: passed over", file=sys.stderr)
            consumer.commit(record, asynchronous=False)
            continue
        value = record.value().decode()
        turn = Turn(tasks, headers)
        turn.heartbeat()
        # After the first heartbeat: then a crash before it costs nothing but time.
        consumer.commit(record, asynchronous=False)
        if turn.is_stale:
            continue
        print(value, "rows: turn", headers["x-delay-attempt"].decode())
        try:
            print(take(turn, value))
        except Over:
            print("the turn is over", file=sys.stderr)


def create(tasks, topic, rows):
    """Creates a task that is handed to an executor in a second."""
    return patient(tasks.CreateKafkaTask, wc.CreateKafkaTaskRequest(
        project="shop",
        group="imports",
        request_id=str(uuid.uuid4()),
        topic=topic,
        value=rows.encode(),
        retry=wc.RetryInfo(count=3),
        options=wc.Options(
            delay=Duration(seconds=1),
            feedback=wc.Feedback(deadline=Duration(seconds=3600), heartbeat=Duration(seconds=PERIOD)),
        ),
    )).task_id


def main(address, topic, rows=None):
    with grpc.insecure_channel(address) as channel:
        tasks = TasksStub(channel)
        if rows is None:
            execute(tasks, topic)
        else:
            print(create(tasks, topic, rows))


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
