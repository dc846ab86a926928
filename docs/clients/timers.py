"""Timers of waterclock from Python.

  python timers.py send TARGET KEY ID DELAY TEXT      the record arrives in TARGET after DELAY (30m, 1h30m, 90s)
  python timers.py replace TARGET KEY ID DELAY TEXT   takes the place of the pending record of KEY and ID
  python timers.py cancel KEY ID                      keeps it from being delivered; nobody says whether it was in time
  python timers.py ask KEY ID                         the same, and says what became of it
  python timers.py poll TARGET KEY INTERVAL ROUNDS    consumes a record and sends it again, after equal intervals

BROKERS, SERVER and INTAKE in the environment say where: localhost:9092, http://localhost:8080, waterclock.intake.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

from confluent_kafka import Consumer, Producer

BROKERS = os.environ.get("BROKERS", "localhost:9092")
SERVER = os.environ.get("SERVER", "http://localhost:8080")
INTAKE = os.environ.get("INTAKE", "waterclock.intake")

producer = Producer({
    "bootstrap.servers": BROKERS,
    "enable.idempotence": True,
    # As Java's clients do it. Any other works, and costs one more append for most records.
    "partitioner": os.environ.get("PARTITIONER", "murmur2_random"),
})


def submit(key, value, headers):
    """Returns when all in-sync replicas have the record."""
    told = []
    producer.produce(INTAKE, key=key, value=value, headers=headers, on_delivery=lambda error, _: told.append(error))
    producer.flush()
    if told != [None]:
        raise RuntimeError(f"not acknowledged: {told}")


# An id makes it a timer: it can be cancelled and replaced, and a second send of a pending id does nothing, so a send may be
# repeated after an error. Key and id together are its name.
def send(target, key, timer, delay, text):
    submit(key, text, [("x-delay", delay), ("x-delay-target", target), ("x-delay-id", timer)])


# If nothing is pending under this name, it is created.
def replace(target, key, timer, delay, text):
    submit(key, text, [("x-delay", delay), ("x-delay-target", target), ("x-delay-id", timer), ("x-delay-action", "replace")])


# The same key, the id, no value. If it was acknowledged 50 ms (`settle`) before the record was due, it was in time.
def cancel(key, timer):
    submit(key, None, [("x-delay-action", "cancel"), ("x-delay-id", timer)])


def said(told):
    """`cancelled`, `delivered`; `unknown`, with what it ended as if that is known: `unknown (dead)`."""
    more = [told[name] for name in ("state", "code") if told.get(name)]
    return told["outcome"] + (f" ({', '.join(more)})" if more else "")


# 503: the timer's lane moves from one instance to another; the answer says how long to wait. 202: not decided within `wait`, and
# where to ask again. Asking twice is no mistake: the answer is the same.
def ask(key, timer, within_s=30):
    query = urllib.parse.urlencode({"key": key, "wait": "5s"})
    first = f"{SERVER}/v1/timers/{urllib.parse.quote(timer, safe='')}?{query}"
    method, url = "DELETE", first
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as answer:
                if answer.status == 200:
                    return said(json.load(answer))
                method, url = "GET", urllib.parse.urljoin(SERVER, answer.headers["Location"])
        except urllib.error.HTTPError as error:
            if error.code == 410:  # who would have known has gone
                method, url = "DELETE", first
            elif error.code != 503:
                raise
            time.sleep(int(error.headers.get("Retry-After", 1)))
    return "pending"


# With `x-delay-trace: 1` a record arrives with how often it was delivered. How long it waited is told by a header of ours, which
# passes as it is.
def again(message):
    headers = dict(message.headers())
    own = [(name, value) for name, value in message.headers() if not name.startswith("x-delay")]
    submit(message.key(), message.value(), own + [
        ("x-delay", headers["interval"]),
        ("x-delay-target", message.topic()),
        ("x-delay-partition", str(message.partition())),
        ("x-delay-attempt", headers["x-delay-attempt"]),
        ("x-delay-trace", "1"),
    ])


def poll(target, key, interval, rounds):
    submit(key, "is it there?", [("x-delay", interval), ("x-delay-target", target), ("x-delay-trace", "1"), ("interval", interval)])
    consumer = Consumer({
        "bootstrap.servers": BROKERS,
        "group.id": f"{target}-polls",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    })
    consumer.subscribe([target])
    while True:
        message = consumer.poll(1.0)
        if message is None or message.error():
            continue
        attempt = int(dict(message.headers())["x-delay-attempt"])
        print(f"round {attempt}", flush=True)
        if attempt < int(rounds):
            again(message)
        # Only now: if we end before, it is asked again.
        consumer.commit(message, asynchronous=False)
        if attempt == int(rounds):
            return consumer.close()


commands = {"send": (send, 5), "replace": (replace, 5), "cancel": (cancel, 2), "ask": (ask, 2), "poll": (poll, 4)}
command, count = commands.get(sys.argv[1] if len(sys.argv) > 1 else "", (None, 0))
if command is None or len(sys.argv) != 2 + count:
    sys.exit(__doc__)
answer = command(*sys.argv[2:])
if answer:
    print(answer)
