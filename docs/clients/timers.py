"""Timers of waterclock from Python.

  python timers.py send TARGET KEY ID DELAY TEXT      the record arrives in TARGET after DELAY (30m, 1h30m, 90s)
  python timers.py replace TARGET KEY ID DELAY TEXT   takes the place of the pending record of KEY and ID
  python timers.py cancel KEY ID                      keeps it from being delivered; nobody says whether it was in time
  python timers.py ask KEY ID                         the same, and says what became of it

The recipes of docs/cookbook.md:

  python timers.py order TARGET ORDER DELAY           an order is made: after DELAY it is to be closed
  python timers.py paid ORDER                         it is paid: says whether to ship it or to give the money back
  python timers.py stock TARGET SKU ID DELAY LABEL    stock is reserved: after DELAY it is to be released
  python timers.py longer SKU ID DELAY                the reservation lasts longer: DELAY from now
  python timers.py labelled LABEL                     lists what is pending with this label
  python timers.py coupon TARGET CUSTOMER COUPON ENDS SECONDS
                                                      reminds SECONDS before ENDS (a time as 2026-12-24T18:00:00Z); once more: the end is another one
  python timers.py payment TARGET PAYMENT INTERVAL TRIES FINAL
                                                      asks for a result every INTERVAL, TRIES times at most; it is final the FINALth time
  python timers.py retry TOPIC GIVEN_UP SECONDS TRIES RECORDS
                                                      consumes TOPIC; what fails is tried again after SECONDS, twice that, ..., TRIES times at
                                                      most, and then written to GIVEN_UP. Ends when so many RECORDS are done or given up
  python timers.py consume TOPIC RECORDS              consumes so many records and prints them

BROKERS, SERVER and INTAKE in the environment say where: localhost:9092, http://localhost:8080, waterclock.intake.
"""

import json
import os
import sys
import time
from contextlib import closing
from datetime import datetime, timedelta
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urljoin, urlsplit
from urllib.request import ProxyHandler, Request, build_opener, install_opener, urlopen

from confluent_kafka import Consumer, Producer

BROKERS = os.environ.get("BROKERS", "localhost:9092")
SERVER = os.environ.get("SERVER", "http://localhost:8080")
INTAKE = os.environ.get("INTAKE", "waterclock.intake")

# What runs on this machine is asked directly: a proxy of the environment is for the world outside.
if urlsplit(SERVER).hostname in ("localhost", "127.0.0.1", "::1"):
    install_opener(build_opener(ProxyHandler({})))

producer = Producer({
    "bootstrap.servers": BROKERS,
    "enable.idempotence": True,
    # As Java's clients do it. Any other works, and costs one more append for most records.
    "partitioner": os.environ.get("PARTITIONER", "murmur2_random"),
})


def write(topic, key, value, headers):
    """Returns when all in-sync replicas have the record."""
    told = []
    producer.produce(topic, key=key, value=value, headers=headers, on_delivery=lambda error, _: told.append(error))
    producer.flush()
    if told != [None]:
        raise RuntimeError(f"not acknowledged: {told}")


def submit(key, value, headers):
    write(INTAKE, key, value, headers)


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


def ask(key, timer):
    """Cancels, and says what became of it."""
    return said(http("DELETE", path(key, timer)))


def path(key, timer):
    return f"/v1/timers/{quote(timer, safe='')}?{urlencode({'key': key, 'wait': '5s'})}"


# 503: the timer's lane moves from one instance to another; the answer says how long to wait. 202: not decided within `wait`, and
# where to ask again. 410: the instance that knew has gone. Asking twice is no mistake: the answer is the same.
def http(method, path, body=None, within_s=30):
    first = now = (method, SERVER + path, body and json.dumps(body).encode())
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        verb, url, data = now
        try:
            with urlopen(Request(url, data, {"Content-Type": "application/json"}, method=verb), timeout=10) as answer:
                if answer.status == 200:
                    return json.load(answer)
                now = ("GET", urljoin(SERVER, answer.headers["Location"]), None)
        except HTTPError as error:
            if error.code in (404, 409):  # its code says why nothing was done
                return json.load(error)
            if error.code == 410:
                now = first
            elif error.code != 503:
                raise
            time.sleep(int(error.headers.get("Retry-After", 1)))
        except URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError):
                raise
            time.sleep(1)  # nobody listens there yet
    return {"outcome": "pending"}


def said(told):
    """`cancelled`, `delivered`; `unknown`, with what it ended as if that is known: `unknown (dead, target_missing)`."""
    names = ("outcome", "state", "code") if "outcome" in told else ("code", "state")
    words = [told[name] for name in names if told.get(name)]
    return words[0] + (f" ({', '.join(words[1:])})" if words[1:] else "")


def attempt(message):
    """How often waterclock has delivered it: `x-delay-trace: 1` asks for this header."""
    return int(dict(message.headers() or []).get("x-delay-attempt", 0))


def text(value):
    return (value or b"").decode(errors="replace")


def own(message):
    return [(name, value) for name, value in message.headers() or [] if not name.startswith("x-delay-")]


