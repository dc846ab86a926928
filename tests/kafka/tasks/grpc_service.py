"""A gRPC service that is not ours: shop.stock.v1.Stock, by Python's grpcio. It misbehaves as each request asks for.

    python3 grpc_service.py [--cert FILE --key FILE] [--no-reflection] [--secret whsec_...] [--waterclock ADDRESS]

It needs grpcio and grpcio-reflection, and the code that protoc makes of stock.proto and of waterclock/v1/tasks.proto. It chooses a port
on 127.0.0.1. Each line that it prints is an object of JSON: the port, and then what it sees, with the time in epoch milliseconds.
"""

import argparse
import base64
import hashlib
import hmac
import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import grpc
import stock_pb2 as stock
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict
from grpc_reflection.v1alpha import reflection
from waterclock.v1 import tasks_pb2 as wc
from waterclock.v1.tasks_pb2_grpc import TasksStub

SERVICE = "shop.stock.v1.Stock"
# What RetryInfo asks for, in seconds.
AGAIN = 2
# What an answer may not have.
TOO_LARGE = 64 << 10
printing = threading.Lock()


def say(**what):
    line = json.dumps({"at": time.time_ns() // 1_000_000, **what})
    with printing:
        print(line, flush=True)


def is_signed(key, headers, body):
    """As docs/callbacks.md tells a receiver; the body is the message."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    secret = base64.b64decode(key.removeprefix("whsec_"))
    want = b"v1," + base64.b64encode(hmac.digest(secret, signed, hashlib.sha256))
    return want.decode() in headers.get("webhook-signature", "").split(" ")


def retry_info(code, text):
    """A google.rpc.Status with a google.rpc.RetryInfo, as they are on the wire: their code would be one more package."""

    def part(number, value):
        assert len(value) < 128
        return bytes([number << 3 | 2, len(value)]) + value

    info = part(1, Duration(seconds=AGAIN).SerializeToString())
    detail = Any(type_url="type.googleapis.com/google.rpc.RetryInfo", value=info)
    return bytes([1 << 3, code]) + part(2, text.encode()) + part(3, detail.SerializeToString())


class Stock:
    def __init__(self, arguments):
        self.secret = arguments.secret
        self.calls = Counter()
        self.tasks = None
        if arguments.waterclock:
            channel = grpc.insecure_channel(arguments.waterclock, options=[("grpc.enable_http_proxy", 0)])
            self.tasks = TasksStub(channel)

    def release(self, message, context):
        headers = {name: text(value) for name, value in context.invocation_metadata()}
        order = stock.Order.FromString(message)
        task = headers.get("webhook-id", "")
        # All rounds of a task that polls count.
        nth_of = task.split(".r")[0]
        self.calls[nth_of] += 1
        say(
            call="Release",
            metadata=headers,
            order=MessageToDict(order),
            message=base64.b64encode(message).decode(),
            left=context.time_remaining(),
            peer=context.peer(),
            signed=is_signed(self.secret, headers, message) if self.secret else None,
        )
        released = stock.Released(order_id=order.order_id, reason=order.reason, pieces=sum(line.count for line in order.lines))
        if order.times and self.calls[nth_of] > order.times:
            return released
        match order.then:
            case "":
                pass
            case "hang":
                while context.is_active():
                    time.sleep(0.01)
                say(left_alone=task)
            case "retry info":
                code, _ = grpc.StatusCode.UNAVAILABLE.value
                context.set_trailing_metadata([("grpc-status-details-bin", retry_info(code, "later"))])
                context.abort(grpc.StatusCode.UNAVAILABLE, "later")
            case "large":
                released.note = "x" * TOO_LARGE
            case "compress":
                released.note = "x" * 1_000
                context.set_compression(grpc.Compression.Gzip)
            case "take":
                threading.Thread(target=self.work, args=[headers], daemon=True).start()
            case name:
                # With a letter and a sign that gRPC has to escape.
                context.abort(grpc.StatusCode[name], f"as asked: größer than 100%, {order.order_id}")
        return released

    def work(self, headers):
        """Works on a task that was taken: the first turn comes to row 7 and fails, and the next one finishes."""
        time.sleep(1)
        turn = {"task_id": headers["webhook-id"], "ticket": headers["waterclock-ticket"]}
        say(works=turn["task_id"])
        if headers["waterclock-attempt"] == "1":
            self.report(self.tasks.Heartbeat, wc.HeartbeatRequest(**turn, worker="stock", cursor="rów:7", percent=40))
            failed = wc.REPORTED_OUTCOME_FAILED
            self.report(self.tasks.ReportResult, wc.ReportResultRequest(**turn, worker="stock", outcome=failed, error="no stock"))
        else:
            finished = wc.REPORTED_OUTCOME_FINISHED
            self.report(self.tasks.ReportResult, wc.ReportResultRequest(**turn, worker="stock", outcome=finished))

    def report(self, method, request):
        """Reports, and again while the instance asks for that."""
        until = time.monotonic() + 30
        while True:
            try:
                told = method(request, timeout=20)
                break
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE or time.monotonic() > until:
                    say(refused=request.task_id, code=error.code().name, text=error.details())
                    return
                time.sleep(0.5)
        say(reported=request.task_id, told=MessageToDict(told))


def text(value):
    return value.decode() if isinstance(value, bytes) else value


class Listener(grpc.ServerInterceptor):
    """Says which methods are asked for, also those that are not there."""

    def intercept_service(self, continuation, details):
        say(asked=details.method, metadata={name: text(value) for name, value in details.invocation_metadata})
        return continuation(details)


def main():
    parser = argparse.ArgumentParser()
    for name in ["--cert", "--key", "--secret", "--waterclock"]:
        parser.add_argument(name)
    parser.add_argument("--no-reflection", action="store_true")
    arguments = parser.parse_args()
    server = grpc.server(ThreadPoolExecutor(32), interceptors=[Listener()])
    # The message as it came: that is what is signed.
    release = grpc.unary_unary_rpc_method_handler(Stock(arguments).release, None, stock.Released.SerializeToString)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {"Release": release})])
    if not arguments.no_reflection:
        reflection.enable_server_reflection([SERVICE, reflection.SERVICE_NAME], server)
    if arguments.cert:
        with open(arguments.key, "rb") as key, open(arguments.cert, "rb") as certificate:
            credentials = grpc.ssl_server_credentials([(key.read(), certificate.read())])
        port = server.add_secure_port("127.0.0.1:0", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    say(port=port)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
