"""The clients of scripts/compare: clients.py SYSTEM submit|receive ADDRESS PLAN FILE OUTSTANDING RATE

`submit` sends one record for each delay (in ms) of the list in PLAN, RATE of them a second (0: as many as it can), with at most OUTSTANDING
of them not yet acknowledged. It appends a line to FILE for each that the system has acknowledged: number, due time, time sent, time acknowledged (epoch milliseconds). It tries again until it is.
`receive` appends a line for each record that it gets, number and time, and then tells the system that it is done. It prints `ready` when it
listens, and connects again for as long as it lives.
"""

import asyncio
import json
import os
import socket
import sys
import time
from datetime import datetime, timezone

SYSTEM, ACTION, ADDRESS, PLAN, FILE, OUTSTANDING, RATE = sys.argv[1:]
OUTSTANDING, RATE = int(OUTSTANDING), float(RATE)
PAD = "x" * 200
out = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def delays():
    with open(PLAN) as plan:
        return json.load(plan)


def now():
    return time.time() * 1000


begun = None


def early(n):
    """For how many seconds it is not yet the turn of record n."""
    global begun
    begun = begun or time.monotonic()
    return max(0, begun + n / RATE - time.monotonic()) if RATE else 0


def acknowledged(n, due, sent):
    os.write(out, f"{n} {due} {sent} {now():.3f}\n".encode())


def received(n):
    os.write(out, f"{n} {now():.3f}\n".encode())


def value(n):
    return json.dumps({"n": n, "pad": PAD}).encode()


def ready():
    print("ready", flush=True)


class Kafka:
    def submit(self):
        from confluent_kafka import Producer

        producer = Producer({
            "bootstrap.servers": ADDRESS, "enable.idempotence": True, "partitioner": "murmur2_random",
        })
        in_flight = 0

        def told(n, due, sent, error):
            nonlocal in_flight
            in_flight -= 1
            if error is None:
                acknowledged(n, due, sent)
            else:
                send(n, due, sent)

        def send(n, due, sent):
            nonlocal in_flight
            in_flight += 1
            headers = {"x-delay-until": str(due), "x-delay-target": "compare.due"}
            producer.produce("waterclock.intake", key=str(n), value=value(n), headers=headers,
                             on_delivery=lambda error, _: told(n, due, sent, error))

        producer.list_topics("waterclock.intake")
        for n, delay in enumerate(delays()):
            while early(n):
                producer.poll(early(n))
            sent = int(now())
            send(n, sent + delay, sent)
            while in_flight >= OUTSTANDING:
                producer.poll(0.1)
        while in_flight:
            producer.poll(0.1)

    def receive(self):
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({
            "bootstrap.servers": ADDRESS, "group.id": "compare", "isolation.level": "read_committed",
            "auto.offset.reset": "earliest", "enable.auto.commit": False,
        })
        count = len(consumer.list_topics("compare.due").topics["compare.due"].partitions)
        consumer.assign([TopicPartition("compare.due", n) for n in range(count)])
        ready()
        while True:
            for record in consumer.consume(100, timeout=0.01):
                if record.error() is None:
                    received(json.loads(record.value())["n"])
                    consumer.commit(message=record, asynchronous=True)


