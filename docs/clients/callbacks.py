"""A shop whose timers call it back: no Kafka client, and nothing beside what Python brings along.

    callbacks.py serve PORT                            the service that is called
    callbacks.py order ORDER DELAY                     close the order after DELAY if nobody pays
    callbacks.py paid ORDER                            it is paid: what to do with it
    callbacks.py coupon CUSTOMER COUPON ENDS SECONDS   remind the customer SECONDS before ENDS (2030-01-31T08:00:00Z)
    callbacks.py stock RESERVATION DELAY               release what is reserved after DELAY
    callbacks.py payment PAYMENT INTERVAL ROUNDS       ask every INTERVAL until the result is final, ROUNDS times at most
    callbacks.py praise ORDER DELAY                    praise the product after DELAY, if the customer does not
    callbacks.py reviewed ORDER                        the customer did

In the environment: SERVER (http://localhost:8080), any instance; PROJECT (shop) and SERVICE (shop), as `waterclock service put`
was told; WATERCLOCK_API__TOKEN, if the API wants a token; KEY (whsec_...), with which calls are signed; SHOP (shop.db), the shop's own database;
UPSTREAM, a URL that is told the result of a payment.
"""
import base64, hashlib, hmac, json, os, sqlite3, sys, time
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote
from urllib.request import ProxyHandler, Request, build_opener

SERVER = os.environ.get("SERVER", "http://localhost:8080")
PROJECT, SERVICE = os.environ.get("PROJECT", "shop"), os.environ.get("SERVICE", "shop")
TOKEN, KEY = os.environ.get("WATERCLOCK_API__TOKEN"), os.environ.get("KEY")
UPSTREAM = os.environ.get("UPSTREAM")
opener = build_opener(ProxyHandler({}))  # a proxy of the environment is not for these addresses


def shop():
    """The shop's database: which task stands for what, and what was done already."""
    db = sqlite3.connect(os.environ.get("SHOP", "shop.db"), timeout=30)
    db.execute("create table if not exists tasks (about text primary key, id text)")
    db.execute("create table if not exists done (call text primary key)")
    return db


def ask(method, path, body=None, within_s=30):
    """Asks waterclock. While it is starting or busy (503), again: the same request is the same task."""
    until = time.monotonic() + within_s
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {TOKEN}"} if TOKEN else {})}
    while True:
        request = Request(SERVER + path, body and json.dumps(body).encode(), headers, method=method)
        try:
            with opener.open(request, timeout=within_s) as answer:
                return json.load(answer)
        except HTTPError as error:
            problem = json.load(error)
            if error.code not in (429, 503) or time.monotonic() > until:
                sys.exit(f"{SERVER}: {problem['detail']} {problem.get('errors', '')}")
            time.sleep(1)


def create(group, about, path, **rest):
    """One task for one thing, however often this is called: the request id says which."""
    task = {"project": PROJECT, "group": group, "service": SERVICE, "path": path, "request_id": f"{group} {about}",
            "retry": {"count": 5, "interval": 1, "backoff": "exponential"}, **rest}
    told = ask("POST", "/v1/tasks/http", task)
    with shop() as db:
        db.execute("insert or replace into tasks values (?, ?)", (f"{group} {about}", told["task_id"]))


def cancel(group, about):
    """What became of it: cancelled, stopped, finished, failed, expired."""
    found = shop().execute("select id from tasks where about = ?", (f"{group} {about}",)).fetchone()
    if found is None:
        sys.exit(f"{about}: nothing waits for it")
    outcome = "pending"
    while outcome == "pending":
        outcome = ask("DELETE", f"/v1/tasks/{found[0]}?wait=20s")["outcome"]
    return outcome


# Close an unpaid order.
def order(order, delay):
    create("orders", order, f"/orders/{quote(order)}/close", delay=delay)

def paid(order):
    outcome = cancel("orders", order)
    if outcome == "cancelled":  # no call ever began: it will never be closed
        return f"{order}: ship it"
    if outcome == "finished":  # it was closed a moment ago
        return f"{order}: give the money back"
    # stopped, failed, expired: calls may have been made, and none follows.
    return f"{order}: {outcome}, look whether it was closed"