# An id goes along: if we end before the offset is committed, the record is submitted twice. While the first one waits, the second one
# does nothing.
def again(message, delay):
    """Submits a consumed record for its partition again."""
    headers = own(message) + [header for header in message.headers() or [] if header[0] == "x-delay-id"]
    submit(message.key(), message.value(), headers + [
        ("x-delay", delay),
        ("x-delay-target", message.topic()),
        ("x-delay-partition", str(message.partition())),
        ("x-delay-trace", "1"),
        ("x-delay-attempt", str(attempt(message))),
    ])


def each(topic, work, records):
    """Consumes until so many records are finished: `work` says whether one is."""
    settings = {
        "bootstrap.servers": BROKERS,
        "group.id": f"{topic}-worker",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
    # Closed after an error, too: so the next worker need not wait until this one is missed.
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe([topic])
        while records > 0:
            message = consumer.poll(1.0)
            if message is None or message.error():
                continue
            if work(message):
                records -= 1
            # Only now: if we end before, the record is consumed once more, and nothing is lost.
            consumer.commit(message, asynchronous=False)


# The end of an order that nobody pays.
def order(target, order, delay):
    submit(order, "nobody has paid", [("x-delay", delay), ("x-delay-target", target), ("x-delay-id", "payment")])


def paid(order):
    outcome = ask(order, "payment")
    if outcome == "cancelled":  # it will never be closed
        return f"{order}: ship it"
    if outcome == "delivered":  # it was closed a moment ago
        return f"{order}: give the money back"
    # pending: ask again. unknown: there is no such order, or not any more.
    sys.exit(f"{order}: {outcome}")


def stock(target, sku, reservation, delay, label):
    submit(sku, f"release {reservation}", [
        ("x-delay", delay), ("x-delay-target", target), ("x-delay-id", reservation), ("x-delay-label", label)])


# replaced: the same record, later. not_pending (delivered): it is released.
def longer(sku, reservation, delay):
    return said(http("PATCH", path(sku, reservation), {"delay": delay}))


def labelled(label):
    page = {}
    while True:
        told = http("GET", "/v1/timers?" + urlencode({"label": label, "state": "delay", **page}))
        for timer in told["timers"]:
            print(f"{timer['id']} of {timer['key']}, due in {timer['due'] / 1000 - time.time():.0f} s")
        if not told["next"]:
            return
        page = {"page": told["next"]}


# Made and moved by the same call. A time that is past is now; after its end it is a dead letter (`expired`), and no mail.
def coupon(target, customer, coupon, ends, seconds):
    reminds = datetime.fromisoformat(ends.replace("Z", "+00:00")) - timedelta(seconds=int(seconds))
    submit(customer, f"{coupon} ends at {ends}", [
        ("x-delay-until", reminds.isoformat()), ("x-delay-expires", ends), ("x-delay-target", target),
        ("x-delay-id", coupon), ("x-delay-action", "replace")])


def payment(target, payment, interval, tries, final):
    submit(payment, "is it final?", [
        ("x-delay", interval), ("x-delay-target", target), ("x-delay-id", "result"), ("x-delay-trace", "1")])

    def look(message):
        name, tried = text(message.key()), attempt(message)
        if tried >= int(final):  # stands for a question to the payment service
            print(f"{name}: final, asked {tried} times", flush=True)
            return True
        if tried >= int(tries):
            print(f"{name}: given up, asked {tried} times", flush=True)
            return True
        again(message, interval)
        return False

    each(target, look, 1)


def retry(topic, given_up, seconds, tries, records):
    def attend(message):
        name, tried = text(message.value()), attempt(message)
        try:
            work(name, tried)
            print(f"{name}: done", flush=True)
        except Exception as error:
            if tried < int(tries):
                again(message, f"{int(seconds) * 2 ** tried}s")
                print(f"{name}: again", flush=True)
                return False
            write(given_up, message.key(), message.value(), own(message) + [("why", str(error))])
            print(f"{name}: given up", flush=True)
        return True

    each(topic, attend, int(records))


def work(name, tried):
    """Stands for your work. `fail 2` fails twice."""
    if name.startswith("fail ") and tried < int(name.split()[1]):
        raise RuntimeError(f"failure {tried + 1}")


# What closes an order, releases stock, or mails a reminder.
def consume(topic, records):
    def show(message):
        print(f"{text(message.key())}: {text(message.value())}", flush=True)
        return True

    each(topic, show, int(records))


commands = {
    "send": (send, 5), "replace": (replace, 5), "cancel": (cancel, 2), "ask": (ask, 2),
    "order": (order, 3), "paid": (paid, 1), "stock": (stock, 5), "longer": (longer, 3), "labelled": (labelled, 1),
    "coupon": (coupon, 5), "payment": (payment, 5), "retry": (retry, 5), "consume": (consume, 2),
}
command, count = commands.get(sys.argv[1] if len(sys.argv) > 1 else "", (None, 0))
if command is None or len(sys.argv) != 2 + count:
    sys.exit(__doc__)
try:
    answer = command(*sys.argv[2:])
except URLError as error:
    sys.exit(f"the server {SERVER}: {error}")
if answer:
    print(answer)
