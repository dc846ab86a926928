"""Creates a task over gRPC, waits for its end, and cancels another one.

    pip install grpcio grpcio-tools
    python3 -m grpc_tools.protoc -I proto --python_out=. --grpc_python_out=. proto/waterclock/v1/tasks.proto
    export PYTHONPATH=.
    python3 tasks_grpc.py 127.0.0.1:8080 https://shop.example/expire

The token of the API, if there is one, stands in WATERCLOCK_API__TOKEN.
"""

import os
import sys
import time
import uuid

import grpc
from google.protobuf.duration_pb2 import Duration
from waterclock.v1 import tasks_pb2 as wc
from waterclock.v1.tasks_pb2_grpc import TasksStub

TOKEN = os.environ.get("WATERCLOCK_API__TOKEN")
METADATA = [("authorization", f"Bearer {TOKEN}")] if TOKEN else []
ENDED = (wc.TASK_STATUS_FINISHED, wc.TASK_STATUS_FAILED, wc.TASK_STATUS_CANCELLED, wc.TASK_STATUS_EXPIRED)


def patient(call, request):
    """Calls, and calls again while the instance asks to come back. Only for what may be sent twice."""
    until = time.monotonic() + 30
    while True:
        try:
            return call(request, metadata=METADATA, timeout=20)
        except grpc.RpcError as error:
            passes = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
            if not passes or time.monotonic() > until:
                raise
            time.sleep(1)


def request(url, delay):
    """A task that calls this URL after so many seconds. With its request id it may be sent twice, and is one task."""
    return wc.CreateHttpTaskRequest(
        project="shop",
        group="orders",
        request_id=str(uuid.uuid4()),
        url=url,
        body=b"{}",
        headers=[wc.Header(name="content-type", value="application/json")],
        retry=wc.RetryInfo(count=3, interval=5),
        options=wc.Options(delay=Duration(seconds=delay)),
    )


def main(address, url):
    with grpc.insecure_channel(address) as channel:
        tasks = TasksStub(channel)
        soon, later = request(url, 2), request(url, 3600)
        first = patient(tasks.CreateHttpTask, soon)
        again = patient(tasks.CreateHttpTask, soon)
        print("the same task" if first.task_id == again.task_id else "two tasks")
        while True:
            task = patient(tasks.GetTask, wc.GetTaskRequest(task_id=first.task_id))
            if task.task_status in ENDED:
                break
            time.sleep(0.2)
        print(wc.TaskStatus.Name(task.task_status), task.attempts_total)
        other = patient(tasks.CreateHttpTask, later)
        cancel = wc.CancelTaskRequest(task_id=other.task_id)
        print(wc.CancelOutcome.Name(patient(tasks.CancelTask, cancel).outcome))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
