"""Has the result of a payment asked for at equal intervals until it is final: by a gRPC task that polls. waterclock asks; this looks on.

Needs what tasks_grpc.py needs, which stands beside it. The instance has to be allowed to call this machine.

    WATERCLOCK_CALLBACKS__NETWORKS=127.0.0.0/8 waterclock run --http 127.0.0.1:8080 &
    python3 payment_grpc.py 127.0.0.1:8080 127.0.0.1:9100 payment-17

The payment service is part of the program, and listens at the second address. Yours is somewhere else.
"""

import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.wrappers_pb2 import StringValue
from tasks_grpc import ENDED, patient
from waterclock.v1 import tasks_pb2 as wc
from waterclock.v1.tasks_pb2_grpc import TasksStub


def serve(address):
    """The payment service: service Payments { rpc GetResult(google.protobuf.StringValue) returns (google.protobuf.StringValue); }"""
    asked = Counter()

    def get_result(payment, context):
        asked[payment.value] += 1
        if asked[payment.value] < 3:
            print(payment.value, "is not final", flush=True)
            # The next round follows. UNAVAILABLE with google.rpc.RetryInfo says the same; any other status is a failure.
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not final")
        print(payment.value, "is final", flush=True)
        return StringValue(value="paid")

    method = grpc.unary_unary_rpc_method_handler(get_result, StringValue.FromString, StringValue.SerializeToString)
    server = grpc.server(ThreadPoolExecutor())
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("pay.v1.Payments", {"GetResult": method})])
    server.add_insecure_port(address)
    server.start()
    return server


def poll(host, payment):
    return wc.CreateGrpcTaskRequest(
        project="shop",
        group="payments",
        request_id=payment,  # one payment, one task: the program may be started again
        host=host,
        service="pay.v1.Payments",
        method="GetResult",
        body=StringValue(value=payment).SerializeToString(),
        retry=wc.RetryInfo(count=3, interval=5),  # for failures, which are no rounds
        options=wc.Options(
            delay=Duration(seconds=1),
            poll=wc.Poll(interval=Duration(seconds=1), rounds=360),
        ),
    )


def main(address, host, payment):
    server = serve(host)
    with grpc.insecure_channel(address) as channel:
        tasks = TasksStub(channel)
        created = patient(tasks.CreateGrpcTask, poll(host, payment))
        while True:
            task = patient(tasks.GetTask, wc.GetTaskRequest(task_id=created.task_id))
            if task.task_status in ENDED:
                break
            time.sleep(0.2)
        print(wc.TaskStatus.Name(task.task_status), "after", task.rounds, "rounds:", StringValue.FromString(task.last.response).value)
    server.stop(None)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