# Remind before a coupon ends. After its end nobody is reminded.
def coupon(customer, coupon, ends, seconds):
    end = datetime.fromisoformat(ends.replace("Z", "+00:00"))
    millis = lambda at: int(at.timestamp() * 1000)
    create("coupons", coupon, f"/customers/{quote(customer)}/remind", trigger_at=millis(end - timedelta(seconds=int(seconds))),
           expires_at=millis(end), body=json.dumps({"coupon": coupon}), headers={"content-type": "application/json"})


# Release stock that was not collected.
def stock(reservation, delay):
    create("stock", reservation, f"/reservations/{quote(reservation)}/release", delay=delay)


# Ask for the result of a payment at equal intervals.
def payment(payment, interval, rounds):
    create("payments", payment, f"/payments/{quote(payment)}/check", delay=interval,
           poll={"interval": interval, "rounds": int(rounds)})


# Praise a product if the customer has not.
def praise(order, delay):
    create("praise", order, f"/orders/{quote(order)}/praise", delay=delay)

def reviewed(order):
    return f"{order}: {'thank you' if cancel('praise', order) == 'cancelled' else 'thank you, and we had praised it already'}"


def is_from_waterclock(headers, body):
    sent = headers.get("webhook-timestamp", "")
    if not sent.isdigit() or "webhook-id" not in headers or "webhook-signature" not in headers:
        return False
    if abs(time.time() - int(sent)) > 300:
        return False
    signed = f"{headers['webhook-id']}.{sent}.".encode() + body
    secret = base64.b64decode(KEY.removeprefix("whsec_"))
    want = b"v1," + base64.b64encode(hmac.digest(secret, signed, hashlib.sha256))
    return any(hmac.compare_digest(want, one.encode()) for one in headers["webhook-signature"].split(" "))


asked = {}


def result(payment):
    """Stands for the payment service: the result is final the third time."""
    asked[payment] = asked.get(payment, 0) + 1
    return "paid" if asked[payment] >= 3 else None


class Shop(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if KEY and not is_from_waterclock(self.headers, body):
            return self.answer(401)
        what, name, action = [unquote(part) for part in self.path.strip("/").split("/")]
        db = shop()
        with db:  # what is done, and that it is done, in one transaction: the same call again does nothing
            call = self.headers["webhook-id"]
            if db.execute("insert or ignore into done values (?)", (call,)).rowcount == 0:
                return self.answer(200)
            if (what, action) == ("payments", "check"):
                found = result(name)
                if found is None:
                    db.rollback()  # nothing is done
                    return self.answer(202)  # not yet: ask again after the same interval
                if UPSTREAM:
                    told = json.dumps({"payment": name, "result": found}).encode()
                    opener.open(Request(UPSTREAM, told, {"Idempotency-Key": call}, method="POST"), timeout=5).close()
                print(f"{name}: {found}, asked {asked[name]} times", flush=True)
            else:
                about = json.loads(body)["coupon"] if body else ""
                print(f"{name}: {action} {about}".strip(), flush=True)
        self.answer(200)

    def answer(self, status):
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def serve(port):
    ThreadingHTTPServer(("127.0.0.1", int(port)), Shop).serve_forever()


commands = {
    "serve": (serve, 1), "order": (order, 2), "paid": (paid, 1), "coupon": (coupon, 4), "stock": (stock, 2),
    "payment": (payment, 3), "praise": (praise, 2), "reviewed": (reviewed, 1),
}
command, count = commands.get(sys.argv[1] if len(sys.argv) > 1 else "", (None, 0))
if command is None or len(sys.argv) != 2 + count:
    sys.exit(__doc__)
try:
    answer = command(*sys.argv[2:])
except URLError as error:
    sys.exit(f"the server {SERVER}: {error}")
except KeyboardInterrupt:
    answer = None
if answer:
    print(answer)