class Beanstalkd:
    def connect(self):
        while True:
            try:
                connection = socket.create_connection(("127.0.0.1", int(ADDRESS)))
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection, connection.makefile("rb")
            except OSError:
                time.sleep(0.05)

    def submit(self):
        # Its protocol answers in order, so several requests can be on their way on one connection.
        todo = list(enumerate(delays()))
        connection, answers = self.connect()
        in_flight = []
        while todo or in_flight:
            try:
                while todo and len(in_flight) < OUTSTANDING:
                    n, delay = todo[0]
                    if early(n):
                        if in_flight:
                            break
                        time.sleep(early(n))
                    sent = int(now())
                    body = value(n)
                    in_flight.append((n, sent + delay, sent, delay))
                    del todo[0]
                    connection.sendall(b"put 0 %d 60 %d\r\n%s\r\n" % (delay // 1000, len(body), body))
                if not answers.readline().startswith(b"INSERTED"):
                    raise OSError("not inserted")
                n, due, sent, _ = in_flight.pop(0)
                acknowledged(n, due, sent)
            except OSError:
                todo = [(n, delay) for n, _, _, delay in in_flight] + todo
                in_flight = []
                connection, answers = self.connect()

    def receive(self):
        connection, answers = self.connect()
        ready()
        while True:
            try:
                connection.sendall(b"reserve\r\n")
                answer = answers.readline().split()
                if not answer or answer[0] != b"RESERVED":
                    raise OSError("not reserved")
                received(json.loads(answers.read(int(answer[2]) + 2))["n"])
                connection.sendall(b"delete %s\r\n" % answer[1])
                if not answers.readline():
                    raise OSError("ended")
            except OSError:
                connection, answers = self.connect()


async def with_window(send):
    """Sends all, OUTSTANDING at a time, each until it is acknowledged."""
    todo = iter(enumerate(delays()))

    async def one():
        for n, delay in todo:
            await asyncio.sleep(early(n))
            sent = int(now())
            while True:
                try:
                    await send(n, delay, sent + delay)
                    break
                except Exception:
                    await asyncio.sleep(0.05)
            acknowledged(n, sent + delay, sent)

    await asyncio.gather(*(one() for _ in range(OUTSTANDING)))


class RabbitMQ:
    """One queue for all delays, which loses its expired messages to the queue that is read; or a queue for each delay."""

    def __init__(self, queue_of=lambda _: "wait"):
        self.queue_of = queue_of

    async def channel(self):
        import aio_pika

        while True:
            try:
                connection = await aio_pika.connect_robust(f"amqp://guest:guest@127.0.0.1:{ADDRESS}/", reconnect_interval=0.1)
                channel = await connection.channel(publisher_confirms=True)
                await channel.set_qos(prefetch_count=100)
                due = await channel.declare_queue("due", durable=True)
                back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "due"}
                for name in sorted({self.queue_of(delay) for delay in delays()}):
                    await channel.declare_queue(name, durable=True, arguments=back)
                return channel, due
            except Exception:
                await asyncio.sleep(0.1)

    def submit(self):
        import aio_pika

        async def run():
            channel, _ = await self.channel()

            async def send(n, delay, _):
                message = aio_pika.Message(value(n), delivery_mode=2, expiration=delay / 1000)
                await channel.default_exchange.publish(message, self.queue_of(delay))

            await with_window(send)

        asyncio.run(run())

    def receive(self):
        async def run():
            _, due = await self.channel()

            async def got(message):
                received(json.loads(message.body)["n"])
                await message.ack()

            await due.consume(got)
            ready()
            await asyncio.Event().wait()

        asyncio.run(run())


class Procrastinate:
    def __init__(self, **options):
        self.options = options

    def app(self):
        from procrastinate import App, PsycopgConnector

        app = App(connector=PsycopgConnector(conninfo=ADDRESS))

        @app.task(name="record")
        async def record(n, pad):
            received(n)

        return app, record

    def submit(self):
        async def run():
            app, task = self.app()

            async def send(n, _, due):
                at = datetime.fromtimestamp(due / 1000, timezone.utc)
                await task.configure(schedule_at=at).defer_async(n=n, pad=PAD)

            async with app.open_async():
                await with_window(send)

        asyncio.run(run())

    def receive(self):
        async def run():
            app, _ = self.app()
            async with app.open_async():
                ready()
                await app.run_worker_async(**self.options)

        # It ends with an error when its connections are gone: whoever runs it starts it again.
        while True:
            try:
                asyncio.run(run())
            except Exception as error:
                print(f"again: {error!r}", file=sys.stderr, flush=True)
                time.sleep(0.2)


systems = {
    "waterclock": Kafka,
    "waterclock-flushed": Kafka,
    "beanstalkd": Beanstalkd,
    "rabbitmq": RabbitMQ,
    "rabbitmq-queues": lambda: RabbitMQ(lambda delay: f"wait-{delay}"),
    "procrastinate": Procrastinate,
    "procrastinate-tuned": lambda: Procrastinate(fetch_job_polling_interval=0.1, concurrency=10),
}
getattr(systems[SYSTEM](), ACTION)()
